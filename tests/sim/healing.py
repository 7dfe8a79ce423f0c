"""The second phase: after all faults are healed the shard has to come to rest; then all is judged."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tests.sim.changers import Changer
from tests.sim.clients import (
    CHANGED,
    SimSession,
    SimWriter,
    asking_lists,
    asking_outcome,
    names,
    note_outcome,
    note_read,
)
from tests.sim.definers import judge_definers
from tests.sim.landings import judge_landings
from tests.sim.log_lives import LogLife
from tests.sim.machine import EPOCH_S
from tests.sim.transfers import Lists
from tests.sim.znodes import children
from tests.support.histories import replay
from tests.support.histories.evidence import leftovers
from tests.support.histories.table_model import Statement, Truncate
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, TableId, Tid
from tidelock.csnlog.core.model import AddPart, Record, RecordKind, RemovePart, TidRecord
from tidelock.csnlog.core.results import Aborted, Committed, Outcome
from tidelock.errors import SnapshotTooOldError, TidelockError
from tidelock.replica_agent.lifecycle.agent import Agent
from tidelock.replication.core.digest import checksum
from workloads.checker import check
from workloads.history import CallEnd, LogLine, parse

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import SimWorld

#: Virtual seconds in which a healed shard is whole again (I14).
CONVERGE_S: Final = 90.0
#: CSNs at which all replicas are compared, besides the last one.
SAMPLED_CSNS: Final = 3
_POLL_S: Final = 0.5
#: A retention clock that is not further behind is right; how long one that is gets to show its rate.
_NEAR_S: Final = 5.0
_CATCHES_UP_S: Final = 10.0


async def converge(world: SimWorld) -> None:
    """Wait until all replicas serve, commit, agree and hold nothing that is not needed; then ask them all.

    A replica may still be removed meanwhile, by a request that was held up and that the operator gave up.
    """
    if not await _within(world, lambda: all(host.serving for host in world.hosts)):
        states = {host.name: host.agent and host.agent.condition for host in world.hosts}
        world.oracle.violated("I14 LIVE", f"not all replicas serve {CONVERGE_S:.0f} s after: {states}")
        return
    for host in world.hosts:
        await _commits(world, host)
    await _nothing_left(world)
    for host in world.hosts if world.plan.changers else ():
        await _removes(world, host)
    for host in world.hosts:  # what is removed last is not the last of the log: then its locks can go
        await _commits(world, host, " again")
    end = max(world.oracle.records)
    if not await _within(world, lambda: all(_reached(host.agent) >= end for host in world.hosts)):
        at = {host.name: (_reached(host.agent), _blocked(host.agent)) for host in world.hosts}
        world.oracle.violated("I14 LIVE", f"the log ends at {end}, and {CONVERGE_S:.0f} s later: {at}")
        return
    await _ask_outcomes(world)
    await _nothing_left(world)
    await _clean_tree(world)
    await _old_is_gone(world)
    await _true_times(world)
    await _clocks_catch_up(world)
    await _read_everywhere(world, max(world.oracle.records))
    await judge_landings(world, max(world.oracle.records))
    await judge_definers(world, max(world.oracle.records), _csn(world, tree.HORIZON))
    await _audit(world)


async def _within(world: SimWorld, done: Callable[[], bool]) -> bool:
    until_s = world.loop.time() + CONVERGE_S
    while not done():
        if world.loop.time() > until_s:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def _nothing_left(world: SimWorld) -> None:
    """No replica holds undecided parts, marks or files that nothing needs (I13)."""
    for host in world.hosts:
        await _within(world, functools.partial(_is_clean, host))
        if not host.retired and (left := leftovers(host.disk.data)):
            world.oracle.violated("I13 NOLEAK", f"{host.name}: {left}")


def _is_clean(host: Host) -> bool:
    return host.retired or not leftovers(host.disk.data)


def _reached(agent: Agent | None) -> Csn:
    return agent.local.waiters.reached if agent is not None else Csn(0)


def _blocked(agent: Agent | None) -> Any:
    return agent.parts.replication.applier.blocked if agent is not None else None


async def _commits(world: SimWorld, host: Host, when: str = "") -> None:
    """Every replica commits again (I14)."""
    until_s, number, replica = world.loop.time() + CONVERGE_S, 0, host.name
    while not host.retired:
        number += 1
        await SimWriter(world, f"c-{replica}{when}-{number}").write_at(replica)
        last = world.lines[-1]
        if last["type"] == "ok":
            return
        if world.loop.time() > until_s:
            world.oracle.violated("I14 LIVE", f"{replica} does not commit after all is healed: {last}")
            return
        await asyncio.sleep(_POLL_S)


async def _removes(world: SimWorld, host: Host) -> None:
    """Every replica removes again: no lock is left in its way (I14)."""
    until_s, number, replica = world.loop.time() + CONVERGE_S, 0, host.name
    changer = Changer(world, f"cx-{replica}")
    statements: list[Statement] = [Truncate(table) for table in CHANGED]
    while not host.retired:
        number += 1
        life = await changer.transaction(number, replica, statements, commits=True)
        if life is not None and life.end is CallEnd.OK:
            return
        if world.loop.time() > until_s:
            world.oracle.violated("I14 LIVE", f"{replica} does not remove after all is healed: {life}")
            return
        await asyncio.sleep(_POLL_S)


async def _ask_outcomes(world: SimWorld) -> None:
    """Every replica tells the outcome of every transaction (I8)."""
    session = SimSession(world, "c-end", 1)
    asked = [write.tid for write in parse(world.lines).writes if write.tid is not None]
    for text in [*asked, *(life.tid for life in world.oracle.story.lives)]:
        tid = Tid.parse(text)
        if world.oracle.is_foreign(tid):
            world.oracle.logs.foreign.add(text)
            continue
        for host in world.hosts:
            found: Outcome | None = None
            until_s = world.loop.time() + CONVERGE_S
            while not isinstance(found, Committed | Aborted) and world.loop.time() < until_s:
                if found is not None:
                    await asyncio.sleep(_POLL_S)
                try:
                    found = await session.ask("outcome", asking_outcome(tid), at=host.name)
                except TidelockError as error:
                    world.trace.comment(f"{host.name} does not tell of {tid}: {error!r}")
                    await asyncio.sleep(_POLL_S)
            if found is None or not isinstance(found, Committed | Aborted):
                world.oracle.violated("I8 DECIDED", f"{host.name} says {found} of {tid} after all is healed")
            else:
                note_outcome(session, host.name, tid, found)


async def _clean_tree(world: SimWorld) -> None:
    """No lock and no pin is left, those of former lives too, and each replica shows a sign of life (I13).

    A lock of a committed transaction waits for the tail.
    """

    def left() -> list[str]:
        znodes = world.zookeeper.tree
        found = [f"{tree.PINS}/{name}" for name in children(znodes.get(tree.PINS))]
        tail = _csn(world, tree.TAIL)
        committed = {tid.tid: csn for csn, record in world.oracle.records.items() for tid in record.tids}
        for path in _locks(world):
            tid = codec.decode_lock(znodes.get(path).data).tid  # type: ignore[union-attr]
            if committed.get(tid, 0) < tail:
                found.append(f"{path} of {tid}, which is at {committed.get(tid)}; the tail is {tail}")
        return found + [
            f"{host.name} shows no sign of life"
            for host in world.hosts
            if znodes.get(tree.alive(host.replica)) is None
        ]

    if not await _within(world, lambda: not left()):
        world.oracle.violated("I13 NOLEAK", f"in ZooKeeper: {left()}")


def _locks(world: SimWorld) -> list[str]:
    znodes = world.zookeeper.tree
    tables = [TableId(name) for name in children(znodes.get(tree.LOCKS))]
    folders = [folder for table in tables for folder in (tree.lock_dir(table), tree.wide_dir(table))]
    return [
        f"{folder}/{name}" for folder in folders for name in children(znodes.get(folder)) if name != tree.WIDE
    ]


def _csn(world: SimWorld, path: str) -> Csn:
    znode = world.zookeeper.tree.get(path)
    return Csn(0) if znode is None else codec.decode_csn(znode.data)


async def _old_is_gone(world: SimWorld) -> None:
    """Horizon and tail have moved, and what they have passed is gone (I13, I16).

    Where most clocks were slow by days, the retention clocks need days: until they have caught up, history
    is older than they say, and stays.
    """
    if not world.plan.history_s:
        return

    def left() -> list[str]:
        horizon = _csn(world, tree.HORIZON)
        past = max(world.oracle.records)
        if any(fault.kind == "skew" for fault in world.plan.faults):
            past = min(world.oracle.past(host.disk, world.plan.history_s) for host in world.hosts)
        found = [] if horizon >= past else [f"the horizon is {horizon}, history is to be kept from {past} on"]
        found += [
            f"{host.name} keeps removed parts {parts}"
            for host in world.hosts
            if (parts := world.oracle.removed_parts(host.disk, horizon))
        ]
        epochs = [int(name) for name in children(world.zookeeper.tree.get(tree.CSN)) if name.isdecimal()]
        records = sum(len(children(world.zookeeper.tree.get(tree.epoch_dir(epoch)))) for epoch in epochs)
        if records > world.plan.log_keep + 1:
            found.append(f"{records} records are left of the log, {world.plan.log_keep} are to be kept")
        return found

    if not await _within(world, lambda: not left()):
        world.oracle.violated("I13 NOLEAK", f"{CONVERGE_S:.0f} s later {left()}")


async def _true_times(world: SimWorld) -> None:
    """The log's time is true again, and all replicas have the same times, which never decrease (I10)."""
    end = max(world.oracle.records)

    def all_there() -> bool:
        return all(_reached(host.agent) >= end for host in world.hosts)

    if not await _within(world, all_there):
        return  # told before
    known: dict[Csn, int] = {}
    for host in world.hosts:
        times = world.oracle.times(host.disk, end)
        for before, after in itertools.pairwise(times.values()):
            if after < before:
                world.oracle.violated("I2 MONOTONE", f"{host.name}: a time {after} after {before}")
        for csn, time_ms in times.items():
            if known.setdefault(csn, time_ms) != time_ms:
                what = f"{host.name} has time {time_ms} of CSN {csn}, another replica has {known[csn]}"
                world.oracle.violated("I10 AGREE", what)
        off_s = abs(times[end] / 1000 - (EPOCH_S + world.loop.time()))
        if off_s > CONVERGE_S:
            world.oracle.violated("I14 LIVE", f"{host.name}: the log's time is off by {off_s:.0f} s")


async def _clocks_catch_up(world: SimWorld) -> None:
    """A retention clock that is behind the true time goes at about the double rate (I13)."""

    def behind_s(host: Host) -> float:
        if host.agent is None:
            return 0.0  # told before
        now_ms = host.agent.parts.replication.retention.now_ms()
        return EPOCH_S + world.loop.time() - now_ms / 1000

    before = {host.name: behind_s(host) for host in world.hosts}
    if max(before.values()) <= _NEAR_S:
        return
    await asyncio.sleep(_CATCHES_UP_S)
    for host in world.hosts:
        if (now_s := behind_s(host)) > max(_NEAR_S, before[host.name] - 0.8 * _CATCHES_UP_S):
            what = (
                f"the retention clock of {host.name} was {before[host.name]:.0f} s behind, and is {now_s:.0f}"
            )
            world.oracle.violated("I13 NOLEAK", f"{what} s behind {_CATCHES_UP_S:.0f} s later")


async def _audit(world: SimWorld) -> None:
    """The product's own audit finds nothing."""
    session = SimSession(world, "c-audit", 1)
    for host in world.hosts:
        try:
            report = await session.ask(
                "audit",
                lambda at: at.administration.auditor.run(deep=True, abandoned=lambda: False),
                at=host.name,
                timeout_s=CONVERGE_S,
            )
        except TidelockError as error:
            world.oracle.violated("I14 LIVE", f"{host.name} gives no audit: {error!r}")
            continue
        for finding in report.findings:
            world.oracle.violated("I13 NOLEAK", f"audit of {host.name}: {finding}")


async def _read_everywhere(world: SimWorld, end: Csn) -> None:
    """Read all replicas at the end, and at some CSNs before; what is below the horizon may be refused."""
    made = max(world.oracle.tables_made(), _csn(world, tree.HORIZON))
    csns = sorted(csn for csn in world.oracle.records if made <= csn < end)
    chosen = world.chance("csns").sample(csns, min(SAMPLED_CSNS, len(csns)))
    for host in world.hosts:
        session = SimSession(world, f"c-end-{host.name}", 1)
        found: Lists = {}
        for csn in sorted({*chosen, end}):
            try:
                found = await session.ask("read", asking_lists(csn), at=host.name, timeout_s=30.0)
            except TidelockError as error:
                if isinstance(error, SnapshotTooOldError) and csn < _csn(world, tree.HORIZON):
                    continue
                world.oracle.violated("I9 HONEST", f"{host.name} does not give CSN {csn}: {error.message}")
                continue
            note_read(session, host.name, csn, found, exact=True)
        for rows in found.values():
            for row, data in rows:
                session.note(
                    CallEnd.OK, "bytes", replica=host.name, csn=end, part=row.part, listed=row.checksum,
                    found=checksum(data),
                )  # fmt: skip


def judge(world: SimWorld) -> None:
    """Judge the clients' history by the log."""
    oracle = world.oracle
    for which in oracle.logs.logs:
        _judge_by(world, which)
    for tid in oracle.logs.acknowledged_nowhere(world.lines, oracle.story.lives):
        oracle.violated("I4 DURABLE", f"{tid} was acknowledged, and is in no log")
    ended = Counter(line["type"] for line in world.lines if line["f"] == "write")
    for end in (CallEnd.OK, CallEnd.FAIL, CallEnd.INFO):
        oracle.did[str(end)] = ended[end]


def _judge_by(world: SimWorld, which: LogLife) -> None:
    """Judge by one of the logs what it has to explain."""
    oracle = world.oracle
    records = oracle.logs.logs[which]
    log = [_line(world, csn, records[csn]) for csn in sorted(records)]
    lines = oracle.logs.lines(world.lines, which)
    lines.append({"type": "ok", "f": "log", "process": "the end", "ns": world.now_ns, "records": log})
    story = oracle.logs.story(oracle.story, which)
    history = replace(
        parse(lines),
        elsewhere=frozenset(life.tid for life in oracle.story.lives),
        gone=frozenset(host.name for host in world.machines if host not in world.hosts),
    )
    story.created = oracle.tables_made()
    story.log = tuple(_of_story(world, line) for line in history.log)
    for what in replay.judge(story):
        oracle.violated("I3 to I7, by replay", f"{what}{_by(which)}")
    for violation in check(history):
        oracle.violated(violation.invariant, f"{violation.what}{_by(which)}")
    _labels(world, records)


def _by(which: LogLife) -> str:
    return "" if which is LogLife.FIRST else f" (by the {which.name.lower()} log)"


def _line(world: SimWorld, csn: Csn, record: Record) -> list[Any]:
    return [csn, record.kind is RecordKind.END, [_logged(world, tid) for tid in record.tids]]


def _logged(world: SimWorld, tid: TidRecord) -> list[Any]:
    entries = [entry for entry in world.oracle.entries(tid) if entry.table in names()]
    added = [
        [entry.table, entry.part, entry.path, entry.rows, entry.length, entry.checksum]
        for entry in entries
        if isinstance(entry, AddPart)
    ]
    removed = [entry.part for entry in entries if isinstance(entry, RemovePart)]
    return [tid.tid, added, removed, not tid.data_change, tid.carrier]


def _of_story(world: SimWorld, line: LogLine) -> LogLine:
    """Leave out transactions without a story: those of writers, and those that made the tables."""
    changers = {life.tid for life in world.oracle.story.lives}
    return replace(line, tids=tuple(one for one in line.tids if one.compaction or one.tid in changers))


def _labels(world: SimWorld, records: Mapping[Csn, Record]) -> None:
    """A label is committed once; that of a streaming query once for each batch, in their order."""
    seen: dict[str, TidRecord] = {}
    for _, record in sorted(records.items()):
        for tid in record.tids:
            if tid.label is None:
                continue
            before = seen.setdefault(tid.label, tid)
            if before is not tid and not (before.batch or 0) < (tid.batch or 0):
                what = (
                    f"{tid.label!r} of {before.tid}, batch {before.batch}, and {tid.tid}, batch {tid.batch}"
                )
                world.oracle.violated("I7 NOCONFLICT", what)
            seen[tid.label] = tid
