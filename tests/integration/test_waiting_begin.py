"""Transactions whose begin waits, on real agents: one request, the same refusals, once whatever is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.support.clusters.client_process import ROWS
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.proxy import Proxy
from tests.support.histories.evidence import nothing_left
from tidelock.client import Database, Transaction, TransactionState, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import DuplicateKeyError, SchemaMismatchError, TidelockError, UnknownTableError

HOME = "r1"
KEYS = pa.schema([pa.field("k", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """One cluster for the module, with tables of two columns; at its end nothing is left over."""
    made = module_cluster(settings=QUICK)
    with made.connect() as db:
        for table in ("t", "u"):
            db.create_table(table, ROWS.schema)
        db.create_table("named", KEYS)
        db.create_table("keys", KEYS, properties={"unique_key": "k"})
        db.write({"t": ROWS, "u": ROWS}, wait="all")
    yield made
    for replica in made.replicas:
        nothing_left(made.data_dir(replica))


@pytest.fixture
def proxy(local: LocalCluster) -> Iterator[Proxy]:
    """A proxy in front of the home."""
    with Proxy(local.url(HOME).removeprefix("http://")) as made:
        yield made


@pytest.fixture
def db(proxy: Proxy) -> Iterator[Database]:
    """A client that knows the tables, has a tid left, and reaches the home through the proxy."""
    with connect(f"http://{proxy.address}", replica=HOME) as client:
        for _ in range(2):
            with client.begin() as tx:
                tx.insert("t", ROWS)
                tx.insert("u", ROWS)
        yield client


def rows(db: Database) -> tuple[int, int]:
    """Return the number of rows of both tables at one CSN."""
    with db.snapshot() as at:
        return at.scan("t").count(), at.scan("u").count()


def test_two_inserts_are_one_request(proxy: Proxy, db: Database, local: LocalCluster) -> None:
    """Begin, rows of two tables and commit are one message; the rows are visible at one CSN everywhere."""
    before = rows(db)
    sent = proxy.counters.units_to_server
    with db.begin() as tx:
        tx.insert("t", ROWS)
        tx.insert("u", ROWS)
    assert proxy.counters.units_to_server == sent + 1
    assert tx.csn == db.outcome(tx.tid).csn
    for replica in local.replicas:
        with local.connect(replica) as other:
            assert tx.csn is not None
            with other.snapshot(tx.csn) as at, other.snapshot(tx.csn - 1) as earlier:
                assert at.scan("t").count() == before[0] + ROWS.num_rows
                assert at.scan("u").count() == before[1] + ROWS.num_rows
                assert earlier.scan("t").count() == before[0]


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_lost_answer_commits_once(proxy: Proxy, db: Database, lost: str) -> None:
    """The connection breaks before or after the home has got the request: the rows are there once."""
    before = rows(db)
    with db.begin() as tx:
        tx.insert("t", ROWS)
        tx.insert("u", ROWS)
        if lost == "reply":
            proxy.lose_reply()
        else:
            proxy.lose_request()
    assert proxy.counters.lost_replies + proxy.counters.lost_requests == 1
    assert rows(db) == (before[0] + ROWS.num_rows, before[1] + ROWS.num_rows)
    assert db.outcome(tx.tid).csn == tx.csn == tx.commit().csn


def test_a_rollback_sends_nothing(proxy: Proxy, db: Database) -> None:
    """No home has heard of the transaction, so none has to forget it."""
    sent = proxy.counters.units_to_server
    with pytest.raises(KeyError), db.begin() as tx:  # noqa: PT012
        tx.insert("t", ROWS)
        raise KeyError("of the caller")
    assert tx.state is TransactionState.ROLLED_BACK
    assert proxy.counters.units_to_server == sent


def test_a_read_makes_it_begin(proxy: Proxy, db: Database) -> None:
    """The rows that were kept are staged first: the transaction sees them, and nobody else does."""
    before = rows(db)
    with db.begin() as tx:
        tx.insert("t", ROWS)
        db.insert("t", ROWS)  # not seen: the transaction begins before it
        assert tx.scan("t").count() == before[0] + ROWS.num_rows
        tx.delete("u", "true")
        tx.insert("u", ROWS)
    assert rows(db) == (before[0] + 2 * ROWS.num_rows, ROWS.num_rows)


def named(*names: str | None, key: pa.Array | None = None) -> pa.Table:
    """Return rows for the table of names."""
    keys = pa.array(range(len(names)), pa.int64()) if key is None else key
    return pa.table({"k": keys, "name": pa.array(names, pa.string())})


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("named", named("a").drop(["name"])),
        ("named", named("a", "b", key=pa.array([1, None]))),
        ("named", named("a", key=pa.array(["1"]))),
        ("named", named("a", key=pa.array([1.5]))),
        ("named", named("a").append_column("more", pa.array([1]))),
        ("nowhere", named("a")),
        ("No Name", named("a")),
    ],
    ids=["missing", "null", "type", "value", "extra", "no table", "no name"],
)
def test_insert_refuses_as_the_home_does(db: Database, table: str, found: pa.Table) -> None:
    """Class, words and details are those of a transaction that has begun, and both take rollback only."""

    def refusal(tx: Transaction) -> TidelockError:
        with pytest.raises(TidelockError) as caught:
            tx.insert(table, found)
        assert tx.state is TransactionState.FAILED
        tx.rollback()
        return caught.value

    waiting, begun = db.begin(), db.begin(fresh=True)
    waiting.insert("named", named("kept"))
    first, second = refusal(waiting), refusal(begun)
    assert type(first) is type(second)
    assert {**first.details, "csn": 0} == {**second.details, "csn": 0}
    if not isinstance(first, UnknownTableError):  # which names the CSN
        assert first.message == second.message


def test_a_key_is_refused_by_insert(db: Database) -> None:
    """Whether a key exists is known at the home alone, so its table is not written to late."""
    with db.begin() as tx:
        tx.insert("keys", named("a"))
    tx = db.begin()
    with pytest.raises(DuplicateKeyError):
        tx.insert("keys", named("b"))
    tx.rollback()


def test_other_layouts_of_a_type_need_no_home(proxy: Proxy, db: Database) -> None:
    """Rows that the agent would convert are kept as well, and are converted by the commit."""
    db.begin().insert("named", named("a"))
    sent = proxy.counters.units_to_server
    with db.begin() as tx:
        tx.insert("named", pa.table({"name": pa.array(["x"], pa.large_string()), "k": pa.array([7])}))
    assert proxy.counters.units_to_server == sent + 1
    assert db.read("named", where="k = 7").to_pylist() == [{"k": 7, "name": "x"}]


def test_a_table_that_was_dropped_from_memory(db: Database, local: LocalCluster) -> None:
    """A table that another client has created since is found by the next insert."""
    tx = db.begin()
    with pytest.raises(UnknownTableError):
        tx.insert("young", named("a"))
    tx.rollback()
    with local.connect("r2") as other:
        other.create_table("young", KEYS)
        seen = other.seen_csn
    with db.begin(min_csn=seen) as tx:
        assert tx.insert("young", named("a")).rows == 1
    with pytest.raises(SchemaMismatchError), db.begin() as tx:
        tx.insert("young", named("a").drop(["k"]))
