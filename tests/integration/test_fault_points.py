"""SIGKILL of the home and of a peer at every fault point that a transaction passes (issue 2).

While a client commits a transaction over two tables, one replica kills itself at a point. The others go on,
and the killed one comes back. The client's answer must be true, all replicas must agree, and nothing may be
left over. The outcome follows from the point: the transaction is committed once its record is in the log, and
not before. The death of a peer does not change that, since copies = 2 of three replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

import tidelock.csnlog.record_skipper
import tidelock.csnlog.tree_maker
import tidelock.replica_agent.main  # noqa: F401 - all three register fault points
from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults.lab import LARGE_ROWS, Lab, laboratory, points
from tests.support.histories.workload import ROWS
from tidelock.csnlog import faults
from tidelock.errors import CommitUnknownError, RefusedError
from workloads.history import CallEnd

HOME, PEER = "r1", "r2"

#: Points at which a disk changes, on every replica that stores parts; files of their own are renamed, too.
DISK: Final = ("agent.pack", "agent.catalog", "partfs.write", "partfs.fsync")
#: Points in the order in which the home passes them.
HOME_STEPS: Final = (
    *("agent.stage", "agent.seal", *DISK, "replication.push", "csnlog.commit", "replication.apply"),
)
PEER_STEPS: Final = ("replication.accept", *DISK, "replication.apply")
#: Points after which the record is in the log.
IN_THE_LOG: Final = {"csnlog.commit.after", *points(["replication.apply"])}
#: Points that an insert passes, so the fault acts before the commit request.
BY_THE_INSERT: Final = set(points(["agent.stage"]))

#: Points that no transaction of this file passes, and where they are tested.
ELSEWHERE: Final = {
    "agent.clone_manifest": "passed by the peer that a replica clones: test_clone.py",
    "agent.clone_receive": "passed by a replica that clones: test_clone.py",
    "agent.clone_install": "passed by a replica that clones: test_clone.py",
    "agent.collect": "passed by collection: test_history.py",
    "agent.compact": "passed by compaction: test_compaction.py",
    "agent.landed": "passed by the commit of rows that landed: test_landing.py",
    "agent.upload": "passed by uploads to another replica than the home: test_uploads.py",
    "replication.lock": "passed by what removes: test_locks.py",
    "csnlog.begin": "passed at the start of an agent: test_membership_kills.py",
    "membership.change": "passed by the replica that changes the members: test_membership_kills.py",
    "csnlog.skip": "passed by the command that skips a record: test_skip_record.py",
    "rebuild.write": "passed by the command that makes a lost tree again: test_rebuilding.py",
    "csnlog.raise": "passed only after a lost reply: test_fault_kinds.py",
    "csnlog.rollover": "passed at the end of an epoch: test_fault_kinds.py",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A replica that dies at a point. ``large``: a part has a file of its own and is fetched by the peers."""

    victim: str
    point: str
    large: bool = False

    def __str__(self) -> str:
        return f"{'home' if self.victim == HOME else 'peer'}-{self.point}{'-large' if self.large else ''}"


HOME_CASES: Final = [
    *(Case(HOME, point) for point in points(HOME_STEPS)),
    *(Case(HOME, point, large=True) for point in ("partfs.fsync.before", *points(["partfs.rename"]))),
]
PEER_CASES: Final = [
    *(Case(PEER, point) for point in points(PEER_STEPS)),
    *(Case(PEER, point, large=True) for point in points(["replication.fetch", "partfs.rename"])),
]


def armed(cases: list[Case]) -> dict[str, str]:
    """The faults of a victim."""
    return {case.point: "crash" for case in cases}


@pytest.fixture(scope="module")
def lab(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One cluster for all points; its whole history is checked at the end."""
    faults_of = {HOME: armed(HOME_CASES), PEER: armed(PEER_CASES)}
    with laboratory(module_cluster, tmp_path_factory.mktemp("lab"), faults_of) as lab:
        yield lab


def test_every_point_of_an_agent_is_tested() -> None:
    """Each fault point has a test in this file, or is listed here with the file that tests it."""
    registered = {name for name in faults.names() if not name.startswith("tests.")}
    tested = {case.point for case in (*HOME_CASES, *PEER_CASES)}
    assert tested.isdisjoint(points(list(ELSEWHERE)))
    assert registered == tested | set(points(list(ELSEWHERE)))


def fast_and_slow(cases: list[Case]) -> list[Any]:
    """Deaths after a step run with every change, those before it with the long runs."""
    return [
        pytest.param(case, id=str(case), marks=[pytest.mark.slow] if case.point.endswith(".before") else [])
        for case in cases
    ]


@pytest.mark.scenario("S05")
@pytest.mark.parametrize("case", fast_and_slow(HOME_CASES))
@pytest.mark.few(3)
def test_the_home_dies_and_the_log_alone_decides(lab: Lab, case: Case) -> None:
    """Committed if and only if the record is in the log; no replica says otherwise meanwhile."""
    committed = case.point in IN_THE_LOG
    inserting = case.large or case.point in BY_THE_INSERT
    rows = LARGE_ROWS if case.large else ROWS[0]
    with lab.transaction(HOME, rows=rows, filled=not inserting) as attempt:
        with lab.still(), lab.gates.open(HOME, case.point):
            told = lab.beside(attempt, filled=not inserting)
            lab.await_death(HOME)
        lab.writer.more_commits()
        if committed:
            csn = told.result().csn  # the others answer from the log while the home is dead
            assert csn is not None
            meanwhile = {lab.outcome(replica, attempt.tid) for replica in (PEER, "r3")}
            assert meanwhile == {("committed", csn)}
        else:
            csn = None
            meanwhile = {lab.outcome(replica, attempt.tid) for replica in (PEER, "r3")}
            assert meanwhile == {("running", None)}
        lab.cluster.start(HOME)
        ending = told.result()
    assert ending.end is (CallEnd.OK if committed else CallEnd.FAIL)
    lab.require_settled(attempt, csn)


@pytest.mark.scenario("S38")
@pytest.mark.parametrize("case", fast_and_slow(PEER_CASES))
@pytest.mark.few(2)
def test_a_peer_dies_and_the_commit_has_other_copies(lab: Lab, case: Case) -> None:
    """Committed with two other copies while the peer is dead; the peer fetches its copy when it is back."""
    rows = LARGE_ROWS if case.large else ROWS[0]
    with lab.transaction(HOME, rows=rows, filled=not case.large) as attempt:
        with lab.still(), lab.gates.open(PEER, case.point):
            told = lab.beside(attempt, filled=not case.large)
            lab.await_death(PEER)
        ending = told.result()
        assert (ending.end, ending.error) == (CallEnd.OK, None)
        lab.writer.more_commits()
        lab.cluster.start(PEER)
    lab.require_settled(attempt, ending.csn)


@pytest.mark.slow
def test_a_client_that_does_not_wait_is_told_unknown(lab: Lab) -> None:
    """While the home is dead the answer is "unknown"; a repeated commit() gets the outcome afterwards."""
    with lab.transaction(HOME) as attempt:
        with lab.still(), lab.gates.open(HOME, "csnlog.commit.before"):
            ending = attempt.finish(timeout_s=1.0)
            lab.await_death(HOME)
        assert (ending.end, type(ending.error)) == (CallEnd.INFO, CommitUnknownError)
        lab.writer.more_commits()
        lab.cluster.start(HOME)
        again = attempt.commit()
        assert again.end is CallEnd.FAIL
        assert isinstance(again.error, RefusedError)
    lab.require_settled(attempt, None)
