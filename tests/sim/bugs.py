"""Planted bugs: each replaces a piece of the product by a wrong one, and the simulation has to find it.

A simulation without findings proves nothing unless it finds planted bugs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from tests.sim.definition_bugs import DEFINITION_BUGS
from tests.sim.disk import SimDisk
from tests.sim.member_bugs import MEMBER_BUGS
from tidelock.csnlog.core import committer
from tidelock.csnlog.core.batch import CommitPlan, Queued, plan
from tidelock.csnlog.core.committer_messages import MultiResult
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, TableId
from tidelock.csnlog.core.log_time import NEVER_MS, Clocking
from tidelock.csnlog.core.model import Record, TidRecord
from tidelock.csnlog.core.results import Aborted, Committed, NoAnswer, Outcome, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, Delete, Op
from tidelock.csnlog.core.visibility import Replaced
from tidelock.csnlog.engine import Engine
from tidelock.csnlog.faults import FaultStep
from tidelock.errors import CorruptError, SerializationConflictError
from tidelock.replica_agent.landing import rescue
from tidelock.replica_agent.landing.landings import Landings
from tidelock.replica_agent.landing.rescue import Rescue
from tidelock.replica_agent.lifecycle import background
from tidelock.replica_agent.lifecycle.agent import Agent
from tidelock.replica_agent.lifecycle.arrears import Arrears
from tidelock.replica_agent.lifecycle.background import BackgroundTasks, PeriodicTask
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.snapshots.retention_clock import RetentionClock
from tidelock.replica_agent.storage import catalog_garbage, catalog_writes, pack_index
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.row_streams import CheckedRows
from tidelock.replica_agent.transactions import adopted_merges
from tidelock.replica_agent.transactions.ending.carriers import Carriers, Rider
from tidelock.replica_agent.transactions.outcomes import resolver
from tidelock.replica_agent.transactions.outcomes.rules import (
    FenceHome,
    NeverWas,
    OutcomeFacts,
    Policy,
    Question,
    next_step,
)
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core import prefix
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.lag import LagVerdict, LagWatch
from tidelock.replication.core.lock_rules import LockAsk, OnePartition
from tidelock.replication.core.messages import FetchPart
from tidelock.replication.core.model import Held, PartMeta, Peer
from tidelock.replication.core.prefix import Prefix
from tidelock.replication.core.wire import decode
from tidelock.replication.locks.sweeper import LockSweeper
from tidelock.replication.partfs import PartFs
from tidelock.replication.push import Pusher
from tidelock.wire.writes import LandAnswer

#: A pause in which the tail passes what others have committed, in virtual seconds.
_A_WHILE_S: Final = 4.0
#: A check of any version: that the znode exists.
_ANY_VERSION: Final = -1


@contextmanager
def acknowledge_before_durable() -> Iterator[None]:
    """A peer says that it holds a transaction while it is still writing it."""
    store = PushReceiver.stage

    async def stage(self: PushReceiver, raw: bytes) -> Held:
        push = decode(raw)
        task = asyncio.create_task(store(self, raw))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        tids = tuple(str(sealed.tid) for sealed in push.tids)
        return Held(self.replica, self.disk, self.boot, self.waiters.reached, tids, {})

    with mock.patch.object(PushReceiver, "stage", stage):
        yield


@contextmanager
def count_a_replaced_disk() -> Iterator[None]:
    """A copy still counts after the disk that it was on has been replaced."""
    change = Pusher._change_lane

    def holders(self: Copies, state: Any) -> tuple[Any, ...]:
        acked = sorted({replica for replica, _ in state.acks})
        return (self.home, *acked) if state.persisted else tuple(acked)

    def change_lane(self: Pusher, lane: Any, peer: Peer) -> None:
        lane.peer = replace(lane.peer, disk=peer.disk)
        change(self, lane, peer)

    with (
        mock.patch.object(Copies, "_holders", holders),
        mock.patch.object(Pusher, "_change_lane", change_lane),
    ):
        yield


@contextmanager
def apply_over_a_gap() -> Iterator[None]:
    """A record is applied although parts of it are missing."""
    apply = catalog_writes._apply_tid

    async def held(_self: ReplicaCatalogPort, parts: Any) -> set[Any]:
        return set(parts)

    def apply_what_is_there(*args: Any) -> list[str]:
        with contextlib.suppress(CorruptError):
            return apply(*args)
        return []

    with (
        mock.patch.object(ReplicaCatalogPort, "held", held),
        mock.patch.object(catalog_writes, "_apply_tid", apply_what_is_there),
    ):
        yield


@contextmanager
def send_again_what_may_have_landed() -> Iterator[None]:
    """A multi whose answer was lost counts as not applied, and is sent again without raising the fence."""
    multi = Engine._multi

    async def certain(self: Engine, step: FaultStep, ops: tuple[Op, ...]) -> tuple[MultiResult, int]:
        result, session = await multi(self, step, ops)
        return (Refused(Reason.NOT_CONNECTED) if isinstance(result, Unknown) else result), session

    with mock.patch.object(Engine, "_multi", certain):
        yield


@contextmanager
def forget_to_fsync() -> Iterator[None]:
    """Part files are not made durable."""
    with mock.patch.object(SimDisk, "fsync", return_value=None):
        yield


@contextmanager
def publish_what_is_not_durable() -> Iterator[None]:
    """A replica publishes its progress, and a power cut may take back what it has applied."""

    async def force(self: Catalog) -> None:
        del self

    with mock.patch.object(Catalog, "force", force):
        yield


@contextmanager
def forget_what_packs_say() -> Iterator[None]:
    """A start looks for no parts in packs whose rows a power cut has taken."""

    async def recover(catalog: Catalog, _files: PartFs) -> int:
        await catalog.write(catalog_writes.undo_packs)
        return 0

    with mock.patch.object(pack_index, "recover", recover):
        yield


@contextmanager
def collect_by_creation() -> Iterator[None]:
    """A removed part goes when the horizon has passed the CSN that made it, not the one that removed it."""
    sql = "p.removal_csn IS NOT NULL AND p.creation_csn <= :h AND p.creation_csn <= coalesce(h.csn, :h)"
    with mock.patch.object(catalog_garbage, "COLLECTABLE_SQL", sql):
        yield


@contextmanager
def look_before_locking() -> Iterator[None]:
    """A removal checks that no other one has removed its parts, and locks them a while later."""
    lock = Removals._lock

    async def look_and_lock(self: Removals, tx: Transaction, ask: LockAsk) -> None:
        reader, merged = self.catalog.reader, tx.staged.adopted.tids
        there = reader.parts(ask.table, tx.statements.statement_csn, str(tx.tid), merged)
        paths = {one.path for one in ask.wide if isinstance(one, OnePartition)}
        covered = [part.part for part in there if ask.wide and (not paths or part.path in paths)]
        gone = await self.catalog.write(partial(_removed, parts=[*ask.parts, *covered]))
        if gone:
            raise SerializationConflictError("removed before", table=ask.table, holder=gone[0][0])
        await asyncio.sleep(_A_WHILE_S)
        await lock(self, tx, ask)

    async def mark_blindly(self: Removals, tx: Transaction, _table: TableId, parts: Sequence[PartId]) -> None:
        sql = "UPDATE parts SET removal_tid = ? WHERE part = ?"
        marks = [(str(tx.tid), part) for part in parts]
        await self.catalog.write(lambda db: db.executemany(sql, marks))

    with (
        mock.patch.object(Removals, "_lock", look_and_lock),
        mock.patch.object(Removals, "_mark", mark_blindly),
    ):
        yield


def _removed(db: sqlite3.Connection, *, parts: Sequence[str]) -> list[tuple[str]]:
    sql = "SELECT removal_tid FROM parts WHERE part = ? AND removal_csn IS NOT NULL"
    return [row for part in parts for row in db.execute(sql, (part,)).fetchall()]


@contextmanager
def keep_marks_of_what_is_rolled_back() -> Iterator[None]:
    """A removal that is rolled back leaves its marks in the catalog."""
    drop = catalog_writes.drop_undecided

    def drop_but_marks(db: sqlite3.Connection, tids: Iterable[str]) -> list[str]:
        over = list(tids)
        sql = "SELECT removal_tid, part FROM parts WHERE removal_tid = ? AND removal_csn IS NULL"
        marks = [mark for tid in over for mark in db.execute(sql, (tid,)).fetchall()]
        files = drop(db, over)
        db.executemany("UPDATE parts SET removal_tid = ? WHERE part = ?", marks)
        return files

    with mock.patch.object(catalog_writes, "drop_undecided", drop_but_marks):
        yield


@contextmanager
def compact_without_locks() -> Iterator[None]:
    """The commit of a compaction takes no locks."""

    async def replace_parts(self: Removals, tx: Transaction) -> None:
        for table in sorted(set(tx.staged.removed.values())):
            await self._mark(tx, table, [part for part, of in tx.staged.removed.items() if of == table])

    with mock.patch.object(Removals, "replace_parts", replace_parts):
        yield


@contextmanager
def adopt_every_merge() -> Iterator[None]:
    """A transaction adopts merges that took rows which it does not see."""

    def any_merge(replaced: Iterable[Replaced], _snapshot: Csn, _adopted: Collection[str]) -> set[str]:
        return {part.merge for part in replaced}

    with mock.patch.object(adopted_merges, "adoptable", any_merge):
        yield


@contextmanager
def ignore_open_transactions() -> Iterator[None]:
    """The horizon may pass the snapshot of an open transaction."""
    with mock.patch.object(Transactions, "oldest_snapshot", lambda _, default: default):
        yield


@contextmanager
def delete_locks_by_their_own_version() -> Iterator[None]:
    """Locks of a silent replica are deleted at their own versions, without a fence for their holder."""

    async def clear(
        self: LockSweeper, home: ReplicaId, _boot: int, _tail: Csn, table: TableId | None = None
    ) -> bool:
        left = await self.zookeeper.scan(self.zookeeper.call(0.0), table)
        for lock in left:
            if lock.tid.home == home and not isinstance(await self.outcome(lock.tid), Committed):
                await self.zookeeper.store.multi((Delete(lock.znode, 0),))
        return True

    with mock.patch.object(LockSweeper, "_clear", clear):
        yield


@contextmanager
def serve_before_it_is_where_it_was() -> Iterator[None]:
    """A replica whose disk was replaced, or that has cloned, serves when it has waited for long enough."""
    with mock.patch.object(Arrears, "serve_from", property(lambda _: CSN_NONE, lambda _self, _csn: None)):
        yield


@contextmanager
def call_aborted_what_no_home_answers_for() -> Iterator[None]:
    """A home that does not answer counts as dead, and its transaction as aborted, without a fence."""

    def step(facts: OutcomeFacts, policy: Policy) -> Question | Outcome | NeverWas:
        found = next_step(facts, policy)
        return Aborted() if isinstance(found, FenceHome) and facts.home == NoAnswer() else found

    with mock.patch.object(resolver, "next_step", step):
        yield


@contextmanager
def take_a_tid_whose_outcome_was_told() -> Iterator[None]:
    """A reserved tid stays reserved although somebody has heard that it is aborted."""
    with mock.patch.object(Transactions, "withdraw", return_value=None):
        yield


@contextmanager
def carry_the_rows_of_a_rider_that_left() -> Iterator[None]:
    """The next carrier has the rows of those that were refused, and went on alone."""
    left: list[Transaction] = []
    once, encode = Carriers._carry_once, RowStaging.encode

    async def carry_once(self: Carriers, riders: Sequence[Rider]) -> list[Rider]:
        leaving = await once(self, riders)
        left.extend(rider.tx for rider in leaving)
        return leaving

    async def encode_too_many(
        self: RowStaging, tx: Transaction, owners: Sequence[Transaction], **landed: Any
    ) -> None:
        others = [] if tx in owners else [one for one in left if one.staged.rows]
        await encode(self, tx, [*owners, *others], **landed)

    with (
        mock.patch.object(Carriers, "_carry_once", carry_once),
        mock.patch.object(RowStaging, "encode", encode_too_many),
    ):
        yield


@contextmanager
def drop_what_has_landed() -> Iterator[None]:
    """Parts of a landing go with its transaction, as those of any other one."""
    with mock.patch.object(Rescue, "settle", mock.AsyncMock(return_value=True)):
        yield


@contextmanager
def rescue_without_a_label() -> Iterator[None]:
    """Each replica that holds what has landed commits it, and none looks whether another one has."""
    with (
        mock.patch.object(rescue, "landing_label", return_value=None),
        mock.patch.object(catalog_writes, "landed_tid", return_value=None),
    ):
        yield


@contextmanager
def answer_landings_before_they_are_durable() -> Iterator[None]:
    """Rows are acknowledged when they are checked."""
    board = Landings._board

    async def answer(self: Landings, rows: CheckedRows, at: Csn, deadline: float) -> LandAnswer:
        task = asyncio.create_task(board(self, rows, at, deadline))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)
        return LandAnswer(rows.count, None, None)

    with mock.patch.object(Landings, "_board", answer):
        yield


@contextmanager
def clean_up_although_cancelled() -> Iterator[None]:
    """A cancelled background task collects garbage first, and goes on if that fails: the boot never ends."""

    async def move_horizon(self: BackgroundTasks) -> None:
        try:
            await self._horizon.advance()
        finally:
            await self._collect()

    async def repeat(self: Agent, name: str, interval_s: float, work: PeriodicTask) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self._once(name, work())

    with (
        mock.patch.object(BackgroundTasks, "_move_horizon", move_horizon),
        mock.patch.object(Agent, "_repeat", repeat),
    ):
        yield


@contextmanager
def await_no_missing_part() -> Iterator[None]:
    """The executed prefix asks for a missing part and does not note the record that waits for it."""
    lack = Prefix._lack

    def ask_only(self: Prefix, item: Any, tid: TidRecord, meta: PartMeta) -> FetchPart:
        asked = lack(self, item, tid, meta)
        del self._csn_of[meta.part]
        return asked

    with mock.patch.object(Prefix, "_lack", ask_only):
        yield


@contextmanager
def the_clock_of_the_home_alone() -> Iterator[None]:
    """The effective time is the larger of the home's clock and the time before."""

    def home_alone(record: Record, _server_ms: int) -> Clocking:
        return Clocking(record.time_ms, NEVER_MS)

    with mock.patch.object(prefix, "clocking", home_alone):
        yield


@contextmanager
def forget_by_the_wall_clock() -> Iterator[None]:
    """Each replica forgets by its own wall clock."""

    def now_ms(_: RetentionClock) -> int:
        return int(vars(background)["time"].time() * 1000)  # the clock of the simulated host

    with mock.patch.object(RetentionClock, "now_ms", now_ms):
        yield


@contextmanager
def count_a_stuck_replica() -> Iterator[None]:
    """A home waits for every live replica that is far behind, and refuses its commits in the end."""
    judge = LagWatch.judge

    def refuse(self: LagWatch, peers: Iterable[Peer], own: Csn, now_s: float, copies: int) -> LagVerdict:
        found = judge(self, peers, own, now_s, copies)
        return replace(found, refused=bool(found.far))

    with mock.patch.object(LagWatch, "judge", refuse):
        yield


@contextmanager
def commit_whatever_the_fence() -> Iterator[None]:
    """A home looks at its fence only when it hears of it: its commits land also where a peer has raised it.

    A home that takes steps hears of it at once, and ends. A frozen one first sends what it had planned.
    """

    def unfenced(batch: tuple[Queued, ...], **known: Any) -> CommitPlan:
        found = plan(batch, **known)
        fence, *others = found.checks
        return replace(found, checks=(Check(fence.path, _ANY_VERSION), *others))

    with mock.patch.object(committer, "plan", unfenced):
        yield


BUGS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    bug.__name__.replace("_", "-"): bug
    for bug in (
        acknowledge_before_durable,
        count_a_replaced_disk,
        apply_over_a_gap,
        send_again_what_may_have_landed,
        forget_to_fsync,
        publish_what_is_not_durable,
        forget_what_packs_say,
        collect_by_creation,
        look_before_locking,
        keep_marks_of_what_is_rolled_back,
        compact_without_locks,
        adopt_every_merge,
        ignore_open_transactions,
        delete_locks_by_their_own_version,
        serve_before_it_is_where_it_was,
        call_aborted_what_no_home_answers_for,
        take_a_tid_whose_outcome_was_told,
        carry_the_rows_of_a_rider_that_left,
        drop_what_has_landed,
        rescue_without_a_label,
        answer_landings_before_they_are_durable,
        clean_up_although_cancelled,
        await_no_missing_part,
        the_clock_of_the_home_alone,
        forget_by_the_wall_clock,
        count_a_stuck_replica,
        commit_whatever_the_fence,
        *MEMBER_BUGS,
        *DEFINITION_BUGS,
    )
}
