"""Changes of columns against a model: what a reader of any version sees of a part of any version."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.column_defaults import scalar_of
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import BadRequestError, TidelockError, TooLargeError
from tidelock.part_layout import NO_FLOATS, mark, parquet_options
from tidelock.replica_agent.footers.evolving import evolve
from tidelock.replica_agent.footers.thrift import TAIL_BYTES, footer_in
from tidelock.replica_agent.tables.column_changes import ColumnChanges, changed
from tidelock.replica_agent.tables.layouts import committed
from tidelock.replica_agent.tables.schema import ColumnLimits, TableSchema
from tidelock.replica_agent.tables.statistics import shown_statistics, statistics_of
from tidelock.table_columns import Column

TABLE = TableId("default.t")
TYPES = ("bigint", "string", "double", "boolean", "decimal(9,2)", "tinyint", "smallint", "int")
NAMES = st.sampled_from("abcdefg") | st.just("a_name_that_is_longer_than_others")
#: Defaults of each type: one that no row has by chance, and the empty or smallest one.
DEFAULTS = {
    "bigint": ("-9223372036854775808", "77"),
    "string": ("", "a default ü"),
    "double": ("-0", "1e+300"),
    "boolean": ("true", "false"),
    "decimal(9,2)": ("-9999999.99", "0.00"),
    "tinyint": ("-128", "127"),
    "smallint": ("-32768", "0"),
    "int": ("2147483647", "-1"),
}
COLUMNS = st.sampled_from(TYPES).flatmap(
    lambda kind: st.builds(Column, NAMES, st.just(kind), default=st.none() | st.sampled_from(DEFAULTS[kind]))
)
CHANGES = st.builds(
    ColumnChanges,
    drop=st.lists(NAMES, max_size=2, unique=True),
    rename=st.dictionaries(NAMES, NAMES, max_size=2),
    add=st.lists(COLUMNS, max_size=2),
    nullable=st.lists(NAMES, max_size=1),
    # Other wider types need other pages, which the statement writes.
    types=st.dictionaries(NAMES, st.sampled_from(["smallint", "int"]), max_size=2),
    order=st.lists(NAMES, max_size=2, unique=True),
)
#: Rows of each row group of a part.
GROUPS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def schema_of(*columns: tuple[str, str], **more: Any) -> TableSchema:
    """Return the schema of a new table."""
    arrow = pa.schema([Column(name, kind).arrow for name, kind in columns])
    return TableSchema.from_request("t", arrow, **more)


def at(schema: TableSchema, csn: int) -> TableSchema:
    """Return a schema as the catalog has it when its definition was committed at a CSN."""
    return TableSchema.from_definition(TABLE, committed(schema.definition(), Csn(csn)))


@dataclass
class Part:
    """A part: its creation CSN, its file, its rows by the ids of their columns."""

    csn: int
    file: bytes
    rows: list[dict[int, Any]]


@dataclass
class Table:
    """A table under drawn changes."""

    schema: TableSchema
    csn: int = 1
    versions: list[tuple[int, TableSchema]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def change(self, changes: ColumnChanges) -> None:
        """Commit changes, unless they are refused."""
        self.csn += 1
        with contextlib.suppress(TidelockError):
            self.schema = at(changed(self.schema, changes), self.csn)
        self.versions.append((self.csn, self.schema))

    def insert(self, groups: list[int], data: st.DataObject) -> None:
        """Commit a part."""
        self.csn += 1
        ids = [column.id for column in self.schema.columns]
        values = [_values(column) for column in self.schema.columns]
        rows = [
            dict(zip(ids, row, strict=True))
            for row in data.draw(st.lists(st.tuples(*values), min_size=sum(groups), max_size=sum(groups)))
        ]
        arrow = self.schema.file_arrow
        table = pa.table(
            [pa.array([row[number] for row in rows], arrow.field(at).type) for at, number in enumerate(ids)],
            schema=arrow,
        )
        self.parts.append(Part(self.csn, file_of(table, groups), rows))
        self.versions.append((self.csn, self.schema))


def _values(column: Column) -> st.SearchStrategy[Any]:
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "bigint": st.integers(-(2**63), 2**63 - 1),
        "string": st.text(max_size=5),
        "double": st.floats(allow_nan=False),
        "boolean": st.booleans(),
        "decimal(9,2)": st.decimals(-1000, 1000, places=2),
        "tinyint": st.integers(-(2**7), 2**7 - 1),
        "smallint": st.integers(-(2**15), 2**15 - 1),
        "int": st.integers(-(2**31), 2**31 - 1),
    }
    return st.none() | kinds[column.type]


def file_of(table: pa.Table, groups: list[int]) -> bytes:
    """Return a file as agents write it, with row groups of so many rows."""
    sink = io.BytesIO()
    options = parquet_options(table.num_rows, True, table.schema, NO_FLOATS)
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        begin = 0
        for rows in groups:
            writer.write_table(table.slice(begin, rows))
            begin += rows
        mark(writer)
    return sink.getvalue()


def footer_of(file: bytes) -> bytes:
    """Return the footer of a file."""
    return footer_in(lambda start, size: file[start : start + size], len(file))


def shown(part: Part, schema: TableSchema) -> bytes:
    """Return the file of a part as readers of a schema get it, as long as a listing says that it is."""
    layout = schema.layout(Csn(part.csn))
    if layout is None:
        return part.file
    length = layout.length(len(part.rows), len(part.file))
    footer = footer_of(part.file)
    data = part.file[: len(part.file) - TAIL_BYTES - len(footer)]
    pages, end = evolve(footer, schema.footer, layout.columns, pages_at=len(data))
    zeros = length - len(data) - len(pages) - len(end)
    assert zeros >= 0, "the footer has room"
    return data + pages + bytes(zeros) + end


@given(
    columns=st.lists(COLUMNS, min_size=1, max_size=4, unique_by=lambda column: column.name),
    steps=st.lists(CHANGES | GROUPS, min_size=1, max_size=12),
    data=st.data(),
)
def test_a_part_of_any_version_is_read_at_any_later_one(
    columns: list[Column], steps: list[ColumnChanges | list[int]], data: st.DataObject
) -> None:
    """Rows, names, types and statistics are those of the model: values belong to the ids of columns.

    Rows of before have the default with which a column was added.
    """
    table = Table(schema_of(*((column.name, column.type) for column in columns)))
    for step in steps:
        if isinstance(step, ColumnChanges):
            table.change(step)
        else:
            table.insert(step, data)
    added: dict[int, str | None] = {}
    for csn, schema in table.versions:
        added = {column.id: column.default for column in schema.columns if column.since} | added
        ids = [column.id for column in schema.columns]
        assert len(set(ids)) == len(ids)
        assert max(ids) <= schema.columns_made
        for part in table.parts:
            if part.csn > csn:
                continue
            file = pq.ParquetFile(pa.BufferReader(shown(part, schema)))
            assert file.metadata.num_rows == len(part.rows)
            found = file.read()
            assert sorted(found.column_names) == sorted(schema.arrow.names)
            for column in schema.columns:
                missing = scalar_of(column.type, added.get(column.id)).as_py()
                values = [row.get(column.id, missing) for row in part.rows]
                assert list(map(repr, found[column.name].to_pylist())) == list(map(repr, values))
                assert found.schema.field(column.name).type == column.arrow.type
            _require_statistics(part, schema, table.versions)
            _require_middles(file.metadata, len(shown(part, schema)))


def _require_statistics(part: Part, schema: TableSchema, versions: list[tuple[int, TableSchema]]) -> None:
    """The statistics of the part as it was written are those of the columns as they are shown."""
    written = next(found for csn, found in versions if csn == part.csn)
    stored = statistics_of(pq.read_metadata(pa.BufferReader(part.file)), written)
    ids = {column.name: column.id for column in schema.columns}
    for name, (_, _, nulls) in shown_statistics(stored, schema.layout(Csn(part.csn))).items():
        assert nulls == sum(row[ids[name]] is None for row in part.rows)


def _require_middles(metadata: Any, length: int) -> None:
    """Each row group has its middle, by which Spark gives it to a task, inside of the file."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        first = chunks[0].dictionary_page_offset or chunks[0].data_page_offset
        size = sum(chunk.total_compressed_size for chunk in chunks)
        assert first + size // 2 < length


def test_a_definition_without_ids_numbers_its_columns() -> None:
    """In tables that were created before columns had ids the first one is 1, and a new one follows."""
    definition = {
        "name": "default.t",
        "columns": [{"name": name, "type": "bigint", "nullable": True} for name in "ab"],
        "partition_by": [],
        "sort_by": [],
        "properties": {},
    }
    schema = TableSchema.from_definition(TABLE, definition)
    assert [column.id for column in schema.columns] == [1, 2]
    later = at(changed(schema, ColumnChanges(drop=["b"], add=[Column("b", "string")])), 7)
    assert [(column.id, column.name, column.since) for column in later.columns] == [(1, "a", 0), (3, "b", 7)]
    assert (later.columns_made, later.dropped_at) == (3, 7)
    assert TableSchema.from_definition(TABLE, later.definition()) == later


def test_names_can_be_exchanged_in_one_change() -> None:
    """Each part shows the values under the names of its reader."""
    schema = at(
        changed(schema_of(("a", "bigint"), ("b", "bigint")), ColumnChanges(rename={"a": "b", "b": "a"})), 5
    )
    file = file_of(pa.table({"a": [1], "b": [2]}), [1])
    old = Part(4, file, [{1: 1, 2: 2}])
    found = pq.read_table(pa.BufferReader(shown(old, schema)))
    assert found.to_pydict() == {"b": [1], "a": [2]}


REFUSED = {
    "unknown": (ColumnChanges(drop=["x"]), "has no column x"),
    "unknown to rename": (ColumnChanges(rename={"x": "y"}), "has no column x"),
    "twice": (ColumnChanges(drop=["v"], rename={"v": "w"}), "named twice by the change"),
    "partition": (ColumnChanges(drop=["p"]), "partition_by names it"),
    "folder": (ColumnChanges(rename={"p": "q"}), "named by it"),
    "order": (ColumnChanges(drop=["s"]), "sort_by names it"),
    "key": (ColumnChanges(drop=["k"]), "unique_key names it"),
    "taken": (ColumnChanges(rename={"v": "s"}), "column s twice"),
    "case": (ColumnChanges(add=[Column("V", "bigint")]), "column v twice"),
    "reserved": (ColumnChanges(rename={"v": "_commit_csn"}), "reserved"),
    "required": (ColumnChanges(add=[Column("x", "bigint", nullable=False)]), "as required"),
    "no place": (ColumnChanges(order=["x"]), "is no column in the new order"),
    "two places": (ColumnChanges(order=["v", "v"]), "named twice in the new order"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_change_that_breaks_the_table_is_refused(what: str) -> None:
    """With the reason."""
    columns = pa.schema(
        [
            pa.field("k", pa.int64(), nullable=False),
            pa.field("p", pa.int64(), nullable=False),
            pa.field("s", pa.string()),
            pa.field("v", pa.int64()),
        ]
    )
    schema = TableSchema.from_request("t", columns, ["p"], ["s"], {"unique_key": "k,p"})
    changes, words = REFUSED[what]
    with pytest.raises(BadRequestError, match=words):
        changed(schema, changes)


def test_a_table_keeps_a_column_that_files_have() -> None:
    """All columns but the partitions cannot be dropped, and their number has a limit."""
    schema = schema_of(("a", "bigint"), ("p", "bigint"), partition_by=["p"])
    with pytest.raises(BadRequestError, match="a file needs at least one"):
        changed(schema, ColumnChanges(drop=["a"]))
    with pytest.raises(TooLargeError, match=r"3 columns; the limit is 2"):
        changed(schema, ColumnChanges(add=[Column("b", "bigint")]), ColumnLimits(columns=2))


def test_order_and_key_follow_renamed_columns() -> None:
    """They name the columns by their new names."""
    columns = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("s", pa.string())])
    schema = TableSchema.from_request("t", columns, [], ["s"], {"unique_key": "k"})
    found = changed(schema, ColumnChanges(rename={"k": "key", "s": "text"}))
    assert (found.sort_by, found.unique_key) == (("text",), ("key",))


def test_the_limit_of_names_is_for_new_names() -> None:
    """Names that are there stay, whatever the limit is by now, and other changes of the table go on."""
    schema = schema_of(("a" * 60, "bigint"), ("b", "bigint"))
    limits = ColumnLimits(name_bytes=50)
    assert changed(schema, ColumnChanges(comment={"b": "short"}), limits).columns[1].comment == "short"
    for change in (ColumnChanges(rename={"b": "c" * 51}), ColumnChanges(add=[Column("c" * 51, "bigint")])):
        with pytest.raises(BadRequestError, match="has 51 bytes; the limit is 50"):
            changed(schema, change, limits)
