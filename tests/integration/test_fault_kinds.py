"""Lost replies, calls that fail once, full and broken disks, and a replica that lags (issue 2).

Unlike in test_fault_points.py the replicas survive, except in the tests where one dies while it resolves a
lost reply or closes an epoch. Each answer to a client is true, a transaction is in the log at most once, and
after the fault the replicas agree and nothing is left over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults.lab import BYSTANDER, LARGE_ROWS, Ending, Lab, laboratory
from tests.support.histories.workload import ROWS
from tests.support.waiting import eventually
from tidelock.csnlog.core.ids import epoch_of
from tidelock.errors import DiskFullError, TidelockError
from workloads.agents import ask
from workloads.history import CallEnd

HOME, PEER = "r1", "r2"
SETTINGS: Final = {"commit_timeout_s": 6}
EPOCH_LIMIT: Final = 60

FAULTS: Final = {
    HOME: {
        "agent.stage.after": "once",
        "agent.seal.before": "once",
        "agent.pack.after": "once",
        "agent.catalog.before": "enospc",
        "partfs.write.before": "enospc",
        "partfs.fsync.before": "eio",
        "partfs.rename.after": "eio",
        "replication.push.before": "once",
        "replication.push.after": "lost-reply",
        "csnlog.commit.before": "once",
        "csnlog.commit.after": "always",  # acts only while its gate is open
        "csnlog.raise.before": "crash",
        "csnlog.raise.after": "crash",
        "csnlog.rollover.before": "crash",
        "csnlog.rollover.after": "crash",
    },
    PEER: {
        "agent.catalog.before": "enospc",
        "partfs.write.before": "enospc",
        "replication.accept.before": "once",
        "replication.accept.after": "once",
        "replication.fetch.before": "once",
        "replication.fetch.after": "once",
        "replication.apply.before": "pause",
    },
    BYSTANDER: {
        "csnlog.commit.after": "always",
        "csnlog.raise.before": "once",
        "csnlog.raise.after": "lost-reply",
        "csnlog.rollover.before": "once",
        "csnlog.rollover.after": "lost-reply",
    },
}


@pytest.fixture(scope="module")
def lab(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One cluster for all faults; its whole history is checked at the end."""
    folder = tmp_path_factory.mktemp("lab")
    with laboratory(module_cluster, folder, FAULTS, settings=SETTINGS, epoch_limit=EPOCH_LIMIT) as lab:
        yield lab


def require_committed(ending: Ending) -> int:
    """Return the CSN of a commit that was acknowledged."""
    assert (ending.end, ending.error) == (CallEnd.OK, None)
    assert ending.csn is not None
    return ending.csn


def refusal(ending: Ending) -> TidelockError:
    """Return why a transaction was refused."""
    assert ending.end is CallEnd.FAIL
    assert ending.error is not None
    return ending.error


@pytest.mark.parametrize(
    ("replica", "point"),
    [
        (HOME, "replication.push.before"),
        (HOME, "replication.push.after"),
        (HOME, "csnlog.commit.before"),
        (HOME, "csnlog.commit.after"),
        (PEER, "replication.accept.before"),
        (PEER, "replication.accept.after"),
        (PEER, "replication.fetch.before"),
        (PEER, "replication.fetch.after"),
    ],
)
def test_a_call_that_fails_once_is_repeated(lab: Lab, replica: str, point: str) -> None:
    """After a lost request or a lost answer the client sees no error, and no row comes twice."""
    large = "fetch" in point
    with (
        lab.still(),
        lab.transaction(HOME, rows=LARGE_ROWS if large else ROWS[0], filled=not large) as attempt,
        lab.gates.open(replica, point),
    ):
        csn = require_committed(attempt.finish(filled=not large))
        lab.gates.await_hit(replica, point)
    lab.require_settled(attempt, csn)


@pytest.mark.scenario("S03")
@pytest.mark.parametrize("point", ["csnlog.raise.before", "csnlog.raise.after"])
def test_the_raise_of_the_fence_fails_too(lab: Lab, point: str) -> None:
    """The reply of the commit is lost, then that of the raise that resolves it: still one outcome."""
    with (
        lab.still(),
        lab.transaction(BYSTANDER) as attempt,
        lab.gates.open(BYSTANDER, "csnlog.commit.after", point),
    ):
        csn = require_committed(attempt.finish())
    lab.require_settled(attempt, csn)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["csnlog.raise.before", "csnlog.raise.after"])
def test_the_home_dies_while_it_resolves_a_lost_reply(lab: Lab, point: str) -> None:
    """The commit is in the log although the home never knew: another replica tells the client."""
    with lab.transaction(HOME) as attempt:
        with lab.still(), lab.gates.open(HOME, "csnlog.commit.after", point):
            told = lab.beside(attempt)
            lab.await_death(HOME)
        csn = require_committed(told.result())
        lab.cluster.start(HOME)
    lab.require_settled(attempt, csn)


@pytest.mark.parametrize("point", ["agent.stage.after", "agent.seal.before", "agent.pack.after"])
def test_an_error_that_nobody_foresaw(lab: Lab, point: str) -> None:
    """The transaction is refused and rolled back, and the agent works on."""
    filled = "stage" not in point
    with lab.still(), lab.transaction(HOME, filled=filled) as attempt, lab.gates.open(HOME, point):
        refusal(attempt.finish(filled=filled))
    lab.require_settled(attempt, None)
    with lab.transaction(HOME) as again:
        csn = require_committed(again.finish())
    lab.require_settled(again, csn)


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("point", ["partfs.write.before", "agent.catalog.before"])
def test_the_disk_of_the_home_is_full(lab: Lab, point: str, large: bool) -> None:
    """The client gets DiskFullError, all space is given back; with room again the next commit succeeds."""
    rows = LARGE_ROWS if large else ROWS[0]
    with (
        lab.still(),
        lab.transaction(HOME, rows=rows, filled=not large) as attempt,
        lab.gates.open(HOME, point),
    ):
        assert isinstance(refusal(attempt.finish(filled=not large)), DiskFullError)
    lab.require_settled(attempt, None)
    with lab.transaction(HOME, rows=rows) as again:
        csn = require_committed(again.finish())
    lab.require_settled(again, csn)


def test_the_disk_is_full_after_a_large_part_was_stored(lab: Lab) -> None:
    """Commit and rollback cannot write the catalog; the part is deleted when there is room again."""
    with (
        lab.still(),
        lab.transaction(HOME, rows=LARGE_ROWS) as attempt,
        lab.gates.open(HOME, "agent.catalog.before"),
    ):
        assert isinstance(refusal(attempt.finish()), DiskFullError)
    lab.require_settled(attempt, None)


@pytest.mark.parametrize(
    ("point", "large"),
    [("partfs.fsync.before", False), ("partfs.fsync.before", True), ("partfs.rename.after", True)],
    ids=["fsync-small", "fsync-large", "rename-large"],
)
def test_the_disk_of_the_home_fails(lab: Lab, point: str, large: bool) -> None:
    """A file whose flush failed is discarded, not flushed again, and the commit is not acknowledged."""
    rows = LARGE_ROWS if large else ROWS[0]
    with lab.still(), lab.transaction(HOME, rows=rows, filled=not large) as attempt:
        with lab.gates.open(HOME, point):
            error = refusal(attempt.finish(filled=not large))
        assert "disk" in error.message
    lab.require_settled(attempt, None)


@pytest.mark.parametrize("point", ["partfs.write.before", "agent.catalog.before"])
def test_the_disk_of_a_peer_is_full(lab: Lab, point: str) -> None:
    """The others commit without the peer, which promises no part; with room again it gets all of them."""
    with lab.still(), lab.transaction(HOME) as attempt, lab.gates.open(PEER, point):
        csn = require_committed(attempt.finish())
        lab.gates.await_hit(PEER, point)
        status = ask(lab.cluster, PEER, "/status")
        assert (status["state"], status["snapshot_csn"] < csn) == ("serving", True)
    lab.require_settled(attempt, csn)


@pytest.mark.parametrize("point", ["csnlog.rollover.before", "csnlog.rollover.after"])
@pytest.mark.parametrize("home", [HOME, pytest.param(BYSTANDER, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_end_of_an_epoch(lab: Lab, home: str, point: str) -> None:
    """If the roll-over fails, loses its reply, or kills the home, the epoch ends once and commits go on."""
    hits = lab.gates.hits(home, point)
    with contextlib.ExitStack() as clients:
        with lab.still(), lab.gates.open(home, point):
            before = epoch_of(lab.converged())
            while True:
                attempt = clients.enter_context(lab.transaction(home))
                told = lab.beside(attempt)
                eventually(lambda told=told: told.done() or lab.gates.hits(home, point) > hits)  # type: ignore[misc]
                if lab.gates.hits(home, point) > hits:
                    break
            if home == HOME:
                lab.await_death(home)
        lab.writer.more_commits()
        lab.cluster.start(home)
        ending = told.result()
    assert ending.end in {CallEnd.OK, CallEnd.FAIL}
    lab.require_settled(attempt, ending.csn)
    with lab.still():
        assert epoch_of(lab.converged()) == before + 1
