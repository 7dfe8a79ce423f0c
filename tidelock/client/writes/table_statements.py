"""The statements of a transaction that create, change and drop tables; and the request that creates one."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import starmap
from typing import Any, TypedDict, TypeVar, Unpack, get_args

import pyarrow as pa

from tidelock.client.agents.transport import segment
from tidelock.client.reads.scan import Params
from tidelock.client.values.arguments import Values, literals, past_point
from tidelock.client.values.columns import Columns, checks_of, generated_in, schema_of
from tidelock.client.values.data import Data, open_rows
from tidelock.client.values.results import InsertResult
from tidelock.client.values.schema_merge import Cast, filled, new_columns, require_exact
from tidelock.client.writes.statements import Statements
from tidelock.column_types import to_text
from tidelock.errors import BadRequestError, TableExistsError, UnknownTableError
from tidelock.wire.tables import (
    AlterTableRequest,
    CloneRequest,
    CreateNamespaceRequest,
    CreateTableRequest,
    DefinedNamespace,
    DefinedTable,
    TableInfo,
    UndropRequest,
)

T = TypeVar("T")


def create_request(
    name: str,
    schema: Columns | None,
    *,
    or_replace: bool,
    partition_by: Sequence[str],
    sort_by: Sequence[str],
    properties: Mapping[str, str] | None,
    derived_from: str | None,
    derived_sql: str | None,
    checks: Mapping[str, str] | None,
    sql: str | None,
    params: Params,
) -> CreateTableRequest:
    """Return the request that creates a table; arguments and errors as of `Database.create_table`."""
    if (schema is None) == (sql is None):
        raise BadRequestError(
            f"table {name} needs columns: give `schema`, or `sql`, a SELECT whose columns and rows it gets"
        )
    columns = None if schema is None else schema_of(schema)
    text = None if columns is None else _encoded(columns)
    named = {} if columns is None else checks_of(columns)
    return CreateTableRequest(
        name=name,
        schema=text,
        partition_by=list(partition_by),
        sort_by=list(sort_by),
        properties=dict(properties or {}),
        derived_from=derived_from,
        derived_sql=derived_sql,
        checks=named | dict(checks or {}),
        or_replace=or_replace,
        sql=sql,
        params=list(params),
    )


class ColumnChanges(TypedDict, total=False):
    """Changes of the columns of a table.

    Attributes:
        drop: Columns to drop. A column that is added later under the same name is another one.
        rename: New names of columns, by their names: `{"price": "amount"}`.
        add: Columns to add behind the others, in any form in which `create_table` takes columns:
            `{"note": "string", "state": "string not null default 'new'"}`. The rows that are there have the
            default, the values that are generated, or nulls.
        nullable: Required columns that may be null from now on.
        types: Wider types of columns, as text of DDL or as types of pyarrow: `{"pieces": "bigint"}`. Integers
            get more bits, `float` becomes `double`, a decimal gets more digits. The rows are written again in
            the same transaction, unless an integer stays within 32 bits.
        order: Columns that come first from now on, in their order, by their new names.
        default: New defaults, for rows that come from now on: `{"state": "'open'", "pieces": 1}`; text is SQL
            of a constant, and None takes a default away.
        comment: What columns mean; None takes a comment away.
        checks: Conditions that no row may break from now on, as SQL over the columns of one row, by their
            names: `{"positive": "pieces > 0"}`; None takes a check away. The rows that are there must not
            break new ones.
        generated: Generated columns whose values rows bring from now on: `{"day": None}`. A new generated
            column is one of `add`: `{"day": "date generated always as (cast(sent as date))"}`. The rows that
            are there are written again in the same transaction.
    """

    drop: Sequence[str]
    rename: Mapping[str, str] | None
    add: Columns | None
    nullable: Sequence[str]
    types: Mapping[str, str | pa.DataType] | None
    order: Sequence[str]
    default: Values | None
    comment: Mapping[str, str | None] | None
    checks: Mapping[str, str | None] | None
    generated: Mapping[str, None] | None


def alter_request(
    properties: Mapping[str, str | None] | None,
    *,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    add: Columns | None = None,
    nullable: Sequence[str] = (),
    types: Mapping[str, str | pa.DataType] | None = None,
    order: Sequence[str] = (),
    default: Values | None = None,
    comment: Mapping[str, str | None] | None = None,
    checks: Mapping[str, str | None] | None = None,
    generated: Mapping[str, None] | None = None,
) -> AlterTableRequest:
    """Return the request that changes a table; arguments and errors as of `Database.alter_table`."""
    added = None if add is None else schema_of(add)
    named: dict[str, str | None] = {} if added is None else {**checks_of(added)}
    return AlterTableRequest(
        properties=dict(properties or {}),
        drop=list(drop),
        rename=dict(rename or {}),
        add=None if added is None else _encoded(added),
        nullable=list(nullable),
        types=dict(starmap(_type_text, (types or {}).items())),
        order=list(order),
        default=literals(default or {}),
        comment=dict(comment or {}),
        checks=named | dict(checks or {}),
        generated=({} if added is None else generated_in(added)) | dict(generated or {}),
    )


def _type_text(name: str, kind: str | pa.DataType) -> tuple[str, str]:
    """Return a column and its new type as text."""
    field = schema_of({name: kind}).field(0)
    if not field.nullable or field.metadata:
        raise BadRequestError(
            f"expected a type alone for column {name}, found {kind!r}: `nullable`, `default` and `comment` "
            "change the rest of a column",
            column=name,
        )
    return name, to_text(name, field.type)


def _encoded(columns: pa.Schema) -> str:
    return base64.b64encode(columns.serialize()).decode("ascii")


class TableStatements(Statements):
    """The statements of a transaction that define tables; part of `Transaction`.

    If one of them is refused, the transaction goes on without it.
    """

    def create_table(
        self,
        name: str,
        schema: Columns | None = None,
        *,
        sql: str | None = None,
        params: Params = (),
        if_not_exists: bool = False,
        or_replace: bool = False,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        derived_from: str | None = None,
        derived_sql: str | None = None,
        checks: Mapping[str, str] | None = None,
    ) -> DefinedTable | TableInfo:
        """Create a table, which the statements that follow see, and all others from the commit on.

        The commit is refused if another transaction has created a table of this name meanwhile.

        Args:
            name: As in `Database.create_table`, and so are the other arguments.
            schema: The columns.
            sql: A SELECT of what the transaction sees, whose columns and rows the table gets.
            params: Values of its parameters.
            if_not_exists: Return the table of this name if there is one.
            or_replace: Drop the table of this name, if there is one, with the rows that this transaction has
                inserted into it.
            partition_by: Columns whose values become folders.
            sort_by: Columns by which the rows of a file are sorted.
            properties: Properties of the table.
            derived_from: The source of a derived table; it may be a table of this transaction.
            derived_sql: Its SQL.
            checks: Conditions that no row may break.

        Raises:
            TableExistsError: The transaction sees a table of this name, and neither `if_not_exists` nor
                `or_replace` is given.
            TransactionClosedError: The transaction accepts no statements.
            UnavailableError: The home did not answer; rollback() only.
            TidelockError: Other errors, as of `Database.create_table`, and of `insert` for the rows of `sql`,
                which leave the transaction for rollback() only.
        """
        request = create_request(
            name,
            schema,
            or_replace=or_replace,
            partition_by=partition_by,
            sort_by=sort_by,
            properties=properties,
            derived_from=derived_from,
            derived_sql=derived_sql,
            checks=checks,
            sql=sql,
            params=params,
        )
        return self.send_create(request, if_not_exists=if_not_exists)

    def send_create(self, request: CreateTableRequest, *, if_not_exists: bool) -> DefinedTable | TableInfo:
        """Create the table of a request; see :meth:`create_table`."""
        how: dict[str, Any] = {"body": request}
        if request.sql is not None:
            how |= {"timeout_s": self._transport.timeouts.change_s, "working": True}
        try:
            made = self._definition(lambda: self._call("tables", answer=DefinedTable, **how))
        except TableExistsError:
            if not if_not_exists:
                raise
            return self.definition(request.name)
        if made.rows is not None:
            self._count(InsertResult(made.rows, 0))
        return made

    def drop_table(self, name: str, *, if_exists: bool = False) -> bool:
        """Drop a table, with the rows that this transaction has inserted into it.

        Other transactions go on to use it until the commit, which ends them.

        Args:
            name: `name` or `namespace.name`.
            if_exists: Return False if the transaction sees no such table.

        Raises:
            UnknownTableError: The transaction sees no such table, and `if_exists` is not given.
            BadRequestError: Other tables are derived from it; drop these first.
            UnsealedWriteError: A job of Spark still writes into it in this transaction.
            TransactionClosedError, UnavailableError: As of `create_table`.
        """
        path = f"tables/{segment(name)}"
        try:
            self._definition(lambda: self._call(path, answer=DefinedTable, method="DELETE"))
        except UnknownTableError:
            if not if_exists:
                raise
            return False
        return True

    def undrop_table(self, name: str, *, to: str | None = None, csn: int | None = None) -> DefinedTable:
        """Bring a dropped table back, as `Database.undrop_table` does; its rows come with it.

        Raises:
            UnknownTableError: The transaction sees no drop of a table of this name.
            TableExistsError: It sees a table of that name; give `to`.
            SnapshotTooOldError, BadRequestError: As of `Database.undrop_table`.
            TransactionClosedError, UnavailableError: As of `create_table`.
        """
        path, body = f"tables/{segment(name)}/undrop", UndropRequest(to, csn)
        how: dict[str, Any] = {"timeout_s": self._transport.timeouts.change_s, "working": True}
        made = self._definition(lambda: self._call(path, answer=DefinedTable, body=body, **how))
        self._count(InsertResult(made.rows or 0, 0))
        return made

    def create_namespace(
        self, name: str, *, properties: Mapping[str, str] | None = None, if_not_exists: bool = False
    ) -> bool:
        """Create a namespace, as `Database.create_namespace`; return False if it exists."""
        body = CreateNamespaceRequest(name, dict(properties or {}))
        return self._unless(
            "exists", if_not_exists, lambda: self._call("namespaces", answer=DefinedNamespace, body=body)
        )

    def drop_namespace(self, name: str, *, cascade: bool = False, if_exists: bool = False) -> bool:
        """Drop a namespace, as `Database.drop_namespace`; return False if there is none."""
        path, query = f"namespaces/{segment(name)}", {"cascade": int(cascade)}
        return self._unless(
            "missing",
            if_exists,
            lambda: self._call(path, answer=DefinedNamespace, method="DELETE", query=query),
        )

    def _unless(self, detail: str, allowed: bool, run: Callable[[], DefinedNamespace]) -> bool:
        """Run a statement; return False if it is refused with a detail that is allowed."""
        try:
            self._definition(run)
        except BadRequestError as error:
            if not (allowed and error.details.get(detail)):
                raise
            return False
        return True

    def clone_table(
        self,
        source: str,
        name: str,
        *,
        csn: int | str | None = None,
        at: datetime | int | str | None = None,
    ) -> DefinedTable:
        """Create a table with the definition and rows of another one, as `Database.clone_table` does.

        Args:
            source: The other table.
            name: The new table.
            csn: The other table as at this CSN or tag; default: as this transaction sees it.
            at: Instead: as at the newest CSN whose effective time is not after this.

        Raises:
            UnknownTableError, TableExistsError, SnapshotTooOldError, BadRequestError: As of
                `Database.clone_table`.
            TransactionClosedError, UnavailableError: As of `create_table`.
        """
        csn, tag, at_ms = past_point(csn, at)
        path, body = f"tables/{segment(source)}/clone", CloneRequest(csn, tag, at_ms, name)
        how: dict[str, Any] = {"timeout_s": self._transport.timeouts.change_s, "working": True}
        made = self._definition(lambda: self._call(path, answer=DefinedTable, body=body, **how))
        self._count(InsertResult(made.rows or 0, 0))
        return made

    def insert(
        self, table: str, data: Data, *, merge_schema: bool = False, cast: Cast = "safe"
    ) -> InsertResult:
        """Stage rows as `Statements.insert` does; `merge_schema`: the table gets the columns that it lacks.

        Values of other types than the columns are taken if they lose nothing (`cast="safe"`), or never
        (`cast="exact"`).

        New columns come behind the others, may be null, and have the types of the rows, as in `create_table`.
        Columns of the table that the rows lack become null, or get their default. The change of the table is
        part of this transaction.

        Raises:
            UnsupportedInTransactionError: Columns are new, and the transaction has inserted rows into the
                table before: begin with the rows that have all columns.
            BadRequestError: The columns of the table cannot be changed (docs/tables.md#columns), or a name
                differs in case alone from one that it has.
            UnsupportedTypeError: A new column has a type that no column can have.
            SchemaMismatchError: With `cast="exact"`: a column has another type than that of the table.
            TidelockError: Other errors, as `Statements.insert`.
        """
        if cast not in get_args(Cast):
            raise BadRequestError(f'expected cast="safe" or "exact", found {cast!r}')
        if not merge_schema and cast == "safe":
            return super().insert(table, data)
        rows = open_rows(data)
        columns = self.definition(table).columns
        if cast == "exact":
            require_exact(rows.schema, columns, table)
        if not merge_schema:
            return super().insert(table, rows)
        added = new_columns(rows.schema, columns)
        if added.names:
            columns = self.alter_table(table, add=added).columns
        return super().insert(table, filled(rows, columns))

    def rename_table(self, name: str, to: str) -> DefinedTable:
        """Give a table another name, also in another namespace; it has it in the statements that follow.

        Raises:
            UnknownTableError: The transaction sees no table `name`.
            TableExistsError: It sees a table `to`.
            BadRequestError: `to` is no name of a table, or the name that it has.
            TransactionClosedError, UnavailableError: As of `create_table`.
        """
        return self._alter(name, AlterTableRequest(name=to))

    def alter_table(
        self,
        name: str,
        properties: Mapping[str, str | None] | None = None,
        **columns: Unpack[ColumnChanges],
    ) -> DefinedTable:
        """Change properties and columns of a table, as `Database.alter_table` does.

        Raises:
            UnknownTableError: The transaction sees no such table.
            BadRequestError: A property is unknown, cannot be changed, or has a wrong value; a column does
                not exist, or exists already, or the table needs it; or nothing changes.
            UnsupportedInTransactionError: The transaction has inserted rows into the table, with the columns
                of before: change the columns first.
            CheckViolationError: Rows of the table break a new check.
            UnsupportedTypeError, SchemaMismatchError: As of `create_table`.
            TransactionClosedError, UnavailableError: As of `create_table`.
            SerializationConflictError, DiskFullError: The rows could not be written again, with `types` or a
                generated column; then rollback() only.
        """
        return self._alter(name, alter_request(properties, **columns))

    def _alter(self, name: str, body: AlterTableRequest) -> DefinedTable:
        path = f"tables/{segment(name)}"
        how: dict[str, Any] = {"method": "PATCH", "body": body}
        if body.reads_rows:
            how |= {"timeout_s": self._transport.timeouts.change_s, "working": True}
        return self._definition(lambda: self._call(path, answer=DefinedTable, **how))

    def _definition(self, run: Callable[[], T]) -> T:
        """Run a statement that changes nothing if it is refused."""
        raise NotImplementedError
