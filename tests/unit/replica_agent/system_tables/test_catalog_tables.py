"""System tables of the catalog show what a query at its CSN sees, and read no more than it asks for."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import TIME_MS, DataDir
from tests.support.replicas.mutations import config
from tests.support.replicas.sql import ORDERS, orders_and_items
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import (
    BadRequestError,
    SnapshotTooOldError,
    TokenRightError,
    UnknownTableError,
)
from tidelock.replica_agent.sql.engine import Engine
from tidelock.replica_agent.sql.reading import query
from tidelock.replica_agent.sql.request import ChangesRequest, SqlRequest, select_statement
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.system_tables import catalog_tables
from tidelock.replica_agent.system_tables.definition import (
    Batches,
    Column,
    Slice,
    SystemTable,
    View,
    batch_of,
)
from tidelock.replica_agent.system_tables.registry import SYSTEM_TABLES

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """A data directory with `orders` by year and `sales.items`; CSN 6 removes the orders of 1994."""
    return orders_and_items(tmp_path / "data")


@pytest.fixture
def engine(directory: DataDir) -> Iterator[Engine]:
    """The engine of a SQL process."""
    made = Engine(config(directory))
    yield made
    made.close()


@pytest.fixture
def ask(engine: Engine) -> Ask:
    """Return the rows of a statement at a CSN, as a SQL process runs it."""

    def run(sql: str, *params: Any, csn: int = 6, **more: Any) -> list[tuple[Any, ...]]:
        request = SqlRequest(Csn(csn), None, sql, params, **more)
        session = SqlSession(engine, request)
        try:
            return [tuple(row.values()) for row in query(session, request).read_all().to_pylist()]
        except Exception as error:
            raise session.translate(error) from error
        finally:
            session.close()

    return run


def test_tables_have_the_sums_of_their_parts_at_the_csn(ask: Ask) -> None:
    """Rows and parts are those of the CSN of the query, as the table itself shows them there."""
    sql = "SELECT namespace, table_name, parts, rows FROM system.tables ORDER BY 1, 2"
    assert ask(sql, csn=3) == [("default", "orders", 0, 0), ("sales", "items", 0, 0)]
    assert ask(sql, csn=5) == [("default", "orders", 3, 4), ("sales", "items", 1, 2)]
    assert ask(sql, csn=6) == [("default", "orders", 2, 2), ("sales", "items", 1, 2)]
    assert ask("SELECT count(*) FROM system.tables", csn=2) == [(1,)]


def test_a_table_shows_its_definition_and_last_change(ask: Ask) -> None:
    """The definition is that of the CSN, and the last change is not one that comes later."""
    sql = "SELECT table_id, version, defined_csn, columns, partition_by, changed_csn FROM system.tables"
    where = " WHERE table_name = 'orders'"
    assert ask(sql + where) == [(ORDERS, 0, 2, 3, ["year"], 6)]
    assert ask(sql + where, csn=5) == [(ORDERS, 0, 2, 3, ["year"], 5)]
    assert ask(sql + where, csn=3) == [(ORDERS, 0, 2, 3, ["year"], 2)]
    (time,) = ask("SELECT defined_time FROM system.tables WHERE table_name = 'orders'")[0]
    assert time == dt.datetime.fromtimestamp((TIME_MS + 2) / 1000, dt.UTC)


def test_parts_are_those_that_the_query_sees(ask: Ask, directory: DataDir) -> None:
    """A removed part is there below the CSN of its removal, with that CSN, and not from it on."""
    sql = "SELECT part, partition, rows, added_csn, removed_csn FROM system.parts WHERE table_name = 'orders'"
    expected = [
        (part.part, part.path, part.rows, part.creation_csn, 6 if part.path == "year=1994" else None)
        for part in directory.parts(ORDERS)
    ]
    assert sorted(ask(sql, csn=5)) == sorted(expected)
    assert sorted(ask(sql)) == sorted(row for row in expected if row[-1] is None)


def test_a_part_shows_its_file_and_its_commit(ask: Ask, directory: DataDir) -> None:
    """Where a part is stored on this replica, and the transaction that added it, are columns of it."""
    part = directory.parts(ORDERS)[-1]
    sql = (
        "SELECT bytes, checksum, added_tid, added_time, merged, state, file, file_offset "
        "FROM system.parts WHERE part = ?"
    )
    time = dt.datetime.fromtimestamp((TIME_MS + 5) / 1000, dt.UTC)
    row = (part.length, part.checksum, part.creation_tid, time, False, "held", part.file, part.offset)
    assert ask(sql, part.part) == [row]


def test_partitions_sum_up_their_parts(ask: Ask) -> None:
    """Each partition with parts has one row."""
    sql = "SELECT partition, parts, rows, first_csn, last_csn FROM system.partitions WHERE namespace = ?"
    assert ask(sql, "default", csn=5) == [("year=1994", 1, 2, 4, 4), ("year=1995", 2, 2, 4, 5)]
    assert ask(sql, "default", csn=6) == [("year=1995", 2, 2, 4, 5)]
    assert ask(sql, "sales") == [("", 1, 2, 4, 4)]


def test_system_tables_join_with_tables_of_users(ask: Ask) -> None:
    """A system table is a table: it joins, groups, and is read together with rows of the same CSN."""
    sql = """
        SELECT p.partition, p.rows, count(*) FROM system.partitions p
        JOIN orders o ON p.partition = 'year=' || o.year AND p.table_name = 'orders'
        GROUP BY ALL ORDER BY 1
    """
    assert ask(sql, csn=5) == [("year=1994", 2, 2), ("year=1995", 2, 2)]


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT count(*) FROM "system"."parts"',
        "SELECT count(*) FROM SYSTEM . Parts",
        "SELECT count(*) FROM (SELECT system.parts.rows FROM system.parts)",
        "SELECT count(*) FROM system.parts p -- system.parts",
        "SELECT count(*) FROM system.parts WHERE checksum <> 'system.parts'",
        select_statement("system.parts", ["part"], None).replace('"part"', "count(*)", 1),
    ],
)
def test_a_system_table_may_be_written_in_any_way_of_sql(ask: Ask, sql: str) -> None:
    """Case, quotes and blanks are those of SQL, and the name in a text or a comment is left alone."""
    assert ask(sql) == [(3,)]


def test_the_name_in_a_text_stays_as_it_is(ask: Ask) -> None:
    """A text that looks like a system table is a text."""
    assert ask("SELECT 'system.parts' AS a, $$system.parts$$ AS b FROM system.tables LIMIT 1") == [
        ("system.parts", "system.parts")
    ]


def test_an_unknown_system_table_is_refused_with_the_known_ones(ask: Ask) -> None:
    """A misspelt name is an error that lists the names."""
    with pytest.raises(UnknownTableError, match=r"no table system.part; .* parts"):
        ask("SELECT * FROM system.part")


def test_a_token_for_some_tables_reads_no_system_table(ask: Ask) -> None:
    """System tables tell of all tables, so a token for some of them is not enough."""
    with pytest.raises(TokenRightError, match="need a token for all tables"):
        ask("SELECT * FROM system.parts", only=(ORDERS,))


def test_a_condition_on_one_table_reads_the_parts_of_that_table_alone(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slices of other tables are left out before the catalog is read."""
    read: list[str] = []
    inner = catalog_tables.table_slice

    def noted(view: View, table: TableRow, source: str) -> Slice:
        made = inner(view, table, source)

        def batches(columns: Sequence[Column]) -> Batches:
            read.append(table.id)
            return made.batches(columns)

        return Slice(batches, made.equal, made.between, made.reads)

    monkeypatch.setattr(catalog_tables, "table_slice", noted)
    assert ask("SELECT count(*) FROM system.parts WHERE table_name = 'orders'") == [(2,)]
    assert ask(
        "SELECT count(*) FROM system.parts WHERE table_name = ? AND namespace = ?", "items", "sales"
    ) == [(1,)]
    assert ask("SELECT count(*) FROM system.parts WHERE table_name IN ('items', 'none')") == [(1,)]
    assert read == ["default.orders", "sales.items", "sales.items"]


def test_columns_have_the_bounds_of_their_values(ask: Ask) -> None:
    """Bounds come from what the parts say of themselves, for partition columns from the partitions."""
    sql = (
        "SELECT position, column_name, type, nullable, partition_position, nulls, min, max "
        "FROM system.columns WHERE table_name = 'orders' ORDER BY position"
    )
    assert ask(sql, csn=5) == [
        (0, "id", "bigint", True, None, 0, "1", "4"),
        (1, "customer", "string", True, None, 1, "ann", "ben"),
        (2, "year", "int", True, 0, 0, "1994", "1995"),
    ]
    assert [row[-2:] for row in ask(sql)] == [("3", "4"), ("ann", "ann"), ("1995", "1995")]
    assert [row[-3:] for row in ask(sql, csn=3)] == [(0, None, None)] * 3


def test_transactions_are_those_committed_up_to_the_csn(ask: Ask, directory: DataDir) -> None:
    """A query below a commit does not see it, and a condition on the CSN reads a range of it."""
    with directory.sql() as db:
        rows = [(f"{csn - 1}-r2-1-{csn}", csn, TIME_MS + csn, f"load {csn}") for csn in range(2, 302)]
        db.executemany("INSERT INTO outcomes (tid, csn, time_ms, label) VALUES (?, ?, ?, ?)", rows)
    directory.set(snapshot_csn=400)
    sql = "SELECT tid, state, home, snapshot_csn, label FROM system.transactions WHERE csn = ?"
    assert ask(sql, 5, csn=5) == [("4-r2-1-5", "committed", "r2", 4, "load 5")]
    assert ask(sql, 6, csn=5) == []
    assert ask("SELECT count(*), min(csn), max(csn) FROM system.transactions", csn=200) == [(199, 2, 200)]
    assert ask("SELECT count(*) FROM system.transactions WHERE csn > 250", csn=400) == [(51,)]
    (time,) = ask("SELECT time FROM system.transactions WHERE csn = 5")[0]
    assert time == dt.datetime.fromtimestamp((TIME_MS + 5) / 1000, dt.UTC)


def test_parts_below_the_horizon_are_no_answer(ask: Ask, directory: DataDir) -> None:
    """History that is deleted is an error, as in every read, and never fewer parts."""
    directory.set(horizon=5)
    with pytest.raises(SnapshotTooOldError):
        ask("SELECT * FROM system.parts WHERE table_name = 'orders'", csn=4)


def test_a_table_with_more_parts_than_a_batch_is_read_whole(ask: Ask, directory: DataDir) -> None:
    """Batches are joined without a lost or a doubled row."""
    with directory.sql() as db:
        columns = "table_name, path, rows, length, checksum, creation_tid, creation_csn, kind, state"
        db.execute(
            f"""
            WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 20000)
            INSERT INTO parts (part, {columns})
            SELECT 'x-' || value, 'sales.items', '', 1, 1, '', '5-r1-1-6', 6, 'part', 'wanted' FROM n
            """
        )
    assert ask("SELECT count(*), count(DISTINCT part) FROM system.parts WHERE state = 'wanted'") == [
        (20_000, 20_000)
    ]
    assert ask("SELECT sum(rows) FROM system.partitions WHERE table_name = 'items'") == [(20_002,)]


def test_every_table_can_be_selected_whole(ask: Ask) -> None:
    """All columns of all tables have values of their types."""
    for name, table in SYSTEM_TABLES.items():
        rows = ask(f"SELECT * FROM system.{name}")
        assert all(len(row) == len(table.columns) for row in rows), name


def test_a_system_table_is_described_with_its_columns(ask: Ask) -> None:
    """DESCRIBE lists the columns with their types."""
    assert [row[0] for row in ask("DESCRIBE system.pins")] == ["pin", "csn", "replica", "ttl_s"]


def test_a_request_that_is_no_statement_of_a_user_reads_none(engine: Engine) -> None:
    """The SQL of a derived table runs without the rows that only the agent knows, so it is refused."""
    session = SqlSession(engine, ChangesRequest(Csn(6), Csn(5), TableId(ORDERS), 3))
    with pytest.raises(BadRequestError, match="derived table"):
        session.show_system({"settings"})
    session.close()


def test_rows_of_the_agent_come_with_the_request(ask: Ask) -> None:
    """They are filtered and joined like all others."""
    live = {"pins": sent([("r1-1-1", 4, "r1", 1.5), ("r2-1-1", 5, "r2", 2.5)], SYSTEM_TABLES["pins"])}
    assert ask("SELECT pin FROM system.pins WHERE csn > 4", live=live) == [("r2-1-1",)]
    sql = "SELECT pin, part FROM system.pins JOIN system.parts ON csn = added_csn WHERE table_name = 'items'"
    assert [pin for pin, _ in ask(sql, live=live)] == ["r1-1-1"]


def sent(rows: list[tuple[Any, ...]], table: SystemTable) -> bytes:
    """Return rows as the agent sends them."""
    sink, batch = io.BytesIO(), batch_of(rows, table.columns)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
