"""Exactly once on real agents: labels of single runs, and of streaming queries with the numbers of batches.

A piece of work may run again, in another process, through another replica, after any death: its rows are
there once, and the later run gets the CSN of the first one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import all_follow
from tests.support.clusters.client_process import ROWS, ClientProcess
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.truncation import truncate
from tests.support.faults.lab import Gates
from tests.support.faults.refusals import Addresses, http
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import Database, TransactionState, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, LabelExistsError, TidelockError, TooLargeError
from workloads.agents import ask

REPLICAS = ("r1", "r2", "r3")
HOME, PEER = "r1", "r2"
BEFORE, AFTER = "csnlog.commit.before", "csnlog.commit.after"
SETTINGS = {
    **QUICK,
    "session_timeout_s": 3,
    "fence_timeout_s": 1,
    "clean_interval_s": 0.2,
}
TABLE = "t"


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates at which the home can be killed: before its record is sent, and before it answers."""
    return Gates(tmp_path_factory.mktemp("gates"), {HOME: {BEFORE: "crash", AFTER: "crash"}})


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> Iterator[LocalCluster]:
    """One cluster for the module, with the table; at its end nothing is left over, and the audit is clean."""
    made = module_cluster(settings=SETTINGS, environment_of={HOME: gates.environment(HOME)})
    with made.connect() as db:
        db.create_table(TABLE, ROWS.schema)
    all_follow(made)
    yield made
    made.up()
    for replica in REPLICAS:
        nothing_left(made.data_dir(replica))
    require_clean_audit(made)


class Stream:
    """A streaming query as the tests run it: one insert for each batch, and its rows in the table."""

    def __init__(self, sessions: Sequence[Database], label: str) -> None:
        self.sessions, self.label = dict(zip(REPLICAS, sessions, strict=True)), label
        self._before = self._rows()

    def _rows(self) -> int:
        with self.sessions[PEER].snapshot() as snap:
            return snap.scan(TABLE).count()

    def run(self, batch: int, replica: str = PEER, *, late: bool = False) -> int:
        """Run a batch through a replica, with its label from the beginning or only at the commit."""
        return run(self.sessions[replica], self.label, batch, late=late)

    def refused(self, batch: int, replica: str = PEER, *, late: bool = False) -> dict[str, Any]:
        """Run a batch that must be refused; return the details of the refusal."""
        with pytest.raises(LabelExistsError) as caught:
            self.run(batch, replica, late=late)
        return caught.value.details

    def require_batches(self, count: int) -> None:
        """Require that so many batches have added their rows."""
        assert self._rows() == self._before + count * ROWS.num_rows


def run(db: Database, label: str, batch: int | None, *, late: bool = False) -> int:
    """Insert the rows under a label, which the transaction has from its begin or gets at the commit."""
    tx = db.begin() if late else db.begin(label, batch=batch)
    with tx:
        tx.insert(TABLE, ROWS)
        tx.commit(label=label if late else None, batch=batch if late else None)
    return tx.csn or 0


@pytest.mark.parametrize("late", [pytest.param(False, id="at begin"), pytest.param(True, id="at commit")])
def test_batches_count_once_in_their_order(sessions: list[Database], late: bool) -> None:
    """Batches count once through any replica; a refused batch gets its CSN and the query's last batch."""
    stream = Stream(sessions, f"query / {late} ä")
    csns = [stream.run(number, REPLICAS[number % 3], late=late) for number in range(4)]
    assert csns == sorted(set(csns))
    for replica in REPLICAS:
        again = stream.refused(3, replica, late=late)
        assert stream.sessions[replica].seen_csn >= csns[3]
        assert (again["csn"], again["batch"]) == (csns[3], 3)
        assert again["tid"].split("-")[1] == REPLICAS[0]
        assert stream.refused(1, replica, late=late)["csn"] == csns[1]
        found = stream.sessions[replica].label(stream.label)
        assert found is not None
        assert (found.batch, found.csn, found.tid) == (3, csns[3], again["tid"])
        assert found.time == stream.sessions[replica].outcome(found.tid).time
        assert stream.sessions[replica].label(stream.label + "?") is None
    stream.run(9)  # numbers may be left out: that is up to the query
    assert stream.refused(8) == {"label": stream.label, "csn": None, "tid": None, "batch": 9}
    stream.require_batches(5)


def test_a_refused_run_begins_nothing(local: LocalCluster, sessions: list[Database]) -> None:
    """A refused run is refused at `begin`, so no transaction has to be rolled back."""
    csn = run(sessions[0], "early", None)
    before = ask(local, HOME, "/transactions")
    with pytest.raises(LabelExistsError, match=f"was committed before, at CSN {csn}") as caught:
        sessions[0].begin("early")
    assert caught.value.details["csn"] == csn
    assert ask(local, HOME, "/transactions") == before


def test_labels_of_runs_and_of_streams_do_not_mix(sessions: list[Database]) -> None:
    """A run's label is refused for a stream, and the reverse: work that was not done never counts as done."""
    db = sessions[0]
    run(db, "plain", None)
    run(db, "stream", 5)
    for late in (False, True):
        with pytest.raises(BadRequestError, match="was committed without a batch"):
            run(db, "plain", 6, late=late)
        with pytest.raises(BadRequestError, match="belongs to a streaming query, at batch 5"):
            run(db, "stream", None, late=late)
    status = db.label("stream"), db.label("plain")
    assert [one and one.batch for one in status] == [5, None]


def test_what_is_no_label(local: LocalCluster, sessions: list[Database]) -> None:
    """Text that is no label is refused at begin and at commit; a transaction has one label, and keeps it."""
    wrong = [("", None), (None, 1), ("x", -1), ("x", 1 << 63)]
    db = sessions[0]
    for label, batch in wrong:
        with pytest.raises(BadRequestError):
            db.begin(label, batch=batch)
        tx = db.begin()
        tx.insert(TABLE, ROWS)
        with pytest.raises(BadRequestError):
            tx.commit(label=label, batch=batch)
        assert tx.state is TransactionState.ROLLED_BACK
    with pytest.raises(TooLargeError, match="label_bytes_max"):
        db.begin("x" * 300)
    with pytest.raises(TooLargeError, match="label_bytes_max"):
        db.label("x" * 300)
    with pytest.raises(BadRequestError, match="the label is empty"):
        db.label("")
    tx = db.begin("one", batch=1)
    tx.insert(TABLE, ROWS)
    with pytest.raises(BadRequestError, match="has label 'one', batch 1"):
        tx.commit(label="one", batch=2)
    tx = db.begin("one", batch=1)
    tx.insert(TABLE, ROWS)
    done = tx.commit(label="one", batch=1)
    url = f"{Addresses.of(local, HOME).api}/transactions/{tx.tid}/commit"
    assert http("POST", url, {"label": "one", "batch": 1}).json["csn"] == done.csn
    assert http("POST", url, {"label": "one", "batch": 2}).json["error"] == "BadRequestError"


def test_a_transaction_that_changes_nothing_takes_no_label(sessions: list[Database]) -> None:
    """An empty transaction leaves its label free, whether it had it from its begin or from its commit."""
    db = sessions[0]
    with db.begin("nothing", batch=1):
        pass
    assert db.begin().commit(label="nothing").csn is None
    assert db.label("nothing") is None


def test_progress_is_kept_with_a_label(local: LocalCluster, sessions: list[Database]) -> None:
    """Every replica returns that of the newest commit, after restarts too; without rows it is committed."""
    db, text = sessions[0], "ä offset 7\n"

    def kept(label: str) -> list[tuple[int | None, str | None]]:
        found = [one.label(label) for one in sessions]
        assert all(status is not None and status.csn for status in found)
        return [(status.batch, status.progress) for status in found if status]

    with db.begin("offsets", batch=1, progress=text) as tx:
        tx.insert(TABLE, ROWS)
    assert kept("offsets") == [(1, text)] * 3
    assert [tid.progress for one in db.log(from_csn=tx.csn, limit=1) for tid in one.tids] == [text]
    tx = sessions[1].begin("offsets", batch=2)
    tx.insert(TABLE, ROWS)
    done = tx.commit(progress="8")
    assert tx.commit(progress="8").csn == done.csn
    url = f"{Addresses.of(local, tx.tid.split('-')[1]).api}/transactions/{tx.tid}/commit"
    assert http("POST", url, {"progress": "8"}).json.get("csn") == done.csn, tx.tid
    assert http("POST", url, {"progress": "9"}).json["error"] == "BadRequestError"
    assert kept("offsets") == [(2, "8")] * 3
    empty = db.begin().commit(label="offsets", batch=3, progress="")  # no row, in one request
    assert empty.csn is not None
    assert kept("offsets") == [(3, "")] * 3
    local.kill("r3")
    local.start("r3")
    assert kept("offsets") == [(3, "")] * 3
    db.write({TABLE: ROWS}, label="run", progress="whole")  # its rows may travel with those of others
    assert kept("run") == [(None, "whole")] * 3
    db.insert(TABLE, ROWS, label="without")
    assert kept("without") == [(None, None)] * 3
    with pytest.raises(LabelExistsError):
        db.begin("offsets", batch=3, progress="again")


def test_what_is_no_progress(sessions: list[Database]) -> None:
    """Progress without a label, or of too many bytes, is refused, and nothing is committed."""
    db = sessions[0]
    for begin in (lambda: db.begin(progress="x"), lambda: db.write({TABLE: ROWS}, progress="x")):
        with pytest.raises(BadRequestError, match="without a label"):
            begin()
    tx = db.begin("late", batch=1)
    with pytest.raises(TooLargeError, match="progress_bytes_max=4096"):
        tx.commit(progress="ä" * 2049)
    tx = db.begin(fresh=True)
    with pytest.raises(BadRequestError, match="has no label"):
        tx.commit(progress="x")
    assert db.label("late") is None
    with db.begin("late", batch=1, progress="ä" * 2048):
        pass
    found = db.label("late")
    assert found is not None
    assert found.progress == "ä" * 2048


def test_consumers_that_follow_their_progress_count_everything_once(
    local: LocalCluster, sessions: list[Database]
) -> None:
    """Three go on from the progress of a label, each under the batch behind it: of two runs one counts."""
    db, label, end = sessions[0], "consumers", 60
    db.create_table("consumed", {"number": "bigint"})
    all_follow(local)
    together = threading.Barrier(len(sessions), timeout=60)

    def consume(one: Database) -> int:
        refused = 0
        while True:
            status = one.label(label)
            if status is None:
                together.wait()
            batch, offset = (0, 0) if status is None else (status.batch or 0, int(status.progress or ""))
            if offset >= end:
                return refused
            upto = min(end, offset + 1 + refused % 3)
            numbers = pa.table({"number": pa.array(range(offset, upto), pa.int64())})
            try:
                one.write({"consumed": numbers}, label=label, batch=batch + 1, progress=str(upto))
            except LabelExistsError:
                refused += 1

    with ThreadPoolExecutor(len(sessions)) as pool:
        refused = list(pool.map(consume, sessions))
    assert sum(refused) >= 2, "three begin together, and one of them can win"
    with db.snapshot(min_csn=max(one.seen_csn or 0 for one in sessions)) as snap:
        assert sorted(snap.read("consumed")["number"].to_pylist()) == [*range(end)]
    db.drop_table("consumed")


def test_processes_with_one_key_work_in_one_transaction(local: LocalCluster) -> None:
    """Processes at any replica share the transaction; one commits, and later ones get the CSN."""
    with connect(local.url(HOME)) as one, connect(local.url(PEER)) as other:
        with one.begin(fresh=True) as tx:
            before = tx.read(TABLE).num_rows
        first, second = (db.begin("keyed", batch=1, key="1 of keyed") for db in (one, other))
        assert (second.tid, second.holder) == (first.tid, first.holder)
        with pytest.raises(BadRequestError, match="choose another key"):
            other.begin("keyed", batch=2, key="1 of keyed")
        for tx in (first, second):
            tx.insert(TABLE, ROWS)
        csn = second.commit().csn
        assert first.commit().csn == csn
        with one.snapshot(min_csn=csn) as snap:
            assert snap.scan(TABLE).count() == before + 2 * ROWS.num_rows
        with pytest.raises(LabelExistsError, match=f"at CSN {csn}:"):
            one.begin("keyed", batch=1, key="1 of keyed")
        with pytest.raises(TooLargeError, match="key has 300 bytes, the limit is label_bytes_max"):
            one.begin(key="k" * 300)


@pytest.mark.scenario("S17")
def test_runs_of_one_batch_at_once(sessions: list[Database]) -> None:
    """Runs of one batch and of the next one, through all replicas: each counts at most once, in order."""
    stream = Stream(sessions, "race")
    stream.run(1)
    batches = (2, 2, 2, 3, 3, 2)
    start = threading.Barrier(len(batches), timeout=60)

    def race(index: int) -> tuple[int, int | None, int | None]:
        with sessions[index % 3].begin(stream.label, batch=batches[index]) as tx:
            tx.insert(TABLE, ROWS)
            start.wait()
            try:
                return batches[index], tx.commit().csn, None
            except LabelExistsError as error:
                return batches[index], None, error.details["csn"]

    with ThreadPoolExecutor(len(batches)) as executor:
        ended = list(executor.map(race, range(len(batches))))
    won = {batch: csn for batch, csn, _ in ended if csn is not None}
    assert len([csn for _, csn, _ in ended if csn]) == len(won)
    assert sorted(won, key=lambda batch: won[batch]) == sorted(won)  # the log has the order of the stream
    assert max(won) == 3  # 2 may have come too late, 3 may not
    told = {(batch, csn) for batch, committed, csn in ended if committed is None}
    assert told <= {(batch, won.get(batch)) for batch in (2, 3)}
    stream.require_batches(1 + len(won))


@pytest.mark.scenario("S17")
@pytest.mark.slow
def test_the_driver_and_the_home_die_with_the_record_in_the_log(
    local: LocalCluster, sessions: list[Database], gates: Gates
) -> None:
    """A new driver at another replica begins with the same batch: it gets the CSN, and goes on."""
    stream = Stream(sessions, "killed after")
    stream.run(6)
    with ClientProcess(local.url(HOME), HOME, TABLE, batch=(stream.label, 7)) as driver:
        with gates.open(HOME, AFTER):
            driver.commit()
            eventually(lambda: local.pid(HOME) is None, what="the death of the home")
        driver.kill()
    refused = stream.refused(7)
    assert refused["tid"] == driver.tid
    assert ask(local, PEER, f"/outcomes/{driver.tid}")["csn"] == refused["csn"]
    assert stream.run(8) > refused["csn"]
    local.start(HOME)
    assert stream.refused(7, HOME)["csn"] == refused["csn"]
    stream.require_batches(3)


@pytest.mark.scenario("S17")
def test_the_home_dies_before_the_record_is_sent(
    local: LocalCluster, sessions: list[Database], gates: Gates
) -> None:
    """The record will never land: the new driver's run counts, and the home finds that when it is back."""
    stream = Stream(sessions, "killed before")
    stream.run(6)
    lost = sessions[0].begin(stream.label, batch=7)
    lost.insert(TABLE, ROWS)
    with gates.open(HOME, BEFORE):
        with pytest.raises(TidelockError):
            lost.commit(timeout_s=0.5)
        eventually(lambda: local.pid(HOME) is None, what="the death of the home")
    csn = stream.run(7)
    local.start(HOME)
    assert stream.refused(7, HOME)["csn"] == csn
    assert ask(local, HOME, f"/outcomes/{lost.tid}")["outcome"] == "aborted"
    stream.require_batches(2)


def test_after_the_record_is_truncated_away(local: LocalCluster, sessions: list[Database]) -> None:
    """When the record is truncated, the label stays in ZooKeeper and its CSN in the catalogs."""
    stream = Stream(sessions, "truncated")
    csns = [stream.run(number) for number in (1, 2)]
    plain = run(sessions[0], "truncated too", None)
    last = sessions[0].insert(TABLE, ROWS, wait="all").csn or 0
    truncate(local.zk, last)
    assert ask(local, PEER, "/log?from_csn=0")[0]["csn"] == last  # a tick may follow
    for replica in REPLICAS:
        assert [stream.refused(number, replica)["csn"] for number in (1, 2)] == csns
        with pytest.raises(LabelExistsError, match=f"at CSN {plain}:"):
            run(stream.sessions[replica], "truncated too", None)
    stream.require_batches(4)  # two of them are others'


@pytest.mark.slow
def test_a_streams_label_outlives_the_outcomes_of_its_batches(cluster: ClusterFactory) -> None:
    """Outcomes end with their retention; that of the last batch stays with its label, until that ends too."""
    local = cluster(settings={**SETTINGS, "outcome_retention_s": 1, "stream_label_retention_s": 6})
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(local.connect(replica)) for replica in REPLICAS]
        db = sessions[0]
        csn = db.create_table(TABLE, ROWS.schema)["csn"]
        sessions[1].tables(csn=csn)
        stream = Stream(sessions, "kept")
        csns = [stream.run(number, REPLICAS[number]) for number in (0, 1)]
        early = db.outcome(stream.refused(0)["tid"])
        assert early.csn == csns[0]

        def forgotten() -> bool:
            db.insert(TABLE, ROWS)  # otherwise no outcome is older than the last one
            return all(
                ask(local, replica, f"/outcomes/{early.tid}")["outcome"] == "too_old" for replica in REPLICAS
            )

        eventually(forgotten, what="the end of the retention of outcomes")
        for replica in REPLICAS:
            assert stream.refused(1, replica)["csn"] == csns[1]
            assert stream.refused(0, replica)["csn"] is None
        require_clean_audit(local)

        def free() -> bool:
            db.insert(TABLE, ROWS)
            return db.label(stream.label) is None

        eventually(free, what="the end of the label")
        assert stream.run(0) > csns[1]
