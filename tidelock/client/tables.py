"""The tables of a cluster: made, listed, described. Part of `Database`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar, Unpack

import msgspec

from tidelock.client.agents.repetition import repeat
from tidelock.client.agents.transport import segment
from tidelock.client.reads.scan import Params
from tidelock.client.reads.tags import Tags
from tidelock.client.values.columns import Columns
from tidelock.client.writes.table_statements import ColumnChanges, alter_request, create_request
from tidelock.client.writes.transaction import Transaction
from tidelock.errors import (
    CommitUnknownError,
    NoAnswerError,
    TableChangedError,
    TableExistsError,
    TransactionClosedError,
    UnknownTableError,
)
from tidelock.wire.rows import RowList
from tidelock.wire.tables import (
    AlterTableRequest,
    CommittedTable,
    CreateTableRequest,
    DefinedTable,
    DroppedTable,
    NamespaceInfo,
    PartInfo,
    TableInfo,
)

Defined = TypeVar("Defined", CommittedTable, DroppedTable)


class Tables(Tags):
    """The tables of a cluster; part of `Database`."""

    def _begin_fresh(self) -> Transaction:
        """Begin a transaction that sees every commit that was acknowledged before."""
        raise NotImplementedError

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
    ) -> CommittedTable | TableInfo:
        """Create a table and return its definition with the `csn` of the commit.

        Args:
            name: `name` or `namespace.name`, of a-z, 0-9 and _.
            schema: The columns in their order: a pyarrow Schema, in which a field that is not nullable
                makes a required column, and metadata `default` and `comment` are as in DDL text; DDL text
                (`"id bigint not null, name string default 'none' comment 'as it is written'"`); a mapping
                of names to types (`{"id": "bigint not null", "name": "string"}`); or rows in any form that
                `insert` takes, of which no row is inserted (the path of a file as a `pathlib.Path`). Types
                that a table does not have are stored as the one that has their values: see
                docs/protocol.md#bytes.
            sql: In place of `schema`: one SELECT, whose columns and rows the table gets, in one transaction.
                `rows` of the result is their number. An expression needs a name (`count(*) as n`).
            params: Values of its parameters.
            if_not_exists: Return the table of this name if there is one, whatever its columns are; its `csn`
                is missing then.
            or_replace: Drop the table of this name, if there is one, in the same commit: there is no moment
                without a table. The new one has no row of it (`drop_table`).
            partition_by: Columns whose values become folders; identity only.
            sort_by: Columns by which the rows of a file are sorted.
            properties: `compaction` (on, off); `unique_key`, columns separated by commas, in which no two
                rows have the same values, and `on_duplicate` (refuse, replace); `landing` (on, off), see
                `land`.
            derived_from: Table whose inserts this one follows: the result of `derived_sql` over the rows of
                each insert is inserted here, in the same transaction.
            derived_sql: One SELECT; `inserted` are the rows.
            checks: Conditions that no row may break, as SQL, by their names: `{"positive": "pieces > 0"}`; in
                DDL text `constraint positive check (pieces > 0)`.

        Raises:
            TableExistsError: A table of this name exists, and `if_not_exists` is not given.
            UnsupportedTypeError: Not all readers understand a column's type; the message suggests another.
            BadRequestError: A name or column list is wrong, `derived_sql` or its columns, or a check; or
                tables are derived from the one to be replaced.
            SchemaMismatchError: A column of a DataFrame has values of several types.
            UnknownTableError: The table `derived_from` does not exist.
            TableChangedError: The definition of `derived_from` changed meanwhile; call again.
            NotCommittedError: The table was not created, as no commit is possible now; call again.
            CommitUnknownError: The answer was lost; `table(name)` shows whether the table exists.
        """
        body = create_request(
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
        return self._create(body, if_not_exists=if_not_exists)

    def _create(self, body: CreateTableRequest, *, if_not_exists: bool) -> CommittedTable | TableInfo:
        name = body.name
        if body.sql is not None:
            with self._begin_fresh() as tx:
                made = tx.send_create(body, if_not_exists=if_not_exists)
            return made if isinstance(made, TableInfo) else _committed(made, tx.csn or 0)
        try:
            return self._define("POST", "/tables", CommittedTable, body, f"table {name} was created", name)
        except TableExistsError:
            if not if_not_exists:
                raise
            with self._begin_fresh() as tx:  # the replica that answers may not know it yet
                return tx.definition(name)

    def drop_table(self, name: str, *, if_exists: bool = False) -> int | None:
        """Drop a table and return the CSN from which it does not exist.

        Readers of earlier CSNs go on to see it, as long as its history is kept. Open transactions that use it
        can only be rolled back. A table that is created later under the same name is another one.

        Args:
            name: `name` or `namespace.name`.
            if_exists: Return None if there is no such table.

        Raises:
            UnknownTableError: There is no such table, and `if_exists` is not given.
            BadRequestError: Other tables are derived from it; drop these first.
            NotCommittedError: The table was not dropped, as a commit is not possible now; call again.
            CommitUnknownError: The answer was lost; `table(name)` shows whether the table exists.
        """
        path = f"/tables/{segment(name)}"
        try:
            return self._define("DELETE", path, DroppedTable, None, f"table {name} was dropped", name).csn
        except UnknownTableError:
            if not if_exists:
                raise
            return None

    def undrop_table(self, name: str, *, to: str | None = None, csn: int | None = None) -> CommittedTable:
        """Bring a dropped table back with the rows that it had, while its history is kept.

        It is the same table again: its history and its change feed go on. At the CSNs in between there is no
        table. No byte of its rows is written. `rows` of the result is their number.

        Args:
            name: The name that it had when it was dropped.
            to: Its name from now on; default: the same.
            csn: The CSN of the drop, as `drop_table` has returned it; default: the last drop of a table of
                that name.

        Raises:
            UnknownTableError: No table of this name was dropped, or its definition is not known any more.
            TableExistsError: There is a table of that name; give `to`.
            SnapshotTooOldError: Its rows are not kept any more (`history_retention_s`).
            BadRequestError: It was derived from a table that does not exist any more.
            NotCommittedError, CommitUnknownError: As of `drop_table`.
        """
        with self._begin_fresh() as tx:
            made = tx.undrop_table(name, to=to, csn=csn)
        return _committed(made, tx.csn or 0)

    def clone_table(
        self,
        source: str,
        name: str,
        *,
        csn: int | str | None = None,
        at: datetime | int | str | None = None,
    ) -> CommittedTable:
        """Create a table with the definition and the rows of another one; no byte of them is written.

        The two tables share files and nothing else: what changes one does not change the other. The new table
        has the columns, partitions, sort order and properties of the other one; it is derived from no table.
        `rows` of the result is the number of its rows.

        Args:
            source: The other table.
            name: The new table, `name` or `namespace.name`.
            csn: The other table as at this CSN or tag; default: the newest.
            at: Instead: as at the newest CSN whose effective time is not after this.

        Raises:
            UnknownTableError: There is no such table, or it did not exist then.
            TableExistsError: There is a table `name`.
            SnapshotTooOldError: The history of the CSN is not kept any more.
            NoSuchCsnError, UnknownTagError: There is no such CSN or tag; `at` has not come yet.
            BadRequestError: Both `csn` and `at` are given, or `name` is no name of a table.
            NotCommittedError, CommitUnknownError: As of `drop_table`.
        """
        with self._begin_fresh() as tx:
            made = tx.clone_table(source, name, csn=csn, at=at)
        return _committed(made, tx.csn or 0)

    def rename_table(self, name: str, to: str) -> CommittedTable:
        """Give a table another name, also in another namespace; return its definition as `create_table` does.

        Readers of earlier CSNs go on to see it under its former name.

        Raises:
            UnknownTableError: There is no table `name`.
            TableExistsError: There is a table `to`.
            BadRequestError: `to` is no name of a table, or the name that it has.
            NotCommittedError, CommitUnknownError: As of `drop_table`.
        """
        return self._alter(name, AlterTableRequest(name=to))

    def alter_table(
        self,
        name: str,
        properties: Mapping[str, str | None] | None = None,
        **columns: Unpack[ColumnChanges],
    ) -> CommittedTable:
        """Change properties and columns of a table, and return its definition as `create_table` does.

        All changes are one commit. It rewrites no row, unless `types` or a generated column needs that.
        Readers of earlier CSNs go on to see the columns that the table had there. Transactions that have used
        the table before can only be rolled back.

        Args:
            name: `name` or `namespace.name`.
            properties: New values of `comment`, `compaction` or `retention_s`; None takes one away. The
                other properties stay as they were made, since the rows that are there depend on them.
            columns: Changes of columns, by name: `drop`, `rename`, `add`, `nullable`, `types`, `order`,
                `default`, `comment`, `generated`; and of `checks` (`ColumnChanges`).

        Raises:
            UnknownTableError: There is no such table.
            BadRequestError: A property is unknown, cannot be changed, or has a wrong value; a column does
                not exist, or exists already, or the table needs it (docs/tables.md#columns); or nothing
                changes.
            CheckViolationError: Rows of the table break a new check.
            UnsupportedTypeError, SchemaMismatchError: As of `create_table`.
            SerializationConflictError: With `types`, new `checks` and generated columns: another transaction
                has added or changed rows meanwhile; call again.
            NotCommittedError, CommitUnknownError: As of `drop_table`.
        """
        request = alter_request(properties, **columns)
        if not request.reads_rows:
            return self._alter(name, request)

        def once() -> CommittedTable:  # rows are read, perhaps for longer than an answer may take
            with self._begin_fresh() as tx:
                made = tx.alter_table(name, properties, **columns)
            return _committed(made, tx.csn or 0)

        transport = self._connection.transport
        return repeat(
            once,
            (TransactionClosedError, TableChangedError),  # another one has dropped or changed the table
            deadline=time.monotonic() + transport.timeouts.answer_s,
            waits=transport.waits,
            what=f"a change of table {name}",
        )

    def namespaces(self, *, csn: int | None = None) -> RowList[NamespaceInfo]:
        """Return every namespace with its properties and the number of its tables; `default` always exists.

        Args:
            csn: As in `tables`.

        Raises:
            SnapshotTooOldError, NoSuchCsnError, StandbyError: As in `snapshot`.
        """
        return RowList(self._at_csn("/namespaces", csn, list[NamespaceInfo]))

    def create_namespace(
        self, name: str, *, properties: Mapping[str, str] | None = None, if_not_exists: bool = False
    ) -> int | None:
        """Create a namespace, which then exists also without tables; return the CSN of the commit.

        A table may be created in a namespace that nobody has created, which lasts as long as its tables.

        Args:
            name: Of a-z, 0-9 and _.
            properties: `comment`.
            if_not_exists: Return None if it has been created already.

        Raises:
            BadRequestError: It exists, the name is malformed, or a property is unknown.
            NotCommittedError, CommitUnknownError: As of `drop_table`.
        """
        with self._begin_fresh() as tx:
            tx.create_namespace(name, properties=properties, if_not_exists=if_not_exists)
        return tx.csn

    def drop_namespace(self, name: str, *, cascade: bool = False, if_exists: bool = False) -> int | None:
        """Drop a namespace, and return the CSN from which it does not exist.

        Args:
            name: Its name.
            cascade: Drop its tables in the same commit.
            if_exists: Return None if there is none.

        Raises:
            BadRequestError: There is none, it is `default`, or it has tables and `cascade` is not given; or
                tables of other namespaces are derived from its tables.
            TableExistsError: A table came into it meanwhile; call again.
            NotCommittedError, CommitUnknownError: As of `drop_table`.
        """
        with self._begin_fresh() as tx:
            tx.drop_namespace(name, cascade=cascade, if_exists=if_exists)
        return tx.csn

    def _alter(self, name: str, body: AlterTableRequest) -> CommittedTable:
        path = f"/tables/{segment(name)}"
        return self._define("PATCH", path, CommittedTable, body, f"table {name} was changed", name)

    def _define(
        self, method: str, path: str, kind: type[Defined], body: msgspec.Struct | None, what: str, name: str
    ) -> Defined:
        """Send a definition to one replica: a repetition would meet its own effect."""
        member, *_ = self._connection.members.in_order()
        try:
            made = self._connection.transport.call(member.api, method, path, answer=kind, body=body)
        except NoAnswerError as error:
            self._connection.members.note(member, error)
            raise CommitUnknownError(
                f"it is not known whether {what} ({error.message}); check with table({name!r})"
            ) from error
        self._connection.highest_csn.note(made.csn)
        return made

    def tables(self, *, csn: int | str | None = None) -> RowList[TableInfo]:
        """Return every table: its definition, `version`, `rows`, `bytes` and number of `parts`.

        Args:
            csn: At this CSN, or that of a tag; default: the newest of the replica that answers, not below
                what this client has seen.

        Raises:
            SnapshotTooOldError, NoSuchCsnError, StandbyError: As in `snapshot`.
        """
        return RowList(self._at_csn("/tables", csn, list[TableInfo]))

    def table(self, name: str, *, csn: int | str | None = None) -> TableInfo:
        """Return one table as `tables` does; UnknownTableError when it does not exist at that CSN."""
        return self._at_csn(f"/tables/{segment(name)}", csn, TableInfo)

    def parts(self, table: str, *, csn: int | str | None = None) -> RowList[PartInfo]:
        """Return a table's parts as `Snapshot.parts` does, without a pin: its retention keeps them.

        Args:
            table: The table.
            csn: As in `tables`.

        Raises:
            UnknownTableError: There is no such table at that CSN.
            SnapshotTooOldError, NoSuchCsnError, StandbyError: As in `tables`.
        """
        return RowList(self._at_csn("/parts", csn, list[PartInfo], table=table))


def _committed(made: DefinedTable, csn: int) -> CommittedTable:
    return CommittedTable(csn=csn, **{name: getattr(made, name) for name in made.__struct_fields__})
