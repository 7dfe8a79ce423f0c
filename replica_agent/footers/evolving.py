"""The end of a file as a later schema shows its columns: other pages, another footer, the same data. Pure.

    the data, as they are | pages of columns that the file lacks | zeros | footer | its length | "PAR1"

A column that was renamed has its new name; one that was dropped is not in the footer. One that was added
later has pages with the one value that all its rows have, or with nulls. What a footer cannot say is another
physical type: such a column keeps the one that its pages have.

The columns of the file keep their order, and those that it lacks follow. Spark gives a row group to the task
that reads its middle, which is computed from the place of the first column and the lengths of all: so the
middle stays inside of the file.

The fields of `parquet.thrift` that matter: FileMetaData 2 schema, 4 row_groups, 5 key_value_metadata, 7
column_orders; SchemaElement 1 type, 2 type_length, 3 repetition_type, 4 name, 5 num_children; RowGroup 1
columns, 3 num_rows, 4 sorting_columns, 6 total_compressed_size; ColumnChunk 2 file_offset, 3 meta_data;
ColumnMetaData 1 type to 7 total_compressed_size, 9 data_page_offset, 11 dictionary_page_offset, 12 statistics
(3 null_count); PageHeader 1 type, 2 and 3 sizes, 5 data_page_header, 7 dictionary_page_header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tidelock.float_mark import FLOATS_MARK
from tidelock.replica_agent.footers.thrift import (
    BINARY,
    INTEGER,
    LIST,
    MAGIC,
    STRUCT,
    Field,
    Reader,
    count_bytes,
    elements_of,
    fields_of,
    list_of,
    number_bytes,
    struct_of,
    text_bytes,
)

#: Fields of FileMetaData, of SchemaElement, of RowGroup, of ColumnChunk, and of ColumnMetaData.
_SCHEMA, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS = 2, 4, 5, 7
_TYPE, _TYPE_LENGTH, _REPETITION, _NAME, _CHILDREN = range(1, 6)
_COLUMNS, _ROWS, _SORTING, _GROUP_BYTES = 1, 3, 4, 6
_PLACE, _METADATA = 2, 3
_PATH, _PAGES_BYTES = 3, 7
#: The type of 32-bit numbers in the compact protocol; the bytes of all numbers are the same.
_I32: Final = 5
#: Keys whose values describe the columns, or the rows of the file as it was written.
_ABOUT_COLUMNS: Final = frozenset(
    {b"ARROW:schema", b"pandas", b"org.apache.spark.sql.parquet.row.metadata", b"parquet.avro.schema"}
)
_REQUIRED, _OPTIONAL, _REPEATED = range(3)
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
#: The physical types BOOLEAN, FLOAT, and DOUBLE.
_BOOLEAN, _FLOAT, _DOUBLE = 0, 4, 5
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
#: Fewest bytes of a column chunk: a page of one value, and its place in the footer.
CHUNK_BYTES_MIN: Final = 40
#: Most bytes of a chunk of a column that the file lacks, without its path and its value.
MADE_CHUNK_BYTES_MAX: Final = 240
#: Most bytes of an element of a schema, without its name.
ELEMENT_BYTES_MAX: Final = 64


class ShownColumn(msgspec.Struct, frozen=True):
    """A column as it is shown.

    Attributes:
        name: Its name.
        stored: Its name in the file; None: the file lacks it.
        stored_type: The type that it had, if it was widened since: it gets the type of the table as far as
            its pages allow that.
        value: The value that all rows have of a column that the file lacks, as Parquet stores one value by
            itself (PLAIN); None: all are null.
    """

    name: str
    stored: str | None
    stored_type: str | None = None
    value: bytes | None = None


class _Leaf(msgspec.Struct, frozen=True):
    """A column without children: its type, its path, and the highest of its levels."""

    kind: int
    path: tuple[str, ...]
    definitions: int
    repetitions: int


class _Top(msgspec.Struct, frozen=True):
    """A column of a schema: its elements, its leaves, and which of all leaves is the first of them."""

    elements: tuple[bytes, ...]
    leaves: tuple[_Leaf, ...]
    first: int


def evolve(
    footer: bytes, template: bytes, columns: Sequence[ShownColumn], *, pages_at: int
) -> tuple[bytes, bytes]:
    """Return the pages that follow the data, and the end of the file: its footer, the length of it, the mark.

    Args:
        footer: The footer of the file, without its last eight bytes.
        template: That of a file with the columns of the table, as Arrow writes it.
        columns: The columns to show; the template may have others, too.
        pages_at: Where the pages are to be.

    Raises:
        ValueError: The footer cannot be read, or lacks a column that it is to have.
    """
    try:
        return _evolved(footer, template, columns, pages_at)
    except (LookupError, UnicodeDecodeError) as error:
        raise ValueError(f"the footer lacks a field that each file has ({error!r})") from None


def _evolved(
    footer: bytes, template: bytes, columns: Sequence[ShownColumn], pages_at: int
) -> tuple[bytes, bytes]:
    found, made = _fields(footer), _fields(template)
    root, stored = _schema(found[_SCHEMA].value)
    _, wanted = _schema(made[_SCHEMA].value)
    shown = _Shown(stored, wanted, columns, pages_at)
    elements = [element for top in shown.tops for element in top.elements]
    root = _with(root, _CHILDREN, count_bytes(len(shown.tops)))
    found[_SCHEMA] = Field(_SCHEMA, LIST, list_of([root, *elements]))
    groups = [shown.row_group(group) for group in elements_of(found[_ROW_GROUPS].value)]
    found[_ROW_GROUPS] = Field(_ROW_GROUPS, LIST, list_of(groups))
    if _KEY_VALUES in found:
        dropped = _ABOUT_COLUMNS | ({FLOATS_MARK} if shown.has_zeros else frozenset())
        kept = [pair for pair in elements_of(found[_KEY_VALUES].value) if _key(pair) not in dropped]
        found[_KEY_VALUES] = Field(_KEY_VALUES, LIST, list_of(kept))
    if _COLUMN_ORDERS in found:
        orders, others = (elements_of(one[_COLUMN_ORDERS].value) for one in (found, made))
        found[_COLUMN_ORDERS] = Field(_COLUMN_ORDERS, LIST, list_of(shown.leaves_of(orders, others)))
    body = _struct(found)
    return bytes(shown.pages), body + len(body).to_bytes(4, "little") + MAGIC


class _Shown:
    """The columns to show, and the pages that are made for them."""

    def __init__(
        self,
        stored: Mapping[str, _Top],
        wanted: Mapping[str, _Top],
        columns: Sequence[ShownColumn],
        pages_at: int,
    ) -> None:
        by_name = {column.stored: column for column in columns if column.stored is not None}
        if missing := by_name.keys() - stored.keys():
            raise ValueError(f"the file has no column {min(missing)}")
        self._kept = [(stored[name], by_name[name]) for name in stored if name in by_name]
        made = [(wanted[one.name], one) for one in columns if one.stored is None]
        self._made = [(_nullable(top) if one.value is None else top, one) for top, one in made]
        kept = [_kept(top, wanted[column.name], column) for top, column in self._kept]
        self.tops = [*kept, *(top for top, _ in self._made)]
        if not self.tops:
            raise ValueError("no column is to be shown")
        self._pages_at = pages_at
        self.pages = bytearray()
        #: The places of the pages, by column and number of rows.
        self._places: dict[tuple[tuple[str, ...], int], tuple[int, int, int]] = {}

    @property
    def has_zeros(self) -> bool:
        """Whether the pages of a float that are made have a dictionary with a zero, of either sign.

        A file with the mark has none, by the rule of `part_layout.FloatColumns`.
        """
        return any(
            leaf.kind in (_FLOAT, _DOUBLE) and column.value is not None and _is_zero(column.value)
            for top, column in self._made
            for leaf in top.leaves
        )

    def leaves_of(self, stored: Sequence[bytes], wanted: Sequence[bytes]) -> list[bytes]:
        """Return of lists with one element for each leaf those of the columns that are shown."""
        found: list[bytes] = []
        for tops, elements in ((self._kept, stored), (self._made, wanted)):
            for top, _ in tops:
                found += elements[top.first : top.first + len(top.leaves)]
        return found

    def row_group(self, data: bytes) -> bytes:
        """Return a row group with the chunks of the columns that are shown."""
        found = _fields(data)
        chunks = elements_of(found[_COLUMNS].value)
        rows = Reader(found[_ROWS].value).count()
        shown: list[bytes] = []
        for top, column in self._kept:
            own = chunks[top.first : top.first + len(top.leaves)]
            shown += own if column.name == column.stored else (_renamed(one, column.name) for one in own)
        for top, column in self._made:
            shown += (self._chunk(leaf, column.value, rows) for leaf in top.leaves)
        found[_COLUMNS] = Field(_COLUMNS, LIST, list_of(shown))
        found.pop(_SORTING, None)  # it names columns by their places
        if _GROUP_BYTES in found:
            found[_GROUP_BYTES] = Field(_GROUP_BYTES, INTEGER, count_bytes(sum(map(_length, shown))))
        return _struct(found)

    def _chunk(self, leaf: _Leaf, value: bytes | None, rows: int) -> bytes:
        """Return the chunk of a leaf that has one value, or null, in each row."""
        key = (leaf.path, rows)
        if key not in self._places:
            begin = self._pages_at + len(self.pages)
            dictionary = b"" if value is None or leaf.kind == _BOOLEAN else _dictionary_page(value)
            data = _data_page(leaf, rows, value)
            self.pages += dictionary + data
            self._places[key] = (begin, len(dictionary), len(data))
        begin, dictionary_bytes, data_bytes = self._places[key]
        encodings = [_PLAIN, _RLE, _RLE_DICTIONARY] if dictionary_bytes else [_PLAIN, _RLE]
        size = count_bytes(dictionary_bytes + data_bytes)
        metadata = [
            Field(1, _I32, count_bytes(leaf.kind)),
            Field(2, LIST, list_of([count_bytes(one) for one in encodings], _I32)),
            Field(3, LIST, list_of([text_bytes(one) for one in leaf.path], BINARY)),
            Field(4, _I32, count_bytes(0)),
            Field(5, INTEGER, count_bytes(rows)),
            Field(6, INTEGER, size),
            Field(7, INTEGER, size),
            Field(9, INTEGER, count_bytes(begin + dictionary_bytes)),
        ]
        if dictionary_bytes:
            metadata.append(Field(11, INTEGER, count_bytes(begin)))
        elif value is None:
            metadata.append(Field(12, STRUCT, struct_of([Field(3, INTEGER, count_bytes(rows))])))
        place = Field(_PLACE, INTEGER, count_bytes(0))
        return struct_of([place, Field(_METADATA, STRUCT, struct_of(metadata))])


def _kept(stored: _Top, wanted: _Top, column: ShownColumn) -> _Top:
    """Return the elements of a column of the file as they are shown."""
    head, *rest = stored.elements
    if column.stored_type is not None and len(stored.elements) == len(wanted.elements) == 1:
        now, then = _fields(wanted.elements[0]), _fields(head)
        if all(now.get(number) == then.get(number) for number in (_TYPE, _TYPE_LENGTH)):
            head = _struct({**now, _REPETITION: then[_REPETITION]})
    return _Top((_with(head, _NAME, text_bytes(column.name)), *rest), stored.leaves, stored.first)


def _nullable(top: _Top) -> _Top:
    """Return a column that may be null, also if the table requires it: it was away, and is back."""
    head, *rest = top.elements
    if Reader(_fields(head)[_REPETITION].value).count() != _REQUIRED:
        return top
    leaves = (msgspec.structs.replace(leaf, definitions=leaf.definitions + 1) for leaf in top.leaves)
    return _Top((_with(head, _REPETITION, count_bytes(_OPTIONAL)), *rest), tuple(leaves), top.first)


def _schema(data: bytes) -> tuple[bytes, dict[str, _Top]]:
    """Return the root of a schema, and its columns by name."""
    elements = elements_of(data)
    if not elements:
        raise ValueError("the schema is empty")
    found: dict[str, _Top] = {}
    at, first = 1, 0
    while at < len(elements):
        end, leaves = _subtree(elements, at)
        found[leaves[0].path[0]] = _Top(tuple(elements[at:end]), tuple(leaves), first)
        at, first = end, first + len(leaves)
    return elements[0], found


def _subtree(elements: Sequence[bytes], at: int) -> tuple[int, list[_Leaf]]:
    """Return the end of a column that begins at an element, and its leaves."""
    leaves: list[_Leaf] = []
    #: Of the elements above: how many children are to come, path, definitions, repetitions.
    above: list[list[int]] = []
    paths: list[tuple[tuple[str, ...], int, int]] = [((), 0, 0)]
    while True:
        if at >= len(elements):
            raise ValueError("the schema ends early")
        fields = {field.number: Reader(field.value) for field in fields_of(elements[at])}
        at += 1
        repetition = fields[_REPETITION].count() if _REPETITION in fields else _REQUIRED
        path, definitions, repetitions = paths[-1]
        name = fields[_NAME].binary().decode()
        here = (
            (*path, name),
            definitions + (repetition != _REQUIRED),
            repetitions + (repetition == _REPEATED),
        )
        children = fields[_CHILDREN].count() if _CHILDREN in fields else 0
        if children:
            above.append([children])
            paths.append(here)
        else:
            leaves.append(_Leaf(fields[_TYPE].count(), *here))
            while above:
                above[-1][0] -= 1
                if above[-1][0]:
                    break
                above.pop()
                paths.pop()
        if not above:
            return at, leaves


def _with(data: bytes, number: int, value: bytes) -> bytes:
    """Return a struct in which a field that it has got another value."""
    return struct_of(
        Field(field.number, field.kind, value) if field.number == number else field
        for field in fields_of(data)
    )


def _renamed(chunk: bytes, name: str) -> bytes:
    """Return a chunk whose path begins with another name."""
    fields = _fields(chunk)
    metadata = _fields(fields[_METADATA].value)
    _, *rest = elements_of(metadata[_PATH].value, BINARY)
    metadata[_PATH] = Field(_PATH, LIST, list_of([text_bytes(name), *rest], BINARY))
    fields[_METADATA] = Field(_METADATA, STRUCT, _struct(metadata))
    return _struct(fields)


def _length(chunk: bytes) -> int:
    """Return the bytes of the pages of a chunk."""
    return Reader(_fields(_fields(chunk)[_METADATA].value)[_PAGES_BYTES].value).count()


def _is_zero(value: bytes) -> bool:
    """Return whether a float is zero: no bit is set but that of the sign, which is the last one."""
    return not any(value[:-1]) and value[-1] in (0, 0x80)


def _key(pair: bytes) -> bytes:
    return Reader(_fields(pair)[1].value).binary()


def _fields(data: bytes) -> dict[int, Field]:
    """Return the fields of a struct by their numbers."""
    return {field.number: field for field in fields_of(data)}


def _struct(fields: Mapping[int, Field]) -> bytes:
    """Return a struct of fields."""
    return struct_of(fields[number] for number in sorted(fields))


def _dictionary_page(value: bytes) -> bytes:
    header = struct_of([Field(1, _I32, count_bytes(1)), Field(2, _I32, count_bytes(_PLAIN))])
    return _page(_DICTIONARY_PAGE, value, Field(7, STRUCT, header))


def _data_page(leaf: _Leaf, rows: int, value: bytes | None) -> bytes:
    """Return a page of nulls, or of the first entry of a dictionary, one for each row.

    Booleans cannot have a dictionary; the run of their values is as short.
    """
    body = b"".join(_levels(leaf, rows, 0 if value is None else leaf.definitions))
    encoding = _PLAIN
    if value is not None and leaf.kind == _BOOLEAN:
        encoding, run = _RLE, _run(rows, value[0])
        body += len(run).to_bytes(4, "little") + run
    elif value is not None:
        encoding = _RLE_DICTIONARY
        body += b"\1" + _run(rows, 0)
    header = [
        Field(1, _I32, count_bytes(rows)),
        Field(2, _I32, count_bytes(encoding)),
        Field(3, _I32, count_bytes(_RLE)),
        Field(4, _I32, count_bytes(_RLE)),
    ]
    return _page(_DATA_PAGE, body, Field(5, STRUCT, struct_of(header)))


def _levels(leaf: _Leaf, rows: int, definition: int) -> Iterator[bytes]:
    for most, level in ((leaf.repetitions, 0), (leaf.definitions, definition)):
        if most:
            run = _run(rows, level)
            yield len(run).to_bytes(4, "little") + run


def _run(rows: int, value: int) -> bytes:
    """Return a number, of at most eight bits, so many times."""
    return number_bytes(rows << 1) + bytes([value])


def _page(kind: int, body: bytes, header: Field) -> bytes:
    size = count_bytes(len(body))
    fields = [Field(1, _I32, count_bytes(kind)), Field(2, _I32, size), Field(3, _I32, size), header]
    return struct_of(fields) + body
