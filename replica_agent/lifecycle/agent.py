"""The agent: starts its parts in the right order and keeps them running until it ends.

Start (rule restart): take the data directory and clean it up, join the cluster with a raised boot and fence,
follow the log from the catalog's position, decide every undecided transaction of former boots, then serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from functools import partial
from typing import Any

import structlog
from aiohttp import web

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import decode_member
from tidelock.csnlog.core.disks import folder_of
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Tid
from tidelock.csnlog.core.machine import InvariantError
from tidelock.csnlog.core.model import DefineTable, LogRecord, SkipPart
from tidelock.csnlog.core.results import Aborted, Ok
from tidelock.csnlog.log import LogState
from tidelock.csnlog.reading import BelowTailError
from tidelock.errors import DiskFullError, FencedError, TidelockError, UnavailableError
from tidelock.replica_agent.api.app import application
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentAction, AgentState, Condition, stopped
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.lifecycle.arrears import Arrears, is_incomplete
from tidelock.replica_agent.lifecycle.background import BackgroundTasks, PeriodicTask
from tidelock.replica_agent.lifecycle.joining import connect, join
from tidelock.replica_agent.lifecycle.local import BACKLOG, Local, open_local
from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.lifecycle.replacing import replace_catalog
from tidelock.replica_agent.lifecycle.wiring import AgentParts, assemble
from tidelock.replica_agent.readers.availability import ReadAvailability
from tidelock.replica_agent.readers.requests import ACCEPTANCE
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_damage import catalog_damage
from tidelock.replica_agent.transactions.outcomes.rules import UNDECIDED
from tidelock.replication.core.model import Held, ResolvedRecord

_log = structlog.get_logger("agent")

_CATCH_UP_TICK_S = 0.2
#: Longest time to find out the address of the agent that has taken the id, in seconds.
_WHO_S = 2.0
_FINAL = frozenset({AgentState.FENCED, AgentState.STOPPED})


class BootEnd(Enum):
    """The reason why a boot of the agent ended."""

    ASKED = "asked"
    FENCED = "fenced"
    #: The catalog was replaced by a peer's, or has to be; the next boot goes on.
    CLONING = "cloning"
    #: An agent on another disk has taken the id: this one must not take it back.
    REPLACED = "replaced"
    STOPPED = "stopped"


class Agent:
    """One boot of an agent: ``start``, ``until_ended``, ``close``; the next boot is a new object.

    It implements ``means.Events`` and ``readers.process.Callbacks``.

    Args:
        settings: All settings of the agent.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.replica = ReplicaId(settings.replica)
        self.condition = Condition(self.replica)
        self._metrics = Metrics()
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[BootEnd] = asyncio.get_running_loop().create_future()
        self._local: Local | None = None
        self._parts: AgentParts | None = None
        self._caught_up = False
        self._behind = ""  # the reason why it does not serve yet, if that takes long
        self._set_back = ""  # the reason why ZooKeeper's servers refuse this replica, if they were set back
        self._damaged: set[PartId] = set()  # reported by readers, not repaired yet
        self._verifying = asyncio.Lock()

    @property
    def local(self) -> Local:
        """The local parts, once they are open."""
        assert self._local is not None, "not started"
        return self._local

    @property
    def parts(self) -> AgentParts:
        """The parts that need the session; UnavailableError before it is open."""
        if self._parts is None:
            raise UnavailableError(f"replica {self.replica} is starting; try again", replica=self.replica)
        return self._parts

    # -- start -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the agent; returns when it serves, or raises the error that prevents it.

        Raises:
            ConfigError, DataDirInUseError, ClusterMismatchError: The start was refused; nothing was changed.
            UnavailableError: ZooKeeper does not answer.
        """
        self._local = await open_local(self.settings, self, self._stack)
        self.condition.incomplete = self.condition.fetches = is_incomplete(self._local.catalog.reader)
        self._metrics.add_readers(self._local.readers.counters)
        counts = self._local.counts
        self._metrics.add_parts(lambda: counts.largest)
        self._metrics.add_room(self._local.files.room.free)
        store = await connect(self._local, self._stack)
        session = await join(self._local, store)
        if session.clone:
            _log.warning("clones", reason=session.clone)
            self._become(AgentState.CLONING, session.clone)
            await replace_catalog(self._local, store, session)
            self._end(BootEnd.CLONING)
            return
        means = Means(
            local=self._local,
            store=store,
            session=session,
            events=self,
            condition=self.condition,
            switches=Switches.of(self.settings),
            metrics=self._metrics,
            stack=self._stack,
        )
        self._parts = assemble(means)
        missing = self._parts.replication.missing
        self._metrics.add_missing(lambda: missing.arrived.size_all - missing.arrived.size)
        await self._open(self._parts)
        await self._catch_up(self._parts)

    async def _open(self, parts: AgentParts) -> None:
        """Read the members, begin to apply and to answer: peers may push before this replica serves."""
        parts.replication.members.on_change(self._members_changed)
        await parts.replication.members.start()
        self._members_changed()
        self.run_forever("members", parts.replication.members.watch())
        self.run_forever("apply", parts.replication.applier.run())
        runner = web.AppRunner(
            application(parts.services, self.damage_of_request),
            access_log=None,
            shutdown_timeout=self.settings.drain_s,
            **ACCEPTANCE,
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, self.local.listener, backlog=BACKLOG).start()

    async def _catch_up(self, parts: AgentParts) -> None:
        """Follow the log, decide the transactions that former boots left open, then serve.

        If parts are hard to get, the agent serves before it has reached the end of the log, but never before
        it has reached what it owes (:mod:`arrears`), and a clone never before it has all parts that are
        visible there.
        """
        waiters, session = self.local.waiters, parts.means.session
        owed = Arrears.noted(self.local.catalog.reader, session.published_max)
        background = BackgroundTasks(parts, owed)
        # Before a record is applied: what a manifest lists cannot be taken back.
        await parts.replication.skips.learn_all()
        if self._ended.done():
            return
        await parts.replication.log.start(waiters.reached, self.local.catalog.reader.last_imprint())
        # From the start on: no home waits for this replica as for one that follows, and while its progress is
        # not published, a replica without a history holds all others.
        await self._once("progress", background.publish_progress())
        self.run_forever(
            "progress",
            self._repeat("progress", self.settings.progress_interval_s, background.publish_progress),
        )
        self.run_forever(
            "suspension",
            self._repeat("suspension", self.settings.session_timeout_s, self._explain_suspension),
        )
        try:
            end = await parts.replication.log.barrier()
        except BelowTailError as error:
            await self._clone_next(error.message)
            return
        await owed.registered(self.local.catalog, end)
        await parts.replication.skips.learn_all()  # and before it serves, those of the meantime
        await self.local.readers.ready()  # others take a replica that follows for one that answers
        parts.replication.own_phase.catch_up_to(max(end, owed.serve_from))
        await self._decide_own(parts)
        self.spawn("missing parts", parts.replication.missing.run())
        until = time.monotonic() + self.settings.catch_up_wait_s
        while not await waiters.wait(end, _CATCH_UP_TICK_S):
            if time.monotonic() > until or self._ended.done():
                break
        for name, interval_s, work in background.tasks():
            self.run_forever(name, self._repeat(name, interval_s, work))
        parts.means.store.on_change(lambda: self.spawn("alive", background.keep_alive()))
        if self.condition.incomplete or waiters.reached < owed.serve_from:
            self._behind = f"it serves from CSN {owed.serve_from} on, when it has all parts that are visible"
            self.log_state(parts.replication.log.state, parts.replication.log.reason)
        while not await waiters.wait(owed.serve_from, _CATCH_UP_TICK_S):
            if self._ended.done():
                break
        await self._all_fetched(parts, owed)
        self._caught_up = True
        self.log_state(parts.replication.log.state, parts.replication.log.reason)
        _log.info(
            "started", state=self.condition.state.value, csn=waiters.reached, end=end, boot=session.boot
        )

    async def _all_fetched(self, parts: AgentParts, owed: Arrears) -> None:
        """Wait until a clone has all parts that are visible; a replica with a catalog of its own serves."""
        if self.condition.fetches:
            self.spawn("parts of the past", self._past_fetched(parts, owed))
        while self.condition.incomplete and not self._ended.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(parts.replication.missing.complete.wait(), _CATCH_UP_TICK_S)
                self.condition.incomplete = False

    async def _past_fetched(self, parts: AgentParts, owed: Arrears) -> None:
        """Follow when the clone has everything that a snapshot of the past shows, too."""
        await parts.replication.missing.over.wait()
        while self.condition.fetches:
            try:
                await owed.fetched(self.local.catalog)
                self.condition.fetches = False
            except (DiskFullError, UnavailableError):
                await asyncio.sleep(_CATCH_UP_TICK_S)

    async def _clone_next(self, reason: str) -> None:
        """End this boot, and let the next one clone: the log no longer has the records that follow."""
        self._become(AgentState.STOPPED, reason)
        try:
            await self.local.catalog.write(partial(jobs.set_meta, clone=reason))
        except TidelockError as error:
            _log.error("clone_not_noted", reason=error.message)
            self._end(BootEnd.STOPPED)
        else:
            self.clones(reason)

    async def _decide_own(self, parts: AgentParts) -> None:
        """Roll back the own transactions of former boots that never became visible.

        Those with rows that landed are left to the check of what is undecided, which commits these rows.
        """
        reader = self.local.catalog.reader
        tids = [Tid.parse(text) for text in {*reader.prepared()}.difference(reader.landed_tids())]
        own = [tid for tid in tids if tid.home == self.replica and tid.boot < parts.means.session.boot]
        outcome = parts.transactions.outcomes.outcome
        aborted = [tid for tid in own if isinstance(await outcome(tid, UNDECIDED), Aborted)]
        if aborted:
            _log.info("aborted_by_restart", tids=[str(tid) for tid in aborted])
            await parts.receiver.forget(aborted)

    # -- what the parts report (means.Events) --------------------------------------------------------

    async def deliver(self, records: list[LogRecord]) -> None:
        """Hand records of the log to the applier, at its pace."""
        for record in records:
            await self.parts.replication.applier.deliver(record)

    def applied(self, records: Sequence[ResolvedRecord]) -> None:
        """Wake the callers that wait for these CSNs."""
        self._metrics.snapshot_csn.set(records[-1].csn)
        entries = [(record.csn, entry) for record in records for tid in record.tids for entry in tid.entries]
        skipped = [entry.part for _, entry in entries if isinstance(entry, SkipPart)]
        if skipped and (reason := self.local.catalog.reader.meta("clone")):
            self.clones(reason)
            return
        self.local.counts.applied(records)
        self.local.tables.applied(records)
        self.local.waiters.advance(records[-1].csn)
        for csn, entry in entries:
            if isinstance(entry, DefineTable) and entry.drops:
                self.parts.transactions.registry.dropped(entry.table, entry.definition["name"], csn)
        for part in skipped:
            self.part_held(part)  # nothing waits for it any more

    def part_held(self, part: PartId) -> None:
        """Release the records that wait for the part, and the readers that found it damaged before."""
        if part in self._damaged:
            row = self.local.catalog.reader.part(part)
            if row is not None and row.state == "quarantined":
                # The part was found damaged again after it was stored: a request for it made at that time met
                # a fetch that was about to end.
                self.parts.replication.applier.part_lost(part)
                self.parts.replication.missing.want(row)
                return
            self._damaged.discard(part)
            self.local.readers.released(part)
        self.parts.replication.applier.part_held(part)
        self.parts.uploads.eager.arrived(part)

    def clones(self, reason: str) -> None:
        """End this boot: the catalog notes that it has to be replaced, and the next boot does that."""
        self._become(AgentState.STOPPED, reason)
        self._end(BootEnd.CLONING)

    def wrong_bytes(self, replica: ReplicaId, part: PartId) -> None:
        """Log it: the peer will find the damage itself when it is asked for the part."""
        _log.error("wrong_bytes_from_peer", peer=replica, part=part)

    def acknowledged(self, held: Held) -> None:
        """Count the copies that a peer names."""
        self.parts.replication.membership.heard(held)
        self.parts.replication.copies.acknowledged(held)

    def log_state(self, state: LogState, reason: str) -> None:
        """Follow the state of the log; three of its states end this boot."""
        match state:
            case LogState.FENCING:  # the boot ends when the commits in doubt are decided
                self._become(AgentState.FENCED, reason)
            case LogState.FENCED:
                self._become(AgentState.FENCED, reason)
                self.parts.transactions.commits.abort_all(
                    FencedError(
                        f"replica {self.replica} was fenced by another replica; its open transactions are "
                        "rolled back: begin again",
                        replica=self.replica,
                    )
                )
                self.spawn("fenced", self._end_fenced())
            case LogState.TOO_LATE:
                self.spawn("clone next", self._clone_next(reason or "the log begins behind its position"))
            case LogState.STOPPED:
                self._become(AgentState.STOPPED, reason or state.value)
                self._end(BootEnd.STOPPED)
            case LogState.SUSPENDED:
                self._become(AgentState.SUSPENDED, reason or self._set_back or "no answer from ZooKeeper")
            case LogState.FOLLOWING:
                self._set_back = ""
                if self._caught_up and self._parts and self._parts.replication.membership.draining:
                    self._become(AgentState.DRAINING, "an operator has it drained")
                elif self._caught_up:
                    self._become(AgentState.SERVING, "")
                else:
                    incomplete = self.condition.incomplete
                    self._become(AgentState.CLONING if incomplete else AgentState.STARTING, self._behind)

    async def _explain_suspension(self) -> None:
        """Find out whether ZooKeeper was set back while this replica has no connection, and say so."""
        if self.condition.state is not AgentState.SUSPENDED:
            return
        found = await self.parts.means.store.set_back()
        if found and not self._set_back:
            _log.error("zookeeper_set_back", reason=found)
        self._set_back = found
        log = self.parts.replication.log
        self.log_state(log.state, log.reason)

    def outvoted(self, reason: str) -> None:
        """Stop to serve at once, and clone: most other replicas contradict this one (I8, I10)."""
        self.spawn("clone next", self._clone_next(reason))

    def fence_raised(self, fence: int) -> None:
        """Save the fence: a start compares it with ZooKeeper's, which never goes back."""
        self.spawn("save_fence", self.local.catalog.write(lambda db: jobs.save_fence(db, fence)))

    async def _end_fenced(self) -> None:
        """End this boot: a fence by a start in another data folder says that another agent has the id now."""
        session, by = self.parts.means.session, self.parts.replication.log.fenced_by
        if by is None or folder_of(by.disk) == folder_of(session.disk):
            self._end(BootEnd.FENCED)
            return
        found = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WHO_S):
                found = await self.parts.means.store.get(tree.replica(self.replica))
        api = decode_member(found.value.data).api if isinstance(found, Ok) else "an unknown address"
        _log.error(
            "replaced",
            reason=f"another agent runs as {self.replica} on disk {by.disk} at {api}; this one, on disk "
            f"{session.disk}, ends: give it another id, or stop the other agent",
            disk=by.disk,
            api=api,
        )
        self._end(BootEnd.REPLACED)

    def damage_of_request(self, error: Exception) -> UnavailableError | None:
        """Stop if a request has found that the catalog is damaged, and return the error for its client."""
        if (damage := catalog_damage(error)) is None:
            return None
        self._stopped_for(damage.message)
        return stopped(self.replica, damage.message)

    def _stopped_for(self, reason: str, error: BaseException | None = None) -> None:
        _log.error("stopped", reason=reason, exc_info=error)
        self._become(AgentState.STOPPED, reason)
        self._end(BootEnd.STOPPED)

    def broken(self, error: InvariantError) -> None:
        """Stop (I15): a state machine contradicts itself. The log has the last steps of the machine."""
        _log.critical("machine_broken", reason=error.message, **error.details)
        self._become(AgentState.STOPPED, error.message)
        self._end(BootEnd.STOPPED)

    def _members_changed(self) -> None:
        parts, membership = self.parts, self.parts.replication.membership
        membership.changed()
        gone = membership.removed()
        # A replica that was never started has no address; at that of one that was removed nobody answers.
        peers = [peer for peer in membership.peers() if peer.api and peer.replica not in gone]
        parts.replication.fetcher.members(peers)
        parts.replication.pusher.members(peers)
        parts.replication.copies.members(membership.rules())
        if self._caught_up:
            self.log_state(parts.replication.log.state, parts.replication.log.reason)

    def _become(self, state: AgentState, reason: str) -> None:
        now = self.condition.state
        if now in _FINAL or (now, self.condition.reason) == (state, reason):
            return
        if now is AgentState.STOPPING and state is not AgentState.STOPPED:  # which says more than "asked to"
            return
        _log.info("state", before=self.condition.state.value, now=state.value, reason=reason)
        self.condition.state, self.condition.reason = state, reason

    # -- what readers ask and report (readers.process.Callbacks) ---------------------------------------------

    async def wait(self, csn: Csn) -> ReadAvailability:
        """Return whether ``csn`` can be served here, as the answer for a reader process."""
        if self._parts is None:
            return ReadAvailability("standby", f"replica {self.replica} is starting")
        return await self.parts.services.reads.read_availability(csn)

    def read(self, csn: Csn) -> None:
        """Keep a CSN that a reader process reads readable for a while, if no client has pinned it."""
        if self._parts is not None and self.condition.allows(AgentAction.LATEST):
            self.parts.snapshots.implicit_pins.read(csn)

    def corrupt(self, part: PartId, detail: str) -> None:
        """Check a part that a reader or a query reported; if its bytes are wrong, it is fetched again."""
        if self._parts is not None:  # else a reader's next check finds it again
            self.spawn("repair", self._repair(self._parts, part, detail))

    async def _repair(self, parts: AgentParts, part: PartId, detail: str) -> None:
        async with self._verifying:
            if not await parts.replication.catalog_port.is_damaged(part):
                _log.warning("part_found_whole", part=part, detail=detail)
                self.local.readers.released(part)
                return
        self._damaged.add(part)
        found = await parts.replication.catalog_port.quarantine(part)
        if found:
            _log.error(
                "part_damaged", part=part, detail=detail, sharing=[one for one in found if one != part]
            )
        for one in found:
            self._damaged.add(one)
            parts.replication.applier.part_lost(one)
        for one in {part, *found}:
            row = self.local.catalog.reader.part(one)
            if row is not None and row.state != "held":
                parts.replication.missing.want(row)

    # -- tasks -----------------------------------------------------------------------------------------------

    def run_forever(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run work that must never end; if it does end, the agent stops (I15)."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._stop(task, task.exception())

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stop(task, error)

    def _stop(self, task: asyncio.Task[None], error: BaseException | None) -> None:
        """Stop (I15): work has ended that must not end, or with an error that nobody has foreseen."""
        if isinstance(error, InvariantError):
            self.broken(error)
            return
        if (damage := catalog_damage(error)) is not None:
            self._stopped_for(damage.message)
            return
        self._stopped_for(f"{task.get_name()}: {error}" if error else f"{task.get_name()} ended", error)

    def spawn(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Run something once, concurrently; if it is not possible now, that is logged.

        Any other error stops the agent (I15).
        """
        task = asyncio.create_task(self._once(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)

    @staticmethod
    async def _once(name: str, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except TidelockError as error:
            _log.warning("not_done_now", what=name, reason=error.message)

    async def _repeat(self, name: str, interval_s: float, work: PeriodicTask) -> None:
        task = asyncio.current_task()
        while not (task and task.cancelling()):  # a failing clean-up replaces CancelledError by its own error
            await asyncio.sleep(interval_s)
            await self._once(name, work())

    # -- end -------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Drain, then end (SIGTERM)."""
        if self.condition.state is not AgentState.STOPPING:
            self._become(AgentState.STOPPING, "asked to stop")
            self.spawn("drain", self._drain())

    async def _drain(self) -> None:
        """Let readers finish their reads and decide the requested commits, both within ``drain_s``.

        The boot ends in any case: an agent that was asked to stop must not go on because it stops badly.
        """
        work: list[Coroutine[Any, Any, object]] = []
        if self._local is not None:
            work.append(self._local.readers.drain(self.settings.drain_s))
        if self._parts is not None:
            work.append(self._finish_commits())
        for ended in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(ended, BaseException):
                _log.error("not_drained", reason=repr(ended), exc_info=ended)
        self._end(BootEnd.ASKED)

    async def _finish_commits(self) -> None:
        asked = (tx.ending.commit_task for tx in self.parts.transactions.registry.live())
        running = [task for task in asked if task is not None]
        if running:
            await asyncio.wait(running, timeout=self.settings.drain_s)

    def _end(self, how: BootEnd) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    async def until_ended(self) -> BootEnd:
        """Return the reason when this boot is over."""
        return await self._ended

    async def close(self) -> None:
        """Release all resources; harmless at any point of the start."""
        tasks = list(self._tasks)
        for task in tasks:
            task.remove_done_callback(self._task_ended)
            task.remove_done_callback(self._spawned_ended)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()
