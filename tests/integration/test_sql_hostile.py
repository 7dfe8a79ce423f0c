"""Hostile expressions in statements that change rows are refused or ended by a limit, and the next one works.

A predicate or a new value may name columns of tables and functions of them. It must not reach files, the
network, settings, other processes or the statement around it, and must not make the agent larger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import psutil
import pyarrow as pa
import pytest
import pytest_asyncio

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.sql import ORDERS, orders_and_items, workers
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import BadRequestError, TooLargeError, UnknownTableError
from tidelock.replica_agent.sql.mutation import Action, DeleteRows, MutationRequest, UpdateRows
from tidelock.replica_agent.sql.pool import SqlPool

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: How much the agent's process may grow, whatever a statement tries.
GROWTH_BYTES = 64 << 20
MEMORY_BYTES = 128 << 20
TIMEOUT_S = 1.5

#: Expressions that are refused before they run, or that fail while they run; `{data}` is the data directory.
REFUSED = """
    (SELECT count(*) FROM read_csv('/etc/passwd')) > 0
    (SELECT content FROM read_text('/etc/passwd')) LIKE 'root%'
    (SELECT count(*) FROM read_blob('{data}/catalog.db')) > 0
    (SELECT count(*) FROM read_parquet('{data}/packs/*/*.pack')) > 0
    (SELECT count(*) FROM parquet_metadata('{data}/packs/01/r1-1-1.pack')) > 0
    (SELECT count(*) FROM read_json('http://127.0.0.1:1/x')) > 0
    (SELECT count(*) FROM glob('/*')) > 0
    (SELECT count(*) FROM sniff_csv('/etc/passwd')) > 0
    (SELECT count(*) FROM '/etc/passwd') > 0
    (SELECT count(*) FROM '{data}/catalog.db') > 0
    EXISTS (FROM query('SELECT 1 FROM read_text(''/etc/passwd'')'))
    EXISTS (FROM query_table('/etc/passwd'))
    (ATTACH '{data}/catalog.db' AS c (TYPE sqlite))
    true; ATTACH '/tmp/x.db'
    true; COPY orders TO '{data}/x'
    (COPY (SELECT 1) TO '{data}/x')
    true; EXPORT DATABASE '{data}/x'
    true; INSTALL httpfs; LOAD httpfs
    (INSTALL httpfs)
    getenv('HOME') = '/root'
    true; SET memory_limit = '100GB'
    (SET enable_external_access = true)
    (PRAGMA database_list)
    (CALL pragma_version())
    EXISTS (FROM pragma_database_list)
    EXISTS (FROM duckdb_settings())
    EXISTS (FROM duckdb_secrets())
    EXISTS (FROM duckdb_temporary_files())
    EXISTS (FROM duckdb_databases)
    EXISTS (FROM which_secret('s3://x', 's3'))
    EXISTS (FROM information_schema.tables)
    EXISTS (FROM pg_catalog.pg_settings)
    EXISTS (FROM sqlite_master)
    EXISTS (FROM (SHOW ALL TABLES))
    EXISTS (FROM (DESCRIBE orders))
    EXISTS (FROM enable_logging())
    current_setting('temp_directory') LIKE '/%'
    write_log('x') IS NULL
    sleep_ms(100000) IS NULL
    EXISTS (FROM settings)
    EXISTS (FROM pool)
    EXISTS (FROM request)
    EXISTS (FROM arrow_scan(1::POINTER, 2::POINTER, 3::POINTER))
    EXISTS (FROM pandas_scan(1))
    EXISTS (FROM python_map_function(1))
    EXISTS (FROM json_execute_serialized_sql('{{}}'))
    true; DROP VIEW orders
    true); DELETE FROM orders; --
    1) OR EXISTS (SELECT 1
    true /*
    'it is
    $$ it is
    id = 1 UNION SELECT 1
    id IN (DELETE FROM orders RETURNING id)
    (WITH x AS (INSERT INTO orders VALUES (1)) SELECT 1)
    COLUMNS(*)
    unnest(range(1000000))
    count(*) > 0
    row_number() OVER () > 0
    id = 'many'
    id / 'x' > 0
    id::DATE > 0
    list_sum([id, 'x']) > 0
    regexp_matches(customer, '((a{1000}){1000}){1000}')
    regexp_matches(customer, '(')
    error('x')
"""
#: Harmless expressions that look hostile, with the rows that they delete.
HARMLESS = {
    "id = 4 -- ) ; (": 1,
    "customer = '); DROP TABLE orders; --'": 0,
    "id = 4 /* ) */": 1,
    "customer = $$ann$$": 1,
    "true -- ) OR (": 2,
}
#: Expressions that reach a limit of memory or time.
BOMBS = (
    "length(repeat('x', 4000000000)) > 0",
    "len(range(10000000000)) > 0",
    "len(list_transform(range(200000000), lambda x: x + 1)) > 0",
    "(SELECT count(*) FROM range(10000000000) a, range(10000000000) b WHERE a.range * b.range % 7 = 3) > 0",
    "(WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r) > 0",
    "(SELECT len(list(i)) FROM range(500000000) t(i)) > 0",
    "(SELECT count(DISTINCT hash(i)) FROM range(10000000000) t(i)) > 0",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """A data directory with two tables."""
    return orders_and_items(tmp_path_factory.mktemp("hostile") / "data")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(directory: DataDir) -> AsyncIterator[SqlPool]:
    """One process with short limits, for all statements of this file."""
    limits = {"sql_workers": 1, "sql_memory_bytes": MEMORY_BYTES, "sql_timeout_s": TIMEOUT_S}
    made = SqlPool(settings(**limits, sql_temp_bytes=64 << 20), directory.path)
    yield made
    await made.close()


async def change(pool: SqlPool, action: Action) -> int:
    """Run a statement on `orders`; return the rows that it would delete."""
    request = MutationRequest(Csn(6), None, TableId(ORDERS), action)
    async with pool.mutate(request) as running:
        pieces = [piece async for piece in running.pieces()]
        assert pa.ipc.open_stream(b"".join(pieces)).read_all() is not None
        return running.ended.rows_deleted


LINES = [line.strip() for line in REFUSED.strip().splitlines()]


@pytest.mark.parametrize("line", LINES, ids=[line[:40] for line in LINES])
async def test_a_hostile_statement_is_refused_and_the_next_taken(
    pool: SqlPool, directory: DataDir, line: str
) -> None:
    """A clear error, and the same process takes the next statement."""
    expression = line.replace("{data}", str(directory.path))
    # Alternately a predicate and a new value.
    actions = (DeleteRows(expression), UpdateRows({"customer": f"CASE WHEN {expression} THEN 'x' END"}))
    with pytest.raises((BadRequestError, UnknownTableError)) as caught:
        await change(pool, actions[LINES.index(line) % 2])
    assert len(caught.value.message) > 20
    assert len(workers()) == 1
    if LINES.index(line) % 4 == 0:  # the next case is a next statement as well
        assert await change(pool, DeleteRows("id = 3")) == 1


async def test_hostile_statements_have_written_no_file(pool: SqlPool, directory: DataDir) -> None:
    """The statements above leave no file; harmless ones that look hostile succeed."""
    assert not [path for path in directory.path.rglob("*") if path.name == "x"]
    for expression, rows in HARMLESS.items():
        assert await change(pool, DeleteRows(expression)) == rows


@pytest.mark.slow
async def test_a_boundless_statement_is_ended_and_others_run(pool: SqlPool) -> None:
    """A statement that needs endless memory or time is ended; the agent does not grow, others run."""
    before = psutil.Process().memory_info().rss
    for number, expression in enumerate(BOMBS):
        action = DeleteRows(expression) if number % 2 else UpdateRows({"customer": f"({expression})::text"})
        with pytest.raises((TooLargeError, BadRequestError)):
            await change(pool, action)
        assert await change(pool, DeleteRows("id = 3")) == 1
    assert psutil.Process().memory_info().rss - before < GROWTH_BYTES
