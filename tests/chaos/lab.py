"""The laboratory of :mod:`tests.support.faults.lab`, its agents supervised and on disks of their own."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos import disks, platter, seccomp
from tests.chaos.disks import Disk
from tests.chaos.supervisor import Call, Supervisor, Trap
from tests.support.clusters.cluster import ClusterFactory
from tests.support.clusters.forked import ForkedCluster
from tests.support.faults import ability
from tests.support.faults.lab import BYSTANDER, LARGE_ROWS, PARTS, Attempt, Ending, Lab, laboratory
from tests.support.project import source
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from tidelock.errors import UnavailableError
from workloads.history import CallEnd

HOME: Final = "r1"
PEER: Final = "r2"
REPLICAS: Final = (HOME, PEER, BYSTANDER)
COPIES: Final = 2


class SupervisedCluster(ForkedCluster):
    """A cluster some of whose agents are supervised.

    They are forked as all others: thousands of calls of an interpreter that loads its modules would wait too.

    Args:
        cluster: The cluster that this one replaces; nothing of it runs yet.
        supervisors: The supervisor of each replica, by its name.
        program: A module that is run in place of the agent's.
    """

    def __init__(
        self, cluster: LocalCluster, supervisors: Mapping[str, Supervisor], program: str | None
    ) -> None:
        super().__init__(
            cluster.folder,
            cluster.layout,
            environment=cluster.environment | {"PYTHONPATH": str(source.ROOT)},
            environment_of=cluster.environment_of,
        )
        self._supervisors = supervisors
        self._program = program

    def _special(self, replica: str) -> Mapping[str, str]:
        special = {} if self._program is None else {"program": self._program}
        if (supervisor := self._supervisors.get(replica)) is not None:
            special["supervisor"] = str(supervisor.address)
        return special


@dataclass(frozen=True, slots=True)
class Power:
    """The means by which a test cuts the power of replicas.

    Attributes:
        cluster: The cluster of the replicas.
        disks: The disk of each replica, by its name.
        folder: The folder for the platters.
    """

    cluster: LocalCluster
    disks: Mapping[str, Disk]
    folder: Path

    def cut(self, *replicas: str) -> list[str]:
        """Cut the power of replicas at one moment, and give it back; their agents do not run afterwards.

        Returns:
            The wrong claims of their catalogs, by `platter.broken_claims`.
        """
        for replica in replicas:
            self.cluster.kill(replica, signal.SIGSTOP)
        for replica in replicas:
            eventually(lambda replica=replica: self._stopped(replica), what=f"{replica} stands still")  # type: ignore[misc]
        platters = {replica: self.folder / f"{replica}.platter" for replica in replicas}
        for replica, copy in platters.items():
            self.disks[replica].copy(copy)
        found = []
        for replica, copy in platters.items():
            self.cluster.kill(replica)
            self.disks[replica].revert(copy)
            found += [f"{replica}: {claim}" for claim in platter.broken_claims(self.disks[replica].at)]
        return found

    def _stopped(self, replica: str) -> bool:
        """Return whether no thread of an agent is inside a system call any more."""
        pid = self.cluster.pid(replica)
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


@dataclass(frozen=True, slots=True)
class CrashLab:
    """A running cluster whose replicas can be damaged; made by `crash_lab`.

    Attributes:
        lab: Its transactions, its fault points and its history.
        supervisors: The supervisor of each replica, by its name.
        disks: The disk of each replica, by its name.
        folder: The folder for the platters.
    """

    lab: Lab
    supervisors: Mapping[str, Supervisor]
    disks: Mapping[str, Disk]
    folder: Path

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """As `Lab.still`; on disks of their own the catalogs' logs start again at their beginning.

        The fsync of a file that grows writes all of ext4's journal, also names that no program has flushed.
        The fsync of a file that is written over does not, so a test can find code that depends on it.
        """
        with self.lab.still():
            for disk in self.disks.values():
                with contextlib.closing(sqlite3.connect(disk.at / "catalog.db")) as db:
                    db.execute("PRAGMA wal_checkpoint(RESTART)")
            yield

    def strike(
        self,
        victim: str,
        trap: Trap,
        *,
        rows: int = LARGE_ROWS,
        cut: bool = False,
        again: Trap | None = None,
    ) -> Ending:
        """Let a trap act in one commit over two tables, heal, and require that the commit is settled.

        The trap counts from before the first insert until the client has its answer and, if it has not hit by
        then, until all replicas have applied the log. A victim that dies is started again. The caller checks
        whether the trap has hit.

        Args:
            victim: The replica whose calls count.
            trap: The trap, which kills the victim or fails its calls.
            rows: Rows of the first table; by default its part is a file of its own, which the peers fetch.
            cut: Whether the power of all replicas is cut when the client has its answer. After a refusal the
                victim is killed instead: files that it gave up must not come back from the cache.
            again: A trap that kills the victim during its next start, after which it is started once more.

        Returns:
            The answer to the client, which was true.
        """
        lab = self.lab
        with lab.transaction(HOME, rows=rows, filled=False) as attempt, self.still():
            with self.supervisors[victim].armed(trap):
                told = lab.beside(attempt, filled=False)
                eventually(lambda: self._over(victim, attempt, told, trap), what=f"the end of {attempt.tid}")
            if trap.hit is not None and trap.error is None:
                lab.await_death(victim)
            self._start(victim, again)  # an agent that met a disk error may have stopped for good
            ending = told.result()
            if cut and ending.end is CallEnd.OK:
                self.require_copies(attempt.tid)
            elif cut:
                lab.cluster.kill(victim)
                lab.cluster.start(victim)
        assert ending.end in {CallEnd.OK, CallEnd.FAIL}, ending
        lab.require_settled(attempt, ending.csn)
        return ending

    def _start(self, victim: str, trap: Trap | None) -> None:
        if trap is not None:
            with self.supervisors[victim].armed(trap), contextlib.suppress(UnavailableError):
                self.lab.cluster.start(victim)
            if trap.hit is not None:
                self.lab.await_death(victim)
        self.lab.cluster.start(victim)

    def _over(self, victim: str, attempt: Attempt, told: Future[Ending], trap: Trap) -> bool:
        """Return whether the trap has hit, or cannot hit any more."""
        if trap.hit is None:
            return told.done() and self.lab.at_the_end() is not None
        if trap.error is None or told.done() or self.lab.cluster.pid(victim) is None:
            return True
        # A home that cannot apply its own record answers when it can: the trap must not outlast that.
        return trap.lasting and self.lab.outcome(BYSTANDER, attempt.tid)[0] == "committed"

    def dark_at(self, victim: str, point: str, *, rows: int = LARGE_ROWS, also: str | None = None) -> Ending:
        """Cut the power of a replica that pauses at a fault point of one commit, and start it again.

        Args:
            victim: The replica that passes the point, where it pauses.
            point: A fault point of home or peer.
            rows: As in `strike`.
            also: A fault of the victim that makes it reach the point.

        Returns:
            The answer to the client, which was true; the commit is settled.
        """
        lab = self.lab
        hits = lab.gates.hits(victim, point)
        opened = (point,) if also is None else (also, point)
        with lab.transaction(HOME, rows=rows, filled=False) as attempt:
            with self.still(), lab.gates.open(victim, *opened):
                told = lab.beside(attempt, filled=False)
                lab.gates.await_hit(victim, point, after=hits)
                wrong = self.cut_power(victim)
            lab.cluster.start(victim)
            ending = told.result()
        assert not wrong, "; ".join(wrong)
        assert ending.end in {CallEnd.OK, CallEnd.FAIL}, ending
        lab.require_settled(attempt, ending.csn)
        return ending

    def require_copies(self, tid: str) -> list[str]:
        """Cut the power of all replicas at once after an acknowledged commit, and start them again.

        Every promised copy must be on its platter, and enough replicas must have all of the commit's parts.

        Returns:
            The replicas that have all of them.
        """
        wrong = self.cut_power(*REPLICAS)
        holders = [replica for replica in REPLICAS if platter.holds(self.disks[replica].at, tid, PARTS)]
        try:
            self.lab.cluster.up()
        finally:  # a replica that waits for a part whose copies are all lost is never ready: this says why
            assert not wrong, "; ".join(wrong)
            assert len(holders) >= COPIES, (
                f"{tid} was acknowledged, and only {holders} had it on their platters"
            )
        return holders

    def cut_power(self, *replicas: str) -> list[str]:
        """As `Power.cut`."""
        return Power(self.lab.cluster, self.disks, self.folder).cut(*replicas)

    def on_disk(self, call: Call) -> bool:
        """Return whether a call is about a replica's data or log."""
        return call.subject.startswith(str(self.lab.cluster.folder))


@contextlib.contextmanager
def crash_lab(
    factory: ClusterFactory,
    folder: Path,
    *,
    supervised: Sequence[str] = (),
    disks_of: Sequence[str] = (),
    faults: Mapping[str, Mapping[str, str]] | None = None,
    epoch_limit: int | None = None,
    program: str | None = None,
) -> Iterator[CrashLab]:
    """Run a lab, and check its whole history at the end. The test is skipped if the machine is not able to.

    Args:
        factory: Makes the cluster.
        folder: The folder for sockets, images, gates and the history.
        supervised: Replicas whose system calls are supervised.
        disks_of: Replicas that have disks of their own.
        faults: As in `laboratory`.
        epoch_limit: Records of an epoch.
        program: As in `SupervisedCluster`.
    """
    ability.require(seccomp.unable() if supervised else "")
    ability.require(disks.unable() if disks_of else "")
    made: list[LocalCluster] = []
    images: dict[str, Disk] = {}

    def make(**options: Any) -> LocalCluster:
        cluster = SupervisedCluster(factory(start=False, **options), supervisors, program)
        for replica in disks_of:
            images[replica] = Disk(folder / f"{replica}.img", cluster.data_dir(replica))
        made.append(cluster)
        cluster.up()
        return cluster

    with contextlib.ExitStack() as stack:
        supervisors = {
            replica: stack.enter_context(Supervisor(folder / f"calls-{replica}")) for replica in supervised
        }
        try:
            with laboratory(make, folder, faults or {}, epoch_limit=epoch_limit) as lab:
                yield CrashLab(lab, supervisors, images, folder)
        finally:
            for cluster in made:
                for replica in cluster.replicas:
                    cluster.kill(replica)
            for disk in images.values():
                disk.close()
