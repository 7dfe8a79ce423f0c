"""One Parquet file out of some row groups of another one: their bytes as they are, a footer for them. Pure.

    mark | data of the row groups | their column indexes | their offset indexes | footer | its length | mark

A page index is copied too; the positions in it are among the data, and move with them. What else may lie
between the data of row groups, such as Bloom filters, is not understood: such a file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tidelock.replica_agent.footers.pieces import Footer, Kind, Number, RowGroup, replaced
from tidelock.replica_agent.footers.thrift import MAGIC, read_footer

#: Bytes that are read at a time.
_PIECE_BYTES: Final = 1 << 20

#: Returns so many bytes of a file from a position.
ReadAt = Callable[[int, int], bytes]


def rows_by_group(footer: bytes) -> tuple[int, ...]:
    """Return the rows of each row group of a file that can be cut.

    Args:
        footer: Its footer, without the last eight bytes of the file.

    Raises:
        ValueError: The footer cannot be read, or tells of places outside of the row groups' data.
    """
    found = Footer.read(footer)
    _extents(found.groups)
    return tuple(group.rows for group in found.groups)


def cut(footer: bytes, kept: Sequence[int], read: ReadAt) -> Iterator[bytes]:
    """Yield the bytes of the file that has only some of the row groups, in their order.

    Args:
        footer: The footer of the file, without its last eight bytes.
        kept: Numbers of the row groups, from 0, ascending.
        read: Reads the file.

    Raises:
        ValueError: As :func:`rows_by_group`, or there is no such row group.
    """
    found = Footer.read(footer)
    extents = _extents(found.groups)
    if not kept or not 0 <= kept[0] <= kept[-1] < len(extents):
        raise ValueError(f"expected some of {len(extents)} row groups, found {list(kept)}")
    yield MAGIC
    at = len(MAGIC)
    moves = {}
    for number in kept:
        begin, end = extents[number]
        moves[number] = _Moved(at - begin)
        for start in range(begin, end, _PIECE_BYTES):
            yield read(start, min(_PIECE_BYTES, end - start))
        at += end - begin
    for number in kept:
        for place, length in (chunk.column_index for chunk in found.groups[number].chunks):
            if place:
                yield read(place, length)
                moves[number].column_indexes[place] = at
                at += length
    for number in kept:
        for place, length in (chunk.offset_index for chunk in found.groups[number].chunks):
            if place:
                index = _moved_index(read(place, length), moves[number].data)
                yield index
                moves[number].offset_indexes[place] = at
                moves[number].lengths.append(len(index))
                at += len(index)
    groups = [found.groups[number].moved(footer, moves[number]) for number in kept]
    yield found.composed(groups, sum(found.groups[number].rows for number in kept))


@dataclass(slots=True)
class _Moved:
    """The numbers of one row group in its new file.

    Attributes:
        data: How far its data have moved.
        column_indexes: The new positions of its column indexes, by those of before.
        offset_indexes: Those of its offset indexes.
        lengths: The new lengths of its offset indexes, in the order of their chunks.
    """

    data: int
    column_indexes: dict[int, int] = field(default_factory=dict)
    offset_indexes: dict[int, int] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    _told: int = 0

    def __call__(self, number: Number) -> int:
        """Return the new value of a number."""
        match number.kind:
            case Kind.DATA:
                return number.moved(self.data)
            case Kind.COLUMN_INDEX:
                return self.column_indexes.get(number.value, 0)
            case Kind.OFFSET_INDEX:
                return self.offset_indexes.get(number.value, 0)
            case Kind.OFFSET_INDEX_LENGTH:
                self._told += 1
                return self.lengths[self._told - 1]


def _extents(groups: Sequence[RowGroup]) -> list[tuple[int, int]]:
    """Return where the data of each row group begin and end.

    Raises:
        ValueError: They overlap, lie outside of the file, or are not all that the row group tells of.
    """
    extents = []
    for group in groups:
        begin = min((chunk.begin for chunk in group.chunks), default=0)
        end = max((chunk.begin + chunk.length for chunk in group.chunks), default=0)
        places = (number.value for number in group.numbers if number.kind is Kind.DATA and number.value)
        if begin < len(MAGIC) or not all(begin <= place <= end for place in places):
            raise ValueError("a row group tells of places outside of its data")
        if any(bool(chunk.offset_index[0]) != bool(chunk.offset_index[1]) for chunk in group.chunks):
            raise ValueError("an offset index has no place, or no length")
        extents.append((begin, end))
    if any(before[1] > after[0] for before, after in pairwise(sorted(extents))):
        raise ValueError("the data of row groups overlap")
    return extents


def _moved_index(index: bytes, by: int) -> bytes:
    """Return an offset index (`parquet.thrift`: 1 page_locations, 1 offset) whose pages have moved."""
    places: list[Number] = []
    read_footer(
        index, {1: lambda reader, _: reader.structs({1: lambda at, _: places.append(Number.read(at))})}
    )
    return replaced(index, 0, len(index), ((place, place.value + by) for place in places))
