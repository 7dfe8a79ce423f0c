"""Which rows each task of a read takes: pieces of parts, in groups of about one size. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidelock.errors import CorruptError


@dataclass(frozen=True, slots=True)
class Piece:
    """The row groups of one part whose middle lies in a range of its bytes.

    Attributes:
        part: Id of the part.
        file: Its path below `/snapshots/<csn>/`.
        partition: Path of its partition, `""` for none.
        rows: Of the whole part.
        length: Of the whole part, in bytes.
        start: Begin of the range.
        end: End of the range, not in it.
    """

    part: str
    file: str
    partition: str
    rows: int
    length: int
    start: int
    end: int

    @property
    def whole(self) -> bool:
        """Whether it is all of its part."""
        return self.start == 0 and self.end == self.length

    def holds(self, start: int, length: int) -> bool:
        """Tell whether a row group with these bytes belongs to the piece: to exactly one of a part's."""
        return self.start <= start + length // 2 < self.end


def pieces(parts: Iterable[Mapping[str, Any]], size: int | None) -> Iterator[Piece]:
    """Cut parts into pieces of at most about `size` bytes, None: not at all.

    Args:
        parts: As `GET /parts` lists them.
        size: In bytes.
    """
    for part in parts:
        length = int(part["length"])
        count = 1 if size is None else max(1, round(length / size))
        edges = [length * number // count for number in range(count + 1)]
        for start, end in itertools.pairwise(edges):
            yield Piece(part["part"], part["file"], part["path"], part["rows"], length, start, end)


def groups(found: Iterable[Piece], size: int) -> list[tuple[Piece, ...]]:
    """Put pieces together into groups of about `size` bytes, the largest ones first.

    Large ones first, so that the last tasks to end are small; of equal ones in order, so that a repeated
    planning gives the same groups.
    """
    done: list[tuple[Piece, ...]] = []
    now: list[Piece] = []
    filled = 0
    for piece in sorted(found, key=lambda piece: (piece.start - piece.end, piece.file, piece.start)):
        width = piece.end - piece.start
        if now and filled + width > size:
            done.append(tuple(now))
            now, filled = [], 0
        now.append(piece)
        filled += width
    if now:
        done.append(tuple(now))
    return done


def require_rows(piece: Piece, found: int) -> None:
    """Raise CorruptError unless a part's file has as many rows as the catalog says."""
    if found != piece.rows:
        raise CorruptError(
            f"part {piece.part} has {found} rows, and the catalog says {piece.rows}", part=piece.part
        )
