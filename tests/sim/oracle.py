"""Judges a run from outside while it goes on: by ZooKeeper's writes and by the disks themselves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tests.sim.catalog import reading
from tests.sim.clients import CHANGED
from tests.sim.disk import SimDisk
from tests.support.histories import replay
from tests.support.histories.replay import Story
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.codec import decode_entries
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.model import CLONING, SERVING, STRUCK, AddPart, Entry, Record, RemovePart, TidRecord
from tidelock.csnlog.core.store import Create, Op, SetData
from tidelock.errors import CorruptError
from tidelock.replica_agent.transactions.ending.commit import WaitFor
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import PartFs
from workloads.checker import SHOWN, InvariantViolation

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.life import AgentLife
    from tests.sim.world import SimWorld
    from tidelock.csnlog.log import Proposal
    from tidelock.replica_agent.lifecycle.agent import Agent

#: The disks are looked at so often, in virtual seconds.
LOOK_S: Final = 0.7
#: How long a home may count copies on a disk that its peer has just lost: until it has read the new session.
STALE_S: Final = 10.0


class Oracle:
    """Collects violations."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.violations: list[InvariantViolation] = []
        self.found = asyncio.Event()
        #: All commit records, in the order in which they came to be.
        self.records: dict[Csn, Record] = {}
        self.did: Counter[str] = Counter()
        self._disks: dict[str, dict[str, float]] = {}  # by replica: when each disk was last registered
        self._current: dict[str, str] = {}
        self._catalogs: dict[str, sqlite3.Connection] = {}
        #: How far each catalog was when it was looked at, by folder and id of the disk.
        self._looked: dict[tuple[str, str], Csn] = {}
        #: The folders of disks that got another id by a clone, and what they held under the former one.
        self._folders: dict[str, str] = {}
        self._held_before: dict[str, frozenset[str]] = {}
        self._proposed: set[str] = set()
        #: The entries of the transactions, also of those that have a manifest.
        self._entries: dict[str, Sequence[Entry]] = {}
        #: CSNs at which parts are added and removed, by the log.
        self._added: dict[str, Csn] = {}
        self._removed: dict[str, Csn] = {}
        #: The statements of the changers.
        self.story = Story(CHANGED, 0)
        self.changers: set[str] = set()

    def violated(self, invariant: str, what: str) -> None:
        """Take a violation."""
        self._world.trace.note("VIOLATED", invariant, what)
        self.found.set()
        if sum(known.invariant == invariant for known in self.violations) < SHOWN:
            self.violations.append(InvariantViolation(invariant, what))

    def began(self, life: replay.Life) -> None:
        """A client has begun a transaction in which it removes."""
        self.story.lives.append(life)
        self.changers.add(life.tid)

    def stopped(self, replica: str, reason: str) -> None:
        """An agent has stopped because it could not prove its state; nothing here may bring it to that."""
        self.violated("I15 FAILSTOP", f"{replica} stopped: {reason}")

    def counts(self) -> dict[str, int]:
        """Return how many of what happened."""
        return {"records": len(self.records), **self.did}

    # -- ZooKeeper -------------------------------------------------------------------------------------------

    def wrote(self, ops: Sequence[Op], values: Sequence[object]) -> None:
        """Take a multi that was applied."""
        for op, value in zip(ops, values, strict=True):
            if isinstance(op, Create) and op.sequential:
                csn, record = tree.csn_of(str(value)), codec.decode_record(op.data)
                self._recorded(csn, record)
            elif isinstance(op, SetData) and op.path.endswith("/session"):
                self._registered(op.path.split("/")[1], codec.decode_session(op.data).disk)
            elif isinstance(op, SetData) and op.path == tree.HORIZON:
                self._raised(codec.decode_csn(op.data))

    def _raised(self, horizon: Csn) -> None:
        """The horizon never passes a pin, nor what an open transaction reads (I12).

        A replica that was struck is fenced, so its transactions are over, whether it knows that or not.
        """
        self._world.trace.note("horizon", horizon)
        znodes = self._world.zookeeper.tree
        for name in sorted(children(znodes.get(tree.PINS))):
            csn = codec.decode_pin(znodes.get(tree.pin(name)).data).csn  # type: ignore[union-attr]
            if csn < horizon:
                self.violated("I12 GC-SAFE", f"the horizon is raised to {horizon}, above pin {name} at {csn}")
        for host in self._world.hosts:
            if self._state(host.name) in {STRUCK, CLONING}:
                continue
            live = host.agent.parts.transactions.registry.live() if host.agent and host.serving else ()
            oldest = min((tx.tid.snapshot for tx in live), default=horizon)
            if oldest < horizon:
                what = (
                    f"the horizon is raised to {horizon}, and {host.name} has an open transaction at {oldest}"
                )
                self.violated("I12 GC-SAFE", what)

    def _registered(self, replica: str, disk: str) -> None:
        now = self._world.loop.time()
        known = self._disks.setdefault(replica, {})
        if (before := self._current.get(replica)) is not None:
            known[before] = now
        if disk not in self._folders and not (self._world.folder / disk).exists():
            self._cloned(replica, before, disk)
        self._current[replica] = disk
        known[disk] = now

    def _cloned(self, replica: str, before: str | None, disk: str) -> None:
        """A clone replaces what a folder held; a home may count that until it has read the new session."""
        self._folders[disk] = next(
            host.disk.folder.name for host in self._world.hosts if host.name == replica
        )
        self.did["clone"] += 1
        if before is not None and self._folder(before) == self._folder(disk):
            held = self._catalog(before).execute("SELECT part FROM parts WHERE state = 'held'")
            self._held_before[before] = frozenset(part for (part,) in held)

    def _folder(self, disk: str) -> str:
        return self._folders.get(disk, disk)

    def _recorded(self, csn: Csn, record: Record) -> None:
        if self.records and csn <= max(self.records):
            self.violated("I2 MONOTONE", f"CSN {csn} came to be after {max(self.records)}")
        self.records[csn] = record
        self._world.trace.note("record", csn, record.kind.name, *(tid.tid for tid in record.tids))
        for tid in record.tids:
            for entry in self.entries(tid):
                if isinstance(entry, AddPart):
                    self._added[entry.part] = csn
                elif isinstance(entry, RemovePart):
                    if entry.part in self._removed:
                        before = self._removed[entry.part]
                        what = f"{tid.tid} removes {entry.part} at CSN {csn}, removed at {before}"
                        self.violated("I7 NOCONFLICT", what)
                    self._removed.setdefault(entry.part, csn)
            parts = self._parts(tid)
            if not parts:
                continue
            if len(set(tid.holders)) < self._world.plan.copies:
                self.violated("I4 DURABLE", f"{tid.tid} went into the log with holders {tid.holders}")
            for holder in tid.holders:
                if not any(self._holds(disk, parts) for disk in self._lately(holder)):
                    self.violated("I4 DURABLE", f"{tid.tid} went into the log, and {holder} lacks its parts")

    def proposed(self, life: AgentLife, proposal: Proposal) -> None:
        """A home hands a transaction to the log: as far as it can know, it has its copies (I4).

        Peers may have given them back where the home was fenced and does not know yet: it is refused.
        """
        parts = self._parts(proposal.record)
        if not parts or proposal.tid in self._proposed or life.agent is None or self._fenced(life.agent):
            return
        self._proposed.add(proposal.tid)
        for holder in proposal.record.holders:
            disk = life.agent.parts.replication.members.disk_of(holder)
            if disk is None or not self._holds(disk, parts):
                what = f"{proposal.tid} counts a copy of {holder}, whose disk {disk} lacks its parts"
                self.violated("I4 DURABLE", what)

    def _fenced(self, agent: Agent) -> bool:
        own = agent.parts.means.session
        znode = self._world.zookeeper.tree.get(tree.session(own.replica))
        return znode is not None and codec.decode_session(znode.data).boot > own.boot

    def _lately(self, replica: str) -> list[str]:
        """The disks that were registered for a replica a moment ago."""
        now, known = self._world.loop.time(), self._disks.get(replica, {})
        current = self._current.get(replica)
        return [disk for disk, until in known.items() if disk == current or now - until < STALE_S]

    def _holds(self, disk: str, parts: Sequence[str]) -> bool:
        if disk in self._held_before:
            return self._held_before[disk].issuperset(parts)
        db = self._catalog(disk)
        marks = ",".join("?" * len(parts))
        sql = f"SELECT count(*) FROM parts WHERE state = 'held' AND part IN ({marks})"
        return bool(db.execute(sql, parts).fetchone()[0] == len(parts))

    def _parts(self, tid: TidRecord) -> list[str]:
        """The parts that a transaction adds, its manifest among them."""
        parts: list[str] = [entry.part for entry in self.entries(tid) if isinstance(entry, AddPart)]
        return parts if tid.manifest is None else [tid.manifest.part, *parts]

    def entries(self, tid: TidRecord) -> Sequence[Entry]:
        """Return the parts that a transaction adds and removes."""
        if tid.tid not in self._entries:
            listed = () if tid.manifest is None else self._listed(tid.manifest.part)
            self._entries[tid.tid] = (*tid.entries, *listed)
        return self._entries[tid.tid]

    def _listed(self, manifest: str) -> Sequence[Entry]:
        """Return the entries of a manifest, from the first disk that has it: its home has it for certain."""
        sql = "SELECT file, offset, length, blocks FROM parts WHERE part = ? AND state = 'held'"
        for disk in [disk for disks in self._disks.values() for disk in disks]:
            if found := self._catalog(disk).execute(sql, (manifest,)).fetchone():
                folder = self._world.folder / self._folder(disk)
                return decode_entries(PartFs(folder / "data").read(Location(*found)))
        self.violated("I4 DURABLE", f"manifest {manifest} went into the log and lies on no disk")
        return ()

    def _catalog(self, disk: str) -> sqlite3.Connection:
        folder = self._folder(disk)
        if folder not in self._catalogs:
            self._catalogs[folder] = reading(self._world.folder / folder / "data")
        return self._catalogs[folder]

    def close(self) -> None:
        """Give the catalogs back."""
        for db in self._catalogs.values():
            db.close()

    # -- disks -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the disks again and again."""
        while True:
            await asyncio.sleep(LOOK_S)
            for host in self._world.hosts:
                if (host.disk.data / "catalog.db").exists():
                    self._look(host.name, host.disk)

    def _look(self, name: str, disk: SimDisk) -> None:
        """Check that a catalog has all its files on the disk, and never claims less than before (I9)."""
        db = self._catalog(disk.folder.name)
        row = _snapshot(db)
        looked = (
            disk.folder.name,
            str(db.execute("SELECT value FROM meta WHERE key = 'disk'").fetchone()[0]),
        )
        before = self._looked.get(looked, CSN_NONE)
        if row < before:
            self.violated("I11 MONOREAD", f"{name} went back from CSN {before} to {row}")
        for csn, record in self.records.items():
            if before < csn <= row:
                for tid in record.tids:
                    self._applied(name, disk, db, csn, tid)
        self._looked[looked] = row
        there = {part for (part,) in db.execute("SELECT part FROM parts")}
        horizon = _meta(db, "horizon")
        for part, csn in self._added.items():
            gone = part not in there and not self._removed.get(part, horizon + 1) <= horizon
            if csn <= row and gone:
                what = f"{name} has deleted {part}, removed at CSN {self._removed.get(part)}"
                self.violated("I12 GC-SAFE", what)

    def _may_be_gone(self, db: sqlite3.Connection, part: str, csn: Csn) -> bool:
        """Whether a catalog need not hold a part any more; ``csn`` made it."""
        if part in self._added:
            return part in self._removed and self._removed[part] <= _meta(db, "horizon")
        return csn < _meta(db, "tail")  # a manifest

    def look_again(self, disk: SimDisk) -> None:
        """The power was cut: all files that the catalog claims are to be checked again."""
        self._looked = {key: csn for key, csn in self._looked.items() if key[0] != disk.folder.name}

    def _applied(self, name: str, disk: SimDisk, db: sqlite3.Connection, csn: Csn, tid: TidRecord) -> None:
        sql = "SELECT state, creation_csn, file, offset, length, blocks FROM parts WHERE part = ?"
        for part in self._parts(tid):
            found = db.execute(sql, (part,)).fetchone()
            if found is None and self._may_be_gone(db, part, csn):
                continue
            if found is None or found[1] != csn:
                self.violated("I9 HONEST", f"{name} has applied CSN {csn}, and of {part} it has {found}")
                continue
            state, _, file, offset, length, blocks = found
            if state != "held":
                continue  # known to be damaged or gone: it is not served and fetched again
            try:
                PartFs(disk.data).read(Location(file, offset, length, blocks))
            except CorruptError as error:
                self.violated("I9 HONEST", f"{name} has applied CSN {csn}, and {part}: {error.message}")

    def promised(self, csn: Csn, wait: WaitFor) -> None:
        """A client was told that a commit is applied on so many replicas (disks may be lost since)."""
        if self.did["replace"] or self.did["strike"] or wait is WaitFor.HOME:
            return
        folders = [host.disk.folder.name for host in self._world.hosts]
        made = [name for name in folders if (self._world.folder / name / "data" / "catalog.db").exists()]
        there = sum(_snapshot(self._catalog(name)) >= csn for name in made)
        if there < self._world.plan.copies:
            self.violated("I17 TRUTHFUL", f"CSN {csn} is told to be on {wait.value}, and is on {there}")

    def tables_made(self) -> Csn:
        """Return the CSN from which on all tables exist."""
        found = [
            self._catalog(host.disk.folder.name).execute("SELECT max(from_csn) FROM tables").fetchone()[0]
            for host in self._world.hosts
            if self._has_catalog(host)
        ]
        return max(Csn(csn or CSN_NONE) for csn in found)

    def removed_parts(self, disk: SimDisk, horizon: Csn) -> list[str]:
        """Return the parts on a disk that the horizon has passed since their removal."""
        sql = "SELECT part FROM parts WHERE removal_csn <= ?"
        return [part for (part,) in self._catalog(disk.folder.name).execute(sql, (horizon,))]

    def past(self, disk: SimDisk, history_s: float) -> Csn:
        """Return the newest CSN that is older than that by the retention clock of a disk's replica (I12)."""
        db = self._catalog(disk.folder.name)
        until = _meta(db, "retention_ms") - int(history_s * 1000)
        return Csn(db.execute("SELECT max(csn) FROM csns WHERE time_ms <= ?", (until,)).fetchone()[0] or 0)

    def times(self, disk: SimDisk, end: Csn) -> dict[Csn, int]:
        """Return the effective times that a disk keeps of the CSNs up to one, in their order."""
        sql = "SELECT csn, time_ms FROM csns WHERE csn <= ? ORDER BY csn"
        rows = self._catalog(disk.folder.name).execute(sql, (end,))
        return {Csn(csn): time_ms for csn, time_ms in rows}

    def may_lose(self, host: Host, *, struck: bool) -> bool:
        """Tell whether what a disk holds lies on other disks in use, as far as anybody may need it.

        That is every part above the horizon, and a catalog from which another replica can go on. So many
        replicas stay as a commit needs copies, if it is struck.
        """
        tail, horizon = (self._bound(path) for path in (tree.TAIL, tree.HORIZON))
        others = [other for other in self._world.hosts if other is not host and self._has_catalog(other)]
        disks = [other.disk.folder.name for other in others]
        serving = [other for other in others if self._state(other.name) == SERVING]
        whole = [
            other
            for other in serving
            if _snapshot(self._catalog(other.disk.folder.name)) >= max(tail, horizon)
        ]
        if not whole or (struck and len(serving) < self._world.plan.copies):
            return False
        return all(
            any(self._holds(disk, needed) for disk in disks)
            for csn, record in self.records.items()
            for tid in record.tids
            if (needed := self._needed(csn, tid, tail, horizon))
        )

    def _needed(self, csn: Csn, tid: TidRecord, tail: Csn, horizon: Csn) -> list[str]:
        """The parts of a transaction that tail and horizon have not passed."""
        if tid.manifest is not None and csn < tail:
            parts: list[str] = [entry.part for entry in self.entries(tid) if isinstance(entry, AddPart)]
        else:
            parts = self._parts(tid)
        return [part for part in parts if not self._removed.get(part, horizon + 1) <= horizon]

    def _bound(self, path: str) -> Csn:
        znode = self._world.zookeeper.tree.get(path)
        return CSN_NONE if znode is None else codec.decode_csn(znode.data)

    def _state(self, replica: str) -> str:
        znode = self._world.zookeeper.tree.get(tree.session(replica))  # type: ignore[arg-type]
        return "" if znode is None else codec.decode_session(znode.data).state

    def _has_catalog(self, host: Host) -> bool:
        return (host.disk.data / "catalog.db").exists()


def _snapshot(db: sqlite3.Connection) -> Csn:
    return _meta(db, "snapshot_csn")


def _meta(db: sqlite3.Connection, key: str) -> Csn:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return Csn(row[0]) if row else CSN_NONE


def children(znode: Any) -> list[str]:
    """The names below a znode, if it is there."""
    return sorted(znode.children) if znode is not None else []
