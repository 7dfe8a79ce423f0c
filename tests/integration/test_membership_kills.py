"""SIGKILL in the middle of changes of the members, while clients write.

The agent that makes a change dies before and behind its multi, and the same command is repeated by another
agent. A replica that was added, put in another's place, or struck dies at each point of its start and of its
clone. Afterwards the members are those that were asked for, every acknowledged row is on every replica, and
the audit finds nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.writers import SCHEMA, Writers, row, rows_at
from tests.support.faults.lab import Gates, points
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock.client.membership import Membership
from tidelock.cluster import LocalCluster
from tidelock.errors import UnavailableError
from tidelock.wire.members import MembersAnswer

#: The agent that makes the changes, the one that repeats them, and one that only stays.
MAKER, REPEATER, STAYING = "r1", "r2", "r3"
CHANGE: Final = "membership.change"
#: Points of a replica that starts without a usable catalog.
START_POINTS: Final = points(
    ["csnlog.begin", "agent.clone_receive", "agent.clone_install", "agent.catalog", "replication.fetch"]
)
#: Ids that the tests of this file may use.
IDS: Final = [f"r{number}" for number in range(1, 100)]
SETTINGS: Final = QUICK | {
    "clean_interval_s": 1,
    # The catalog that a peer has sent to a replica which died stays for so long.
    "clone_manifest_ttl_s": 10,
    "compaction": False,
    # Processes start and end all the time on this machine.
    "session_timeout_s": 10,
    "horizon_interval_s": 0.2,
    "log_keep_records": 1,
}


class Members:
    """A cluster whose fourth replica comes and goes."""

    def __init__(self, local: LocalCluster, gates: Gates) -> None:
        self.local, self.gates = local, gates
        self.fourth = "r4"
        self._ids = (replica for replica in IDS if replica not in local.replicas)
        self._keys = itertools.count(1)
        self._acknowledged: set[int] = set()

    def new_id(self) -> str:
        """Return an id that was never used."""
        return next(self._ids)

    @contextmanager
    def load(self) -> Iterator[Writers]:
        """Let a client write for the duration of a ``with`` block; its rows must be everywhere behind it."""
        first = next(self._keys) * 1_000_000
        urls = [self.local.url(replica) for replica in (MAKER, REPEATER, STAYING)]
        writers = Writers(urls, 1, first=first, pause_s=0.02)
        with writers.running():
            writers.go_on(2)
            yield writers
            writers.go_on(2)
        self._acknowledged.update(writers.acknowledged)

    def lay_out(self, replica: str) -> str:
        """Lay a registered replica out in the folder of the cluster; return its id."""
        if replica not in self.local.replicas:
            self.local.layout = self.local.layout.with_replica(replica)
        return replica

    def settle(self, fourth: str, new: str) -> None:
        """Lead back to four replicas and two copies, with the new one in the fourth place if one is out."""
        local = self.local
        with local.connect(STAYING) as db:
            seen = db.membership.set_copies(2)
            for replica in seen["draining"]:
                db.membership.drain(replica, undo=True)
            if new not in seen["states"] and seen["states"][fourth] != "removed":
                return
            local.kill(fourth)
            db.membership.replace(fourth, new)
            local.start(self.lay_out(new), timeout_s=READY_TIMEOUT_S)
        kept = tuple(one for one in local.layout.replicas if one.id != fourth)
        local.layout = dataclasses.replace(local.layout, replicas=kept)
        self.fourth = new

    def states(self) -> dict[str, str]:
        """Return the state of each replica that is not removed, as the roster has it."""
        with self.local.connect(STAYING) as db:
            return {one["id"]: one["member"] for one in db.status()["replicas"] if one["member"] != "removed"}

    def require_whole(self) -> None:
        """Require that all replicas serve, agree, and have every acknowledged row."""
        for replica in self.local.replicas:
            self.local.start(replica, timeout_s=READY_TIMEOUT_S)
        expected = dict.fromkeys(self.local.replicas, "serving")
        eventually(lambda: self.states() == expected, what=f"{expected}")
        with self.local.connect(STAYING) as db:
            newest = db.insert("t", row(-next(self._keys)), wait="all").csn or 0
        found = {replica: self._rows(replica, newest) for replica in self.local.replicas}
        assert all(rows == found[STAYING] for rows in found.values())
        assert not self._acknowledged - found[STAYING]
        require_clean_audit(self.local)
        for replica in self.local.replicas:
            nothing_left(self.local.data_dir(replica))

    def _rows(self, replica: str, csn: int) -> set[int]:
        with self.local.connect(replica) as db:
            eventually(lambda: db.status()["snapshot_csn"] >= csn, what=f"{replica} at CSN {csn}")
        return rows_at(self.local, replica)


@pytest.fixture(scope="module")
def members(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Members:
    """Four replicas and two copies; some history is given up, so a replica without a catalog clones."""
    armed = dict.fromkeys((*points([CHANGE]), *START_POINTS), "crash")
    gates = Gates(tmp_path_factory.mktemp("gates"), dict.fromkeys(IDS, armed))
    environment = {replica: gates.environment(replica) for replica in IDS}
    local = module_cluster(replicas=4, copies=2, settings=SETTINGS, environment_of=environment)
    with local.connect(MAKER) as db:
        db.create_table("t", SCHEMA)
        db.insert("t", row(0), wait="all")
        db.truncate("t")
        db.insert("t", row(0), wait="all")
        eventually(lambda: db.raise_horizon()["horizon"] > 1, what="the history is given up")
    return Members(local, gates)


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the members.

    Attributes:
        command: The command of the operator, for the fourth replica and a new id.
        made: Whether an answer shows that it was made.
        dead: The fourth replica does not run.
        draining: The fourth replica drains before.
    """

    command: Callable[[Membership, str, str], MembersAnswer]
    made: Callable[[MembersAnswer, str, str], bool]
    dead: bool = False
    draining: bool = False


CHANGES: Final = {
    "add": Change(
        lambda order, _, new: order.add(new),
        lambda done, fourth, new: (done["states"][fourth], done["states"][new]) == ("serving", "stopped"),
    ),
    "remove": Change(
        lambda order, fourth, _: order.remove(fourth),
        lambda done, fourth, new: done["states"][fourth] == "removed" and new not in done["states"],
        dead=True,
    ),
    "replace": Change(
        lambda order, fourth, new: order.replace(fourth, new),
        lambda done, fourth, new: (done["states"][fourth], done["states"][new]) == ("removed", "stopped"),
        dead=True,
    ),
    "strike": Change(
        lambda order, fourth, _: order.strike(fourth),
        lambda done, fourth, _: done["states"][fourth] == "struck",
        dead=True,
    ),
    "drain": Change(
        lambda order, fourth, _: order.drain(fourth),
        lambda done, fourth, _: done["draining"] == [fourth],
    ),
    "drain-undo": Change(
        lambda order, fourth, _: order.drain(fourth, undo=True),
        lambda done, _, __: done["draining"] == [],
        draining=True,
    ),
    "copies": Change(
        lambda order, _, __: order.set_copies(3),
        lambda done, _, __: done["copies"] == 3,
    ),
}


def slow_but(fast: set[tuple[str, str]], names: Iterable[str], sides: Iterable[str]) -> list[Any]:
    """Return all pairs as parameters; those that are not `fast` run with the long cases."""
    return [
        pytest.param(*pair, marks=[] if pair in fast else [pytest.mark.slow])
        for pair in itertools.product(names, sides)
    ]


@pytest.mark.parametrize(("name", "side"), slow_but({("replace", "after")}, CHANGES, ("before", "after")))
@pytest.mark.slow
def test_a_change_survives_the_agent_that_makes_it(members: Members, name: str, side: str) -> None:
    """Made or not when its maker died: the command of another agent ends it, and says which it was."""
    change, fourth, new, local = CHANGES[name], members.fourth, members.new_id(), members.local
    with members.load() as writers, local.connect(REPEATER) as other:
        if change.draining:
            other.membership.drain(fourth)
        if change.dead:
            local.kill(fourth)
            writers.go_on(2)
        with (
            members.gates.open(MAKER, f"{CHANGE}.{side}"),
            local.connect(MAKER) as maker,
            pytest.raises(UnavailableError),
        ):
            change.command(maker.membership, fourth, new)
        eventually(lambda: local.pid(MAKER) is None, what=f"the death of {MAKER}")
        done = change.command(other.membership, fourth, new)
        assert done["changed"] is (side == "before")
        assert change.made(done, fourth, new)
        again = change.command(other.membership, fourth, new)
        assert again == done | {"changed": False}
        writers.go_on(2)
        local.start(MAKER, timeout_s=READY_TIMEOUT_S)
    members.settle(fourth, new)
    members.require_whole()


@pytest.mark.parametrize(
    ("how", "point"),
    slow_but(
        {("strike", "agent.clone_install.after")},
        ("add", "replace", "strike"),
        START_POINTS,
    ),
)
def test_a_replica_that_comes_dies_at_each_point(members: Members, how: str, point: str) -> None:
    """The next start goes on; until it serves the others commit, and afterwards it has everything."""
    change, fourth, new, local = CHANGES[how], members.fourth, members.new_id(), members.local
    with members.load() as writers, local.connect(MAKER) as maker:
        if change.dead:
            local.kill(fourth)
        assert change.made(change.command(maker.membership, fourth, new), fourth, new)
        writers.go_on(5)
        coming = fourth if how == "strike" else members.lay_out(new)
        with members.gates.open(coming, point), pytest.raises(UnavailableError):
            local.start(coming, timeout_s=READY_TIMEOUT_S)
        eventually(lambda: local.pid(coming) is None, what=f"the death of {coming}")
        writers.go_on(5)
        local.start(coming, timeout_s=READY_TIMEOUT_S)
    members.settle(fourth, new)
    members.require_whole()
