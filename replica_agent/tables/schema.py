"""The schema of a table: its definition as in the log, in the forms that Arrow and Spark need.

A :class:`TableSchema` is made from a request, which is checked, or from a definition, which was checked when
it was committed. It also checks rows: a batch from :meth:`TableSchema.conform` has exactly the table's
types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidelock.column_names import NAME_BYTES_MAX, problem_of, same, split_list
from tidelock.column_types import (
    NESTED_DEPTH_MAX,
    is_nested,
    to_text,
    why_no_key,
    why_no_order,
    why_no_partition,
)
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import BadRequestError, TableModeError, TooLargeError
from tidelock.parquet_leaves import first_leaves, leaf_paths
from tidelock.part_layout import form_of
from tidelock.replica_agent.footers.thrift import footer_in
from tidelock.replica_agent.tables.checks import Check, Generated, after, name_of, require_sql
from tidelock.replica_agent.tables.column_defaults import DEFAULT_BYTES_MAX, default_text
from tidelock.replica_agent.tables.layouts import Layout, Layouts, layouts_of
from tidelock.replica_agent.tables.names import full_name
from tidelock.table_columns import Column, FormerColumn, TableColumns
from tidelock.wire.ids import TableName

#: The properties of a table, with the allowed values; None: the value has its own check.
PROPERTIES: dict[str, tuple[str, ...] | None] = {
    "comment": None,
    "compaction": ("on", "off"),
    "landing": ("on", "off"),
    "on_duplicate": ("refuse", "replace"),
    "retention_s": None,
    "unique_key": None,
}

#: Keys that a column of a definition may lack.
_OPTIONAL = ("default", "initial", "comment", "generated")
_PLAIN_NAME = re.compile(r"[a-z0-9_]{1,128}")
#: Seconds, up to 300 years.
_SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,3})?", re.ASCII)


class ColumnLimits(msgspec.Struct, frozen=True):
    """Limits of the columns of a table, and of its checks; the settings of an agent may be others.

    Attributes:
        columns: Most columns, those inside of others counted (`columns_max`).
        name_bytes: Longest name, in UTF-8 (`column_name_bytes_max`).
        depth: Most types inside each other (`nested_depth_max`).
        default_bytes: Longest text of a default (`column_default_bytes_max`).
        checks: Most checks (`checks_max`).
        check_bytes: Longest SQL of a check, or of a generated column (`check_bytes_max`).
    """

    columns: int = 2000
    name_bytes: int = NAME_BYTES_MAX
    depth: int = NESTED_DEPTH_MAX
    default_bytes: int = DEFAULT_BYTES_MAX
    checks: int = 64
    check_bytes: int = 4096


LIMITS: Final = ColumnLimits()


class Derivation(msgspec.Struct, frozen=True):
    """The origin of the rows of a derived table.

    Attributes:
        source: The table whose inserts it follows.
        sql: One SELECT over ``inserted``, the rows of one insert into ``source``.
    """

    source: TableId
    sql: str


@dataclass(frozen=True)
class TableSchema:
    """The definition of a table.

    Attributes:
        id: Its id, under which all else knows it.
        name: Full name.
        columns: All columns in their order, including those of the partitions.
        partition_by: Columns whose values are folders; they are not stored in the files.
        sort_by: Columns that rows are sorted by within a row group.
        properties: See :data:`PROPERTIES`.
        derivation: The origin of a derived table; None for any other table.
        dependents: Tables that are derived from this one, in the order in which they were created.
        columns_made: The highest id that a column of the table has got.
        dropped_at: The CSN at which the last column was dropped; 0: none was.
        checks: The conditions that no row breaks, in the order in which they were made.
    """

    id: TableId
    name: TableName
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    derivation: Derivation | None = None
    dependents: tuple[TableId, ...] = ()
    columns_made: int = 0
    dropped_at: int = 0
    checks: tuple[Check, ...] = ()

    @classmethod
    def from_request(
        cls,
        name: str,
        arrow_schema: pa.Schema,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        *,
        derivation: Derivation | None = None,
        checks: Mapping[str, str] | None = None,
        limits: ColumnLimits = LIMITS,
        retention_s_min: float = 0.0,
    ) -> TableSchema:
        """Check the definition of a new table and return its schema.

        Its history may be kept longer than that of all tables (``retention_s_min``), but not shorter.

        Raises:
            BadRequestError: A name is malformed or doubled, a column to partition or sort by does not exist
                or is not suitable, no column is left for the files, a property is unknown, or the unique key
                or a check is invalid. What is in the SQL of a check is not looked at.
            UnsupportedTypeError: A column's type is not on the closed list.
            TooLargeError: More columns than ``limits`` allow.
        """
        table = full_name(name)
        found = sum(1 for _ in leaf_paths(arrow_schema))
        if found > limits.columns:
            raise TooLargeError(
                f"table {table} would have {found} columns, those inside of others counted; the limit is "
                f"{limits.columns} (columns_max): spread them over several tables",
                limit=limits.columns,
                found=found,
            )
        columns = columns_in(arrow_schema, table, limits)
        layout = (tuple(partition_by), tuple(sort_by), dict(properties or {}))
        schema = cls(TableId(table), table, columns, *layout, derivation, columns_made=len(columns))
        if checks:
            schema = schema.with_checks(checks, limits)
        schema.check_properties(retention_s_min)
        schema.check_columns()
        return schema

    @classmethod
    def from_definition(cls, table: TableId, definition: Mapping[str, Any]) -> TableSchema:
        """Return the schema of a committed definition of a table (docs/protocol.md#bytes)."""
        source = definition.get("derived_from")
        columns = tuple(_column(c, number) for number, c in enumerate(definition["columns"], 1))
        return cls(
            table,
            TableName(definition["name"]),
            columns,
            tuple(definition["partition_by"]),
            tuple(definition["sort_by"]),
            dict(definition["properties"]),
            Derivation(TableId(source), definition["derived_sql"]) if source else None,
            tuple(TableId(name) for name in definition.get("dependents", ())),
            definition.get("columns_made", len(columns)),
            definition.get("dropped_at", 0),
            tuple(msgspec.convert(one, Check) for one in definition.get("checks", ())),
        )

    def definition(self) -> dict[str, Any]:
        """Return the JSON form for the log; properties that the table does not have are left out."""
        definition: dict[str, Any] = {
            "name": self.name,
            "columns": [_described(column) for column in self.columns],
            "partition_by": list(self.partition_by),
            "sort_by": list(self.sort_by),
            "properties": dict(self.properties),
        }
        if self.derivation:
            definition |= {"derived_from": self.derivation.source, "derived_sql": self.derivation.sql}
        if self.dependents:
            definition["dependents"] = list(self.dependents)
        if self.columns_made != len(self.columns):
            definition["columns_made"] = self.columns_made
        if self.dropped_at:
            definition["dropped_at"] = self.dropped_at
        if self.checks:
            definition["checks"] = [msgspec.to_builtins(one) for one in self.checks]
        return definition

    @property
    def is_plain(self) -> bool:
        """Return whether versions before ADR 0060 read the definition."""
        return not self.conditions and all(
            _PLAIN_NAME.fullmatch(column.name) and not is_nested(column.type) for column in self.columns
        )

    @cached_property
    def generated(self) -> tuple[Column, ...]:
        """Return the columns whose values are made by SQL."""
        return tuple(column for column in self.columns if column.generated is not None)

    @cached_property
    def conditions(self) -> tuple[Check, ...]:
        """Return all that rows are judged by: the checks, and that generated columns have their values."""
        made = (Generated(name_of(c.id), c.generated or "", (c.id, *c.reads), c.name) for c in self.generated)
        return (*self.checks, *made)

    @cached_property
    def unique_key(self) -> tuple[str, ...]:
        """Return the columns of the unique key; empty for a table that accepts any rows."""
        return split_list(self.properties.get("unique_key", ""))

    @property
    def replaces(self) -> bool:
        """Return whether an inserted row replaces a row with the same key; if not, it is refused."""
        return self.properties.get("on_duplicate") == "replace"

    @property
    def lands(self) -> bool:
        """Return whether this is a landing table: its rows come without a transaction of their client."""
        return self.properties.get("landing") == "on"

    def require_mode(self, *, lands: bool) -> None:
        """Raise TableModeError unless rows come to this table in the way that the writer has chosen."""
        if self.lands == lands:
            return
        if self.lands:
            raise TableModeError(
                f"{self.name} is a landing table (property landing): rows come to it by land() alone, "
                "outside of transactions; send them by land(), or create a table without that property",
                table=self.name,
            )
        raise TableModeError(
            f"table {self.name} is no landing table: rows come to it in transactions; insert them, or create "
            "a table with the property landing=on",
            table=self.name,
        )

    @cached_property
    def arrow(self) -> pa.Schema:
        """Return all columns, including those of the partitions."""
        return self.taken.arrow

    @cached_property
    def file_arrow(self) -> pa.Schema:
        """Return the columns that are stored in the files."""
        return pa.schema([column.arrow for column in self.columns if column.name not in self.partition_by])

    @cached_property
    def first_leaves(self) -> dict[str, int]:
        """Return the number of the first column that a file of ours has for each column."""
        return first_leaves(self.file_arrow)

    @cached_property
    def layouts(self) -> Layouts:
        """Return how parts are shown that do not have these columns."""
        return layouts_of(self.definition())

    def layout(self, columns_csn: Csn | None) -> Layout | None:
        """Return how a part is shown that has the columns of a CSN; see :meth:`Layouts.of`."""
        return self.layouts.of(columns_csn)

    def files_differ(self, other: TableSchema) -> bool:
        """Return whether files of another definition of the table have other columns."""
        mine, others = (
            {
                (one.id, one.name, one.type, one.nullable)
                for one in schema.columns
                if one.name not in schema.partition_by
            }
            for schema in (self, other)
        )
        return mine != others

    @cached_property
    def footer(self) -> bytes:
        """Return the footer of :meth:`common_metadata`, by which files of before are shown."""
        file = self.common_metadata()
        return footer_in(lambda start, size: file[start : start + size], len(file))

    @cached_property
    def form(self) -> str:
        """Return the form of the table's small parts (:func:`tidelock.part_layout.form_of`)."""
        return form_of(self.file_arrow)

    @cached_property
    def partition_columns(self) -> tuple[Column, ...]:
        """Return the columns of the partitions, in the order of the folders."""
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.partition_by)

    def arrow_bytes(self) -> bytes:
        """Return all columns as an Arrow IPC schema message."""
        return bytes(self.arrow.serialize().to_pybytes())

    def common_metadata(self) -> bytes:
        """Return a Parquet file without rows, from which Spark takes the schema of the table's folder.

        It has all columns, although the files lack those of the partitions: Spark takes their values from the
        paths and prunes by them nevertheless (seen with 4.3), and an empty table shows its whole schema.
        """
        sink = pa.BufferOutputStream()
        pq.write_metadata(self.arrow, sink, store_schema=False, store_decimal_as_integer=True)
        return bytes(sink.getvalue().to_pybytes())

    @cached_property
    def taken(self) -> TableColumns:
        """Return the columns as the rule of which rows the table takes."""
        return TableColumns(self.name, self.columns)

    def check(self, found: pa.Schema) -> None:
        """Raise SchemaMismatchError unless rows with the schema ``found`` can be rows of this table.

        See :meth:`TableColumns.check`; :meth:`conform` checks the values.
        """
        self.taken.check(found)

    def conform(self, batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        """Return the batch with the table's columns, order and types; see :meth:`TableColumns.conform`."""
        return self.taken.conform(batch, first_row)

    def check_columns(self) -> None:
        """Raise BadRequestError unless the columns fit each other, the partitions, the order and the key."""
        self._check_layout()
        self._check_key()
        self._check_landing()

    def _check_layout(self) -> None:
        by_name = {column.name: column for column in self.columns}
        for use, names in (("partition", self.partition_by), ("sort", self.sort_by)):
            if doubled := _doubled(names):
                raise BadRequestError(f"{use}_by of table {self.name} names {doubled} twice", column=doubled)
            for name in names:
                if name not in by_name:
                    raise BadRequestError(
                        f"{use}_by of table {self.name} names {name}, which is not a column; "
                        f"its columns are {', '.join(by_name)}",
                        column=name,
                    )
        for name in self.partition_by:
            if name.startswith("."):
                raise BadRequestError(
                    f"table {self.name} cannot be partitioned by {name}: Spark does not see folders whose "
                    "names begin with a dot; rename the column",
                    column=name,
                )
            if why := why_no_partition(by_name[name].type):
                raise BadRequestError(
                    f"table {self.name} cannot be partitioned by {name} ({by_name[name].type}): {why}",
                    column=name,
                )
        for name in self.sort_by:
            if why := why_no_order(by_name[name].type):
                raise BadRequestError(
                    f"table {self.name} cannot be sorted by {name} ({by_name[name].type}): {why}", column=name
                )
            if name in self.partition_by:
                raise BadRequestError(
                    f"sort_by of table {self.name} names {name}, which has one value per file; leave it out",
                    column=name,
                )
        if len(self.partition_by) == len(self.columns):
            raise BadRequestError(
                f"all columns of table {self.name} are partitions; a file needs at least one"
            )

    def check_properties(self, retention_s_min: float) -> None:
        """Raise BadRequestError for a property that is unknown, or has a value that it cannot have."""
        for key, value in self.properties.items():
            if key not in PROPERTIES:
                raise BadRequestError(
                    f"table {self.name} has the unknown property {key!r}; known are {', '.join(PROPERTIES)}",
                    property=key,
                )
            allowed = PROPERTIES[key]
            if allowed is not None and value not in allowed:
                raise BadRequestError(
                    f"property {key} of table {self.name} is {value!r}, not {' or '.join(allowed)}",
                    property=key,
                )
        text = self.properties.get("retention_s")
        if text is not None and not (_SECONDS.fullmatch(text) and float(text) >= retention_s_min):
            raise BadRequestError(
                f"property retention_s of table {self.name} is {text!r}; give a number of seconds, not below "
                f"{retention_s_min:g}, for which the history of every table is kept (history_retention_s)",
                property="retention_s",
            )

    def with_checks(self, given: Mapping[str, str | None], limits: ColumnLimits = LIMITS) -> TableSchema:
        """Return the schema with other checks; see :func:`tidelock.replica_agent.tables.checks.after`."""
        most, longest = limits.checks, limits.check_bytes
        found = after(self.name, self.checks, given, checks_max=most, bytes_max=longest)
        return replace(self, checks=found)

    def with_checked(self, columns: Mapping[str, Sequence[str]]) -> TableSchema:
        """Return the schema with the columns that conditions read, by the names of the conditions."""
        ids = {column.name: column.id for column in self.columns}

        def read(condition: str) -> tuple[int, ...]:
            return tuple(sorted(ids[name] for name in columns[condition]))

        checks = (
            msgspec.structs.replace(one, columns=read(one.name)) if one.name in columns else one
            for one in self.checks
        )
        made = (
            replace(one, reads=read(name_of(one.id))) if name_of(one.id) in columns else one
            for one in self.columns
        )
        return replace(self, checks=tuple(checks), columns=tuple(made))

    def checks_to_judge(self, before: TableSchema) -> tuple[Check, ...]:
        """Return the conditions that rows of another definition of the table may break.

        These are the ones that it did not have, and checks of columns that had another name or type there.
        The columns that a generated one reads keep both.
        """
        known = {(one.sql, one.columns) for one in before.conditions}
        there = {(column.id, column.name, column.type) for column in before.columns}
        other = {one.id for one in self.columns if (one.id, one.name, one.type) not in there}
        return tuple(
            one
            for one in self.conditions
            if (one.sql, one.columns) not in known
            or (other.intersection(one.columns) and not isinstance(one, Generated))
        )

    def _check_key(self) -> None:
        """Refuse a unique key that could not be kept (docs/transactions.md)."""
        asked = self.properties.keys() & {"unique_key", "on_duplicate"}
        if not asked:
            return
        by_name = {column.name: column for column in self.columns}
        key = self.unique_key
        problem = None
        if not key:
            problem = f"{' and '.join(sorted(asked))} without a column: name them, as in unique_key=a,b"
        elif doubled := _doubled(key):
            problem = f"it names {doubled} twice"
        elif missing := [name for name in key if name not in by_name]:
            problem = f"{missing[0]} is not a column; its columns are {', '.join(by_name)}"
        elif null := [name for name in key if by_name[name].nullable]:
            problem = f"{null[0]} may hold nulls, which are equal to nothing; make it required"
        elif none := [(name, why) for name in key if (why := why_no_key(by_name[name].type))]:
            problem = f"{none[0][0]} is {by_name[none[0][0]].type}: {none[0][1]}"
        elif made := [name for name in key if by_name[name].generated is not None]:
            problem = f"{made[0]} is generated, and rows are matched by what they bring"
        elif outside := [name for name in self.partition_by if name not in key]:
            problem = (
                f"partition column {outside[0]} is not in it, and a key could be in two partitions: add it"
            )
        if problem:
            raise BadRequestError(f"table {self.name} cannot have this unique key: {problem}", key=list(key))

    def _check_landing(self) -> None:
        """Refuse a landing table that could not keep its promises (rule landing)."""
        if not self.lands:
            return
        if self.derivation is not None:
            raise BadRequestError(
                f"table {self.name} is derived from {self.derivation.source}, so its rows come with those of "
                "the source; leave out landing=on",
                property="landing",
            )
        if self.unique_key and not self.replaces:
            raise BadRequestError(
                f"table {self.name} has a unique key, and of rows that land the last one wins: add "
                "on_duplicate=replace, or leave out landing=on",
                property="landing",
            )
        if self.conditions:
            raise BadRequestError(
                f"table {self.name} has {self.conditions[0].what}, and rows that land count as written "
                "before SQL has seen them; leave it out, or landing=on",
                property="landing",
            )


def columns_in(schema: pa.Schema, table: str, limits: ColumnLimits = LIMITS) -> tuple[Column, ...]:
    """Return the columns of a schema, with ids from 1 on.

    Raises:
        BadRequestError: A name is malformed or doubled, or a default is no value of its column.
        UnsupportedTypeError: A type is not on the closed list.
    """
    try:
        check_names(table, schema.names, schema.names, limits.name_bytes)
        return tuple(
            _requested(field, to_text(field.name, field.type, limits.depth), number, limits)
            for number, field in enumerate(schema, 1)
        )
    except UnicodeDecodeError as error:  # Arrow passes on the bytes that it received
        raise BadRequestError(
            f"the schema of table {table} holds a text that is not UTF-8: {error}"
        ) from error


def _requested(field: pa.Field, kind: str, number: int, limits: ColumnLimits) -> Column:
    """Return a new column, whose default, comment and SQL are metadata of its Arrow field."""
    metadata = field.metadata or {}
    texts = (metadata.get(key) for key in (b"default", b"comment", b"generated"))
    default, comment, generated = (None if text is None else text.decode() for text in texts)
    if generated is not None:
        require_sql(f"generated column {field.name}", generated, limits.check_bytes)
        if default is not None:
            raise BadRequestError(
                f"column {field.name} is generated, so no row lacks a value of it; leave out its default",
                column=field.name,
            )
    if default is not None:
        default = default_text(field.name, kind, default, limits.default_bytes)
    nullable = bool(field.nullable)
    return Column(field.name, kind, nullable, number, default=default, comment=comment, generated=generated)


def _described(column: Column) -> dict[str, Any]:
    """Return the JSON form of a column; what it does not have is left out."""
    found: dict[str, Any] = {
        "name": column.name,
        "type": column.type,
        "nullable": column.nullable,
        "id": column.id,
    }
    if column.since:
        found["since"] = column.since
    if column.reads:
        found["reads"] = list(column.reads)
    if column.was:
        found["was"] = [{"until": one.until, "name": one.name, "type": one.type} for one in column.was]
    for key in _OPTIONAL:
        if (value := getattr(column, key)) is not None:
            found[key] = value
    return found


def _column(found: Mapping[str, Any], number: int) -> Column:
    """Return a column of a definition; in those of before columns had ids it has the number of its place."""
    was = tuple(FormerColumn(one["until"], one["name"], one["type"]) for one in found.get("was", ()))
    column_id, since = found.get("id", number), found.get("since", 0)
    optional = {key: found.get(key) for key in _OPTIONAL}
    reads = tuple(found.get("reads", ()))
    return Column(
        found["name"], found["type"], found["nullable"], column_id, since, was, reads=reads, **optional
    )


def _doubled(names: Iterable[str]) -> str | None:
    """Return a name that occurs twice, or None."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def check_names(
    table: str, names: Sequence[str], given: Iterable[str], bytes_max: int = NAME_BYTES_MAX
) -> None:
    """Raise BadRequestError unless a table can have columns of these names.

    Args:
        table: Its name.
        names: All names.
        given: The names of columns that are new; other names stay, whatever the limit is now.
        bytes_max: Most bytes of a name.
    """
    if not names:
        raise BadRequestError(f"table {table} has no column", table=table)
    if doubled := _doubled(map(same, names)):
        found = next(name for name in names if same(name) == doubled)
        raise BadRequestError(f"table {table} has column {found} twice (ignoring case)", column=found)
    for name in given:
        if problem := problem_of(name, bytes_max):
            raise BadRequestError(f"the name of column {name!r} of table {table} {problem}", column=name)
