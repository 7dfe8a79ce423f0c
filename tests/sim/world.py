"""All of it: hosts, clients, ZooKeeper, network and faults of one run, from a plan to a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from tests.sim import machine
from tests.sim.changers import Changer
from tests.sim.clients import SimReader, SimWriter, create_tables
from tests.sim.definers import SimDefiner
from tests.sim.demand import CommitDemand
from tests.sim.healing import converge, judge
from tests.sim.host import Host, life_name, template
from tests.sim.landings import SCHEMA_OF_IT, SimLander
from tests.sim.life import LIFE, AgentLife
from tests.sim.loop import HorizonError, SimFuture, SimLoop, SimTask, StandstillError
from tests.sim.nemesis import SimNemesis
from tests.sim.network import Network
from tests.sim.oracle import Oracle
from tests.sim.plan import RunPlan
from tests.sim.trace import Trace
from tests.sim.zookeeper import SimEnsemble
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.testing.memory_store import MemoryStore
from workloads.checker import InvariantViolation
from workloads.history import CallEnd

#: Virtual seconds that a run may take in all; a healthy one takes about two minutes.
HORIZON_S: Final = 900.0
#: Virtual seconds that what is cancelled may take to end.
_END_S: Final = 60.0
#: How the folder of a run begins; the number of its process follows.
_FOLDER: Final = "tidelock-sim-"
#: Virtual seconds in which all clients have ended after the last fault.
CLIENTS_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        violations: What is wrong; none in a good run.
        trace: Digest of all that happened.
        virtual_s: Virtual seconds that passed.
        counts: How many of what happened.
    """

    plan: RunPlan
    violations: tuple[InvariantViolation, ...]
    trace: str
    virtual_s: float
    counts: dict[str, int] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


class SimWorld:
    """One run."""

    def __init__(self, plan: RunPlan, folder: Path, loop: SimLoop, *, keep_trace: bool) -> None:
        self.plan = plan
        self.folder = folder
        self.loop = loop
        self.trace = Trace(loop.time, keep=keep_trace)
        self.lines: list[dict[str, Any]] = []
        self.oracle = Oracle(self)
        self.network = Network(self.chance("network"), self.trace, self.unforeseen)
        self.zookeeper = SimEnsemble(self)
        names = [f"r{number + 1}" for number in range(plan.replicas)]
        shared = template(plan, names)
        self.machines = [Host(self, name, shared) for name in names]
        #: The machines of the members.
        self.hosts = list(self.machines)
        #: The machine that has each id: the first one of it, or one that took it over.
        self._owners = {host.replica: host for host in self.machines}
        self._shared = shared
        self._keepers: dict[Host, asyncio.Task[None]] = {}
        #: Cleared while the operator has all agents stopped.
        self.may_start = asyncio.Event()
        self.may_start.set()
        #: The largest CSN that any client was told.
        self.acknowledged = Csn(0)

    @property
    def now_ns(self) -> int:
        """Virtual time, as it stands in the clients' history."""
        return int(self.loop.time() * 1_000_000_000)

    def chance(self, of: str) -> random.Random:
        """Return a source of chance of its own: what one thing draws moves no other."""
        return random.Random(f"{self.plan.seed} {of}")

    # -- what the machine asks -------------------------------------------------------------------------------

    def disk_of(self, path: Path) -> Any:
        """Return the disk that a path lies on, if it lies on one of the simulation."""
        for host in self.machines:
            if path.is_relative_to(host.disk.data):
                return host.disk
        return None

    def add_machine(self, *, replica: str = "") -> Host:
        """Start one more machine, whose agent joins the cluster under its own id, or under a given one."""
        for host in self.machines:  # the cluster has other members than its settings say
            host.settings = host.settings.model_copy(update={"join": True})
        name = f"{replica}b" if replica else f"r{len(self.machines) + 1}"
        host = Host(self, name, self._shared, replica=replica, joins=True)
        self.machines.append(host)
        self._owners.setdefault(host.replica, host)
        self._keep_running(host)
        return host

    def host_of(self, replica: str) -> Host:
        """Return the machine that has a replica's id."""
        return self._owners[ReplicaId(replica)]

    def taken(self, host: Host) -> None:
        """A machine has taken over the id of another one."""
        before = self._owners[host.replica]
        self.trace.note("taken", host.replica, host.name)
        self._owners[host.replica] = host
        self.hosts = [host if one is before else one for one in self.hosts]

    def host_at(self, folder: Path) -> Host:
        """Return the machine with that data directory."""
        [host] = [host for host in self.machines if host.disk.data == folder]
        return host

    def members_are(self, replicas: Collection[str]) -> None:
        """Take over who is a member; the agents of all others are started once more."""
        self.hosts = [self.host_of(replica) for replica in sorted(replicas)]
        for host in self.machines:
            host.retired = host.replica not in replicas
            if not host.retired:
                self._keep_running(host)

    def _keep_running(self, host: Host) -> None:
        """See to it that somebody starts the agent of a machine."""
        if host not in self._keepers or self._keepers[host].done():
            self._keepers[host] = asyncio.create_task(host.keep_running(), context=contextvars.Context())

    def registered(self, replica: str, end: Csn) -> None:
        """A replica was registered in the cluster; the first ones are members from the beginning."""
        host = self.host_of(replica)
        if host not in self.hosts:
            host.joined, host.retired = end, False
            self.hosts.append(host)
            self._keep_running(host)

    def removed(self, replica: str) -> None:
        """A replica was removed from the cluster."""
        self.hosts = [host for host in self.hosts if host.replica != replica]
        for host in self.machines:
            host.retired = host.retired or host.replica == replica

    def connect(self, life: AgentLife) -> MemoryStore:
        """Make the connection of a life to ZooKeeper."""
        store = self.zookeeper.store(life_name())

        def abandon() -> None:
            store.abandon()
            self.zookeeper.expire_later(store, life.host.settings.session_timeout_s)

        life.on_kill.append(abandon)
        life.host.store = store
        return store

    def heard(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        """Take a line of the product's log."""
        if event.get("event") == "replaced":
            LIFE.get().host.told_of = str(event["api"])
        self.trace.comment(f"[{life_name()}] {method} {dict(event)}")
        raise structlog.DropEvent

    def unforeseen(self, what: str, error: BaseException) -> None:
        """Take an error that nothing may end with."""
        self.oracle.violated("I17 TRUTHFUL", f"unforeseen in {what}: {type(error).__name__}: {error}")

    def note(self, kind: CallEnd | str, f: str, process: str, **fields: Any) -> None:
        """Write a line of the clients' history."""
        given = {name: value for name, value in fields.items() if value is not None}
        when = {"when": self.oracle.logs.now} if f == "write" else {}
        self.lines.append({"type": str(kind), "f": f, "process": process, "ns": self.now_ns, **given, **when})
        if f in {"write", "commit"}:
            self.trace.note(str(kind), f, process, fields.get("key"), fields.get("csn"), fields.get("tid"))
        if "error" in given:
            self.trace.comment(f"{process}: {given['error']}")

    # -- the run ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Phase one: load and faults. Phase two: all is healed, and has to converge."""
        for host in self.hosts:
            self._keep_running(host)
        watching = asyncio.create_task(self.oracle.watch())
        try:
            await create_tables(self, [SCHEMA_OF_IT] if self.plan.landers else ())
            nemesis = SimNemesis(self)
            evil = asyncio.create_task(nemesis.run())
            clients: list[SimWriter | SimReader | Changer | SimLander | SimDefiner] = [
                SimWriter(self, f"c{n}") for n in range(self.plan.writers)
            ]
            clients += [SimReader(self, f"cr{n}") for n in range(self.plan.readers)]
            clients += [Changer(self, f"cx{n}") for n in range(self.plan.changers)]
            clients += [SimLander(self, f"cl{n}") for n in range(self.plan.landers)]
            clients += [SimDefiner(self, f"cd{n}") for n in range(self.plan.definers)]
            working = [asyncio.create_task(client.run()) for client in clients]
            working.append(asyncio.create_task(CommitDemand(self, nemesis).run(evil)))
            await asyncio.wait([evil])
            nemesis.heal()
            done, late = await asyncio.wait([*working, evil], timeout=CLIENTS_S)
            for task in done:
                task.result()
            await nemesis.operator.settle()
            if late:
                self.oracle.violated(
                    "I14 LIVE", f"{len(late)} clients have not ended {CLIENTS_S:.0f} s after"
                )
                return
            await converge(self)
            judge(self)
        finally:
            for task in (*self._keepers.values(), watching):
                task.cancel()

    async def run_until_found(self) -> None:
        """Run, but not beyond the first violation."""
        running = asyncio.create_task(self.run())
        found = asyncio.create_task(self.oracle.found.wait())
        await asyncio.wait([running, found], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()


def simulate(
    plan: RunPlan,
    *,
    keep_trace: bool = False,
    around: Callable[[], Any] = contextlib.nullcontext,
    brief: bool = False,
) -> Result:
    """Carry a plan out and return what came of it.

    Args:
        plan: What is to happen.
        keep_trace: Keep the lines of the trace, and those of the product's log.
        around: Makes a context manager that is entered for the length of the run: a planted bug.
        brief: End at the first violation.
    """
    shared_memory = Path("/dev/shm")  # noqa: S108 - a folder of its own below it; many small files
    parent = shared_memory if shared_memory.is_dir() else None
    sweep(parent or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=parent))
    waiting_gc = gc.isenabled()
    gc.disable()  # finalisers must not run at moments of their own
    try:
        with warnings.catch_warnings():
            # A task that is killed before its first step leaves the coroutine that it was to await, a killed
            # life the files that it had open.
            warnings.simplefilter("ignore", RuntimeWarning)
            warnings.simplefilter("ignore", ResourceWarning)
            result = _simulate(plan, folder, keep_trace, around, brief)
            gc.collect()  # here, where they are no surprise
            return result
    finally:
        if waiting_gc:
            gc.enable()
        shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove the folders of runs that were ended: those whose process is gone."""
    for left in parent.glob(f"{_FOLDER}*-*"):
        pid = left.name.removeprefix(_FOLDER).partition("-")[0]
        if pid.isdecimal() and not _runs(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def _simulate(
    plan: RunPlan, folder: Path, keep_trace: bool, around: Callable[[], Any], brief: bool
) -> Result:
    def blocking(call: Callable[[], Any], future: SimFuture) -> None:
        life = LIFE.get()
        life.host.disk.submit(life, call, future)

    loop = SimLoop(blocking, HORIZON_S)
    world = SimWorld(plan, folder, loop, keep_trace=keep_trace)
    loop.set_exception_handler(lambda _loop, context: world.trace.comment(f"loop: {context.get('message')}"))
    loop.on_task = _adopt
    loop.holds = _hold
    begun_s = loop.time()
    try:
        with machine.replaced(world, loop.time), around():
            try:
                loop.run_until_complete(world.run_until_found() if brief else world.run())
            except (HorizonError, StandstillError) as error:
                world.oracle.violated("I14 LIVE", str(error))
            finally:
                _end(loop)
    finally:
        world.oracle.close()
        loop.close()
    return Result(
        plan,
        tuple(world.oracle.violations),
        world.trace.digest,
        loop.time() - begun_s,
        world.oracle.counts(),
        tuple(world.trace.lines),
    )


def _adopt(task: SimTask, context: Any) -> None:
    life = context.get(LIFE)
    if life is not None:
        life.adopt(task)


def _hold(handle: asyncio.Handle) -> bool:
    life = handle._context.get(LIFE)  # type: ignore[attr-defined]
    return life is not None and life.hold(handle)


def _end(loop: SimLoop) -> None:
    """End all that still runs, also at the horizon: what was found by then is to be told."""
    loop.extend(2 * _END_S)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_END_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
