"""Bytes to change in a Parquet footer so that no reader uses its hints about float and double columns. Pure.

Files of Arrow, and of writers before the rule of `tidelock.part_layout.FloatColumns`, have ranges that leave
NaN out, and dictionaries in which Spark takes the two zeros for different numbers. A reader that trusts them
skips row groups with matching rows. Such a part is served with a footer in which the hints have numbers of
fields that no reader knows. Readers of Thrift skip unknown fields, so the footer stays valid, and its length
and all other bytes stay (docs/adr/0035-old-parts-are-served-without-float-hints.md).

The fields of `parquet.thrift` that matter: FileMetaData 4 row_groups, 5 key_value_metadata, 6 created_by;
KeyValue 1 key; RowGroup 1 columns; ColumnChunk 3 meta_data, 6 column_index_offset; ColumnMetaData 1 type, 2
encodings, 12 statistics, 13 encoding_stats, 14 bloom_filter_offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelock.float_mark import FLOATS_MARK

#: The end of a file: the length of the footer, and "PAR1".
TAIL_BYTES: Final = 8
_MAGIC: Final = b"PAR1"
#: Types of Thrift's compact protocol.
_BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 3, 7, 8, 9, 10, 11, 12
_BOOLEANS, _INTEGERS = (1, 2), (4, 5, 6)
#: The physical types FLOAT and DOUBLE.
_FLOATS: Final = frozenset({4, 5})
#: The encodings PLAIN_DICTIONARY and RLE_DICTIONARY, as one byte. Readers of the former conclude that a chunk
#: has no other pages; of the latter they do not.
_PLAIN_DICTIONARY, _RLE_DICTIONARY = 4, 16
#: The first word of `created_by` in files of Spark, whose ranges are right.
_SPARKS_WRITER: Final = b"parquet-mr"
#: Bytes of the longest number, of 64 bits.
_NUMBER_BYTES: Final = 10
#: Values that may lie one in another; the footer of a valid file needs ten.
_DEPTH_MAX: Final = 64
#: The header of a field, with the largest step from the number of the field before.
_FAR: Final = 0xF0

#: Position in the footer, and the byte to be there.
Change = tuple[int, int]


def footer_length(tail: bytes) -> int | None:
    """Return the length of the footer by the last bytes of a file; None if it is no Parquet file."""
    return int.from_bytes(tail[:4], "little") if len(tail) == TAIL_BYTES and tail[4:] == _MAGIC else None


def changes(footer: bytes) -> tuple[Change, ...]:
    """Return the bytes to change, in order; none for a file whose writer has marked its hints as right.

    The mark is looked for where it belongs: a range may hold the same bytes.

    Raises:
        ValueError: The footer cannot be read.
    """
    try:
        found = _Found()
        _struct(_Reader(footer), {4: found.row_groups, 5: found.key_values, 6: found.created_by})
    except IndexError:
        raise ValueError("the footer ends early") from None
    if found.marked:
        return ()
    if found.by_spark:
        return tuple(found.dictionaries)
    return tuple(sorted({*found.ranges, *found.dictionaries}))


class _Reader:
    """Reads the compact protocol of Thrift, from a file that may be hostile.

    Each element of a collection takes a byte at least, and no step passes the end, so a reader ends after as
    many steps as there are bytes, whatever counts the file gives.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self._depth = 0

    def go(self, size: int) -> None:
        """Pass over bytes.

        Raises:
            IndexError: There are not so many.
        """
        self.at += size
        if self.at > len(self.data):
            raise IndexError(self.at)

    def byte(self) -> int:
        """Return the next byte."""
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Return the next unsigned number of variable length."""
        value = 0
        for place in range(_NUMBER_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:  # noqa: PLR2004 - the protocol's mark of more bytes
                return value
        raise ValueError(f"a number of more than {_NUMBER_BYTES} bytes before byte {self.at}")

    def binary(self) -> bytes:
        """Return the next string."""
        size = self.number()
        self.go(size)
        return self.data[self.at - size : self.at]

    def elements(self) -> tuple[int, int]:
        """Return the number and the type of the elements of a list."""
        head = self.byte()
        count = head >> 4
        return (self.number() if count == 15 else count), head & 0x0F  # noqa: PLR2004 - a longer list

    def skip(self, kind: int) -> None:
        """Pass over a value."""
        if kind in _BOOLEANS:  # the type is the value
            return
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"more than {_DEPTH_MAX} values one in another at byte {self.at}")
        if kind == _BYTE:
            self.go(1)
        elif kind in _INTEGERS:
            self.number()
        elif kind == _DOUBLE:
            self.go(8)
        elif kind == _BINARY:
            self.go(self.number())
        elif kind in {_LIST, _SET}:
            count, inner = self.elements()
            for _ in range(count):
                self._skip_element(inner)
        elif kind == _STRUCT:
            _struct(self, {})
        elif kind == _MAP:
            count = self.number()
            kinds = self.byte() if count else 0
            for _ in range(count):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 0x0F)
        else:
            raise ValueError(f"unknown type {kind} at byte {self.at}")
        self._depth -= 1

    def _skip_element(self, kind: int) -> None:
        """Pass over a value in a collection, where a boolean is a byte."""
        self.skip(_BYTE if kind in _BOOLEANS else kind)


#: Reads the value of a field, whose header is at a position.
_Read = Callable[[_Reader, int], None]


def _fields(reader: _Reader) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a struct: number, type, position of the header. The caller reads the values."""
    number = 0
    while head_byte := reader.byte():
        at = reader.at - 1
        step = head_byte >> 4
        if step:
            number += step
        else:
            zigzag = reader.number()
            number = (zigzag >> 1) ^ -(zigzag & 1)
        yield number, head_byte & 0x0F, at


def _struct(reader: _Reader, reads: dict[int, _Read]) -> None:
    for number, kind, at in _fields(reader):
        if number in reads:
            reads[number](reader, at)
        else:
            reader.skip(kind)


def _structs(reader: _Reader, reads: dict[int, _Read]) -> None:
    count, _ = reader.elements()
    for _ in range(count):
        _struct(reader, reads)


@dataclass(slots=True)
class _Found:
    """The changes that hide the hints of a footer.

    Attributes:
        ranges: Changes that hide the ranges of float columns.
        dictionaries: Changes that hide what their dictionaries tell.
        by_spark: Spark has written the file.
        marked: Its writer says that its hints are right.
    """

    ranges: list[Change] = field(default_factory=list)
    dictionaries: list[Change] = field(default_factory=list)
    by_spark: bool = False
    marked: bool = False

    def created_by(self, reader: _Reader, _at: int) -> None:
        """Read the name of the writer."""
        self.by_spark = reader.binary().startswith(_SPARKS_WRITER)

    def key_values(self, reader: _Reader, _at: int) -> None:
        """Read the keys that the writer has added."""
        _structs(reader, {1: self._key})

    def _key(self, reader: _Reader, _at: int) -> None:
        self.marked |= reader.binary() == FLOATS_MARK

    def row_groups(self, reader: _Reader, _at: int) -> None:
        """Read all row groups."""
        _structs(reader, {1: lambda inner, _: _structs_by(inner, self._chunk)})

    def _chunk(self, reader: _Reader) -> None:
        """Read one column chunk."""
        column = _Column()
        index: list[int] = []

        def at_index(inner: _Reader, at: int) -> None:
            index.append(at)
            inner.number()

        _struct(reader, {3: column.read, 6: at_index})
        if not column.is_float:
            return
        self.ranges += [_far(reader, at) for at in (*column.statistics, *index)]
        self.dictionaries += [_far(reader, at) for at in column.dictionary]
        self.dictionaries += [(at, _RLE_DICTIONARY) for at in column.encodings]


def _structs_by(reader: _Reader, read: Callable[[_Reader], None]) -> None:
    count, _ = reader.elements()
    for _ in range(count):
        read(reader)


def _far(reader: _Reader, at: int) -> Change:
    """Return the change that gives a field, and with it all that follow, a number that no reader knows."""
    head_byte = reader.data[at]
    if not head_byte >> 4:
        raise ValueError(
            f"the header of the field at byte {at} is of the long form, which no writer uses here"
        )
    return at, _FAR | (head_byte & 0x0F)


@dataclass(slots=True)
class _Column:
    """The positions in the metadata of one column chunk.

    Attributes:
        is_float: Its values are floats or doubles.
        encodings: Bytes of the encodings that tell of a dictionary without other pages.
        statistics: The header of its range.
        dictionary: The header of the first field that tells of its dictionary or its Bloom filter.
    """

    is_float: bool = False
    encodings: list[int] = field(default_factory=list)
    statistics: list[int] = field(default_factory=list)
    dictionary: list[int] = field(default_factory=list)

    def read(self, reader: _Reader, _at: int) -> None:
        """Read the metadata."""
        _struct(
            reader, {1: self._type, 2: self._encodings, 12: self._statistics, 13: self._hint, 14: self._hint}
        )

    def _type(self, reader: _Reader, _at: int) -> None:
        self.is_float = reader.number() >> 1 in _FLOATS

    def _encodings(self, reader: _Reader, _at: int) -> None:
        count, _ = reader.elements()
        for _ in range(count):
            at = reader.at
            if reader.number() == _PLAIN_DICTIONARY:
                self.encodings.append(at)

    def _statistics(self, reader: _Reader, at: int) -> None:
        self.statistics.append(at)
        reader.skip(_STRUCT)

    def _hint(self, reader: _Reader, at: int) -> None:
        if not self.dictionary:
            self.dictionary.append(at)
        reader.skip(_LIST if reader.data[at] & 0x0F == _LIST else _INTEGERS[-1])
