"""Composed statements, and frames between the agent and its SQL processes."""

from __future__ import annotations

import socket

import duckdb
import pytest

from tidelock.errors import BadRequestError
from tidelock.replica_agent.sql.request import AnswerKind, pack_answer, read_answer, select_statement
from tidelock.replica_agent.workers.frames import receive_frame


@pytest.mark.parametrize(
    ("table", "columns", "where", "statement"),
    [
        ("orders", None, None, 'SELECT * FROM "default"."orders"'),
        ("sales.orders", ["a", 'b"c'], None, 'SELECT "a", "b""c" FROM "sales"."orders"'),
        ("orders", None, "a < ? -- b", 'SELECT * FROM "default"."orders"\nWHERE (\na < ? -- b\n)'),
        ("select.table", ["from"], "", 'SELECT "from" FROM "select"."table"'),
    ],
)
def test_reads_of_a_table(table: str, columns: list[str] | None, where: str | None, statement: str) -> None:
    """Any name is quoted; the condition is SQL, and cannot remove the bracket after it."""
    assert select_statement(table, columns, where) == statement
    assert len(duckdb.extract_statements(statement)) == 1


@pytest.mark.parametrize(("table", "columns"), [("a b", None), ('a"; select 1', None), ("orders", [])])
def test_reads_of_nothing_are_refused(table: str, columns: list[str] | None) -> None:
    """An invalid table name, or an empty list of columns, is refused."""
    with pytest.raises(BadRequestError):
        select_statement(table, columns, None)


@pytest.mark.parametrize("kind", AnswerKind)
def test_an_answer_is_read_back_as_it_was_packed(kind: AnswerKind) -> None:
    """The agent gets the kind and the bytes that the SQL process sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(pack_answer(kind, b"rows"))
        assert read_answer(receive_frame(ours)) == (kind, b"rows")
