"""SQL over snapshots: answers, snapshots that cannot be read, and hostile statements."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.sql import ITEMS, ORDERS, orders_and_items, rows, table, workers
from tests.support.rows import ALL_TYPES, settings
from tidelock.errors import (
    BadRequestError,
    CorruptError,
    SnapshotTooOldError,
    StandbyError,
    UnknownTableError,
)
from tidelock.replica_agent.sql.pool import SqlPool, select_statement

MakePool = Callable[..., SqlPool]


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """A data directory with two tables, up to CSN 6."""
    return orders_and_items(tmp_path / "data")


@pytest.fixture
async def make_pool(directory: DataDir) -> AsyncIterator[MakePool]:
    """A function that makes pools over the data directory; they are closed after the test."""
    async with contextlib.AsyncExitStack() as stack:

        def make(**limits: Any) -> SqlPool:
            made = SqlPool(settings(**limits), directory.path)
            stack.push_async_callback(made.close)
            return made

        yield make


# -- answers


async def test_each_snapshot_has_its_rows(make_pool: MakePool) -> None:
    """A statement sees what is visible at its CSN, in all tables, with the values of the partitions."""
    pool = make_pool()
    count = "SELECT (SELECT count(*) FROM orders), (SELECT sum(price)::int FROM sales.items)"
    assert [await rows(pool, count, csn=csn) for csn in (3, 4, 5, 6)] == [
        [(0, None)],
        [(3, 3)],
        [(4, 3)],
        [(2, 3)],
    ]
    assert await rows(pool, "FROM orders ORDER BY id") == [(3, None, 1995), (4, "ann", 1995)]
    joined = "SELECT year, sum(price)::int FROM orders JOIN sales.items ON id = order_id GROUP BY year"
    assert await rows(pool, joined, csn=5) == [(1994, 3)]
    assert len(workers()) == 1


async def test_tables_are_found_by_full_and_short_names(make_pool: MakePool) -> None:
    """A table is found under its full name and, in the default namespace, under its own."""
    pool = make_pool()
    for name in ("orders", "Orders", '"default".orders', '"orders"'):
        assert await rows(pool, f"SELECT count(*) FROM {name}") == [(2,)]
    assert await rows(pool, "SHOW TABLES") == [("orders",)]
    for name in ("items", "sales.orders", "nope", "other.nope"):
        with pytest.raises(UnknownTableError, match="at CSN 6"):
            await rows(pool, f"SELECT * FROM {name}")
    with pytest.raises(UnknownTableError):
        await rows(pool, "SELECT * FROM orders", csn=1)


async def test_of_many_tables_a_statement_sees_those_that_it_can_name(
    make_pool: MakePool, directory: DataDir
) -> None:
    """A statement sees the tables that it mentions; one that lists or computes names sees all of them."""
    for number in range(60):
        directory.create_table(7, f"t{number}", pa.schema([("a", pa.int64())]))
    pool = make_pool()
    assert await rows(pool, "SELECT count(*) FROM T59, orders", csn=7) == [(0,)]
    assert len(await rows(pool, "SHOW TABLES", csn=7)) == 61
    assert len(await rows(pool, "DESCRIBE", csn=7)) == 62  # the tables of all namespaces
    assert await rows(pool, "SELECT count(*) FROM query_table('t' || '59')", csn=7) == [(0,)]
    assert await rows(pool, "SELECT * FROM query('SELECT count(*) FROM ' || 't' || '59')", csn=7) == [(0,)]


async def test_parameters_are_compared_in_the_type_of_the_column(make_pool: MakePool) -> None:
    """JSON parameters are compared in the type of the column: numbers, text, dates and times, null."""
    pool = make_pool()
    assert await rows(pool, "SELECT id FROM orders WHERE customer = ? AND year > ?", "ann", 1994) == [(4,)]
    assert await rows(pool, "SELECT id FROM orders WHERE customer = $2 OR id = $1", 3, "ann") == [(3,), (4,)]
    assert await rows(pool, "SELECT DATE '2024-02-29' < ?, ? IS NULL", "2024-03-01", None) == [(True, True)]
    for params in ((), (1, 2)):
        with pytest.raises(BadRequestError, match="arameter"):
            await rows(pool, "SELECT ?", *params)
    with pytest.raises(BadRequestError, match="not a JSON value"):
        await rows(pool, "SELECT ?", "\ud800")


async def test_reads_have_the_tables_types(make_pool: MakePool, directory: DataDir) -> None:
    """A read of a table gives its Arrow types, also of partition columns, and its values."""
    names = [name for name in ALL_TYPES if name not in {"c_float", "c_double", "c_binary"}]
    partitions = {f"p_{name}": ALL_TYPES[name] for name in names if "time" not in name}
    schema = pa.schema([*ALL_TYPES.items(), *partitions.items()])
    directory.create_table(7, "types", schema, partition_by=list(partitions))
    content = pa.Table.from_pylist(
        [
            {
                "c_boolean": True,
                "c_double": 0.5,
                "c_decimal": 1,
                "p_c_decimal": 2,
                "p_c_string": "é/=",
                "p_c_date": 1,
            },
            {"c_binary": b"\xff", "c_date": 1, "c_timestamp": 1, "c_timestamp_ntz": 1, "p_c_boolean": False},
        ],
        schema=schema,
    )
    directory.insert(8, {"default.types": content})
    pool = make_pool()
    found = await table(pool, select_statement("types", None, None), csn=8)
    assert found.schema.equals(schema)
    key = [("c_boolean", "ascending")]
    assert found.sort_by(key).equals(content.sort_by(key))
    some = await table(
        pool, select_statement("types", ["p_c_date", "c_date"], "c_date = ?"), "1970-01-02", csn=8
    )
    assert some.to_pydict() == {"p_c_date": [None], "c_date": [content["c_date"][1].as_py()]}


async def test_own_rows_of_a_transaction(make_pool: MakePool, directory: DataDir) -> None:
    """A transaction alone sees its own parts, and does not see its removed ones."""
    mine = "6-r1-9-1"
    with directory.sql() as db:
        db.execute("UPDATE parts SET creation_tid = ?, creation_csn = NULL WHERE creation_csn = 5", (mine,))
        db.execute("UPDATE parts SET removal_tid = ? WHERE table_name = ?", (mine, ITEMS))
    pool = make_pool()
    count = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM sales.items)"
    assert await rows(pool, count) == [(1, 2)]
    assert await rows(pool, count, tid=mine) == [(2, 0)]
    assert await rows(pool, count, tid="6-r1-9-2") == [(1, 2)]


async def test_a_large_result_arrives_whole(make_pool: MakePool) -> None:
    """A result of many pieces is one Arrow stream; an empty one has its columns."""
    pool = make_pool()
    found = await table(pool, "SELECT i, i::varchar AS s FROM range(500000) t(i)")
    assert found.num_rows == 500_000
    assert found["i"].to_pylist() == list(range(500_000))
    empty = await table(pool, "SELECT id, customer FROM orders WHERE id > 100")
    assert (empty.num_rows, empty.column_names) == (0, ["id", "customer"])


async def test_statements_run_beside_each_other(make_pool: MakePool) -> None:
    """As many statements run at once as the pool has processes; the others wait for their turn."""
    pool = make_pool(sql_workers=2)
    counts = await asyncio.gather(
        *(rows(pool, f"SELECT count(*), {number} FROM orders") for number in range(8))
    )
    assert counts == [[(2, number)] for number in range(8)]
    assert len(workers()) == 2


# -- what cannot be read


async def test_snapshots_that_cannot_be_read(make_pool: MakePool, directory: DataDir) -> None:
    """A CSN that is not applied is standby, one below the horizon too old; errors have the readable CSNs."""
    directory.set(horizon=5)
    pool = make_pool()
    with pytest.raises(StandbyError) as behind:
        await rows(pool, "SELECT * FROM orders", csn=7)
    assert behind.value.details == {"snapshot_csn": 6}
    with pytest.raises(SnapshotTooOldError) as old:
        await rows(pool, "SELECT * FROM orders", csn=4)
    assert old.value.details == {"csn": 4, "min_csn": 5}
    assert len(await rows(pool, "SELECT * FROM orders", csn=5)) == 4


async def test_a_damaged_part_is_an_error(make_pool: MakePool, directory: DataDir) -> None:
    """A flipped bit is reported as corruption of its part; other tables can be read."""
    part = directory.parts(ITEMS)[0]
    directory.flip_bit(part, part.length // 2)
    pool = make_pool()
    with pytest.raises(CorruptError) as caught:
        await rows(pool, "SELECT * FROM sales.items")
    assert caught.value.details == {"part": part.part, "table": ITEMS}
    assert len(await rows(pool, "SELECT * FROM orders")) == 2
    assert len(workers()) == 1


async def test_a_part_that_was_collected_is_no_damage(make_pool: MakePool, directory: DataDir) -> None:
    """If parts of a snapshot are collected while it is read, it is too old, not damaged and not shorter."""
    pool = make_pool(sql_threads=1)
    statement = "SELECT count(*) FROM orders, (SELECT count(*) AS n FROM range(3000000)) WHERE n > 0"
    for part in directory.parts(ORDERS):
        (directory.path / str(part.file)).unlink(missing_ok=True)
    with pytest.raises(CorruptError):
        await rows(pool, statement, csn=4)
    directory.set(horizon=6)
    with pytest.raises(SnapshotTooOldError):
        await rows(pool, statement, csn=4)


# -- hostile statements

#: Statements that must be refused; `{data}` is the data directory.
HOSTILE = """
    SELECT * FROM read_text('/etc/passwd')
    SELECT * FROM '/etc/passwd'
    SELECT * FROM '/etc/passwd.csv'
    SELECT * FROM read_csv('/etc/passwd')
    SELECT * FROM read_json('http://127.0.0.1:1/x')
    SELECT * FROM read_blob('{data}/catalog.db')
    SELECT * FROM read_blob('{data}/run/sql-1/../../catalog.db')
    SELECT * FROM read_parquet('{data}/packs/*/*.pack')
    SELECT * FROM glob('/*')
    SELECT * FROM sniff_csv('/etc/passwd')
    SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')
    ATTACH '{data}/catalog.db' AS c (TYPE sqlite)
    ATTACH '/tmp/x.db'
    COPY orders TO '{data}/x'
    COPY (SELECT 1) TO '{data}/run/sql-1/x'
    EXPORT DATABASE '{data}/x'
    INSTALL httpfs
    LOAD httpfs
    SET memory_limit = '100GB'
    SET enable_external_access = true
    SET SESSION TimeZone = 'Asia/Tokyo'
    RESET lock_configuration
    PRAGMA database_list
    PRAGMA enable_profiling
    CALL pragma_version()
    CALL enable_logging()
    SELECT * FROM enable_logging()
    SELECT getenv('HOME')
    SELECT * FROM duckdb_secrets()
    CREATE SECRET (TYPE s3)
    SELECT * FROM config
    SELECT * FROM connection
    SELECT * FROM tables
    SELECT * FROM sys
    SELECT * FROM arrow_scan(1, 2, 3)
    SELECT * FROM arrow_scan(1::POINTER, 2::POINTER, 3::POINTER)
    SELECT * FROM pandas_scan(1)
    SELECT * FROM python_map_function(1)
    SELECT 1; SELECT 2
    SELECT 1; DROP VIEW orders
    SELECT * FROM query('DROP VIEW orders')
    BEGIN
    COMMIT
    VACUUM
    CHECKPOINT
    EXPLAIN ANALYZE SELECT 1
    PREPARE p AS SELECT 1
    USE sales
    CREATE TABLE x AS SELECT 1
    CREATE OR REPLACE VIEW orders AS SELECT 1
    CREATE MACRO orders() AS 1
    DROP VIEW orders
    INSERT INTO orders VALUES (1)
    WITH x AS (INSERT INTO orders VALUES (1, 'a', 1) RETURNING *) SELECT * FROM x
    DELETE FROM orders
    UPDATE orders SET id = 1
    PIVOT orders ON year
    -- nothing
    ;
    SELEC 1
    SELECT error('x')
    SELECT 'x'::int
    SELECT nope FROM orders
    SELECT nope(1)
    SELECT * FROM orders WHERE id = 'x'
"""


async def test_hostile_statements_are_refused(make_pool: MakePool, directory: DataDir) -> None:
    """A statement that reads anything but rows of tables is refused, and the process goes on."""
    pool = make_pool()
    files = sorted(directory.path.rglob("*"))
    let_through = []
    for line in HOSTILE.strip().splitlines():
        with contextlib.suppress(BadRequestError, UnknownTableError):
            found = await rows(pool, line.strip().replace("{data}", str(directory.path)))
            let_through.append((line, found))
        assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
    assert let_through == []
    assert len(workers()) == 1
    assert not set(directory.path.rglob("*x")) - set(files)


@pytest.mark.parametrize("value", ["error('late')", "'x'::int", "9223372036854775807 + i"])
async def test_an_error_among_the_last_rows(make_pool: MakePool, value: str) -> None:
    """An error among the last rows fails the statement, like one among the first; the process goes on."""
    pool = make_pool()
    with pytest.raises(BadRequestError, match=r"the statement cannot be run: .* Error: "):
        await rows(pool, f"SELECT CASE WHEN i < 900000 THEN i ELSE {value} END FROM range(1000000) t(i)")
    assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
    assert len(workers()) == 1


async def test_what_a_statement_finds_of_its_process(make_pool: MakePool, directory: DataDir) -> None:
    """A statement may read only the folder of its own temporary files, which is empty."""
    pool = make_pool()
    assert await rows(pool, f"SELECT * FROM glob('{directory.path}/run/sql-1/**')") == []
    locked = "SELECT current_setting('TimeZone'), current_setting('lock_configuration')"
    assert await rows(pool, locked) == [("UTC", True)]


async def test_the_process_knows_no_secret(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a SQL process has no setting of the agent."""
    monkeypatch.setenv("TIDELOCK_SECRET", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    await rows(make_pool(), "SELECT 1")
    [worker] = workers()
    assert "hush" not in worker.environ().values()
