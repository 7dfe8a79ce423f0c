"""Statements that are put together, and frames between the agent and its SQL processes."""

from __future__ import annotations

import asyncio
import socket

import duckdb
import pytest

from tidelock.errors import BadRequestError
from tidelock.replica_agent.sql.request import Kind, pack, read_frame, receive_frame, select_statement


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
    """Names are quoted, whatever they are; the condition is SQL, and cannot swallow the bracket after it."""
    assert select_statement(table, columns, where) == statement
    assert len(duckdb.extract_statements(statement)) == 1


@pytest.mark.parametrize(("table", "columns"), [("a b", None), ('a"; select 1', None), ("orders", [])])
def test_reads_of_nothing_are_refused(table: str, columns: list[str] | None) -> None:
    """What is no table name, or no column at all, is refused."""
    with pytest.raises(BadRequestError):
        select_statement(table, columns, None)


async def test_frames_arrive_as_they_were_sent() -> None:
    """A frame is read back by both sides, however it was cut; the end is told from a frame."""
    reader = asyncio.StreamReader()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for kind, payload in ((Kind.DATA, b"x" * 70_000), (Kind.END, b"")):
            frame = pack(kind, payload)
            reader.feed_data(frame[:3])
            reader.feed_data(frame[3:])
            theirs.sendall(frame)
            assert await read_frame(reader) == (kind, payload)
            assert receive_frame(ours) == (kind, payload)
        reader.feed_data(pack(Kind.DATA, b"half")[:-1])
        reader.feed_eof()
        with pytest.raises(asyncio.IncompleteReadError):
            await read_frame(reader)
        theirs.sendall(pack(Kind.DATA, b"half")[:-1])
        theirs.close()
        with pytest.raises(EOFError):
            receive_frame(ours)
