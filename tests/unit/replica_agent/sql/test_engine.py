"""One DuckDB instance serves request after request, and no request sees or changes anything of another."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.replica_agent.sql.engine import Engine
from tidelock.replica_agent.sql.mutation import CompactParts, MergeRows, MutationRequest
from tidelock.replica_agent.sql.request import ChangesRequest, Request, SqlConfig, SqlRequest

TABLE = TableId("main.orders")
READ = SqlRequest(Csn(1), None, "SELECT 1")
COMPACT = MutationRequest(Csn(1), None, TABLE, CompactParts(()))
MERGE = MutationRequest(Csn(1), None, TABLE, MergeRows("source.arrow", ("id",)))
CHANGES = ChangesRequest(Csn(2), Csn(1), TABLE, 3)
ALL = pytest.mark.parametrize(
    "request_of", [READ, COMPACT, MERGE, CHANGES], ids=lambda one: type(one).__name__
)
#: Leaves an entry in a list of the instance.
LEAVES = "SELECT * FROM register_external_resource('t', 'n', MAP {'a': 'b'}, deleter_function := 'f')"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine with small limits."""
    made = Engine(
        SqlConfig(
            data_dir=str(tmp_path), temp_dir=str(tmp_path / "sql"), memory_bytes=200 << 20,
            engine_bytes=100 << 20, temp_bytes=300 << 20, threads=1, cut_part_bytes_min=1,
        )
    )  # fmt: skip
    yield made
    made.close()


def instance(engine: Engine, request_of: Request = READ) -> list[int]:
    """Return the numbers of the next two connections: those of a new instance are always the same."""
    numbers: list[int] = []
    for _ in range(2):
        with engine.connection(request_of) as connection:
            numbers += connection.execute("SELECT current_connection_id()").fetchone() or ()
    return numbers


@ALL
def test_memory_and_disk_are_those_of_the_configuration(engine: Engine, request_of: Request) -> None:
    """The settings hold for the connection of each kind of request."""
    names = ("memory_limit", "max_temp_directory_size", "threads", "TimeZone", "python_enable_replacements")
    with engine.connection(request_of) as connection:
        shown = [connection.sql(f"SELECT current_setting('{name}')").fetchall()[0][0] for name in names]
    assert shown == ["100.0 MiB", "300.0 MiB", 1, "UTC", False]


@ALL
@pytest.mark.parametrize(
    "statement",
    [
        "SET memory_limit = '100GB'",
        "SET TimeZone = 'CET'",
        "SET python_enable_replacements = true",
        "SET SESSION enable_progress_bar = true",
        "RESET lock_configuration",
        "SET enable_external_access = true",
        "SELECT * FROM enable_logging()",
        "SELECT * FROM enable_profiling()",
    ],
)
def test_no_setting_can_be_changed(engine: Engine, request_of: Request, statement: str) -> None:
    """A statement that got past the check for SELECT would still be refused."""
    with (
        engine.connection(request_of) as connection,
        pytest.raises(duckdb.Error, match=r"lock|external access"),
    ):
        connection.execute(statement)


@ALL
def test_the_instance_is_kept(engine: Engine, request_of: Request) -> None:
    """The numbers of connections go on; after the end of the instance they begin again."""
    first, second = instance(engine, request_of), instance(engine, request_of)
    assert len({*first, *second}) == 4
    engine.close()
    assert instance(engine, request_of) == first


@pytest.mark.parametrize("other", [MERGE, CHANGES], ids=lambda one: type(one).__name__)
def test_only_one_instance_is_kept(engine: Engine, other: Request) -> None:
    """Work that needs other settings ends the instance: two would share the memory of the process."""
    first = instance(engine)
    instance(engine, other)
    assert instance(engine) == first


@ALL
def test_nothing_of_a_request_is_seen_by_the_next(engine: Engine, request_of: Request) -> None:
    """Views, schemas, variables, prepared statements and the seed of random numbers end with the request."""
    with engine.connection(request_of) as connection:
        connection.execute("CREATE SCHEMA sales")
        connection.execute("SET schema = 'sales'")
        connection.from_arrow(pa.table({"id": [1, 2]})).create_view("orders")
        assert connection.execute("SELECT sum(id) FROM sales.orders").fetchall() == [(3,)]
        connection.from_arrow(pa.table({"id": [1, 2]})).create_view("stream")
        connection.execute("SET schema = 'main'")
        connection.from_arrow(pa.table({"id": [1, 2]})).create_view("stream")
        connection.execute("CREATE TEMP TABLE kept AS SELECT 1")
        connection.execute("PREPARE kept AS SELECT 1")
        assert connection.execute("SELECT setseed(0.5), random()").fetchone() is not None
        drawn = connection.execute("SELECT setseed(0.5), random()").fetchone()
    with engine.connection(request_of) as connection:
        for listing in ("duckdb_views()", "duckdb_schemas()", "duckdb_tables()"):
            assert connection.sql(f"SELECT * FROM {listing} WHERE NOT internal").fetchall() == []
        assert connection.sql("FROM duckdb_prepared_statements()").fetchall() == []
        assert connection.execute("SELECT current_schema()").fetchone() == ("main",)
        assert connection.execute("SELECT NULL, random()").fetchone() != drawn


def test_rows_that_a_request_showed_are_released(engine: Engine) -> None:
    """A view does not hold the memory of its rows longer than its request."""
    with engine.connection(READ) as connection:
        rows = pa.table({"id": [1, 2]})
        seen = weakref.ref(rows)
        connection.from_arrow(rows).create_view("orders")
        del rows
        assert connection.execute("SELECT sum(id) FROM orders").fetchone() == (3,)
    gc.collect()
    assert seen() is None


def test_what_cannot_be_dropped_ends_the_instance(engine: Engine) -> None:
    """An entry in a list of the instance is gone for the next request, together with the instance."""
    first = instance(engine)
    with engine.connection(READ) as connection:
        assert connection.execute(LEAVES).fetchone() == (True,)
    with engine.connection(READ) as connection:
        assert connection.sql("FROM duckdb_external_resources()").fetchall() == []
    engine.close()
    assert instance(engine) == first


@pytest.mark.parametrize("wrong", ["SELECT no_column", "SELECT error('x')", "SELECT 'x'::INTEGER"])
def test_a_statement_that_fails_leaves_the_instance_in_order(engine: Engine, wrong: str) -> None:
    """The next request runs in the same instance."""
    first = instance(engine)
    with engine.connection(READ) as connection, pytest.raises(duckdb.Error):
        connection.sql(wrong).fetchall()
    assert not {*instance(engine)} & {*first}
