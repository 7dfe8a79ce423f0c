"""outcome(tid) while the catalog forgets: what was committed is never called aborted or running (I8)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import Aborted, Committed, Outcome, Running, TooOld
from tidelock.errors import UnavailableError
from tidelock.replica_agent.api.operations import Condition, Operations
from tidelock.replica_agent.api.tid_lookup import lock_holder, look_up
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replication.core.model import Peer

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
#: Of a former life of this replica, committed at CSN 5.
OLD = Tid(Csn(4), R1, 1, 1)
#: Of the same life, never committed.
NEVER = Tid(Csn(5), R1, 1, 2)


class Log:
    """As `CsnLog.outcome` where the log has no such transaction; ``living``: the life of its home goes on."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.meanwhile: int | None = None
        self.living = False

    async def outcome(self, tid: Tid, known: Callable[[Tid], Committed | None], floor: Csn) -> Outcome:
        """Look: first in ZooKeeper, which takes its time, then in the catalog."""
        if self.meanwhile is not None:
            before_ms = self.meanwhile
            await self._catalog.write(lambda db: jobs.prune_outcomes(db, before_ms, 0))
        found = known(tid)
        if found is not None:
            return found
        if tid.snapshot < floor:
            return TooOld(floor)
        return Running() if self.living else Aborted()


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog with the outcome."""
    made = Catalog(tmp_path, initial={"replica": R1, "disk": "d1"}, cache_bytes=1 << 20)
    applied = jobs.AppliedRecord(Csn(5), 5000, [jobs.AppliedTid(str(OLD), (), None, True)], {})
    await made.write(lambda db: jobs.apply(db, [applied]))
    yield made
    await made.close()


@pytest.fixture
def log(catalog: Catalog) -> Log:
    """The log."""
    return Log(catalog)


@pytest.fixture
def operations(catalog: Catalog, log: Log) -> Operations:
    """An agent in its second life, without most of its parts."""
    fields: dict[str, Any] = dict.fromkeys(Operations.__dataclass_fields__)
    fields |= {
        "settings": settings(), "replica": R1, "clock": time.monotonic, "catalog": catalog, "log": log,
        "condition": Condition(AgentState.SERVING), "waiters": CsnWaiters(Csn(5)),
        "applier": cast("Any", type("", (), {"taken": staticmethod(lambda _: None)})),
        "session": cast("Any", type("", (), {"boot": 2})),
        "commits": cast("Any", type("", (), {"own_word": staticmethod(lambda _: "unknown")})),
    }  # fmt: skip
    return Operations(**fields)


@pytest.mark.parametrize("ask", [Operations.logged_outcome, lock_holder, look_up])
async def test_what_is_kept_is_told(
    operations: Operations, ask: Callable[[Operations, Tid], Awaitable[Outcome]]
) -> None:
    """The outcome in the catalog; what is in neither was aborted with its life."""
    assert await ask(operations, OLD) == Committed(Csn(5), 5000)
    assert await ask(operations, NEVER) == Aborted()


async def test_what_is_forgotten_meanwhile_is_too_old(operations: Operations, log: Log) -> None:
    """The outcome goes between the look at the floor and the look at the outcomes."""
    log.meanwhile = 6000
    assert await operations.logged_outcome(OLD) == TooOld(Csn(5))
    assert await operations.logged_outcome(NEVER) == Aborted()


@pytest.mark.parametrize(
    ("word", "living", "expected"),
    [
        ("running", True, Running()),
        (None, True, Running()),
        ("aborted", True, Aborted()),
        ("unknown", True, TooOld(Csn(5))),
        ("running", False, TooOld(Csn(5))),
    ],
)
async def test_the_holder_of_a_lock_may_be_older_than_what_is_kept(
    operations: Operations, log: Log, word: str | None, living: bool, expected: Outcome
) -> None:
    """It was begun before the floor, by another home, and is in the way until it is known to be over (I7)."""
    log.meanwhile = 6000
    await operations.logged_outcome(OLD)
    log.meanwhile, log.living = None, living

    class Home:
        async def outcome(self, *_: object) -> str:
            if word is None:
                raise UnavailableError("no answer")
            return word

    operations.client = cast("Any", Home())
    peer = Peer(R2, "r2:1", "r2:2", "d2")
    operations.membership = cast("Any", type("", (), {"peers": staticmethod(lambda: [peer])}))
    assert await lock_holder(operations, Tid(Csn(4), R2, 1, 1)) == expected
