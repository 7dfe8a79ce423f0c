"""Bodies of /api/v1/tables and /api/v1/parts. Pure."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from tidelock.wire.rows import Row
from tidelock.wire.statements import PastPoint, Value


class CreateTableRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /tables.

    Attributes:
        name: `name` or `namespace.name`.
        schema: An Arrow IPC schema message in base64; null with `sql`.
        partition_by: Columns whose values become folders.
        sort_by: Columns by which the rows of a file are sorted.
        properties: See docs/protocol.md#bytes.
        derived_from: The table whose inserts this one follows.
        derived_sql: The rows that are made of them: one SELECT of `inserted`.
        checks: Conditions that no row may break, as SQL, by their names.
        or_replace: Drop the table of this name in the same commit, if there is one.
        sql: One SELECT, whose columns and rows the table gets; only inside a transaction.
        params: Values of its parameters.
    """

    name: str
    schema: str | None = None
    partition_by: list[str] = []
    sort_by: list[str] = []
    properties: dict[str, str] = {}
    derived_from: str | None = None
    derived_sql: str | None = None
    checks: dict[str, str] = {}
    or_replace: bool = False
    sql: str | None = None
    params: list[Any] = []


class AlterTableRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of PATCH /tables/{table}.

    Attributes:
        name: Another name, `name` or `namespace.name`; None: it keeps its name.
        properties: New values of properties; null takes a property away.
        drop: Columns to drop.
        rename: New names of columns, by the names that they have.
        add: Columns to add, behind the others: an Arrow IPC schema message in base64.
        nullable: Required columns that may be null from then on, by the names that they have.
        types: Wider types of columns, by the names that they have; inside a transaction only.
        order: Columns that come first from then on, in their order, by their new names.
        default: New defaults of columns, by their new names: a constant of SQL, or a literal; null takes a
            default away.
        comment: New comments of columns, by their new names; null takes a comment away.
        checks: Conditions that no row may break, as SQL, by their names, inside a transaction only; null
            takes a check away.
        generated: SQL that makes the values of columns of `add`, by their names, inside a transaction only;
            null has rows bring the values of a column from then on.
    """

    name: str | None = None
    properties: dict[str, str | None] = {}
    drop: list[str] = []
    rename: dict[str, str] = {}
    add: str | None = None
    nullable: list[str] = []
    types: dict[str, str] = {}
    order: list[str] = []
    default: dict[str, Value] = {}
    comment: dict[str, str | None] = {}
    checks: dict[str, str | None] = {}
    generated: dict[str, str | None] = {}

    @property
    def reads_rows(self) -> bool:
        """Whether the rows of the table are read, so that the answer may take long."""
        return bool(self.types) or any((*self.checks.values(), *self.generated.values()))


class UndropRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /tables/{table}/undrop.

    Attributes:
        name: Another name, `name` or `namespace.name`; None: the name that it had.
        csn: The CSN of the drop; None: the last drop of a table of that name.
    """

    name: str | None = None
    csn: int | None = None


class CreateNamespaceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /namespaces; the one property is `comment`."""

    name: str
    properties: dict[str, str] = {}


class DefinedNamespace(Row, frozen=True):
    """A namespace that was created or dropped; `csn` is null in an open transaction."""

    name: str
    csn: int | None


class NamespaceInfo(Row, frozen=True):
    """A namespace at a CSN: its properties, and the number of its tables."""

    name: str
    properties: dict[str, str]
    tables: int


class CloneRequest(PastPoint, frozen=True, forbid_unknown_fields=True):
    """Body of POST /transactions/{tid}/tables/{table}/clone.

    Attributes:
        name: Name of the new table, `name` or `namespace.name`.
    """

    name: str = ""


class DroppedTable(msgspec.Struct, frozen=True):
    """A table that was dropped: its name, and the CSN from which it does not exist."""

    name: str
    csn: int


class TableColumn(Row, frozen=True, omit_defaults=True):
    """A column.

    Attributes:
        name: Its name.
        type: Its type in Spark's names.
        nullable: Whether it may be null.
        id: Its number, which it keeps when it is renamed, and which no other column of the table gets.
        default: The value of rows that are inserted without it, as text; bytes as hexadecimal digits.
        comment: What it means.
        generated: SQL over other columns of the row, which makes its value.
    """

    name: str
    type: str
    nullable: bool
    id: int = 0
    default: str | None = None
    comment: str | None = None
    generated: str | None = None


class TableDefinition(Row, frozen=True, kw_only=True, omit_defaults=True):
    """The definition of a table.

    Attributes:
        name: `namespace.name`.
        columns: The columns in their order.
        partition_by: Columns whose values become folders.
        sort_by: Columns by which the rows of a file are sorted.
        properties: See docs/protocol.md#bytes.
        derived_from: Source of a derived table.
        derived_sql: SELECT that makes the rows of a derived table from the rows of its source.
        dependents: The tables that are derived from this one.
        checks: Conditions that no row breaks, as SQL, by their names.
    """

    shown: ClassVar[tuple[str, ...]] = ("name", "columns", "partition_by", "sort_by", "properties")

    name: str
    columns: list[TableColumn]
    partition_by: list[str]
    sort_by: list[str]
    properties: dict[str, str]
    derived_from: str | None = None
    derived_sql: str | None = None
    dependents: list[str] = msgspec.field(default_factory=list)
    checks: dict[str, str] = msgspec.field(default_factory=dict)


class DefinedTable(TableDefinition, frozen=True, kw_only=True, omit_defaults=True):
    """A table that was defined in an open transaction.

    Attributes:
        version: Version of its definition.
        rows: Number of rows that came with it: those of the SELECT, or of the dropped table; else None.
    """

    shown: ClassVar[tuple[str, ...]] = ("name", "version", "columns", "partition_by", "rows")

    version: int
    rows: int | None = None


class CommittedTable(TableDefinition, frozen=True, kw_only=True, omit_defaults=True):
    """A table that was created or changed.

    Attributes:
        csn: The CSN of the commit.
        version: Version of its definition.
        rows: Number of rows that came with it: those of the SELECT, or of the dropped table; else None.
    """

    shown: ClassVar[tuple[str, ...]] = ("name", "csn", "version", "columns", "partition_by", "rows")

    csn: int
    version: int
    rows: int | None = None


class TableInfo(TableDefinition, frozen=True, kw_only=True, omit_defaults=True):
    """A table at a CSN.

    Attributes:
        version: Version of its definition; 0 is the first.
        arrow_schema: An Arrow IPC schema message in base64.
        parts: Number of its parts.
        rows: Number of its rows.
        bytes: Number of bytes of the parts.
    """

    shown: ClassVar[tuple[str, ...]] = (
        "name",
        "columns",
        "partition_by",
        "rows",
        "bytes",
        "parts",
        "version",
    )

    version: int
    arrow_schema: str
    parts: int
    rows: int
    bytes: int


class PartInfo(Row, frozen=True):
    """A part of a table at a CSN.

    Attributes:
        part: Its id.
        path: Path of its partition, empty without partitions.
        rows: Number of its rows.
        length: Number of its bytes.
        checksum: XXH3-128 of these bytes, 32 hexadecimal digits.
        file: Its path below the folder of the snapshot.
        file_length: Number of bytes of that file: more than those of the part if the columns of the table
            have been changed since.
    """

    part: str
    path: str
    rows: int
    length: int
    checksum: str
    file: str
    file_length: int
