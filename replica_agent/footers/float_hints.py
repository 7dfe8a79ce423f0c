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

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelock.float_mark import FLOATS_MARK
from tidelock.replica_agent.footers.thrift import INTEGER, LIST, STRUCT, Reader, read_footer

#: The physical types FLOAT and DOUBLE.
_FLOATS: Final = frozenset({4, 5})
#: The encodings PLAIN_DICTIONARY and RLE_DICTIONARY, as one byte. Readers of the former conclude that a chunk
#: has no other pages; of the latter they do not.
_PLAIN_DICTIONARY, _RLE_DICTIONARY = 4, 16
#: The first word of `created_by` in files of Spark, whose ranges are right.
_SPARKS_WRITER: Final = b"parquet-mr"
#: The header of a field, with the largest step from the number of the field before.
_FAR: Final = 0xF0

#: Position in the footer, and the byte to be there.
Change = tuple[int, int]


def changes(footer: bytes) -> tuple[Change, ...]:
    """Return the bytes to change, in order; none for a file whose writer has marked its hints as right.

    The mark is looked for where it belongs: a range may hold the same bytes.

    Raises:
        ValueError: The footer cannot be read.
    """
    found = _Found()
    read_footer(footer, {4: found.row_groups, 5: found.key_values, 6: found.created_by})
    if found.marked:
        return ()
    if found.by_spark:
        return tuple(found.dictionaries)
    return tuple(sorted({*found.ranges, *found.dictionaries}))


def is_marked(footer: bytes) -> bool:
    """Return whether the writer of a file has marked its hints as right; ValueError as :func:`changes`."""
    found = _Found()
    read_footer(footer, {5: found.key_values})
    return found.marked


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

    def created_by(self, reader: Reader, _at: int) -> None:
        """Read the name of the writer."""
        self.by_spark = reader.binary().startswith(_SPARKS_WRITER)

    def key_values(self, reader: Reader, _at: int) -> None:
        """Read the keys that the writer has added."""
        reader.structs({1: self._key})

    def _key(self, reader: Reader, _at: int) -> None:
        self.marked |= reader.binary() == FLOATS_MARK

    def row_groups(self, reader: Reader, _at: int) -> None:
        """Read all row groups."""
        reader.structs({1: lambda inner, _: _structs_by(inner, self._chunk)})

    def _chunk(self, reader: Reader) -> None:
        """Read one column chunk."""
        column = _Column()
        index: list[int] = []

        def at_index(inner: Reader, at: int) -> None:
            index.append(at)
            inner.number()

        reader.struct({3: column.read, 6: at_index})
        if not column.is_float:
            return
        self.ranges += [_far(reader, at) for at in (*column.statistics, *index)]
        self.dictionaries += [_far(reader, at) for at in column.dictionary]
        self.dictionaries += [(at, _RLE_DICTIONARY) for at in column.encodings]


def _structs_by(reader: Reader, read: Callable[[Reader], None]) -> None:
    count, _ = reader.elements()
    for _ in range(count):
        read(reader)


def _far(reader: Reader, at: int) -> Change:
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

    def read(self, reader: Reader, _at: int) -> None:
        """Read the metadata."""
        reader.struct(
            {1: self._type, 2: self._encodings, 12: self._statistics, 13: self._hint, 14: self._hint}
        )

    def _type(self, reader: Reader, _at: int) -> None:
        self.is_float = reader.number() >> 1 in _FLOATS

    def _encodings(self, reader: Reader, _at: int) -> None:
        count, _ = reader.elements()
        for _ in range(count):
            at = reader.at
            if reader.number() == _PLAIN_DICTIONARY:
                self.encodings.append(at)

    def _statistics(self, reader: Reader, at: int) -> None:
        self.statistics.append(at)
        reader.skip(STRUCT)

    def _hint(self, reader: Reader, at: int) -> None:
        if not self.dictionary:
            self.dictionary.append(at)
        reader.skip(LIST if reader.data[at] & 0x0F == LIST else INTEGER)
