"""Division of a read among tasks: pieces of parts, in groups of about equal size. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidelock.errors import CorruptError
from tidelock.wire.rows import Fields


@dataclass(frozen=True, slots=True)
class Piece:
    """The row groups of one part whose middle lies in a range of its bytes.

    Attributes:
        part: Id of the part.
        file: Its path below `/snapshots/<csn>/`.
        partition: Path of its partition, `""` for none.
        rows: Number of rows of the whole part.
        length: Length of the file, in bytes.
        start: First byte of the range.
        end: End of the range, exclusive.
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
        """Whether the piece is a whole part."""
        return self.start == 0 and self.end == self.length

    def holds(self, start: int, length: int) -> bool:
        """Return whether a row group with these bytes belongs to this piece; exactly one piece has it."""
        return self.start <= start + length // 2 < self.end


def pieces(parts: Iterable[Fields], size: int | None) -> Iterator[Piece]:
    """Cut parts into pieces.

    Args:
        parts: Parts as `GET /parts` lists them.
        size: Approximate size of a piece, in bytes; None = each part is one piece.
    """
    for part in parts:
        length = int(part["file_length"])
        count = 1 if size is None else max(1, round(length / size))
        edges = [length * number // count for number in range(count + 1)]
        for start, end in itertools.pairwise(edges):
            yield Piece(part["part"], part["file"], part["path"], part["rows"], length, start, end)


def groups(ungrouped: Iterable[Piece], size: int) -> list[tuple[Piece, ...]]:
    """Combine pieces into groups of about `size` bytes, in an order that depends on the pieces alone.

    The largest pieces come first, so that the last tasks to end are small.
    """
    complete: list[tuple[Piece, ...]] = []
    group: list[Piece] = []
    filled = 0
    for piece in sorted(ungrouped, key=lambda piece: (piece.start - piece.end, piece.file, piece.start)):
        width = piece.end - piece.start
        if group and filled + width > size:
            complete.append(tuple(group))
            group, filled = [], 0
        group.append(piece)
        filled += width
    if group:
        complete.append(tuple(group))
    return complete


def require_rows(piece: Piece, read_rows: int) -> None:
    """Raise CorruptError unless a part's file has as many rows as the catalog says."""
    if read_rows != piece.rows:
        raise CorruptError(
            f"part {piece.part} has {read_rows} rows, but the catalog says {piece.rows}", part=piece.part
        )
