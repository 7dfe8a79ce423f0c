"""The events of a living cluster: each is a context manager that does harm, and heals it at its end.

Inside the block the harm is done and the cluster works without the replica. Behind it the replica runs again,
and :meth:`Nemesis.settle` waits until all replicas serve and have caught up.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Final

from tests.chaos.living.availability import Span
from tests.support.clusters.clocks import DAY_S, Clocks
from tests.support.clusters.disks import lose_disk
from tests.support.faults.small_disk import SmallDisk
from tests.support.histories.evidence import alive
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError
from tidelock.zookeeper import LocalZooKeeper
from workloads.agents import ask

#: Bytes of the disk of each replica.
DISK_BYTES: Final = 512 << 20
#: Replicas at least and at most.
REPLICAS_MIN, REPLICAS_MAX = 3, 5
#: Replicas that must stay well, as many as a commit has copies.
WELL_MIN: Final = 2
#: Wrong clocks, in seconds; they lie behind and before all retentions.
OFFSETS_S: Final = (40 * DAY_S, 3 * DAY_S, 60.0, -60.0, -3 * DAY_S, -40 * DAY_S)
#: How long a replica may need to be well again, in seconds, on a busy machine.
HEAL_TIMEOUT_S: Final = 300.0

Event = Callable[["Nemesis", str], AbstractContextManager[None]]


class Nemesis:
    """A cluster, and everything that can happen to it.

    Args:
        cluster: It was made and is not started.
        zookeeper: The servers that it uses, three of them.
        clocks: The wall clocks of all agents, those of later members too.
        chosen: The source of all choices.
    """

    def __init__(
        self, cluster: LocalCluster, zookeeper: LocalZooKeeper, clocks: Clocks, chosen: random.Random
    ) -> None:
        self.cluster = cluster
        self.spans: list[Span] = []
        self._zookeeper = zookeeper
        self._clocks = clocks
        self._chosen = chosen
        self._disks: dict[str, SmallDisk] = {}
        self._born = len(cluster.replicas)

    def mount(self) -> bool:
        """Give each replica a disk of its own; False where that is not allowed."""
        return all(self._mount(replica) for replica in self.cluster.replicas)

    def close(self) -> None:
        """End all agents and give the disks back."""
        for replica in self._disks:
            with contextlib.suppress(TidelockError):
                self.cluster.kill(replica)
        for disk in self._disks.values():
            disk.unmount()

    def strike(self, work: Callable[[], None]) -> tuple[str, ...]:
        """Let one event happen, or several at once to different replicas, and heal them.

        Args:
            work: Called while the harm is done; it returns when the cluster has worked for a while.

        Returns:
            The kinds.
        """
        room = len(self.cluster.replicas) - WELL_MIN
        number = self._chosen.choice([1, 1, min(2, room)])
        victims = self._chosen.sample(self.cluster.replicas, number)
        kinds = [self._chosen.choice(sorted(self._possible())) for _ in victims]
        # Only one event at a time may change the members or the servers of ZooKeeper.
        singles = [kind for kind in kinds if kind in ALONE]
        pairs = [(kind, of) for kind, of in zip(kinds, victims, strict=True) if kind not in singles[1:]]
        begin_ns = time.monotonic_ns()
        with ExitStack() as harm:
            for kind, victim in pairs:
                harm.enter_context(EVENTS[kind](self, victim))
            work()
        self.settle()
        for kind, _ in pairs:
            name = kind if len(pairs) == 1 else f"{kind}, beside another event"
            touched = frozenset({victim for kind, victim in pairs if kind not in HARMLESS})
            self.spans.append(Span(name, touched, begin_ns, time.monotonic_ns()))
        return tuple(kind for kind, _ in pairs)

    def settle(self) -> None:
        """Wait until all replicas serve, and have applied what the first one has applied by now."""
        for replica in self.cluster.replicas:
            eventually(partial(self._serves, replica, 0), what=f"{replica} serves", timeout_s=HEAL_TIMEOUT_S)
        newest = max(ask(self.cluster, one, "/status")["snapshot_csn"] for one in self.cluster.replicas)
        for replica in self.cluster.replicas:
            eventually(
                partial(self._serves, replica, newest),
                what=f"{replica} at CSN {newest}",
                timeout_s=HEAL_TIMEOUT_S,
            )

    # -- events ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def kill(self, victim: str) -> Iterator[None]:
        """SIGKILL."""
        self.cluster.kill(victim)
        yield
        self._start(victim)

    @contextlib.contextmanager
    def freeze(self, victim: str) -> Iterator[None]:
        """SIGSTOP, for longer than the session of ZooKeeper."""
        self.cluster.kill(victim, signal.SIGSTOP)
        try:
            eventually(partial(self._silent, victim), what=f"the end of {victim}'s session")
            yield
        finally:
            self.cluster.kill(victim, signal.SIGCONT)

    @contextlib.contextmanager
    def new_disk(self, victim: str) -> Iterator[None]:
        """The disk is lost; the agent starts on an empty one."""
        lose_disk(self.cluster, victim)
        yield
        self._start(victim)

    @contextlib.contextmanager
    def full_disk(self, victim: str) -> Iterator[None]:
        """No byte is left."""
        with self._disks[victim].full():
            yield

    @contextlib.contextmanager
    def wrong_clock(self, victim: str) -> Iterator[None]:
        """The wall clock of an agent jumps."""
        self._clocks.set(victim, self._chosen.choice(OFFSETS_S))
        try:
            yield
        finally:
            self._clocks.set(victim, 0.0)

    @contextlib.contextmanager
    def zookeeper_server(self, victim: str) -> Iterator[None]:
        """A server of ZooKeeper is killed and comes back, half of the time the leader."""
        del victim
        leader = self._zookeeper.leader()
        servers = self._zookeeper.servers
        server = leader if leader and self._chosen.random() < 0.5 else self._chosen.choice(servers)
        server.kill()
        try:
            yield
        finally:
            self._zookeeper.start(timeout_s=READY_TIMEOUT_S)

    @contextlib.contextmanager
    def struck(self, victim: str) -> Iterator[None]:
        """A dead replica is struck, so that it holds nothing back; it clones when it is back."""
        self.cluster.kill(victim)
        self._ask(lambda db: db.membership.strike(victim))
        yield
        self._start(victim)

    @contextlib.contextmanager
    def added(self, victim: str) -> Iterator[None]:
        """A member joins."""
        del victim
        self._born += 1
        fresh = f"r{self._born}"
        self.cluster.add_replica(fresh)
        assert self._mount(fresh)
        self._start(fresh)
        yield

    @contextlib.contextmanager
    def removed(self, victim: str) -> Iterator[None]:
        """A member is drained, stopped and removed for good."""
        self._ask(lambda db: db.membership.drain(victim))
        eventually(lambda: self._drained(victim), what=f"{victim} is drained", timeout_s=HEAL_TIMEOUT_S)
        self.cluster.stop(victim)
        self._ask(lambda db: db.membership.remove(victim))
        self._forget(victim)
        yield

    @contextlib.contextmanager
    def replaced(self, victim: str) -> Iterator[None]:
        """A dead member is replaced by another one in one step."""
        self._born += 1
        fresh = f"r{self._born}"
        self.cluster.kill(victim)
        self._ask(lambda db: db.membership.replace(victim, fresh))
        self._forget(victim)
        self.cluster.layout = self.cluster.layout.with_replica(fresh)
        assert self._mount(fresh)
        self._start(fresh)
        yield

    # -- parts of events ------------------------------------------------------------------------------------

    def _possible(self) -> set[str]:
        members = len(self.cluster.replicas)
        left_out = {"added"} if members >= REPLICAS_MAX else set()
        return EVENTS.keys() - left_out - ({"removed"} if members <= REPLICAS_MIN else set())

    def _mount(self, replica: str) -> bool:
        disk = self._disks[replica] = SmallDisk(self.cluster.data_dir(replica), DISK_BYTES)
        return disk.mounted()

    def _start(self, replica: str) -> None:
        self.cluster.start(replica, timeout_s=HEAL_TIMEOUT_S)

    def _ask(self, change: Callable[[Database], Mapping[str, Any]]) -> None:
        """Change the members; a member that dies meanwhile answers nothing, so it is asked again."""

        def done() -> bool:
            try:
                with self.cluster.connect() as db:
                    change(db)
            except TidelockError as error:
                if not error.retriable:
                    raise
                return False
            return True

        eventually(done, what="a change of the members", timeout_s=HEAL_TIMEOUT_S)

    def _forget(self, replica: str) -> None:
        """Take a replica out of the addresses that clients are given."""
        self.cluster.layout = self.cluster.layout.without(replica)

    def _drained(self, replica: str) -> bool:
        with self.cluster.connect() as db:
            shown = db.membership.status_of(replica)
        return bool(shown["state"] == "draining" and not shown["open_transactions"])

    def _silent(self, replica: str) -> bool:
        """Return whether another replica, of those that answer, sees no sign of life of this one."""
        for other in self.cluster.replicas:
            with contextlib.suppress(TidelockError):
                if other != replica and not alive(self.cluster, other, replica):
                    return True
        return False

    def _serves(self, replica: str, csn: int) -> bool:
        try:
            status = ask(self.cluster, replica, "/status")
        except TidelockError:
            return False
        return bool(status["state"] == "serving" and status["snapshot_csn"] >= csn)


EVENTS: Final[Mapping[str, Event]] = {
    "killed": Nemesis.kill,
    "frozen": Nemesis.freeze,
    "disk lost": Nemesis.new_disk,
    "disk full": Nemesis.full_disk,
    "clock wrong": Nemesis.wrong_clock,
    "ZooKeeper server killed": Nemesis.zookeeper_server,
    "struck": Nemesis.struck,
    "added": Nemesis.added,
    "removed": Nemesis.removed,
    "replaced": Nemesis.replaced,
}
#: Events in which every replica has to go on without a refusal.
HARMLESS: Final = frozenset({"ZooKeeper server killed", "added", "clock wrong"})
#: Events of which at most one happens at a time.
ALONE: Final = frozenset({"ZooKeeper server killed", "added", "removed", "replaced"})
