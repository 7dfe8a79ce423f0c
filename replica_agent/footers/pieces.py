"""A Parquet footer in pieces: its row groups as bytes, and the numbers in them that tell of places. Pure.

A footer that is composed out of others has the pieces of theirs as they are; only these numbers change.

The fields of `parquet.thrift` that matter: FileMetaData 3 num_rows, 4 row_groups; RowGroup 1 columns, 3
num_rows, 5 file_offset, 7 ordinal; ColumnChunk 1 file_path, 2 file_offset, 3 meta_data, 4
offset_index_offset, 5 offset_index_length, 6 column_index_offset, 7 column_index_length; ColumnMetaData 7
total_compressed_size, 9 data_page_offset, 10 index_page_offset, 11 dictionary_page_offset, 14
bloom_filter_offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from tidelock.replica_agent.footers.thrift import (
    MAGIC,
    STRUCT,
    Read,
    Reader,
    count_bytes,
    list_head,
    read_footer,
)


class Kind(Enum):
    """The meaning of a number."""

    #: A position among the data of a row group; 0 stands for none, since a file begins with its mark.
    DATA = auto()
    COLUMN_INDEX = auto()
    OFFSET_INDEX = auto()
    OFFSET_INDEX_LENGTH = auto()


class Number(msgspec.Struct, frozen=True):
    """A number in a footer: its bytes are those from ``begin`` to ``end``."""

    begin: int
    end: int
    value: int
    kind: Kind = Kind.DATA

    @classmethod
    def read(cls, reader: Reader, kind: Kind = Kind.DATA) -> Number:
        """Read the next value."""
        begin = reader.at
        value = reader.count()
        return cls(begin, reader.at, value, kind)

    def moved(self, by: int) -> int:
        """Return a position that has moved with its data; 0, which is none, stays."""
        return self.value + by if self.value else 0


@dataclass(slots=True)
class Chunk:
    """One column chunk.

    Attributes:
        pages: Where its dictionary, its index and its data begin, as far as it has them.
        length: Bytes of its pages.
        column_index: Position and length of its column index, if it has one.
        offset_index: Position and length of its offset index, if it has one.
    """

    pages: list[int] = field(default_factory=list)
    length: int = 0
    column_index: tuple[int, int] = (0, 0)
    offset_index: tuple[int, int] = (0, 0)

    @property
    def begin(self) -> int:
        """Where its first page begins."""
        return min(self.pages, default=0)


@dataclass(slots=True)
class RowGroup:
    """The bytes of one row group in its footer, and the numbers in them that tell of places, in order."""

    begin: int
    end: int = 0
    rows: int = 0
    numbers: list[Number] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def has_index(self) -> bool:
        """Whether the file has a page index for it."""
        return any(number.kind is not Kind.DATA for number in self.numbers)

    def read(self, reader: Reader) -> None:
        """Read the row group."""
        reader.struct({1: self._columns, 3: self._rows, 5: self._note(Kind.DATA), 7: _refuse})
        self.end = reader.at

    def moved(self, data: bytes, to: Callable[[Number], int]) -> bytes:
        """Return the bytes of the group with other numbers."""
        return replaced(data, self.begin, self.end, ((number, to(number)) for number in self.numbers))

    def _rows(self, reader: Reader, _at: int) -> None:
        self.rows = reader.count()

    def _columns(self, reader: Reader, _at: int) -> None:
        count, _ = reader.elements()
        for _ in range(count):
            self.chunks.append(self._chunk(reader))

    def _chunk(self, reader: Reader) -> Chunk:
        chunk = Chunk()
        told: dict[Kind, int] = {}
        length_of_column_index = 0

        def page(inner: Reader, _at: int) -> None:
            number = Number.read(inner)
            self.numbers.append(number)
            if number.value:
                chunk.pages.append(number.value)

        def length(inner: Reader, _at: int) -> None:
            chunk.length = inner.count()

        def index_length(inner: Reader, _at: int) -> None:
            nonlocal length_of_column_index
            length_of_column_index = inner.count()

        metadata: dict[int, Read] = {7: length, 9: page, 10: page, 11: page, 14: self._note(Kind.DATA)}
        reader.struct(
            {
                1: _refuse,
                2: self._note(Kind.DATA),
                3: lambda inner, _: inner.struct(metadata),
                4: self._note(Kind.OFFSET_INDEX, told),
                5: self._note(Kind.OFFSET_INDEX_LENGTH, told),
                6: self._note(Kind.COLUMN_INDEX, told),
                7: index_length,
            }
        )
        chunk.column_index = told.get(Kind.COLUMN_INDEX, 0), length_of_column_index
        chunk.offset_index = told.get(Kind.OFFSET_INDEX, 0), told.get(Kind.OFFSET_INDEX_LENGTH, 0)
        return chunk

    def _note(self, kind: Kind, told: dict[Kind, int] | None = None) -> Read:
        """Return what reads a number of a kind."""

        def read(reader: Reader, _at: int) -> None:
            number = Number.read(reader, kind)
            self.numbers.append(number)
            if told is not None:
                told[kind] = number.value

        return read


@dataclass(slots=True)
class Footer:
    """One footer in pieces.

    Attributes:
        data: The footer, without the last eight bytes of its file.
        head: The bytes up to the number of rows.
        rows: The number of rows.
        between: The bytes from there to the row groups.
        groups: The row groups.
        tail: The bytes behind the row groups.
    """

    data: bytes
    head: bytes = b""
    rows: int = 0
    between: bytes = b""
    groups: list[RowGroup] = field(default_factory=list)
    tail: bytes = b""
    _rows_end: int = 0

    @classmethod
    def read(cls, data: bytes) -> Footer:
        """Take a footer apart.

        Raises:
            ValueError: It cannot be read, has no row group, or one that tells of its place or another file.
        """
        found = cls(data)
        read_footer(data, {3: found._read_rows, 4: found._read_groups})
        if not found.groups or not found.head:
            raise ValueError("the footer has no row groups")
        return found

    def composed(self, groups: Sequence[bytes], rows: int) -> bytes:
        """Return the end of a file with other row groups: the footer, its length, and the mark of a file."""
        head = (self.head, count_bytes(rows), self.between, list_head(len(groups), STRUCT))
        footer = b"".join((*head, *groups, self.tail))
        return footer + len(footer).to_bytes(4, "little") + MAGIC

    def _read_rows(self, reader: Reader, _at: int) -> None:
        if self.head:
            raise ValueError("the footer tells its rows twice")
        self.head = self.data[: reader.at]
        self.rows = reader.count()
        self._rows_end = reader.at

    def _read_groups(self, reader: Reader, _at: int) -> None:
        if self.groups:
            raise ValueError("the footer has two lists of row groups")
        self.between = self.data[self._rows_end : reader.at]
        count, _ = reader.elements()
        for _ in range(count):
            group = RowGroup(reader.at)
            group.read(reader)
            self.groups.append(group)
        self.tail = self.data[reader.at :]


def replaced(data: bytes, begin: int, end: int, numbers: Iterable[tuple[Number, int]]) -> bytes:
    """Return the bytes of a range with other numbers, which are given in order."""
    pieces: list[bytes] = []
    for old, new in numbers:
        pieces += (data[begin : old.begin], count_bytes(new))
        begin = old.end
    return b"".join((*pieces, data[begin:end]))


def _refuse(_reader: Reader, at: int) -> None:
    """Refuse another file, or an ordinal."""
    raise ValueError(f"a row group tells of its place, or of another file, at byte {at}")
