"""The scenarios that are explored: which transactions, and how much of which trouble.

One world with all of it has too many states; these have all of it together, and each is explored to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.sim.explore.cloning import Cloning
from tests.sim.explore.collecting import Collecting
from tests.sim.explore.commits import CommitModel
from tests.sim.explore.copying import CopyModel, Mishaps
from tests.sim.explore.following import Following
from tests.sim.explore.labelling import Labelling, LabelRun
from tests.sim.explore.lock_scene import LockMishaps, LockRemoval
from tests.sim.explore.locking import Locking
from tests.sim.explore.replay import Replays
from tests.sim.explore.resolving import Resolving
from tests.sim.explore.search import Model
from tests.sim.explore.shard import FollowerTrouble
from tests.sim.explore.truncating import Truncating
from tests.sim.explore.world import CommitBudget, CommitTx
from tidelock.csnlog.core.ids import TableId
from tidelock.replica_agent.transactions.outcomes.rules import AUDIT, CLIENT, LOCK, UNDECIDED, Policy
from tidelock.replication.core.lock_rules import OnePartition, WholeTable


@dataclass(frozen=True, slots=True)
class ExploredScenario:
    """A world to explore; ``fast`` ones are part of every test run."""

    name: str
    model: Callable[[Replays], Model]
    fast: bool = False


#: One transaction of each home, of which one can have the label.
PAIR: Final = (CommitTx(0, 1, label="x"), CommitTx(1, 1, label="x"))
#: Two of each home: one pair has a label, of the other one changes the table that its partner touches.
FOUR: Final = (
    CommitTx(0, 1, label="x"),
    CommitTx(0, 2, uses=True),
    CommitTx(1, 1, label="x"),
    CommitTx(1, 2, alters=True),
)


#: A carrier of each home, of whose riders one has the label that the other home's single commit has.
CARRIERS: Final = (CommitTx(0, 1, carries=("x", None)), CommitTx(1, 1, label="x"))
#: Two carriers of one home beside it.
CROWD: Final = (*CARRIERS, CommitTx(0, 2, uses=True, carries=("y",)))


#: Tables of one name, created by both homes; a table that one home drops and the other one inserts into.
SAME_NAME: Final = (CommitTx(0, 1, creates=TableId("d.a")), CommitTx(1, 1, creates=TableId("d.b")))
DROP: Final = (CommitTx(0, 1, uses=True), CommitTx(1, 1, alters=True))


#: Removals of the first part, of each home; of the second; of all of a table or a partition.
ONE: Final = tuple(LockRemoval(home, (1,)) for home in range(3))
OTHER: Final = LockRemoval(1, (2,))
ALL: Final = LockRemoval(1, wide=WholeTable())
PARTITION: Final = LockRemoval(0, wide=OnePartition("y=1"))


def _commits(
    name: str, txs: tuple[CommitTx, ...], *, fast: bool = False, epoch_limit: int = 1000, **budget: int
) -> ExploredScenario:
    def model(replays: Replays) -> Model:
        # The homes are alike, so what comes over one process may as well come over the first.
        return CommitModel(replays, txs, CommitBudget(**budget), victims=(0,), epoch_limit=epoch_limit)

    return ExploredScenario(f"{name}: {_said(budget)}", model, fast)


def _following(name: str, parts: tuple[int, ...], *, fast: bool = False, **trouble: int) -> ExploredScenario:
    return ExploredScenario(
        f"{name}: {_said(trouble)}",
        lambda replays: Following(replays, parts, FollowerTrouble(**trouble)),
        fast,
    )


def _copying(name: str, txs: int, peers: int, *, fast: bool = False, **mishaps: int) -> ExploredScenario:
    return ExploredScenario(
        f"{name}: {_said(mishaps)}", lambda replays: CopyModel(replays, txs, peers, Mishaps(**mishaps)), fast
    )


def _collecting(name: str, *, fast: bool = False, **more: Any) -> ExploredScenario:
    return ExploredScenario(f"history, {name}", lambda replays: Collecting(replays, **more), fast)


def _cloning(name: str, *, fast: bool = False, **more: Any) -> ExploredScenario:
    return ExploredScenario(f"clones, {name}", lambda replays: Cloning(replays, **more), fast)


def _truncating(name: str, *, fast: bool = False, **more: Any) -> ExploredScenario:
    return ExploredScenario(f"tail, {name}", lambda replays: Truncating(replays, **more), fast)


def _resolving(name: str, policy: Policy) -> ExploredScenario:
    return ExploredScenario(f"outcomes, {name}", lambda replays: Resolving(replays, policy), fast=True)


def _labelling(name: str, *runs: LabelRun, fast: bool = False, **more: Any) -> ExploredScenario:
    return ExploredScenario(f"labels, {name}", lambda replays: Labelling(replays, runs, **more), fast)


def _locking(
    name: str, *removals: LockRemoval, fast: bool = False, more: dict[str, Any] | None = None, **mishaps: int
) -> ExploredScenario:
    def model(replays: Replays) -> Model:
        return Locking(replays, removals, LockMishaps(**mishaps), **(more or {}))

    return ExploredScenario(f"locks, {name}: {_said(mishaps)}", model, fast)


def _said(budget: dict[str, Any]) -> str:
    return " ".join(f"{name}={times}" for name, times in budget.items())


SCENARIOS = (
    _commits("2 commits", PAIR, fast=True, lose_request=1, lose_reply=2),
    _commits("2 commits", PAIR, fast=True, delay=1, session=1),
    _commits("2 commits", PAIR, fast=True, expire=1, again=1, lose_reply=1, lose_request=1),
    _commits("2 commits", PAIR, fast=True, call_off=1, lose_reply=1, delay=1),
    _commits("carriers", CARRIERS, fast=True, lose_request=1, lose_reply=1),
    _commits("carriers", CARRIERS, fast=True, delay=1, expire=1, again=1),
    _commits("carriers", CARRIERS, fast=True, call_off=1, lose_reply=1),
    _commits("carriers", CARRIERS, fence=1, ask=1, lose_reply=1),
    _commits("one name, two tables", SAME_NAME, fast=True, lose_reply=1, delay=1),
    _commits("one name, two tables", SAME_NAME, fast=True, session=1, again=1, expire=1),
    _commits("one name, two tables", SAME_NAME, crash=1, ask=1, lose_reply=1),
    _commits("rows of a dropped table", DROP, fast=True, lose_reply=1, delay=1),
    _commits("rows of a dropped table", DROP, fast=True, session=1, again=1, expire=1),
    _commits("rows of a dropped table", DROP, fence=1, ask=1, lose_reply=1),
    _commits(
        "a name, and rows of a dropped table",
        (*DROP, CommitTx(1, 2, creates=TableId("d.b"))),
        lose_reply=1,
        delay=1,
    ),
    _commits("3 carriers", CROWD, lose_reply=1, session=1),
    _commits("3 commits", FOUR[:3], call_off=1, expire=1, again=1, lose_request=1),
    _commits("2 commits", PAIR, fast=True, tail=1, strike=1, lose_reply=1),
    _commits("2 commits", PAIR, fast=True, want=1, delay=1),
    _commits("2 commits, epochs of 3", PAIR, fast=True, epoch_limit=3, delay=1, want=1),
    _commits("3 commits, epochs of 3", FOUR[:3], epoch_limit=3, lose_reply=1),
    _commits("3 commits, epochs of 3", FOUR[:3], epoch_limit=3, delay=1),
    _commits("2 commits", PAIR, want=1, delay=1, lose_reply=1),
    _commits("3 commits", FOUR[:3], lose_request=1, lose_reply=2),
    _commits("2 commits", PAIR, delay=1, session=1, lose_reply=1),
    _commits("2 commits", PAIR, crash=1, delay=1),
    _commits("2 commits", PAIR, crash=1, ask=1, lose_reply=1),
    _commits("2 commits", PAIR, fence=1, ask=1, lose_reply=1),
    _commits("2 commits", PAIR, fence=1, ask=1, delay=1),
    _commits("2 commits", PAIR, tail=1, strike=1, ask=1, lose_reply=1),
    _commits("4 commits", FOUR, lose_reply=1),
    _commits("4 commits", FOUR, delay=1),
    _commits("4 commits", FOUR, session=1),
    _commits("4 commits", FOUR, fence=1),
    _following("following", (1, 1), fast=True, roll=1),
    _following("following", (1, 1), fast=True, strike=1),
    _following("following", (1, 1), fast=True, own=1),
    _following("following", (1, 1), fast=True, fail=1, tail=1),
    _following("following, set back", (1, 1), fast=True, back=1),
    _following("following, set back", (1, 1), own=1, back=1),
    _following("following, set back", (1, 1), crash=1, back=1),
    _following("following", (1, 1), roll=1, crash=1),
    _following("following, 2 parts", (2, 1), crash=1, damage=1, full=1),
    _following("following", (1, 1), roll=1, session=1),
    _following("following", (1, 1), own=1, tail=1, session=1),
    _following("following", (1, 1), roll=1, tail=1),
    _copying("2 transactions, 1 peer", 2, 1, fast=True, lose=1, crash=1, replace=1),
    _copying("1 transaction, 2 peers", 1, 2, lose=1, crash=2, replace=2, deadline=1, disaster=1),
    _copying("1 transaction, 2 peers", 1, 2, fast=True, crash=1, replace=1, need=1, strike=1, disaster=1),
    _copying("2 transactions, 1 peer", 2, 1, lose=2, crash=1, replace=1, deadline=1, disaster=1),
    _collecting("a replica that lags", fast=True, behind=True),
    _collecting("a replica that is struck", fast=True, behind=True, strike=1),
    _collecting("a pin", fast=True, alone=True, pin=1),
    _collecting("a pin, a process that dies", alone=True, pin=1, crash=1),
    _collecting("a pin and a transaction, slow progress", alone=True, pin=1, tx=1, slowly=True),
    _collecting("two replicas, a pin", pin=1),
    _collecting("two replicas, a transaction", behind=True, tx=1),
    _collecting("a dropped table, a pin", fast=True, alone=True, drops=True, pin=1),
    _collecting("a retention of its own, a pin", alone=True, keeps=True, pin=1),
    _collecting(
        "a dropped table with its own retention, a transaction",
        fast=True,
        alone=True,
        drops=True,
        keeps=True,
        tx=1,
    ),
    _collecting("two replicas, a dropped table, a pin", drops=True, pin=1),
    _collecting("two replicas, a dropped table with its own retention", behind=True, drops=True, keeps=True),
    _cloning("a struck replica", struck=True),
    _cloning("a new disk, collected history"),
    _cloning("a struck replica that stays away, a long log", fast=True, struck=True, away=True, keep=10),
    _cloning("a struck replica, a dropped table", struck=True, drops=True),
    _cloning("a new disk, collected history, a dropped table", drops=True),
    _cloning("a struck replica, a long log", struck=True, keep=10),
    _cloning("a struck replica, a source that lags", struck=True, behind=True),
    _cloning("a new disk, a whole log", whole=True),
    _cloning("a struck replica that dies", struck=True, crashes=1),
    _cloning("a new disk, a replica that dies", crashes=1),
    _truncating("an outcome is asked for", fast=True, asks=1),
    _truncating("the follower goes back", fast=True, asks=1, cuts=2),
    _truncating("two movers, one dies, an outcome is asked for", movers=2, crashes=1, asks=1),
    _resolving("a client", CLIENT),
    _resolving("the holder of a lock", LOCK),
    _resolving("the audit", AUDIT),
    _resolving("what is undecided here", UNDECIDED),
    _labelling("a batch twice, another", LabelRun(0, 1), LabelRun(1, 1), LabelRun(1, 2), fast=True),
    _labelling(
        "a batch twice, an old label", LabelRun(0, 1), LabelRun(1, 1), fast=True, begun=True, crashes=1
    ),
    _labelling(
        "two batches twice, an old label", *(LabelRun(n % 2, 1 + n // 2) for n in range(4)), begun=True
    ),
    _locking("a replica is registered", ONE[0], ONE[2], fast=True, more={"joins": True}),
    _locking("a replica is registered", ONE[0], ONE[2], more={"joins": True}, crash=1, late=1),
    _locking("2 parts", ONE[0], OTHER, fast=True, reply=1),
    _locking("part, part", *ONE[:2], fast=True, lose=1, reply=1, rollback=1),
    _locking("part, table, each read", ONE[0], ALL, fast=True, more={"fine": True}, rollback=1),
    _locking("part, table", ONE[0], ALL, fast=True, late=1, reply=1),
    _locking("partition, table, part", PARTITION, ALL, OTHER, fast=True),
    _locking("partition, table, part, long", PARTITION, ALL, OTHER, fast=True, more={"long": True}),
    _locking("part, table, long", ONE[0], ALL, more={"long": True}, late=1, reply=1, crash=1),
    _locking("part, part", *ONE[:2], fast=True, silent=1),
    _locking("part, part, for good", *ONE[:2], fast=True, more={"returns": ()}, crash=1),
    _locking("part, part", *ONE[:2], fast=True, more={"victims": (1,)}, crash=1, replace=1),
    _locking("part, table", ONE[0], ALL, more={"victims": (0, 1)}, crash=2, replace=1, reply=1),
    _locking("part, part", *ONE[:2], crash=1, late=1),
    _locking("part, part", *ONE[:2], silent=1, late=1),
    _locking("part, table", ONE[0], ALL, crash=1, late=1),
    _locking("2 removals each", ONE[0], PARTITION, ALL, OTHER),
    _locking("an orphan", *ONE, more={"orphan": True}, fast=True, race=1),
    _locking("an orphan", *ONE, more={"orphan": True}, race=1, late=1),
    _locking("an orphan and a table", ONE[0], ALL, ONE[2], more={"orphan": True}, race=1, reply=1),
)
