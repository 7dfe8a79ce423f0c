"""Transactions of one request at agents of a double: written once, whatever is lost on the way."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock.client import CommitResult, Database, connect
from tidelock.client.agents.transport import WHOLE_BODY_BYTES_MAX
from tidelock.client.values.results import Decision
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    FencedError,
    LabelExistsError,
    NotCommittedError,
    StandbyError,
    TidelockError,
    TooLargeError,
    UnavailableError,
    UnknownTableError,
)
from tidelock.wire import writes
from tidelock.wire.writes import TableRows, WriteHead

ROWS = pa.table({"k": [1, 2, 3]})
#: Too many rows for one request.
MANY = pa.table({"k": pa.array(range(WHOLE_BODY_BYTES_MAX // 8 + 1))})
WRITE, RESERVE, BEGIN = "POST /commits", "POST /tids", "POST /transactions"


@pytest.fixture
def tables(fake_cluster: FakeCluster) -> None:
    """A second table."""
    fake_cluster.add_table("u")


def counts(cluster: FakeCluster, *patterns: str) -> list[int]:
    """Return how many requests of each kind were sent to any agent."""
    return [sum(agent.count(pattern) for agent in cluster.agents.values()) for pattern in patterns]


@pytest.mark.usefixtures("tables")
def test_a_small_transaction_is_one_request(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Rows of two tables become visible at one CSN; the tid of the next one is there already."""
    done = fake_db.write({"t": ROWS, "u": ROWS.to_batches()[0]}, label="a", meta={"run": 7})
    assert done.csn == fake_cluster.csn
    assert fake_db.read("t").num_rows == fake_db.read("u").num_rows == 3
    assert fake_cluster["r1"].transactions[done.tid].label == "a"
    (sent,) = (one for one in fake_cluster["r1"].requests if one.path == "/commits")
    head, _ = writes.decode(sent.body)
    assert (head.meta, head.wait) == ({"run": 7}, "home")
    for _ in range(6):
        fake_db.write({"t": ROWS})
    # Blocks of 1, 2 and 4 tids.
    assert counts(fake_cluster, WRITE, RESERVE, BEGIN) == [7, 3, 0]


def test_no_tid_is_used_twice(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Threads share the tids of a client, and no tid is used twice."""
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: fake_db.write({"t": ROWS}), range(200)))
    assert len({one.tid for one in done}) == len({one.csn for one in done}) == 200
    assert fake_db.read("t").num_rows == 600
    assert counts(fake_cluster, RESERVE)[0] < 100


def test_other_processes_use_other_tids(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A client that was pickled, or is used after a fork, reserves tids of its own."""
    for _ in range(2):
        fake_db.write({"t": ROWS})
    copy = pickle.loads(pickle.dumps(fake_db))  # noqa: S301 - of this test
    with copy:
        copy.write({"t": ROWS})
    child = multiprocessing.get_context("fork").Process(target=lambda: fake_db.write({"t": ROWS}))
    child.start()
    child.join(timeout=30)
    assert child.exitcode == 0
    fake_db.write({"t": ROWS})
    assert fake_db.read("t").num_rows == 15
    sent = [writes.decode(one.body)[0].tid for one in fake_cluster["r1"].requests if one.path == "/commits"]
    assert len(sent) == len(set(sent)) == 5


@pytest.mark.parametrize(
    "fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.PAGE, Fault.OTHER_JSON, Fault.SILENCE]
)
def test_a_lost_answer_is_found_out(fake_cluster: FakeCluster, fault: Fault) -> None:
    """The client asks for the commit of the tid: the rows are there once, whatever arrived."""
    fake_cluster["r1"].plan(WRITE, fault)
    with connect(fake_cluster["r1"].url, timeout_s=4.0) as db:
        done = db.write({"t": ROWS})
        assert done.csn == fake_cluster.csn
        assert db.read("t").num_rows == 3
    arrived = fault in {Fault.LOST_ANSWER, Fault.PAGE, Fault.OTHER_JSON}
    assert counts(fake_cluster, WRITE) == [1 if arrived else 2]


def test_a_late_request_is_refused(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A request that arrives after its outcome was asked for is not carried out."""
    fake_cluster["r1"].plan(WRITE, Fault.LOST_REQUEST)
    fake_db.write({"t": ROWS})
    first = next(one for one in fake_cluster["r1"].requests if one.path == "/commits")
    tid = writes.decode(first.body)[0].tid
    assert fake_db.outcome(tid).decision is Decision.ABORTED
    with pytest.raises(TidelockError, match="no transaction"):
        fake_cluster["r1"].answer(first)
    assert fake_db.read("t").num_rows == 3


def test_an_unknown_outcome_is_not_repeated(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The client never writes again after an unknown outcome: the rows might be there twice."""
    fake_cluster["r1"].plan(WRITE, Fault.LOST_ANSWER)
    for agent in fake_cluster.agents.values():
        agent.plan("(POST|GET) /(transactions/.*/commit|outcomes/.*)", *[Fault.LOST_REQUEST] * 10_000)
    with pytest.raises(CommitUnknownError):
        fake_db.write({"t": ROWS}, timeout_s=0.2)
    assert counts(fake_cluster, WRITE) == [1]


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        (RESERVE, Fault.LOST_REQUEST),
        (RESERVE, UnavailableError("draining: begins no transaction")),
        (WRITE, StandbyError("r1 is behind", snapshot_csn=1)),
        (WRITE, FencedError("fenced by r2")),
        (WRITE, NotCommittedError("a peer was silent")),
    ],
)
def test_another_replica_is_tried(
    fake_cluster: FakeCluster, fake_db: Database, pattern: str, error: Fault | TidelockError
) -> None:
    """A replica that certainly has not written is left for another one, or asked again."""
    fake_cluster["r1"].plan(pattern, error)
    assert fake_db.write({"t": ROWS}).csn == fake_cluster.csn
    assert fake_db.read("t").num_rows == 3


def test_a_stopped_replica_is_left(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Kept connections and tids of an agent that was stopped do no harm."""
    for _ in range(3):
        fake_db.write({"t": ROWS})
    fake_cluster["r1"].stop()
    assert "-r2-" in fake_db.write({"t": ROWS}).tid
    assert fake_db.read("t").num_rows == 12


def test_a_restarted_home_knows_no_old_tids(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A client with tids of the boot before reserves new ones."""
    for _ in range(2):
        fake_db.write({"t": ROWS})
    fake_cluster["r1"].restart()
    assert "-r1-2-" in fake_db.write({"t": ROWS}).tid
    assert counts(fake_cluster, WRITE, RESERVE) == [4, 3]


def test_old_tids_are_not_used(
    fake_cluster: FakeCluster, fake_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is used for half the time that it stays reserved."""
    for _ in range(2):
        fake_db.write({"t": ROWS})
    monkeypatch.setattr("tidelock.client.writes.whole_writes.time.monotonic", lambda: 1e9)
    fake_db.write({"t": ROWS})
    assert counts(fake_cluster, WRITE, RESERVE) == [3, 3]


def test_a_refusal_is_told_as_it_is(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A table that is unknown is so at the newest CSN too; a label that exists tells the CSN of its run."""
    with pytest.raises(UnknownTableError):
        fake_db.write({"t": ROWS, "no_such_table": ROWS})
    assert counts(fake_cluster, WRITE, BEGIN) == [2, 1]
    assert fake_db.read("t").num_rows == 0
    fake_cluster.add_table("u")
    fake_cluster["r1"].plan(WRITE, LabelExistsError("label a is taken", csn=fake_cluster.csn, tid="1-r1-1-1"))
    with pytest.raises(LabelExistsError):
        fake_db.write({"t": ROWS}, label="a")
    assert counts(fake_cluster, WRITE) == [3]
    fake_db.write({"t": ROWS}, label="b")
    assert writes.decode(fake_cluster["r1"].requests[-1].body)[0].min_csn == 3


@pytest.mark.parametrize(
    "data", [MANY, pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches())], ids=["many", "reader"]
)
def test_other_data_takes_a_request_for_each_step(
    fake_cluster: FakeCluster, fake_db: Database, data: pa.Table | pa.RecordBatchReader
) -> None:
    """Many rows, and rows whose number is not known, travel as the rows of a transaction always did."""
    fake_db.write({"t": data}, label="a")
    assert counts(fake_cluster, BEGIN, WRITE) == [1, 0]
    assert fake_db.read("t").num_rows in {3, MANY.num_rows}


def test_an_agent_with_a_lower_limit(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """If the agent refuses the size, the rows take a request for each step."""
    fake_cluster["r1"].plan(WRITE, TooLargeError("the limit is write_bytes_max=1", limit=1, found=9))
    fake_db.write({"t": ROWS})
    assert counts(fake_cluster, BEGIN, WRITE) == [1, 1]


def _with_reader(db: Database) -> CommitResult:
    return db.insert("t", ROWS.to_reader())


@pytest.mark.parametrize(
    ("insert", "rows"), [(lambda db: db.insert("t", MANY), MANY.num_rows), (_with_reader, 0)]
)
def test_steps_are_begun_again_if_the_rows_can_be_read_again(
    fake_cluster: FakeCluster, fake_db: Database, insert: Callable[[Database], CommitResult], rows: int
) -> None:
    """A transaction of several requests goes on with another replica; rows of a reader are not sent again."""
    fake_cluster["r1"].plan("POST /transactions/.*/rows/t", Fault.LOST_ANSWER)
    fake_cluster["r1"].plan("POST /transactions/.*/rollback", Fault.LOST_REQUEST)
    if rows:
        assert insert(fake_db).csn == fake_cluster.csn
    else:
        with pytest.raises(UnavailableError):
            insert(fake_db)
    assert fake_db.read("t").num_rows == rows
    assert fake_cluster["r1"].count(BEGIN) == 1


# -- the body ------------------------------------------------------------------------------------------------


def test_a_body_is_read_as_it_was_written() -> None:
    """Head and streams come back, empty ones too."""
    head = WriteHead("1-r1-1-1", (TableRows("t", 2), TableRows("u", 0)), label="a", min_csn=7)
    assert writes.decode(writes.encode(head, [b"ab", b""])) == (head, [b"ab", b""])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "length of a head"),
        (b"\0\0\0", "length of a head"),
        (b"\0\0\0\x09{}", "9 bytes by its length, and 2 follow"),
        (b"\xff\xff\xff\xff{}", "4294967295 bytes by its length"),
        (b"\0\0\0\x02{}", "missing required field `tid`"),
        (b"\0\0\0\x02{]", "malformed"),
        (b"\0\0\0\x02\xff\xff", "."),
        (writes.encode(WriteHead("t", (TableRows("t", 2),)), [b"a"]), "by their lengths"),
        (writes.encode(WriteHead("t", (TableRows("t", 2),)), [b"abc"]), "by their lengths"),
        (writes.encode(WriteHead("t", (TableRows("t", -1),)), [b"a"]), ">= 0"),
    ],
)
def test_a_wrong_body_is_refused(body: bytes, problem: str) -> None:
    """A body that is cut, too long or malformed is refused, and the message says where it is wrong."""
    with pytest.raises(ValueError, match=problem):
        writes.decode(body)


def test_there_is_nothing_to_write(fake_db: Database) -> None:
    """A transaction without a table has nothing to commit; what is no rows is refused as by insert."""
    assert fake_db.write({}).csn is None
    with pytest.raises(BadRequestError, match="expected a pyarrow Table"):
        fake_db.write({"t": object()})
