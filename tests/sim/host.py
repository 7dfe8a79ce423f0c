"""A machine with one replica: it starts the agent's process again whenever that has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.sim.disk import SimDisk
from tests.sim.life import LIFE, AgentLife
from tests.sim.plan import RunPlan
from tests.sim.zookeeper import DELAY_S
from tidelock.csnlog.core.ids import CSN_NONE, ReplicaId
from tidelock.csnlog.testing.memory_store import MemoryStore
from tidelock.errors import ClusterMismatchError, ConfigError, TidelockError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.lifecycle.agent import Agent, BootEnd
from tidelock.replica_agent.main import run
from tidelock.replica_agent.scrubbing.comparison import OUTVOTED

if TYPE_CHECKING:
    from tests.sim.world import SimWorld

#: Pause before a process that has ended is started again, in seconds.
RESTART_S: Final = 0.3
#: Bytes above which the entries of a transaction travel in a manifest, where the plan wants that.
_MANIFEST_BYTES: Final = 64

#: Bounds that suit a run of a minute; all others are the product's own.
_BOUNDS: Final = {
    "session_timeout_s": 4.0,
    "connect_timeout_s": 3.0,
    "commit_timeout_s": 6.0,
    "lease_s": 6.0,
    "push_timeout_s": 2.0,
    "retry_wait_max_s": 0.5,
    "undecided_check_s": 1.0,
    "member_refresh_s": 1.5,
    "wait_bound_s": 1.5,
    "catch_up_wait_s": 5.0,
    "closed_kept_s": 5.0,
    "tids_reserved_s": 8.0,
    "drain_s": 2.0,
    "fence_timeout_s": 5.0,
    "lock_sweep_interval_s": 1.0,
    "compaction_lock_wait_s": 2.0,
    "horizon_interval_s": 1.0,
    "unpinned_ttl_s": 3.0,
    "clean_interval_s": 5.0,
    "audit_settle_s": 5.0,
    "tick_interval_s": 20.0,  # between two of them the horizon reaches the end
    "clock_check_interval_s": 1.0,
    "compare_interval_s": 4.0,
    "compaction_interval_s": 0.5,
    "compaction_parts_min": 2,
    "compaction_quiet_s": 2.0,
    "compaction_retry_wait_max_s": 1.0,
    "clone_manifest_ttl_s": 10.0,
    "disk_reserve_bytes": 0,  # the room on the machine that runs it decides nothing
    "check_invariants": True,
}

_TIGHT: Final = {
    "push_bytes_max": 6000,  # a few transactions
    "inline_part_bytes_max": 6000,  # larger ones are encoded in threads, which a run does not have
    "batch_tids_max": 2,
    "read_ahead": 1,
    "apply_records_max": 2,
    "fetch_small_concurrency": 1,
    "max_lag": 3,
}


class Host:
    """One machine.

    Args:
        name: Its address in the network.
        replica: The id of its agent.
        joins: The cluster exists before it.

    Attributes:
        joined: The end of the log when its agent was registered in a cluster that existed; 0 for the first.
        retired: Its replica was removed: it is started once more, and no more.
        over: Another machine has its id: nobody starts it again.
        told_of: The address of that one, as its agent says; "" if it has said nothing.
        of_another: Its last start was refused, since its catalog is of another history than ZooKeeper's.
        ordered: It is to take its id over, as after its disk was replaced.
        doomed: Another machine may take its id over, and then its disk is out of use.
        skew_s: How far its wall clock is ahead.
        cut_off: No connection to ZooKeeper.
        answer_s: How long ZooKeeper's answers take, about.
        thawed_s: When its process went on the last time that it had been frozen, in virtual seconds.
        may_run: Cleared while the machine is down.
    """

    def __init__(
        self, world: SimWorld, name: str, template: AgentSettings, *, replica: str = "", joins: bool = False
    ) -> None:
        self.name = name
        self.replica = ReplicaId(replica or name)
        self.settings = template.model_copy(
            update={"replica": self.replica, "advertise": name, "join": joins}
        )
        self.joined = CSN_NONE
        self.retired = False
        self.over = False
        self.told_of = ""
        self.of_another = False
        self.ordered = False
        self.doomed = False
        self.skew_s = 0.0
        self.cut_off = False
        self.answer_s = DELAY_S
        self.thawed_s = 0.0
        self.may_run = asyncio.Event()
        self.may_run.set()
        self.life: AgentLife | None = None
        self.store: MemoryStore | None = None
        self._world = world
        self._lives = 0
        self._disks = 0
        self.disk = self._new_disk()

    @property
    def agent(self) -> Agent | None:
        """The agent that runs now."""
        return self.life.agent if self.life is not None and not self.life.dead else None

    @property
    def serving(self) -> bool:
        """Whether its agent does everything."""
        return self.agent is not None and not self.frozen and self.agent.condition.state is AgentState.SERVING

    @property
    def frozen(self) -> bool:
        """Whether its process takes no steps."""
        return self.life is not None and self.life.frozen

    async def keep_running(self) -> None:
        """Start one life after the other."""
        last = False
        while not last and not self.over:
            await self.may_run.wait()
            await self._world.may_start.wait()
            last = self.retired
            self._lives += 1
            life = AgentLife(self, self._lives)
            context = life.context.copy()
            update = {"data_dir": self.disk.data, "replace_disk": self.ordered or self._disks > 1}
            settings = self.settings.model_copy(update=update)
            task = asyncio.get_running_loop().create_task(run(settings), context=context)
            self.life = life
            self._world.trace.note("start", self.name, life.number)
            await asyncio.wait([task])
            self._world.trace.note("ended", self.name, life.number, self._how(life, task))
            life.dead = True
            await asyncio.sleep(RESTART_S)
            last = last and self.retired  # it may have been registered meanwhile

    def _how(self, life: AgentLife, task: asyncio.Task[BootEnd]) -> str:
        if life.dead or task.cancelled():
            return "killed"
        error = task.exception()
        self.of_another = isinstance(error, ClusterMismatchError)
        if error is None:
            if task.result() is BootEnd.STOPPED and life.agent is not None:
                self._world.oracle.stopped(self, life.agent)
            if life.agent is not None and OUTVOTED in life.agent.condition.reason:
                self._world.oracle.violated("I10 AGREE", f"{self.name}: {life.agent.condition.reason}")
            self.over = task.result() is BootEnd.REPLACED
            return task.result().value
        if not isinstance(error, TidelockError):
            self._world.unforeseen(f"the start of {self.name}", error)
        self._world.trace.comment(f"{self.name} ended: {error!r}")
        if isinstance(error, ConfigError) and "api" in error.details:
            self.told_of = str(error.details["api"])
        return type(error).__name__

    def crash(self, *, power: bool, replace: bool = False) -> None:
        """Kill the process, or cut the power of the machine, or replace its disk as well."""
        if self.life is not None and not self.life.dead:
            self.life.kill()
            self.thaw()
        self._world.oracle.look_away(self.disk)
        self.disk.crash(power=power)
        self._world.oracle.look_again(self.name, self.disk)
        if replace:
            self.disk = self._new_disk()

    def stop(self) -> None:
        """SIGTERM; a frozen process meets it when it goes on."""
        if self.life is not None and self.agent is not None:
            context = self.life.context.copy()
            asyncio.get_running_loop().call_soon(self.agent.ask_to_stop, context=context)

    def freeze(self) -> None:
        """SIGSTOP: the process takes no more steps, and keeps what it has in memory."""
        if self.life is None or self.life.dead:
            return
        self.life.frozen = True
        if self.store is not None:
            self._world.zookeeper.expire_frozen(self.store, self.life, self.settings.session_timeout_s)

    def thaw(self) -> None:
        """SIGCONT: it goes on."""
        if self.life is not None and self.life.frozen:
            self.thawed_s = self._world.loop.time()
            self._world.loop.release(self.life.thaw())

    def _new_disk(self) -> SimDisk:
        self._disks += 1
        name = f"{self.name}d{self._disks}"
        return SimDisk(self._world.folder / name, self._world.chance(f"disk {name}"), self._world.trace)


def template(plan: RunPlan, replicas: list[str]) -> AgentSettings:
    """Return the settings that all hosts share."""
    bounds: dict[str, Any] = dict(_BOUNDS)
    if plan.manifests:
        bounds["inline_entries_bytes_max"] = _MANIFEST_BYTES
    if plan.tight:
        bounds |= _TIGHT
    else:
        bounds["row_group_rows"] = 1  # so that changes keep row groups as they are
    if plan.history_s:
        bounds |= {"history_retention_s": plan.history_s, "log_keep_records": plan.log_keep}
    known = {name: value for name, value in bounds.items() if name in AgentSettings.model_fields}
    return AgentSettings(
        replica=replicas[0],
        data_dir=Path("unused"),
        zk="zk:2181/sim",
        bootstrap=replicas,
        copies=plan.copies,
        epoch_limit=plan.epoch_limit,
        reader_workers=1,
        compaction=plan.compaction,
        **known,
    )


def life_name() -> str:
    """Return who runs this, for the trace."""
    life = LIFE.get(None)
    return f"{life.host.name}.{life.number}" if life is not None else "-"
