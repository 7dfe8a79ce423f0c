"""Transactions that begin when something needs their home: what is sent, when, and what a program sees."""

from __future__ import annotations

import decimal
import gc
import multiprocessing
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.support import rows as rows_support
from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock.client import Database, Decision, Transaction, TransactionState, connect
from tidelock.client.writes.definitions import KnownTable
from tidelock.csnlog.core.ids import TableId
from tidelock.errors import (
    CommitUnknownError,
    NotCommittedError,
    SchemaMismatchError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
    UnknownTableError,
)
from tidelock.replica_agent.storage.row_streams import check_small
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.wire import writes
from tidelock.wire.tables import TableColumn, TableDefinition

ROWS = pa.table({"k": [1, 2, 3]})
MANY = pa.table({"k": list(range(40_000))})
BEGIN, WRITE, ROW = "POST /transactions", "POST /commits", "POST /transactions/.*/rows/.*"
COMMIT, ROLLBACK = "POST /transactions/.*/commit", "POST /transactions/.*/rollback"


def counts(cluster: FakeCluster, *patterns: str) -> list[int]:
    """Return how many requests of each pattern all agents have received."""
    return [sum(agent.count(one) for agent in cluster.agents.values()) for one in patterns]


def test_small_inserts_and_their_commit_are_one_request(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Rows of two tables, in the order of their inserts, travel with begin and commit; nothing is renewed."""
    fake_cluster.add_table("u")
    with fake_db.begin() as tx:
        assert tx.insert("t", ROWS).rows == 3
        tx.insert("u", ROWS)
        tx.insert("t", ROWS.slice(0, 1))
        assert (tx.state, fake_db._connection.leases.running) == (TransactionState.OPEN, False)
        assert counts(fake_cluster, "POST .*") == [0]
    assert counts(fake_cluster, WRITE, BEGIN, ROW, COMMIT) == [1, 0, 0, 0]
    sent = next(one for one in fake_cluster["r1"].requests if one.path == "/commits")
    assert [rows.table for rows in writes.decode(sent.body)[0].rows] == ["t", "u", "t"]
    assert tx.csn == fake_cluster.csn == fake_db.seen_csn
    assert (fake_db.outcome(tx.tid).csn, tx.holder, tx.lease_s) == (tx.csn, "r1", 0.0)
    assert (fake_db.read("t").num_rows, fake_db.read("u").num_rows) == (4, 3)
    assert tx.commit().csn == tx.csn
    assert counts(fake_cluster, WRITE, COMMIT) == [1, 0]


def test_a_definition_is_read_once(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The client keeps what it has read about a table for its next transactions."""
    for _ in range(3):
        with fake_db.begin() as tx:
            tx.insert("t", ROWS)
    assert counts(fake_cluster, "GET /tables/.*", WRITE, BEGIN) == [1, 3, 0]


def test_the_oldest_definition_is_forgotten(
    fake_cluster: FakeCluster, fake_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client keeps a bounded number of definitions, and reads one again that it has forgotten."""
    monkeypatch.setattr("tidelock.client.writes.definitions.DEFINITIONS_MAX", 2)
    for table in ("u", "v"):
        fake_cluster.add_table(table)
    for table in ("t", "u", "u", "v", "u", "t"):
        fake_db.begin().insert(table, ROWS)
    read = [one.path for one in fake_cluster["r1"].requests if one.path.startswith("/tables/")]
    assert [path.rpartition(".")[2] for path in read] == ["t", "u", "v", "t"]


@pytest.mark.parametrize(
    "need",
    [
        lambda tx: tx.read("t"),
        lambda tx: tx.sql("select count(*) from t"),
        lambda tx: tx.tid,
        lambda tx: tx.snapshot_csn,
        lambda tx: tx.lease_s,
        lambda tx: tx.holder,
        lambda tx: tx.url,
        lambda tx: tx.published_url,
        lambda tx: tx.heartbeat(),
        lambda tx: tx.definition("t"),
        lambda tx: tx.insert("t", MANY),
        lambda tx: tx.insert("t", ROWS.to_reader()),
        lambda tx: tx.insert("keys", ROWS),
        lambda tx: tx.insert("followed", ROWS),
    ],
    ids=[
        "read", "sql", "tid", "snapshot_csn", "lease_s", "holder", "url", "published_url", "heartbeat",
        "definition", "many rows", "reader", "unique key", "derived table",
    ],
)  # fmt: skip
def test_what_needs_the_home_begins(
    fake_cluster: FakeCluster, fake_db: Database, need: Callable[[Transaction], Any]
) -> None:
    """Begin and the rows that were kept leave then, in order; all else goes on as in any transaction."""
    for table in ("keys", "followed"):
        fake_cluster.add_table(table)
    fake_cluster.definitions["default.keys"]["properties"] = {"unique_key": "k"}
    fake_cluster.definitions["default.followed"]["dependents"] = ["default.t"]
    with fake_db.begin() as tx:
        tx.insert("t", ROWS)
        assert counts(fake_cluster, BEGIN) == [0]
        need(tx)
        assert counts(fake_cluster, BEGIN) == [1]
        assert tx.read("t").num_rows in {3, 6, 40_003}
        assert fake_db._connection.leases.running
        tx.insert("t", ROWS)
    assert counts(fake_cluster, BEGIN, WRITE, COMMIT) == [1, 0, 1]
    staged = fake_cluster["r1"].transactions[tx.tid].staged
    assert staged[0] == ("default.t", ROWS) == staged[-1]


@pytest.mark.parametrize(
    "options",
    [
        {"label": "a"}, {"label": "a", "batch": 1}, {"isolation": "read_committed"}, {"min_csn": 1},
        {"fresh": True}, {"lease": "9s"}, {"meta": {"run": 1}}, {"key": "k"},
    ],
    ids=str,
)  # fmt: skip
def test_with_an_argument_it_begins_at_once(
    fake_cluster: FakeCluster, fake_db: Database, options: dict[str, Any]
) -> None:
    """A begin with an argument leaves at once: it tells that a label exists, or a CSN does not."""
    tx = fake_db.begin(**options)
    assert counts(fake_cluster, BEGIN) == [1]
    tx.rollback()


@pytest.mark.parametrize("same", [True, False], ids=["same client", "other client"])
def test_reads_see_what_was_committed_at_begin(
    fake_cluster: FakeCluster, fake_db: Database, same: bool
) -> None:
    """A commit of the same thread after `begin` is not seen, whichever client of the process makes it."""
    with connect(fake_cluster["r1"].url) as other:
        tx, later = fake_db.begin(), fake_db.begin()
        tx.insert("t", ROWS.slice(0, 1))
        (fake_db if same else other).insert("t", ROWS)
        assert (tx.read("t").num_rows, later.read("t").num_rows) == (1, 0)
        assert counts(fake_cluster, BEGIN) == [2]
        tx.commit()
        assert (later.read("t").num_rows, fake_db.read("t").num_rows) == (0, 4)
        later.rollback()


def test_one_that_waits_begins_before_another_commits(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The commit of one transaction, itself one request, is not seen by one begun before it."""
    first, second = fake_db.begin(), fake_db.begin()
    first.insert("t", ROWS)
    second.insert("t", ROWS)
    first.commit()
    assert second.read("t").num_rows == 3
    second.commit()
    assert fake_db.read("t").num_rows == 6
    assert counts(fake_cluster, BEGIN, WRITE) == [1, 1]


def test_a_begin_that_fails_for_another_request_is_told(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The other request goes on; the transaction would have a later snapshot, so it takes rollback only."""
    tx = fake_db.begin()
    tx.insert("t", ROWS)
    for agent in fake_cluster.agents.values():
        agent.plan(BEGIN, UnavailableError("draining"))
    assert fake_db.read("t").num_rows == 0
    with pytest.raises(TransactionClosedError, match="draining"):
        tx.commit()
    tx.rollback()
    assert counts(fake_cluster, WRITE, ROLLBACK) == [0, 0]


def test_a_rollback_of_what_never_left_sends_nothing(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Nor does an exception in the block, or a handle that is dropped."""
    tx = fake_db.begin()
    tx.insert("t", ROWS)
    before = len(fake_cluster["r1"].requests)
    tx.rollback()
    for call in (lambda: tx.insert("t", ROWS), tx.commit, lambda: tx.read("t"), lambda: tx.tid):
        with pytest.raises(TransactionClosedError, match="rolled_back"):
            call()
    with pytest.raises(KeyError, match="of the caller"), fake_db.begin() as other:  # noqa: PT012
        other.insert("t", ROWS)
        raise KeyError("of the caller")
    fake_db.begin().insert("t", ROWS)  # and dropped
    gc.collect()
    assert len(fake_cluster["r1"].requests) == before
    assert fake_db.read("t").num_rows == 0
    assert counts(fake_cluster, BEGIN) == [0]


@pytest.mark.parametrize(
    "fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.PAGE, NotCommittedError("a peer was silent")]
)
def test_a_lost_answer_commits_once(fake_cluster: FakeCluster, fault: Fault | TidelockError) -> None:
    """The rows are there once, whatever arrived, and the transaction knows under which tid."""
    fake_cluster["r1"].plan(WRITE, fault)
    with connect(fake_cluster["r1"].url, timeout_s=4.0) as db:
        with db.begin() as tx:
            tx.insert("t", ROWS)
        assert tx.csn == db.outcome(tx.tid).csn == fake_cluster.csn
        assert db.read("t").num_rows == 3


def test_an_unknown_outcome_is_learnt_by_the_next_commit(
    fake_cluster: FakeCluster, fake_db: Database
) -> None:
    """A repeated commit asks for the tid under which the rows have left; they are not sent again."""
    fake_cluster["r1"].plan(WRITE, Fault.LOST_ANSWER)
    silence = [Fault.LOST_REQUEST] * 10_000
    for agent in fake_cluster.agents.values():
        agent.plan("(POST|GET) /(transactions/.*/commit|outcomes/.*)", *silence)
    tx = fake_db.begin()
    tx.insert("t", ROWS)
    with pytest.raises(CommitUnknownError) as caught:
        tx.commit(timeout_s=0.2)
    assert tx.state is TransactionState.SEALED
    assert caught.value.details["tid"] == tx.tid
    for agent in fake_cluster.agents.values():
        agent._plans.clear()
    assert tx.commit().csn == tx.csn == fake_cluster.csn
    assert (fake_db.outcome(tx.tid).decision, fake_db.read("t").num_rows) == (Decision.COMMITTED, 3)
    assert counts(fake_cluster, WRITE) == [1]


def test_no_replica_can_take_it_now(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The transaction stays open, with its rows: the commit may be repeated."""
    for agent in fake_cluster.agents.values():
        agent.plan("POST /tids", *[UnavailableError("draining")] * 10_000)
    tx = fake_db.begin()
    tx.insert("t", ROWS)
    with pytest.raises(UnavailableError, match="draining"):
        tx.commit(timeout_s=0.1)
    assert tx.state is TransactionState.OPEN
    for agent in fake_cluster.agents.values():
        agent._plans.clear()
    tx.commit()
    assert fake_db.read("t").num_rows == 3


def test_a_refused_commit_ends_it(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """An error of the home at the commit is raised as it is, and nothing is left to roll back."""
    fake_cluster["r1"].plan(WRITE, SchemaMismatchError("the definition has changed"))
    with pytest.raises(SchemaMismatchError, match="has changed"), fake_db.begin() as tx:
        tx.insert("t", ROWS)
    assert tx.state is TransactionState.ROLLED_BACK
    assert counts(fake_cluster, WRITE, ROLLBACK) == [1, 0]


def test_the_label_of_the_commit_travels_with_it(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A label that is given late is in the one request, with all else that commit() takes."""
    tx = fake_db.begin()
    tx.insert("t", ROWS)
    tx.commit(label="a", batch=2, wait="all")
    sent = next(one for one in fake_cluster["r1"].requests if one.path == "/commits")
    head, _ = writes.decode(sent.body)
    assert (head.label, head.batch, head.wait) == ("a", 2, "all")


def test_rows_above_the_limit_go_step_by_step(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """No more than 256 KiB are kept; the insert above it makes the transaction begin."""
    part = MANY.slice(0, 12_000)
    with fake_db.begin() as tx:
        for _ in range(2):
            tx.insert("t", part)
        assert counts(fake_cluster, BEGIN) == [0]
        tx.insert("t", part)
        assert counts(fake_cluster, BEGIN, ROW) == [1, 3]
    assert fake_db.read("t").num_rows == 36_000


def test_an_agent_with_a_lower_limit_gets_steps(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """If the home refuses the size of the request, the commit sends what it holds step by step."""
    fake_cluster["r1"].plan(WRITE, TooLargeError("the limit is write_bytes_max=1", limit=1, found=9))
    with fake_db.begin() as tx:
        tx.insert("t", ROWS)
    assert counts(fake_cluster, WRITE, BEGIN, ROW, COMMIT) == [1, 1, 1, 1]
    assert fake_db.read("t").num_rows == 3


# -- early refusals ------------------------------------------------------------------------------------------


def test_an_unknown_table_is_refused_by_insert(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The home says so at once, and the transaction takes rollback only, as ever."""
    tx = fake_db.begin()
    tx.insert("t", ROWS)
    with pytest.raises(UnknownTableError, match="nowhere"):
        tx.insert("nowhere", ROWS)
    assert tx.state is TransactionState.FAILED
    tx.rollback()
    assert counts(fake_cluster, BEGIN, ROLLBACK, WRITE) == [1, 1, 0]


def test_an_old_definition_refuses_nothing(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Rows that do not fit what the client knows go to the home; if it takes them they are in."""
    fake_db.begin().insert("t", ROWS)
    column = {"name": "other", "type": "bigint", "nullable": True}
    fake_cluster.definitions["default.t"]["columns"] = [column]
    rows = pa.table({"other": [1]})
    with fake_db.begin() as tx:
        assert tx.insert("t", rows).rows == 1
        assert counts(fake_cluster, BEGIN) == [1]
    with fake_db.begin() as tx:
        tx.insert("t", rows)
    assert counts(fake_cluster, BEGIN, WRITE, "GET /tables/t|GET /tables/default.t") == [1, 1, 2]


TYPES = {
    "bigint": pa.int64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(5,2)": pa.decimal128(5, 2),
    "date": pa.date32(),
}
COLUMN = st.sampled_from(sorted(TYPES))
SETTINGS = rows_support.settings()
FOUND = (
    *TYPES.values(), pa.int32(), pa.large_string(), pa.null(), pa.timestamp("s", "UTC"), pa.timestamp("us"),
    pa.decimal128(7, 2), pa.float64(),
)  # fmt: skip


def values_of(kind: pa.DataType, *, nulls: bool) -> pa.Array:
    """Return two values of a type; the first is null with ``nulls``."""
    second: Any = 7
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        second = "x" * 300  # too long for the name of a folder
    elif pa.types.is_decimal(kind):
        second = decimal.Decimal(10) ** (kind.precision - kind.scale) - 1
    elif pa.types.is_null(kind):
        return pa.nulls(2)
    return pa.array([None if nulls else second, second], kind)


@st.composite
def tables_and_rows(draw: st.DrawFn) -> tuple[TableDefinition, pa.Table]:
    """Draw a table and rows that may or may not fit it."""
    columns = [
        TableColumn(name, draw(COLUMN), draw(st.booleans()))
        for name in ("a", "b", "c")[: draw(st.integers(1, 3))]
    ]
    by = ["a"] if len(columns) > 1 and columns[0].type != "timestamp" and draw(st.booleans()) else []
    found = {}
    for column in draw(st.permutations(columns)):
        kind = draw(st.sampled_from(FOUND)) if draw(st.integers(0, 3)) == 0 else TYPES[column.type]
        found[column.name] = values_of(kind, nulls=draw(st.integers(0, 3)) == 0)
    if draw(st.integers(0, 5)) == 0:
        found["extra"] = pa.array([1, 2])
    table = TableDefinition(name="default.t", columns=columns, partition_by=by, sort_by=[], properties={})
    return table, pa.table(found)


@given(tables_and_rows())
@settings(max_examples=60, deadline=None)
def test_rows_are_kept_if_and_only_if_the_agent_takes_them(drawn: tuple[TableDefinition, pa.Table]) -> None:
    """The client and the agent judge the same bytes alike, so neither waits in vain nor refuses late."""
    definition, rows = drawn
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    body = sink.getvalue().to_pybytes()
    schema = TableSchema.from_definition(
        TableId(definition.name),
        {
            "name": definition.name,
            "columns": [{"name": c.name, "type": c.type, "nullable": c.nullable} for c in definition.columns],
            "partition_by": definition.partition_by,
            "sort_by": [],
            "properties": {},
        },
    )
    try:
        taken: int | None = check_small(body, schema, 0, SETTINGS).count
    except TidelockError:
        taken = None
    assert KnownTable.of(definition).fitting(body) == taken


# -- processes -----------------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> int | None:
    """Run work in a forked process; return its exit code."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(timeout=30)
    return child.exitcode


def test_a_child_cannot_commit_what_waits_in_its_parent(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Each of the two would commit the rows; the child is told so, and the parent commits them once."""
    tx = fake_db.begin()
    tx.insert("t", ROWS)

    def commit() -> None:
        with pytest.raises(TransactionClosedError, match="belongs to the parent"):
            tx.commit()

    assert in_child(commit) == 0
    tx.commit()
    assert fake_db.read("t").num_rows == 3
    assert counts(fake_cluster, WRITE, BEGIN) == [1, 0]
