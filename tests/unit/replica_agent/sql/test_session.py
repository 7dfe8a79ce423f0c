"""The session of one request shows the tables that its statement can see, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.mutations import config
from tests.support.replicas.sql import orders_and_items
from tidelock.csnlog.core.ids import Csn
from tidelock.replica_agent.sql.engine import Engine
from tidelock.replica_agent.sql.request import SqlRequest
from tidelock.replica_agent.sql.session import SqlSession

CSN = Csn(6)


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """A data directory with the tables `orders` and `sales.items`, and three more."""
    made = orders_and_items(tmp_path / "data")
    for name in ("orders_2", "sales.orders_3", "other.stock"):
        made.create_table(6, name, pa.schema([("a", pa.int64())]))
    return made


@pytest.fixture
def session(directory: DataDir) -> Iterator[SqlSession]:
    """The session of a request at the last CSN."""
    engine = Engine(config(directory))
    made = SqlSession(engine, SqlRequest(CSN, None, "SELECT 1"))
    yield made
    made.close()
    engine.close()


def shown(session: SqlSession) -> set[str]:
    """Return the full names of the tables that the session shows."""
    views = session.fetch("SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE NOT internal")
    return {name for (name,) in views}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", set()),
        ("SELECT * FROM sales.Items", {"sales.items"}),
        ('FROM "orders"', {"default.orders"}),
        ("FROM orders_2", {"default.orders", "default.orders_2"}),
    ],
)
def test_tables_are_shown_that_the_text_names(session: SqlSession, text: str, expected: set[str]) -> None:
    """A table whose name is not in the text costs nothing; one whose name is part of a word is shown."""
    session.show_named(text)
    assert shown(session) == expected


@pytest.mark.parametrize(
    "text",
    ["SHOW TABLES", "describe", "FROM duckdb_views()", "FROM pg_tables", "FROM query_table('or' || 'ders')"],
)
def test_all_tables_are_shown_to_a_text_that_can_see_any(session: SqlSession, text: str) -> None:
    """A text that lists tables, or computes a name, sees all of them, each in its namespace."""
    session.show_named(text)
    every = {"default.orders", "default.orders_2", "sales.items", "sales.orders_3", "other.stock"}
    assert shown(session) == every
