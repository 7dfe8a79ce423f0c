"""Derived tables: their SQL is run over the rows of each insert into their source, and its result inserted.

The definition of a source names its dependents, and the definition of a dependent its source and its SQL;
both change in the commit that creates the dependent. An insert of a transaction that began before does not
know the dependent. It is refused at its commit, which checks the version of the definition that it used. So
no row of an insert is ever visible in one of the tables without the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from tidelock.casts import equal_but_nulls
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import BadRequestError, RefusedError, TooLargeError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.sql.mutation import DerivedRows, MutationRequest
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.sql.request import SqlRequest, quote
from tidelock.replica_agent.sql.type_names import type_of
from tidelock.replica_agent.storage.tables import SeenTables, Tables
from tidelock.replica_agent.tables.schema import Derivation, TableSchema
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core.model import PartMeta
from tidelock.table_columns import Column


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DerivedTables:
    """Checks derived tables, and computes the rows that fill them."""

    settings: AgentSettings
    tables: Tables
    sql: SqlPool

    async def check(self, tx: Transaction, schema: TableSchema, seen: SeenTables) -> None:
        """Check the definition of a new derived table.

        Args:
            tx: The transaction that creates it.
            schema: Its schema.
            seen: The tables that the transaction sees.

        Raises:
            BadRequestError: The SQL is no SELECT over ``inserted``, its columns are not those of the table,
                or the source replaces rows or is a landing table.
            UnknownTableError: The source, or another table that the SQL names, does not exist.
            TooLargeError: The chain is too long, or the source has too many dependents.
        """
        assert schema.derivation is not None, "it is derived"
        _, source = seen.schema(schema.derivation.source)
        self._check_source(schema, source, seen)
        self._check_columns(schema, await self._columns(tx, schema.derivation, source, seen.at))

    async def check_dependents(self, tx: Transaction, source: TableSchema, seen: SeenTables) -> None:
        """Check that the tables which are derived from a source can follow it with other columns.

        Args:
            tx: The transaction that changes the source.
            source: The schema that the source is to have.
            seen: The tables that it sees.

        Raises:
            BadRequestError: One of them cannot.
        """
        for table in source.dependents:
            _, dependent = seen.schema(table)
            assert dependent.derivation is not None, "a dependent is derived"
            try:
                found = await self._columns(tx, dependent.derivation, source, seen.at)
                self._check_columns(dependent, found)
            except BadRequestError as error:
                raise BadRequestError(
                    f"table {dependent.name}, which is derived from {source.name}, could not follow it any "
                    f"more ({error.message}); drop it first, and create it with other SQL",
                    table=dependent.name,
                ) from error

    @contextlib.asynccontextmanager
    async def rows_for(
        self, tx: Transaction, table: TableId, source: TableSchema, parts: Sequence[PartMeta], *, at: Csn
    ) -> AsyncIterator[AsyncIterable[bytes]]:
        """Provide the rows that a dependent takes from an insert into its source, as an Arrow IPC stream.

        Args:
            tx: It has just staged the rows, and written them out.
            table: The dependent.
            source: The table that was inserted into.
            parts: All rows of the insert, and no others.
            at: The CSN that the statement reads at.

        Raises:
            RefusedError: The transaction cannot be committed any more; an error of the body is also raised,
                with the name of the dependent added.
        """
        _, dependent = self.tables.seen(at, tx.staged.definitions).schema(table)
        assert dependent.derivation is not None, "a dependent is derived"
        rows = DerivedRows(
            dependent.derivation.sql, source=source.id, parts=tuple(part.part for part in parts)
        )
        request = MutationRequest(
            at, str(tx.tid), table, rows, tuple(tx.staged.adopted.tids), tuple(tx.staged.definitions)
        )
        try:
            async with self.sql.mutate(request) as derived:
                yield derived.pieces()
        except RefusedError as error:
            # The class of the error says what is wrong, not where: the user has inserted into another table.
            name = dependent.name
            message = f"table {name}, derived from {source.name}, cannot follow the insert: {error.message}"
            raise type(error)(message, **(error.details | {"derived": name})) from error
        tx.note_reads(derived.ended.read_set())

    def _check_source(self, schema: TableSchema, source: TableSchema, seen: SeenTables) -> None:
        if source.replaces:
            raise BadRequestError(
                f"table {source.name} replaces rows (on_duplicate=replace), which a derived table cannot "
                f"follow; derive {schema.name} from one that refuses duplicates, or that has no unique key",
                table=source.name,
            )
        if source.lands:
            raise BadRequestError(
                f"{source.name} is a landing table (property landing), whose rows come without a transaction "
                f"that could fill {schema.name}, too; derive it from another table",
                table=source.name,
            )
        limit = self.settings.dependents_max
        if len(source.dependents) >= limit:
            raise TooLargeError(
                f"{len(source.dependents)} tables are derived from {source.name} already, the limit is "
                f"dependents_max={limit}; derive {schema.name} from one of them",
                limit=limit,
                found=len(source.dependents) + 1,
            )
        depth, above = 1, source
        while above.derivation is not None:
            depth += 1
            _, above = seen.schema(above.derivation.source)
        if depth > self.settings.derived_depth_max:
            raise TooLargeError(
                f"{schema.name} would be number {depth} in a chain of derived tables, the limit is "
                f"derived_depth_max={self.settings.derived_depth_max}; derive it from a table nearer to "
                f"{above.name}",
                limit=self.settings.derived_depth_max,
                found=depth,
            )

    async def _columns(
        self, tx: Transaction, derivation: Derivation, source: TableSchema, at: Csn
    ) -> pa.Schema:
        """Run the SQL over no rows and return its columns."""
        columns = ", ".join(
            f"CAST(NULL AS {type_of(column)}) AS {quote(column.name)}" for column in source.columns
        )
        inserted = f"WITH inserted AS (SELECT {columns} LIMIT 0) "
        return await self.columns(tx, derivation.sql, (), at, before=inserted)

    async def columns(
        self, tx: Transaction, sql: str, params: Sequence[Any], at: Csn, *, before: str = ""
    ) -> pa.Schema:
        """Return the columns of a SELECT in a transaction, without its rows.

        Args:
            tx: The transaction.
            sql: The SELECT.
            params: Its parameters.
            at: The CSN that it reads at.
            before: SQL in front of it.

        Raises:
            BadRequestError: It is no SELECT, or not valid.
            UnknownTableError: It names a table that does not exist.
        """
        rows = sql.rstrip("; \t\r\n")
        request = SqlRequest(
            csn=at,
            tid=str(tx.tid),
            # On separate lines, so that a comment in the SQL ends before the bracket.
            sql=f"{before}SELECT * FROM (\n{rows}\n) LIMIT 0",  # noqa: S608 - it is meant to be SQL
            params=tuple(params),
            defined=tuple(tx.staged.definitions),
        )
        pieces = [piece async for piece in self.sql.run(request)]
        with pa.ipc.open_stream(b"".join(pieces)) as reader:
            return reader.schema

    def _check_columns(self, schema: TableSchema, found: pa.Schema) -> None:
        columns = {column.name: column for column in schema.columns}
        names = found.names
        problems = [f"column {name} is not in the table" for name in names if name not in columns]
        problems += [
            f"column {name} appears twice" for name in sorted({n for n in names if names.count(n) > 1})
        ]
        missing = (name for name in columns if name not in names and columns[name].generated is None)
        problems += [f"column {name} is missing" for name in missing]
        problems += [
            f"column {field.name} is {field.type}, expected {columns[field.name].type}: cast it"
            for field in found
            if field.name in columns and not fits(columns[field.name], field.type)
        ]
        if problems:
            raise BadRequestError(
                f"derived_sql does not give rows of table {schema.name}: {'; '.join(problems)}",
                table=schema.name,
            )


def fits(column: Column, found: pa.DataType) -> bool:
    """Return whether each value of an SQL type fits a column, or is refused when it is written."""
    expected = column.arrow.type
    if equal_but_nulls(found, expected) or types.is_null(found):
        return True
    if types.is_integer(expected) or types.is_decimal(expected):
        # Sums of integers are hugeint, sums of decimals have 38 digits.
        scale = getattr(expected, "scale", 0)
        return bool(types.is_integer(found) or (types.is_decimal(found) and found.scale <= scale))
    return column.type == "double" and bool(types.is_floating(found))
