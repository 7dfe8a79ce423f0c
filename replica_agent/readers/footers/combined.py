"""One Parquet file out of many small ones: the data of each as it is, and a footer for all. Pure.

The file is a function of the bytes of its parts and of their order, so every replica serves the same one
(docs/adr/0044-small-parts-are-listed-as-one-file.md). Its length depends on their lengths alone: a listing
knows it without reading a part. The bytes between the data and the footer are zeros, which no reader asks
for.

    data of part 1 | data of part 2 | ... | zeros | footer | its length | "PAR1"

A page index has positions among the data, which stay as they are: files with one are refused.

The fields of `parquet.thrift` that matter: FileMetaData 3 num_rows, 4 row_groups; RowGroup 1 columns, 5
file_offset, 7 ordinal; ColumnChunk 1 file_path, 2 file_offset, 3 meta_data, 4 offset_index_offset,
6 column_index_offset; ColumnMetaData 9 data_page_offset, 10 index_page_offset, 11 dictionary_page_offset, 14
bloom_filter_offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelock.replica_agent.readers.footers.float_hints import is_marked
from tidelock.replica_agent.readers.footers.thrift import (
    MAGIC,
    STRUCT,
    TAIL_BYTES,
    Read,
    Reader,
    count_bytes,
    list_head,
    read_footer,
)

#: Most parts in one file, and most column chunks. Each task that reads a piece of a file parses the whole
#: footer, so more of them would cost more than they save.
PARTS_MAX: Final = 64
_CHUNKS_MAX: Final = 1024
#: Room for numbers that take more bytes than before, as a share of the parts' bytes. A column chunk has at
#: most seven positions, which grow by three bytes each in a file of less than 64 MiB, and takes a hundred
#: bytes or more: page header, values, footer.
_ROOM_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class CombinedFooter:
    """The layout of a combined file.

    Attributes:
        starts: Where the data of each part begins, then where that of the last one ends.
        end: The last bytes of the file: its footer, the footer's length, and the mark.
        length: Bytes of the file.
    """

    starts: tuple[int, ...]
    end: bytes
    length: int

    @property
    def kib(self) -> int:
        """The memory that it takes, in KiB."""
        return len(self.end) // 1024 + 1


def parts_max(columns: int) -> int:
    """Return the most parts in a combined file of a table; fewer than two: it has no such files."""
    return min(PARTS_MAX, _CHUNKS_MAX // columns)


def length_of(parts_bytes: int) -> int:
    """Return the length of a combined file whose parts have so many bytes together."""
    return parts_bytes + parts_bytes // _ROOM_SHARE


def combine(parts: Sequence[tuple[int, bytes]]) -> CombinedFooter:
    """Return the layout of the file that these parts make.

    Args:
        parts: Of each its length, and its footer, without the last eight bytes of the file.

    Raises:
        ValueError: A footer cannot be read, or the files differ in more than their row groups.
    """
    sizes = [length - len(footer) - TAIL_BYTES for length, footer in parts]
    starts = (0, *itertools.accumulate(sizes))
    found = [_read(footer) for _, footer in parts]
    first = found[0]
    if not is_marked(parts[0][1]):
        raise ValueError("only parts whose writer has marked their hints about floats as right are combined")
    if any((one.head, one.tail) != (first.head, first.tail) for one in found):
        raise ValueError("the parts differ in their schema, their writer or their marks")
    groups = [
        group.moved(one.data, start)
        for one, start in zip(found, starts, strict=False)
        for group in one.groups
    ]
    rows = count_bytes(sum(one.rows for one in found))
    head = (first.head, rows, first.between, list_head(len(groups), STRUCT))
    footer = b"".join((*head, *groups, first.tail))
    length = length_of(sum(length for length, _ in parts))
    end = footer + len(footer).to_bytes(4, "little") + MAGIC
    if starts[-1] + len(end) > length:
        raise ValueError(f"a footer of {len(footer)} bytes has no room in the file")
    return CombinedFooter(starts, end, length)


@dataclass(frozen=True, slots=True)
class _Position:
    """A position in the file that a row group names: where its number is, and its value."""

    begin: int
    end: int
    value: int


@dataclass(slots=True)
class _Footer:
    """One footer in pieces.

    Attributes:
        head: The bytes up to the number of rows.
        between: Those from there to the row groups.
        tail: Those behind the row groups.
    """

    data: bytes
    head: bytes = b""
    between: bytes = b""
    tail: bytes = b""
    rows: int = 0
    groups: list[_Group] = field(default_factory=list)
    _rows_end: int = 0

    def read_rows(self, reader: Reader, _at: int) -> None:
        """Read the number of rows."""
        if self.head:
            raise ValueError("the footer tells its rows twice")
        self.head = self.data[: reader.at]
        self.rows = reader.count()
        self._rows_end = reader.at

    def read_groups(self, reader: Reader, _at: int) -> None:
        """Read all row groups."""
        if self.groups:
            raise ValueError("the footer has two lists of row groups")
        self.between = self.data[self._rows_end : reader.at]
        count, _ = reader.elements()
        for _ in range(count):
            group = _Group(reader.at)
            reader.struct({1: group.read_columns, 5: group.read_position, 7: _refuse})
            group.end = reader.at
            self.groups.append(group)
        self.tail = self.data[reader.at :]


@dataclass(slots=True)
class _Group:
    """The bytes of one row group, and the positions in them."""

    begin: int
    end: int = 0
    positions: list[_Position] = field(default_factory=list)

    def read_position(self, reader: Reader, _at: int) -> None:
        """Read a position in the file."""
        begin = reader.at
        value = reader.count()
        self.positions.append(_Position(begin, reader.at, value))

    def read_columns(self, reader: Reader, _at: int) -> None:
        """Read the column chunks."""
        position = self.read_position
        metadata: dict[int, Read] = {9: position, 10: position, 11: position, 14: position}
        reader.structs(
            {
                1: _refuse,
                2: position,
                3: lambda inner, _: inner.struct(metadata),
                4: _refuse,
                6: _refuse,
            }
        )

    def moved(self, data: bytes, start: int) -> bytes:
        """Return the group as it is in another file, where its part begins at ``start``.

        A position 0 stands for none: a file begins with its mark.
        """
        pieces: list[bytes] = []
        at = self.begin
        for old in self.positions:
            pieces += (data[at : old.begin], count_bytes(old.value + start if old.value else 0))
            at = old.end
        return b"".join((*pieces, data[at : self.end]))


def _refuse(_reader: Reader, at: int) -> None:
    """Refuse another file, an ordinal, or a page index: the parts of a form have none."""
    raise ValueError(f"a row group tells of its place, of another file or of a page index at byte {at}")


def _read(data: bytes) -> _Footer:
    found = _Footer(data)
    read_footer(data, {3: found.read_rows, 4: found.read_groups})
    if not found.groups or not found.head:
        raise ValueError("the footer has no row groups")
    return found
