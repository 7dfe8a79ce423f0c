"""Begin, refusal, end and kill of transactions on real agents, after the list of ClickHouse's tests.

The list is that of ClickHouse's tests of transaction control, adapted: a transaction is an object of the
client, not a state of a session, so "without begin" means a tid that no client has begun.

| ClickHouse | requirement | here |
|---|---|---|
| 01173 | commit or rollback without begin: 645 | test_end_of_what_was_never_begun |
| 01173 | a commit over two tables is seen whole | test_two_tables_change_together_or_not_at_all |
| 01173 | a rollback hides all of it | test_two_tables_change_together_or_not_at_all |
| 01173 | nested begin: error | test_a_nested_begin_is_another_transaction |
| 01173 | unknown function: rollback only; commit 645 | test_after_a_failed_statement_only_rollback_is_taken |
| 01173 | exception while streaming: the same | test_an_exception_while_rows_stream, ..._are_sent |
| 01173 | an error of the client ends the session | test_an_exception_in_the_block |
| 01173 | so does its death | test_a_dead_client_is_rolled_back |
| 01173 | read-only commit is fine | test_a_read_only_transaction_commits_without_a_csn |
| 01173 | CREATE TABLE inside: 48, and the transaction is dead | test_ddl_inside_a_transaction_is_refused |
| 01173 | tables without transactions: 48 | no such tables: every table takes part |
| 01172 | tid and CSN of parts: open, rolled back, committed | test_parts_carry_their_csn_once_committed |
| 01172 | they survive detach and attach | test_outcomes.py: test_kept_when_the_log_is_truncated |
| 01172 | log: AddPart, Commit or Rollback | the same; locks: test_isolation_rules.py |
| 04141 | COMMIT of unknown state | test_outcomes.py: test_a_commit_whose_answer_is_not_lost_but_late |
| 04516 | kill and commit race | test_kill_and_commit_race |
| 03915 | rollback with intersecting parts | test_removals.py: test_a_rollback_leaves_nothing |
| all | the suite with faults after the commit | test_fault_kinds.py (csnlog.commit.after) |

Beyond the list: states of `tx.state` and GET /transactions, leases, kill by tid. The levels of
`commit(wait=...)`, `fresh`, `min_csn` and sessions are in test_transaction_control_replicas.py.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tests.support.clusters.client_process import ROWS, ClientProcess
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import Addresses, http, stream
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database, Decision, Transaction, TransactionState
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    LeaseExpiredError,
    SchemaMismatchError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTableError,
    UnknownTransactionError,
    UnsupportedInTransactionError,
)
from tidelock.exits import Exit
from workloads.agents import ask

HOME = "r1"
NAMES = itertools.count(1)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=QUICK)


@pytest.fixture
def table(db: Database) -> str:
    """A table of this test alone, with rows."""
    name = f"t{next(NAMES)}"
    db.create_table(name, ROWS.schema)
    db.insert(name, ROWS)
    return name


def at_home(local: LocalCluster, tx: Transaction) -> str:
    """Return the state of a transaction at its home."""
    return str(ask(local, HOME, f"/transactions/{tx.tid}")["state"])


def states(local: LocalCluster, tx: Transaction) -> tuple[str, str]:
    """Return the state of a transaction at its client and at its home."""
    return str(tx.state), at_home(local, tx)


def only_rollback_is_left(local: LocalCluster, db: Database, tx: Transaction, table: str) -> None:
    """Require that client and home refuse every statement and the commit; then roll back."""
    assert states(local, tx) == ("failed", "failed")
    statements: list[Callable[[], object]] = [
        lambda: tx.insert(table, ROWS),
        lambda: tx.read(table),
        lambda: tx.sql("select 1"),
        tx.commit,
    ]
    for statement in statements:
        with pytest.raises(TransactionClosedError, match=r"(?s)is failed .*; roll it back"):
            statement()
    own = f"{Addresses.of(local, HOME).api}/transactions/{tx.tid}"
    for route, body in ((f"/rows/{table}", stream(ROWS)), ("/commit", b"{}")):
        assert http("POST", own + route, body).json["error"] == "TransactionClosedError"
    tx.rollback()
    assert states(local, tx) == ("rolled_back", "rolled_back")
    assert db.outcome(tx.tid).decision is Decision.ABORTED
    assert db.read(table) == ROWS


# -- ClickHouse 01173


@pytest.mark.parametrize("verb", ["commit", "rollback", "heartbeat", "kill"])
def test_end_of_what_was_never_begun(local: LocalCluster, verb: str) -> None:
    """The error for an unknown tid says where else to ask."""
    answer = http("POST", f"{Addresses.of(local, HOME).api}/transactions/1-r1-1-999999/{verb}", {})
    assert answer.status == 404
    assert isinstance(answer.error, UnknownTransactionError)
    assert "outcome(tid)" in answer.error.message


def test_two_tables_change_together_or_not_at_all(db: Database, table: str) -> None:
    """A commit shows the rows of both tables, a rollback of no table; before it only the owner sees them."""
    other = f"{table}_other"
    db.create_table(other, ROWS.schema)
    for end, expected in ((Transaction.rollback, (3, 0)), (Transaction.commit, (6, 3))):
        tx = db.begin()
        tx.insert(table, ROWS)
        tx.insert(other, ROWS)
        counts = f"select (select count(*) from {table}), (select count(*) from {other})"
        assert [column[0].as_py() for column in tx.sql(counts).columns] == [6, 3]
        with db.snapshot() as before:
            assert [column[0].as_py() for column in before.sql(counts).columns] == [3, 0]
        end(tx)
        with db.snapshot() as after:
            assert tuple(column[0].as_py() for column in after.sql(counts).columns) == expected


def test_a_nested_begin_is_another_transaction(local: LocalCluster, db: Database, table: str) -> None:
    """A second begin is another transaction, which neither sees nor ends the first."""
    with db.begin() as outer:
        outer.insert(table, ROWS)
        with db.begin() as inner:
            assert inner.scan(table).count() == 3
            inner.insert(table, ROWS)
        assert (inner.state, outer.state) == (TransactionState.COMMITTED, TransactionState.OPEN)
        assert outer.scan(table).count() == 6  # its own rows, not the ones committed after its begin
        outer.rollback()
    assert db.read(table).num_rows == 6
    tx = db.begin()
    with pytest.raises(UnsupportedInTransactionError, match="found: TRANSACTION"):
        tx.sql("begin")
    assert states(local, tx) == ("failed", "failed")
    tx.rollback()


FAILING: list[tuple[str, Callable[[Transaction, str], object], type[TidelockError]]] = [
    ("unknown function", lambda tx, table: tx.read(table, where="no_such_function(k)"), BadRequestError),
    ("error while running", lambda tx, table: tx.sql(f"select error('x') from {table}"), BadRequestError),
    ("unknown table", lambda tx, _: tx.insert("nowhere", ROWS), UnknownTableError),
    ("unknown column", lambda tx, table: tx.read(table, columns=["nowhere"]), BadRequestError),
    ("rows of another schema", lambda tx, t: tx.insert(t, pa.table({"k": ["x"]})), SchemaMismatchError),
]


@pytest.mark.parametrize(("run", "error"), [item[1:] for item in FAILING], ids=[item[0] for item in FAILING])
def test_after_a_failed_statement_only_rollback_is_taken(
    local: LocalCluster,
    db: Database,
    table: str,
    run: Callable[[Transaction, str], object],
    error: type[TidelockError],
) -> None:
    """After a refused statement the transaction takes a rollback, and nothing else."""
    tx = db.begin()
    tx.insert(table, ROWS)
    with pytest.raises(error):
        run(tx, table)
    only_rollback_is_left(local, db, tx, table)


def test_a_swallowed_error_is_no_commit(db: Database, table: str) -> None:
    """A block that goes on after a refused statement does not end as if it had committed."""
    with pytest.raises(TransactionClosedError, match="nowhere"), db.begin() as tx:  # noqa: PT012
        tx.insert(table, ROWS)
        with pytest.raises(UnknownTableError):
            tx.insert("nowhere", ROWS)
    assert tx.state is TransactionState.ROLLED_BACK
    assert db.read(table) == ROWS


def test_an_exception_while_rows_stream(local: LocalCluster, db: Database, table: str) -> None:
    """A query that fails after its first rows were sent is cut, and fails the transaction."""
    tx = db.begin()
    tx.insert(table, ROWS)
    failing = "select case when i < 9900000 then i else error('in the middle') end from range(10000000) t(i)"
    with pytest.raises(UnavailableError, match="was truncated"):
        tx.sql(failing)
    with pytest.raises(TransactionClosedError, match="in the middle"):
        tx.insert(table, ROWS)
    only_rollback_is_left(local, db, tx, table)


def test_an_exception_while_rows_are_sent(local: LocalCluster, db: Database, table: str) -> None:
    """The caller's own error leaves the block unchanged; rows that were sent before are rolled back."""

    def rows() -> Any:
        yield ROWS.to_batches()[0]
        raise KeyError("of the rows")

    with pytest.raises(KeyError, match="of the rows"), db.begin() as tx:
        tx.insert(table, pa.RecordBatchReader.from_batches(ROWS.schema, rows()))
    assert states(local, tx) == ("rolled_back", "rolled_back")
    assert db.read(table) == ROWS


def test_an_exception_in_the_block(local: LocalCluster, db: Database, table: str) -> None:
    """The block rolls back, and the exception reaches the caller unchanged."""
    error = KeyError("of the caller")
    with pytest.raises(KeyError) as caught, db.begin(fresh=True) as tx:  # noqa: PT012
        tx.insert(table, ROWS)
        raise error
    assert caught.value is error
    assert states(local, tx) == ("rolled_back", "rolled_back")
    assert db.read(table) == ROWS


def test_a_read_only_transaction_commits_without_a_csn(db: Database, table: str) -> None:
    """A transaction that changed nothing commits, without a CSN of its own."""
    end = db.status()["end_csn"]
    with db.begin() as tx:
        assert tx.read(table) == ROWS
    assert (tx.state, tx.csn) == (TransactionState.COMMITTED, None)
    assert tx.commit().csn is None
    assert db.status()["end_csn"] == end


def test_ddl_inside_a_transaction_is_refused(local: LocalCluster, db: Database, table: str) -> None:
    """DDL as SQL is refused; a table that another transaction has made since is not seen."""
    for statement in (f"create table {table}_x as select 1", f"drop table {table}", f"delete from {table}"):
        tx = db.begin()
        tx.insert(table, ROWS)
        with pytest.raises(
            UnsupportedInTransactionError,
            match=r"SQL is one SELECT, or INSERT INTO .*; found: .* Roll back, and use ",
        ):
            tx.sql(statement)
        only_rollback_is_left(local, db, tx, table)
    with pytest.raises(UnknownTableError, match="a newer snapshot may know more"), db.begin() as tx:  # noqa: PT012
        db.create_table(f"{table}_new", ROWS.schema)
        tx.insert(f"{table}_new", ROWS)
    assert db.read(f"{table}_new").num_rows == 0


def test_isolation_levels_are_refused_by_name(db: Database) -> None:
    """A level that is not offered is refused, and not replaced by a weaker one."""
    for name in ("read_uncommitted", "read committed", "SNAPSHOT", ""):
        with pytest.raises(BadRequestError, match=f"isolation='{name}' is not offered"):
            db.begin(isolation=name)
    for name in ("snapshot", "read_committed", "serializable"):
        db.begin(isolation=name).rollback()


# -- ClickHouse 01172


def test_parts_carry_their_csn_once_committed(local: LocalCluster, db: Database, table: str) -> None:
    """Parts have no CSN before the commit, its CSN after it, and are gone after a rollback."""

    def parts(tx: Transaction) -> list[tuple[str, int | None]]:
        return [(part["table"], part["csn"]) for part in db.explain(tx.tid)["parts"]]

    committed, rolled_back = db.begin(), db.begin()
    for tx in (committed, rolled_back):
        tx.insert(table, ROWS)
        tx.read(table)  # writes the rows out, so that the catalog knows them
        assert parts(tx) == [(f"default.{table}", None)]
    csn = committed.commit(wait="all").csn
    rolled_back.rollback()
    assert parts(committed) == [(f"default.{table}", csn)]
    assert parts(rolled_back) == []
    (record,) = db.log(csn, limit=1)
    (tid,) = record["tids"]
    assert (record["home"], tid["tid"], tid["holders"][0]) == (HOME, committed.tid, HOME)
    assert [entry["action"] for entry in tid["entries"]] == ["AddPart"]


# -- kill


def test_kill_rolls_back_and_tells_the_owner(local: LocalCluster, db: Database, table: str) -> None:
    """Any client can kill a transaction by its tid; its owner gets an error; a second kill does no harm."""
    tx = db.begin("a load", lease="10m")
    tx.insert(table, ROWS)
    with local.connect() as other:
        (listed,) = (row for row in other.transactions() if row["tid"] == tx.tid)
        shown = {name: listed[name] for name in ("state", "home", "label", "tables", "rows")}
        assert shown == {
            "state": "open", "home": HOME, "label": "a load", "tables": [f"default.{table}"], "rows": 3
        }  # fmt: skip
        other.kill(tx.tid)
        other.kill(tx.tid)
        assert other.outcome(tx.tid).decision is Decision.ABORTED
        (listed,) = (row for row in other.transactions() if row["tid"] == tx.tid)
        assert (listed["state"], listed["lease_left_s"]) == ("rolled_back", None)
    for statement in (lambda: tx.insert(table, ROWS), tx.commit):
        with pytest.raises(
            TransactionClosedError, match="was killed by a client and rolled back; begin a new one"
        ):
            statement()
    assert tx.state is TransactionState.ROLLED_BACK
    assert db.read(table) == ROWS


def test_kill_in_the_middle_of_an_insert(db: Database, table: str) -> None:
    """A kill cuts an insert that is being sent, and the owner gets the reason."""
    tx = db.begin()
    reached, go_on = threading.Event(), threading.Event()

    def batches() -> Any:
        yield ROWS.to_batches()[0]
        reached.set()
        go_on.wait(60)
        yield ROWS.to_batches()[0]

    with ThreadPoolExecutor(1) as executor:
        insert = executor.submit(tx.insert, table, pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
        assert reached.wait(60)
        db.kill(tx.tid)
        go_on.set()
        with pytest.raises(TidelockError):
            insert.result()
    with pytest.raises(TransactionClosedError):
        tx.commit()
    assert db.read(table) == ROWS


def test_what_cannot_be_killed(local: LocalCluster, db: Database, table: str) -> None:
    """A committed transaction cannot be killed; a malformed tid and an unknown replica are named."""
    tx = db.begin()
    tx.insert(table, ROWS)
    tx.commit()
    with pytest.raises(TransactionClosedError, match=r"is committed at CSN \d+ and cannot be"):
        db.kill(tx.tid)
    with pytest.raises(BadRequestError, match="expected a tid"):
        db.kill("nonsense")
    with pytest.raises(BadRequestError, match="no replica 'r9'"):
        db.kill("1-r9-1-1")
    assert db.read(table).num_rows == 6


def test_kill_and_commit_race(local: LocalCluster, table: str) -> None:
    """The first of kill and commit wins, the other is refused, and all replicas agree (ClickHouse 04516)."""
    with local.connect(HOME) as owner, local.connect("r2") as killer:

        def commit(tx: Transaction) -> int | None:
            try:
                return tx.commit().csn
            except TransactionClosedError:
                return None

        def kill(tx: Transaction) -> bool:
            try:
                killer.kill(tx.tid)
            except TransactionClosedError:
                return False
            return True

        committed = 0
        with ThreadPoolExecutor(2) as executor:
            for _ in range(20):
                tx = owner.begin()
                tx.insert(table, ROWS)
                calls: list[Any] = [(commit, tx), (kill, tx)]
                random.shuffle(calls)
                futures = {call[0]: executor.submit(*call) for call in calls}
                csn, killed = futures[commit].result(), futures[kill].result()
                assert killed == (csn is None)
                expected = Decision.ABORTED if killed else Decision.COMMITTED
                assert owner.outcome(tx.tid).decision is expected
                assert str(tx.state) == ("rolled_back" if killed else "committed")
                committed += not killed
        assert owner.read(table).num_rows == (1 + committed) * ROWS.num_rows


def test_commands_do_what_the_client_does(local: LocalCluster, db: Database, table: str) -> None:
    """`txns`, `kill` and `outcome` do what the client does, with the exit codes of the one table."""

    def tidelock(*arguments: str) -> Result:
        return CliRunner().invoke(cli.app, [*arguments, "--url", local.url("r2")])

    tx = db.begin()
    tx.insert(table, ROWS)
    listed = json.loads(tidelock("txns", "--json").stdout)
    assert ("open", HOME) in {(row["state"], row["home"]) for row in listed if row["tid"] == tx.tid}
    killed = tidelock("kill", tx.tid)
    assert (killed.exit_code, killed.stdout) == (Exit.OK, f"{tx.tid} rolled back\n")
    assert json.loads(tidelock("kill", tx.tid, "--json").stdout) == {"tid": tx.tid, "state": "rolled_back"}
    assert tidelock("outcome", tx.tid).stdout == f"{tx.tid} aborted\n"
    done = db.insert(table, ROWS)
    refused = tidelock("kill", done.tid, "--json")
    assert (refused.exit_code, refused.stdout) == (Exit.REFUSED, "")
    assert f"is committed at CSN {done.csn} and cannot be rolled back" in refused.stderr


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("wait=never", "wait='never' is not one of all, copies, home"),
        ("wait=all&timeout_s=0", "timeout_s=0.0 is not above 0"),
        ("wait=all&timeout_s=nan", "timeout_s=nan is not above 0"),
        ("wait=all&timeout_s=soon", "query parameter timeout_s='soon' is not a number of seconds"),
    ],
)
def test_wrong_questions_about_outcomes_are_told(local: LocalCluster, query: str, words: str) -> None:
    """A wrong level and a wrong time are refused by name."""
    answer = http("GET", f"{Addresses.of(local, HOME).api}/outcomes/1-r1-1-1?{query}")
    assert answer.status == 400
    assert isinstance(answer.error, BadRequestError)
    assert words in answer.error.message


# -- leases and the death of a client


@pytest.mark.slow
def test_a_lease_is_kept_while_the_client_lives(local: LocalCluster, db: Database, table: str) -> None:
    """A transaction outlives its lease while its client sends heartbeats; without them it is rolled back."""
    with db.begin(lease="3s") as tx:
        tx.insert(table, ROWS)
        tids = {row["tid"] for row in ask(local, HOME, "/transactions")}
        later = db.begin(lease="6500ms")
        db._connection.leases.remove(later)  # as in a program that hangs
        eventually(lambda: at_home(local, later) == "rolled_back", what="the end of the other lease")
        assert tx.tid in tids
        assert states(local, tx) == ("open", "open")
    assert tx.state is TransactionState.COMMITTED
    with pytest.raises(LeaseExpiredError, match=r"no sign of life for its lease of 6\.5 s"):
        later.insert(table, ROWS)
    assert later.state is TransactionState.ROLLED_BACK


def test_a_dead_client_is_rolled_back(local: LocalCluster, db: Database, table: str) -> None:
    """A client that is killed sends no heartbeats: its home rolls back, and nothing is left."""
    with ClientProcess(local.url(HOME), HOME, table, lease_s=3.0) as client:
        assert db.outcome(client.tid).decision is Decision.RUNNING
        client.kill()
        eventually(lambda: db.outcome(client.tid).decision is Decision.ABORTED, what="the end of its lease")
    assert db.read(table) == ROWS
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
