"""Planted bugs: pieces of the product replaced, each of which an exploration must notice.

The sentences of the protocol that look pedantic are what these leave out (docs/design/protocol-rules.md). No
switch in the product makes them: a class is replaced by a subclass, or a function for the time of one
exploration.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

import msgspec
from msgspec.structs import replace

from tests.sim.explore.clone_bugs import CLONE_BUGS
from tests.sim.explore.collecting import Collecting, History_
from tests.sim.explore.commits import CommitModel
from tests.sim.explore.copying import CopyModel, Mishaps
from tests.sim.explore.ensemble import RecordFacts
from tests.sim.explore.followers import Asked
from tests.sim.explore.following import HOME, Following
from tests.sim.explore.label_bugs import LABEL_BUGS
from tests.sim.explore.lock_bugs import LOCK_BUGS
from tests.sim.explore.outcome_bugs import OUTCOME_BUGS
from tests.sim.explore.planted import Bug
from tests.sim.explore.replay import Replays
from tests.sim.explore.search import Model
from tests.sim.explore.shard import WRITTEN, FollowerTrouble, Shard
from tests.sim.explore.truncating import Truncating
from tests.sim.explore.world import CommitBudget, CommitTx, CommitWorld
from tests.support.log_records import in_log
from tidelock.csnlog import tail
from tidelock.csnlog.cluster.replica_progress import Fenced, read_progress
from tidelock.csnlog.core import batch, codec, tree
from tidelock.csnlog.core import committer as committer_module
from tidelock.csnlog.core.committer import Committer
from tidelock.csnlog.core.committer_messages import Cause, Rejected
from tidelock.csnlog.core.fence import OwnFence
from tidelock.csnlog.core.follower_messages import ABSENT, FollowEvent, Got, Missed
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, Tid, epoch_of
from tidelock.csnlog.core.imprint import Imprint
from tidelock.csnlog.core.log_time import ClockReading
from tidelock.csnlog.core.model import LogRecord, Progress, Record, RecordKind
from tidelock.csnlog.core.pending import Pending
from tidelock.csnlog.core.results import LogReading, Ok
from tidelock.csnlog.core.store import Create, Op, SetData, Store
from tidelock.csnlog.log import CsnLog
from tidelock.csnlog.reading import read_record
from tidelock.replica_agent.snapshots import horizon as history_module
from tidelock.replica_agent.storage import catalog_garbage
from tidelock.replica_agent.storage.table_reads import TableReads
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.horizon_rules import PinWatch
from tidelock.replication.horizon import HorizonReading, raise_horizon, read_pins

T1 = CommitTx(0, 1)
CARRIER = CommitTx(0, 1, carries=("x",))

ROLLOVER_OPS = batch.Rollover.ops


# ----------------------------------------------------------------------------------------------- carriers

_ELEMENTS = batch._elements
_REQUEUE = Pending.requeue


def _elements_without_riders(proposal: batch.Proposal) -> Iterable[tuple[Op, batch.ElementRole]]:
    """The elements of the carrier alone."""
    return _ELEMENTS(replace(proposal, riders=()))


def _elements_at_any_version_of_tables(proposal: batch.Proposal) -> Iterable[tuple[Op, batch.ElementRole]]:
    """The elements without a check of the version of ``tables``."""
    for op, role in _ELEMENTS(proposal):
        yield replace(op, version=-1) if isinstance(op, SetData) and op.path == tree.TABLES else op, role


def _elements_without_used_tables(proposal: batch.Proposal) -> Iterable[tuple[Op, batch.ElementRole]]:
    """The elements without a check of the tables that are used."""
    return _ELEMENTS(replace(proposal, tables={}))


def _requeue_without_riders(pending: Pending, rejected: Mapping[str, Rejected]) -> None:
    """Send only the entry of the carrier again."""
    _REQUEUE(pending, rejected)
    for item in pending.queue.values():
        pending.queue[item.tid] = replace(item, payloads=item.payloads[:1])


# ------------------------------------------------------------------------------------------------- fences


def _plan_without_fence(*args: Any, **more: Any) -> batch.CommitPlan:
    """The commit multi without its first check."""
    made = batch.plan(*args, **more)
    return replace(made, checks=made.checks[1:], elements=made.elements[1:])


class ReadsAtOnce(Committer):
    """After an Unknown it reads the log in the same session, without a raise before."""

    def _must_raise(self) -> bool:
        fence = self.fence
        return bool(fence.pending) or fence.session != self.session or self.raise_above >= fence.version


def _raise_unconditionally(fence: OwnFence) -> tuple[Op, ...]:
    """A plain set instead of a compare-and-set."""
    state = msgspec.structs.replace(fence.state, nonce=fence.pending)
    return (SetData(fence.path, codec.encode_session(state)),)


def _raise_boot_too(fence: OwnFence) -> tuple[Op, ...]:
    """The number in the tids is the fence: each own raise raises it too."""
    state = msgspec.structs.replace(fence.state, nonce=fence.pending, boot=fence.version + 1)
    return (SetData(fence.path, codec.encode_session(state), fence.version),)


CALL_OFF = Pending.call_off


def _call_off_at_once(pending: Pending, tid: str) -> None:
    """A transaction that was sent is called off at once, before the store has answered."""
    CALL_OFF(pending, tid)
    if tid in pending.called_off:
        pending.expired |= {tid}
        pending.answer(tid, Rejected(Cause.CALLED_OFF))


class LogBeforeFence(CsnLog):
    """Outcomes: the log first, then the session znode of the home."""

    async def find(self, tid: Tid, *, newest: bool = False) -> LogReading:
        """As the product's, in the wrong order."""
        del newest
        records = await self._engine.read_to_end(1)
        assert records is not None
        commit = self._commit_in_records(str(tid), records)
        node = await self._store.get(tree.session(tid.home))
        assert isinstance(node, Ok)
        return LogReading(codec.decode_session(node.value.data).boot, commit)


# ------------------------------------------------------------------------------------------------ the tail


async def _read_until_absent(
    store: Store, start: Csn, *, session: int, read_ahead: int
) -> tuple[LogRecord, ...]:
    """NoNode is the end of the log, and what is not there is aborted: the tail is not looked at."""
    found: list[LogRecord] = []
    number = start
    while (record := await read_record(store, number)) is not ABSENT:
        found.append(record)  # type: ignore[arg-type]
        number = Csn(number + 1)
    return tuple(found)


class ForgetsWhatItMet(CommitModel):
    """Outcomes are sought in the log alone, from the tail on: not in what the follower has met before."""

    def read_from(self, w: CommitWorld, which: int) -> Csn:
        """The first record that is kept."""
        return max(self.ensemble.tail(w.history[-1]), w.log[0].csn)

    def met(self, which: int, entry: RecordFacts) -> tuple[tuple[str, Csn], ...]:
        """Return no tids."""
        return ()


class CountsAnyDisk(Copies):
    """A copy counts on whatever disk it was made."""

    def _holders(self, state: Any) -> tuple[ReplicaId, ...]:
        acked = sorted({replica for replica, _ in state.acks})
        return (self.home, *acked) if state.persisted else tuple(acked)


class FollowsTheEpoch(Following):
    """A record that is missing in an epoch that is closed: then the next epoch goes on."""

    def neighbours(self, earlier: RecordFacts, later: RecordFacts) -> bool:
        """An epoch may end anywhere."""
        return True

    def answer(self, s: Shard, asked: Asked, at: int) -> FollowEvent:
        """Behind a record that is not there ``csn/epoch`` is read, and taken for the END."""
        event = super().answer(s, asked, at)
        epoch = self.ensemble.read(s.history[-1], tree.EPOCH)
        assert isinstance(epoch, Ok)
        if isinstance(event, Missed) and codec.decode_epoch(epoch.value.data) > epoch_of(event.csn):
            return Got(event.csn, in_log(event.csn, Record(RecordKind.END, HOME, 0)))
        return event


def _close_without_end(rollover: batch.Rollover, clock: ClockReading) -> tuple[Op, ...]:
    """The multi that closes an epoch, without the END record."""
    return tuple(op for op in ROLLOVER_OPS(rollover, clock) if not (isinstance(op, Create) and op.sequential))


def _commits(*txs: CommitTx, **budget: int) -> Callable[..., Model]:
    def model(replays: Replays, kind: type[CommitModel] = CommitModel, **classes: Any) -> Model:
        return kind(replays, txs, CommitBudget(**budget), victims=(0,), **classes)

    return model


def _following(txs: Sequence[int], read_ahead: int = 2, **trouble: int) -> Callable[..., Model]:
    def model(replays: Replays, kind: type[Following] = Following, **more: Any) -> Model:
        return kind(replays, txs, FollowerTrouble(**trouble), read_ahead=read_ahead, **more)

    return model


def _history(**world: Any) -> Callable[..., Model]:
    def model(replays: Replays, kind: type[Collecting] = Collecting) -> Model:
        return kind(replays, **world)

    return model


# ------------------------------------------------------------------------------------------------ history


class HorizonOfItsOwn(Collecting):
    """Each replica collects by what it uses itself."""

    def seen_horizon(self, s: History_, which: int) -> Csn:
        """Its own transaction, or what it has applied."""
        one = s.replicas[which]
        return one.applied if one.tx is None else one.tx


def _forget_by_the_common_horizon(db: sqlite3.Connection) -> int:
    """Definitions are forgotten below the horizon of all tables."""
    sql = """
        DELETE FROM tables AS old WHERE EXISTS (
            SELECT 1 FROM tables AS new JOIN meta ON meta.key = 'horizon'
            WHERE new.id = old.id AND new.version > old.version AND new.from_csn <= meta.value)
    """
    return db.execute(sql).rowcount


def _retentions_of_active_tables(self: TableReads) -> dict[TableId, float]:
    """A table that was dropped has no retention."""
    active = self.tables(self.snapshot_csn())
    kept = {row.id: row.definition["properties"].get("retention_s") for row in active}
    return {table: float(kept_s) for table, kept_s in kept.items() if kept_s is not None}


async def _raise_without_pins(fenced: Fenced, seen: HorizonReading, to: Csn) -> Csn | None:
    """The multi of the horizon without the check of the pins."""
    return await raise_horizon(_leaving_out(fenced, tree.PINS), seen, to)


def _leaving_out(fenced: Fenced, path: str) -> Fenced:
    return lambda ops: fenced(tuple(op for op in ops if op.path != path))


async def _list_before_version(
    store: Store, watch: PinWatch, clock: Callable[[], float]
) -> HorizonReading | None:
    """The pins are listed, then their version is read."""
    begun, horizon = clock(), await store.get(tree.HORIZON)
    await read_pins(store, watch, clock)
    pins = await store.get(tree.PINS)
    replicas = await read_progress(store)
    assert isinstance(horizon, Ok)
    assert isinstance(pins, Ok)
    assert replicas is not None
    return HorizonReading(
        begun, codec.decode_csn(horizon.value.data), horizon.value.version, pins.value.version, {}, replicas
    )


async def _delete_before_tail(store: Any, fenced: Any) -> None:
    """Records are deleted, then the tail is moved."""
    replicas = await read_progress(store)
    assert replicas is not None
    await tail.delete_below(store, fenced, replicas.applied)
    await tail.move_tail(store, fenced, 1)


async def _publish_at_once(fenced: Fenced, replica: ReplicaId, progress: Progress, **_: Any) -> bool:
    """The progress is published while a power cut may take it back."""
    change = SetData(tree.progress(replica), codec.encode_progress(progress))
    return isinstance(await fenced((change,)), Ok)


BUGS = (
    Bug(
        "labels of riders unchecked",
        frozenset({"I7 NOCONFLICT"}),
        _commits(CARRIER, CommitTx(1, 1, label="x")),
        planted=lambda: mock.patch.object(batch, "_elements", _elements_without_riders),
    ),
    Bug(
        "riders of a commit that is sent again left behind",
        frozenset({"I3 ATOMIC"}),
        _commits(CARRIER, lose_request=1),
        planted=lambda: mock.patch.object(Pending, "requeue", _requeue_without_riders),
    ),
    Bug(
        "a definition whatever was defined before",
        frozenset({"I7 NOCONFLICT"}),
        _commits(*(CommitTx(home, 1, creates=TableId(f"d.t{home}")) for home in range(2))),
        planted=lambda: mock.patch.object(batch, "_elements", _elements_at_any_version_of_tables),
    ),
    Bug(
        "a part for a definition of before",
        frozenset({"I7 NOCONFLICT"}),
        _commits(CommitTx(0, 1, uses=True), CommitTx(1, 1, alters=True)),
        planted=lambda: mock.patch.object(batch, "_elements", _elements_without_used_tables),
    ),
    Bug(
        "no fence check in the multi",
        frozenset({"I1 UNIQUE"}),
        _commits(T1, delay=1),
        planted=lambda: mock.patch.object(committer_module, "plan", _plan_without_fence),
    ),
    Bug(
        "same-session read instead of raise-then-read",
        frozenset({"I1 UNIQUE"}),
        _commits(T1, lose_reply=1),
        {"committer": ReadsAtOnce},
    ),
    Bug(
        "unconditional raise",
        frozenset({"I8 DECIDED"}),
        _commits(T1, lose_request=1, fence=1, ask=1),
        planted=lambda: mock.patch.object(OwnFence, "ops", _raise_unconditionally),
    ),
    Bug(
        "a commit called off although it was sent",
        frozenset({"I8 DECIDED", "I17 TRUTHFUL"}),
        _commits(T1, call_off=1),
        planted=lambda: mock.patch.object(Pending, "call_off", _call_off_at_once),
    ),
    Bug(
        "boot = fence",
        frozenset({"I8 DECIDED"}),
        _commits(T1, lose_request=1, ask=1),
        planted=lambda: mock.patch.object(OwnFence, "ops", _raise_boot_too),
    ),
    Bug(
        "read log before fence",
        frozenset({"I8 DECIDED"}),
        _commits(T1, fence=1, ask=1),
        {"log": LogBeforeFence},
    ),
    Bug(
        "NoNode as abort",
        frozenset({"I17 TRUTHFUL"}),
        _commits(T1, lose_reply=1, strike=1, tail=1),
        {"reader": _read_until_absent},
    ),
    Bug(
        "truncated between raise and read",
        frozenset({"I1 UNIQUE"}),
        _commits(T1, lose_reply=1, tail=1),
        {"kind": ForgetsWhatItMet},
    ),
    Bug(
        "epoch change without END",
        frozenset({"I4 DURABLE"}),
        _following((1, 1), read_ahead=1, roll=1),
        {"kind": FollowsTheEpoch},
        lambda: mock.patch.object(batch.Rollover, "ops", _close_without_end),
    ),
    Bug(
        "compare no stamp",
        frozenset({"I10 AGREE"}),
        _following((1, 1, 1), read_ahead=1, back=1),
        planted=lambda: mock.patch.object(Imprint, "differs", return_value=False),
        large=True,
    ),
    Bug(
        "a part is held before it is fsynced",
        frozenset({"I9 HONEST"}),
        _following((1,), crash=1),
        {"announced": WRITTEN},
    ),
    Bug(
        "acknowledge before the catalog row",
        frozenset({"I4 DURABLE"}),
        lambda replays, **more: CopyModel(replays, 1, 1, Mishaps(crash=1), **more),
        {"early": True},
    ),
    Bug(
        "count a replaced disk",
        frozenset({"I4 DURABLE"}),
        lambda replays, **more: CopyModel(replays, 1, 1, Mishaps(crash=1, replace=1), **more),
        {"kind": CountsAnyDisk},
    ),
    Bug(
        "commit without a check of the roster",
        frozenset({"I4 DURABLE"}),
        lambda replays, **more: CopyModel(replays, 1, 1, Mishaps(crash=1, replace=1), **more),
        {"unchecked": True},
    ),
    Bug(
        "copies rise beside a commit that does not check the roster",
        frozenset({"I4 DURABLE"}),
        lambda replays, **more: CopyModel(replays, 1, 2, Mishaps(need=1), **more),
        {"unchecked": True},
    ),
    Bug(
        "strike lowers copies",
        frozenset({"I4 DURABLE"}),
        lambda replays, **more: CopyModel(replays, 1, 1, Mishaps(strike=1, disaster=1), **more),
        {"lowering": True},
    ),
    Bug(
        "horizon per replica",
        frozenset({"I12 GC-SAFE"}),
        _history(behind=True),
        {"kind": HorizonOfItsOwn},
    ),
    Bug(
        "collect by creation CSN",
        frozenset({"I6 SNAPSHOT"}),
        _history(alone=True, tx=1),
        planted=lambda: mock.patch.object(catalog_garbage, "COLLECTABLE_SQL", "p.creation_csn <= :h"),
    ),
    Bug(
        "raise the horizon without the check of pins",
        frozenset({"I12 GC-SAFE"}),
        _history(alone=True, pin=1),
        planted=lambda: mock.patch.object(history_module, "raise_horizon", _raise_without_pins),
    ),
    Bug(
        "list the pins before their version is read",
        frozenset({"I12 GC-SAFE"}),
        _history(alone=True, pin=1),
        planted=lambda: mock.patch.object(history_module, "read_horizon", _list_before_version),
    ),
    Bug(
        "a dropped table has no retention of its own",
        frozenset({"I12 GC-SAFE"}),
        _history(alone=True, drops=True, keeps=True),
        planted=lambda: mock.patch.object(TableReads, "retentions", _retentions_of_active_tables),
    ),
    Bug(
        "definitions are forgotten by the horizon of all tables",
        frozenset({"I6 SNAPSHOT"}),
        _history(alone=True, drops=True, keeps=True),
        planted=lambda: mock.patch.object(catalog_garbage, "collect_tables", _forget_by_the_common_horizon),
    ),
    Bug(
        "delete records before moving the tail",
        frozenset({"I8 DECIDED"}),
        lambda replays, **more: Truncating(replays, asks=1, **more),
        {"mover": _delete_before_tail},
    ),
    Bug(
        "publish a progress that is not durable",
        frozenset({"I12 GC-SAFE"}),
        lambda replays, **more: Truncating(replays, cuts=1, **more),
        {"publisher": _publish_at_once},
    ),
    *LOCK_BUGS,
    *LABEL_BUGS,
    *OUTCOME_BUGS,
    *CLONE_BUGS,
)
