"""The second phase: after all faults are healed the shard has to come to rest; then all is judged."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.sim.clients import (
    Lists,
    Session,
    Writer,
    asking_lists,
    asking_outcome,
    names,
    note_outcome,
    note_read,
)
from tests.support.checker import check
from tests.support.evidence import leftovers
from tests.support.history import End, parse
from tidelock.csnlog import tree
from tidelock.csnlog.codec import decode_entries
from tidelock.csnlog.ids import Csn, Tid
from tidelock.csnlog.model import AddPart, Kind, TidRecord
from tidelock.csnlog.results import Aborted, Committed, Outcome
from tidelock.errors import CorruptError, TidelockError
from tidelock.replica_agent.agent import Agent
from tidelock.replication.digest import checksum
from tidelock.replication.model import Location

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import World

#: Virtual seconds in which a healed shard is whole again (I14).
CONVERGE_S: Final = 90.0
#: CSNs at which all replicas are compared, besides the last one.
SAMPLED_CSNS: Final = 3
_POLL_S: Final = 0.5


async def converge(world: World) -> None:
    """Wait until all replicas serve, commit, agree and hold nothing that is not needed; then ask them all."""
    if not await _within(world, lambda: all(host.serving for host in world.hosts)):
        states = {host.name: host.agent and host.agent.condition for host in world.hosts}
        world.oracle.violated("I14 LIVE", f"not all replicas serve {CONVERGE_S:.0f} s after: {states}")
        return
    for host in world.hosts:
        await _commits(world, host.name)
    end = max(world.oracle.records)
    if not await _within(world, lambda: all(_reached(host.agent) >= end for host in world.hosts)):
        at = {host.name: (_reached(host.agent), _blocked(host.agent)) for host in world.hosts}
        world.oracle.violated("I14 LIVE", f"the log ends at {end}, and {CONVERGE_S:.0f} s later: {at}")
        return
    await _ask_outcomes(world)
    for host in world.hosts:
        await _within(world, functools.partial(_is_clean, host))
        if left := leftovers(host.disk.data):
            world.oracle.violated("I13 NOLEAK", f"{host.name}: {left}")
    await _clean_tree(world)
    await _read_everywhere(world, end)


async def _within(world: World, done: Callable[[], bool]) -> bool:
    until_s = world.loop.time() + CONVERGE_S
    while not done():
        if world.loop.time() > until_s:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def _is_clean(host: Host) -> bool:
    return not leftovers(host.disk.data)


def _reached(agent: Agent | None) -> Csn:
    return agent.local.waiters.reached if agent is not None else Csn(0)


def _blocked(agent: Agent | None) -> Any:
    return agent.machinery.applier.blocked if agent is not None else None


async def _commits(world: World, replica: str) -> None:
    """Every replica commits again (I14)."""
    until_s, number = world.loop.time() + CONVERGE_S, 0
    while True:
        number += 1
        await Writer(world, f"c-{replica}-{number}").write_at(replica)
        last = world.lines[-1]
        if last["type"] == "ok":
            return
        if world.loop.time() > until_s:
            world.oracle.violated("I14 LIVE", f"{replica} does not commit after all is healed: {last}")
            return
        await asyncio.sleep(_POLL_S)


async def _ask_outcomes(world: World) -> None:
    """Every replica tells the outcome of every transaction (I8)."""
    session = Session(world, "c-end", 1)
    for write in parse(world.lines).writes:
        if write.tid is None:
            continue
        for host in world.hosts:
            tid = Tid.parse(write.tid)
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


async def _clean_tree(world: World) -> None:
    """No lock and no pin is left, those of former lives too, and each replica shows a sign of life (I13)."""

    def left() -> list[str]:
        znodes = world.zookeeper.tree
        found = [f"{top}/{name}" for top in (tree.LOCKS, tree.PINS) for name in _children(znodes.get(top))]
        return found + [
            f"{host.name} shows no sign of life"
            for host in world.hosts
            if znodes.get(tree.alive(host.name)) is None  # type: ignore[arg-type]
        ]

    if not await _within(world, lambda: not left()):
        world.oracle.violated("I13 NOLEAK", f"in ZooKeeper: {left()}")


def _children(znode: Any) -> list[str]:
    return sorted(znode.children) if znode is not None else []


async def _read_everywhere(world: World, end: Csn) -> None:
    made = world.oracle.tables_made()
    csns = sorted(csn for csn in world.oracle.records if made <= csn < end)
    chosen = world.chance("csns").sample(csns, min(SAMPLED_CSNS, len(csns)))
    for host in world.hosts:
        session = Session(world, f"c-end-{host.name}", 1)
        found: Lists = {}
        for csn in sorted({*chosen, end}):
            try:
                found = await session.ask("read", asking_lists(csn), at=host.name, timeout_s=30.0)
            except TidelockError as error:
                world.oracle.violated("I9 HONEST", f"{host.name} does not give CSN {csn}: {error.message}")
                continue
            note_read(session, host.name, csn, found, exact=True)
        for rows in found.values():
            for row, data in rows:
                session.note(
                    End.OK, "bytes", replica=host.name, csn=end, part=row.part, listed=row.checksum,
                    found=checksum(data),
                )  # fmt: skip


def judge(world: World) -> None:
    """Judge the clients' history by the log."""
    world.note(End.OK, "log", "the end", records=[_line(world, csn) for csn in sorted(world.oracle.records)])
    history = parse(world.lines)
    world.oracle.did["ok"] = len(history.ended(End.OK))
    world.oracle.did["fail"] = len(history.ended(End.FAIL))
    world.oracle.did["info"] = len(history.ended(End.INFO))
    for violation in check(history):
        world.oracle.violated(violation.invariant, violation.what)
    _labels(world)


def _line(world: World, csn: Csn) -> list[Any]:
    record = world.oracle.records[csn]
    return [csn, record.kind is Kind.END, [[tid.tid, _parts(world, tid)] for tid in record.tids]]


def _parts(world: World, tid: TidRecord) -> list[list[Any]]:
    entries = tid.entries
    if tid.manifest is not None:
        agent = world.hosts[0].agent
        row = agent.local.catalog.reader.part(tid.manifest.part) if agent is not None else None
        if agent is None or row is None or row.file is None:
            world.oracle.violated("I4 DURABLE", f"the manifest of {tid.tid} is nowhere")
            return []
        location = Location(row.file, row.offset, row.length, row.blocks)
        try:
            entries = decode_entries(agent.local.files.read(location))
        except CorruptError as error:
            world.oracle.violated("I9 HONEST", error.message)
    return [
        [entry.table, entry.part, entry.path, entry.rows, entry.length, entry.checksum]
        for entry in entries
        if isinstance(entry, AddPart) and entry.table in names()
    ]


def _labels(world: World) -> None:
    """A label is committed once."""
    seen: dict[str, str] = {}
    for record in world.oracle.records.values():
        for tid in record.tids:
            if tid.label is not None and seen.setdefault(tid.label, tid.tid) != tid.tid:
                world.oracle.violated("I7 NOCONFLICT", f"{tid.label!r} of {seen[tid.label]} and {tid.tid}")
