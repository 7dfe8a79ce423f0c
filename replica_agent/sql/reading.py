"""Statements of a user that are run unchanged: queries, and INSERT INTO ... SELECT inside a transaction."""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb
import msgspec
import pyarrow as pa

from tidelock.csnlog.core.ids import TableId
from tidelock.errors import BadRequestError, UnsupportedInTransactionError
from tidelock.replica_agent.sql.mutation import DerivedRows
from tidelock.replica_agent.sql.request import SqlRequest
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.sql.system_names import named
from tidelock.replica_agent.tables.names import full_name

_NAME = r'(?:"(?:[^"]|"")+"|\w+)'
_INSERT = re.compile(
    rf"\s*insert\s+into\s+(?P<table>{_NAME}(?:\s*\.\s*{_NAME})?)\s*"
    rf"(?:\(\s*(?P<columns>{_NAME}(?:\s*,\s*{_NAME})*)\s*\)\s*)?(?P<named>by\s+name\b)?(?P<rows>.*)",
    re.IGNORECASE | re.DOTALL,
)
#: The method to call instead of a statement that transactions do not support in SQL.
_INSTEAD = {
    "ALTER": "tx.alter_table(...) or tx.rename_table(...)",
    "CREATE": "tx.create_table(...)",
    "DELETE": "tx.delete(table, where, params)",
    "DROP": "tx.drop_table(...), tx.drop_partition(...) or tx.truncate(table)",
    "INSERT": "INSERT INTO table [(columns)] SELECT ..., or tx.insert(table, rows); "
    "tx.upsert(table, rows, on=[...]) replaces rows",
    "MERGE_INTO": "tx.merge(table, rows, on=[...], ...) or tx.upsert(table, rows, on=[...])",
    "TRANSACTION": "tx.commit() or tx.rollback()",
    "UPDATE": "tx.update(table, {column: value}, where, params)",
}


class InsertSelect(msgspec.Struct, frozen=True):
    """An INSERT INTO ... SELECT: the table, and the source of its rows."""

    table: TableId
    rows: DerivedRows


def query(session: SqlSession, request: SqlRequest) -> pa.RecordBatchReader:
    """Begin a query.

    Raises:
        BadRequestError: It is not a single SELECT, or not valid.
        UnknownTableError: It names a table that does not exist at the snapshot.
        StandbyError, SnapshotTooOldError: See :meth:`SqlSession.tables`.
    """
    sql = shown(session, request.sql)
    if request.some is not None:
        session.show_some(request.some)
    return session.rows(sql, request.params)


def shown(session: SqlSession, sql: str) -> str:
    """Show what a statement can see, the system tables too, and return it as the engine understands it."""
    statement = named(sql)
    session.show_system(statement.tables)
    session.show_named(sql)
    return statement.sql


def insert_select(session: SqlSession, request: SqlRequest) -> InsertSelect | None:
    """Return the insert of a statement inside a transaction; None for a SELECT.

    Raises:
        BadRequestError: It is not a single statement, or not a SELECT outside of a transaction.
        UnsupportedInTransactionError: It is neither; the message names what to call instead.
    """
    statements = session.connection.extract_statements(request.sql)
    found = [statement.type.name for statement in statements]
    if found == ["SELECT"]:
        return None
    if request.tid is None:
        raise BadRequestError(f"a query is a single SELECT statement; found: {', '.join(found) or 'nothing'}")
    if found == ["INSERT"] and (match := _INSERT.fullmatch(request.sql)) is not None:
        rows = match["rows"]
        if _is_select(session.connection, rows):
            columns = None if match["columns"] is None else _names(match["columns"])
            return _insert(
                session, request, match["table"], columns, rows, by_name=match["named"] is not None
            )
    kind = found[0] if len(found) == 1 else ""
    instead = _INSTEAD.get(kind, "one SELECT or INSERT INTO ... SELECT")
    raise UnsupportedInTransactionError(
        f"in a transaction SQL is one SELECT, or INSERT INTO table [(columns)] SELECT ...; found: "
        f"{', '.join(found) or 'nothing'}. Roll back, and use {instead}"
    )


def _insert(
    session: SqlSession,
    request: SqlRequest,
    name: str,
    columns: tuple[str, ...] | None,
    rows: str,
    *,
    by_name: bool,
) -> InsertSelect:
    table = session.named(full_name(".".join(_names(name)).lower()))
    if columns is None and not by_name:
        columns = tuple(column["name"] for column in table.definition["columns"])
    return InsertSelect(table.id, DerivedRows(rows, request.params, columns))


def without_end(sql: str) -> str:
    """Return a statement without the semicolons and comments at its end, for use in brackets."""
    source = sql.encode()
    tokens = [(at, kind) for at, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    end = len(source)
    while tokens and source[tokens[-1][0] : tokens[-1][0] + 1] == b";":
        end, _ = tokens.pop()
    return source[:end].decode()


def require_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise BadRequestError unless a text is a single SELECT."""
    if not _is_select(connection, sql):
        raise BadRequestError(f"rows are derived by a single SELECT statement; found: {sql.strip()[:80]}")


def _is_select(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error:
        return False
    return [statement.type.name for statement in statements] == ["SELECT"]


def _names(text: str) -> tuple[str, ...]:
    """Return the names that identifiers are, without their quotes."""
    names: Sequence[str] = re.findall(_NAME, text)
    return tuple(name[1:-1].replace('""', '"') if name.startswith('"') else name for name in names)
