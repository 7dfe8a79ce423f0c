"""Judges a run from outside while it goes on: by ZooKeeper's writes and by the disks themselves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.sim.clients import CHANGED, names
from tests.sim.definers import DefinerStory
from tests.sim.disk import SimDisk
from tests.sim.disk_contents import DiskContents, meta_of, snapshot_of
from tests.sim.landings import LandingStory
from tests.sim.life import LIFE
from tests.sim.log_lives import LogLife, LogLives
from tests.sim.published import PublishedProgress
from tests.sim.znodes import bound, children, state_of
from tests.support.histories import replay
from tests.support.histories.replay import Story
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, Tid
from tidelock.csnlog.core.imprint import NEXT_STEP
from tidelock.csnlog.core.labels import landed_tid
from tidelock.csnlog.core.model import (
    CLONING,
    REMOVED,
    SERVING,
    STRUCK,
    AddPart,
    DefineTable,
    Entry,
    Record,
    RemovePart,
    Roster,
    SessionState,
    TidRecord,
)
from tidelock.csnlog.core.roster import LEFT_OUT
from tidelock.csnlog.core.store import Create, Op, SetData
from tidelock.csnlog.testing.memory_tree import ZnodeTree
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
#: Faults that take the copies on a disk away.
_LOSES_COPIES: Final = ("replace", "strike", "removed", "taken")
#: How long a home may count copies on a disk that its peer has just lost: until it has read the new session.
STALE_S: Final = 10.0


class Oracle:
    """Collects violations."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.violations: list[InvariantViolation] = []
        self.found = asyncio.Event()
        self.logs = LogLives()
        self._rebuilding = False
        self.did: Counter[str] = Counter()
        self._disks: dict[str, dict[str, float]] = {}  # by replica: when each disk was last registered
        self._current: dict[str, str] = {}
        self._published = PublishedProgress()
        self._on_disk = DiskContents(world.folder)
        #: How far each catalog was when it was looked at, by folder and id of the disk.
        self._looked: dict[tuple[str, str], Csn] = {}
        self._proposed: set[str] = set()
        #: The entries of the transactions, also of those that have a manifest.
        self._entries: dict[str, Sequence[Entry]] = {}
        #: CSNs at which parts are added and removed, by the log.
        self._added: dict[str, Csn] = {}
        self._removed: dict[str, Csn] = {}
        #: The parts that each table has got and not lost, by the log.
        self._in_table: dict[str, set[str]] = {}
        self._dropped: set[str] = set()
        #: The replicas that were removed for good, and those that are struck.
        self._gone: set[str] = set()
        self._struck: set[str] = set()
        #: The copies that a commit needs.
        self._copies = world.plan.copies
        self.landings = LandingStory()
        self.definers = DefinerStory()
        #: The statements of the changers.
        self.story = Story(CHANGED, 0)
        self.changers: set[str] = set()

    def violated(self, invariant: str, what: str) -> None:
        """Take a violation."""
        self._world.trace.note("VIOLATED", invariant, what)
        self.found.set()
        if sum(known.invariant == invariant for known in self.violations) < SHOWN:
            self.violations.append(InvariantViolation(invariant, what))

    def began(self, tid: Tid) -> None:
        """A client has begun a transaction: a replica that came later knows of all removals before (I7)."""
        joined = max(
            (host.joined for host in self._world.hosts if host.replica == tid.home), default=CSN_NONE
        )
        if tid.snapshot < joined:
            self.violated("I7 NOCONFLICT", f"{tid} has begun at a home that was registered at CSN {joined}")

    def lives(self, life: replay.Life) -> None:
        """A client has begun a transaction in which it removes."""
        self.story.lives.append(life)
        self.changers.add(life.tid)

    @property
    def records(self) -> dict[Csn, Record]:
        """The commit records of the present log, in the order in which they came to be."""
        return self.logs.records

    def stopped(self, host: Host, agent: Agent) -> None:
        """An agent has stopped because it could not prove its state: only a set-back may bring it to that."""
        reason = agent.condition.reason
        if self.logs.now is LogLife.OLDER and NEXT_STEP in reason:
            self.did["stopped by another history"] += 1
            return
        self.violated("I15 FAILSTOP", f"{host.name} stopped: {reason}")

    def counts(self) -> dict[str, int]:
        """Return how many of what happened."""
        return {"records": len(self.records), **self.did}

    @property
    def _znodes(self) -> ZnodeTree:
        return self._world.zookeeper.tree

    # -- ZooKeeper -------------------------------------------------------------------------------------------

    def wrote(self, ops: Sequence[Op], values: Sequence[object]) -> None:
        """Take a multi that was applied."""
        if self._rebuilding:
            return
        for op, value in zip(ops, values, strict=True):
            if isinstance(op, Create) and op.sequential:
                csn, record = tree.csn_of(str(value)), codec.decode_record(op.data)
                self._recorded(csn, record)
            elif isinstance(op, Create) and op.path.endswith("/session"):
                self._world.registered(op.path.split("/")[1], max(self.records, default=CSN_NONE))
            elif isinstance(op, SetData) and op.path.endswith("/session"):
                self._session(op.path.split("/")[1], codec.decode_session(op.data))
            elif isinstance(op, SetData) and op.path.endswith("/progress"):
                self._published.note(self._current.get(op.path.split("/")[1], ""), op)
            elif isinstance(op, SetData) and op.path == tree.REPLICAS:
                self._roster_changed()
            elif isinstance(op, SetData) and op.path == tree.HORIZON:
                self._raised(codec.decode_csn(op.data))

    def _roster_changed(self) -> None:
        """No change lowers `copies` unless that is asked for, and nobody asks for it (I4)."""
        before, self._copies = self._copies, self.roster.copies
        if self._copies < before:
            self.violated("I4 DURABLE", f"copies went from {before} to {self._copies}")

    def _raised(self, horizon: Csn) -> None:
        """The horizon never passes a pin, nor what an open transaction reads (I12).

        A transaction of one request reads what is applied when it arrives, which may be above the snapshot
        CSN of its reserved tid. A replica that was struck is fenced, so its transactions are over, whether it
        knows that or not.
        """
        self._world.trace.note("horizon", horizon)
        for name in children(self._znodes.get(tree.PINS)):
            csn = codec.decode_pin(self._znodes.get(tree.pin(name)).data).csn  # type: ignore[union-attr]
            if csn < horizon:
                self.violated("I12 GC-SAFE", f"the horizon is raised to {horizon}, above pin {name} at {csn}")
        for host in self._world.hosts:
            if state_of(self._znodes, host.replica) in {STRUCK, CLONING}:
                continue
            live = host.agent.parts.transactions.registry.live() if host.agent and host.serving else ()
            oldest = min((tx.reads_from for tx in live), default=horizon)
            if oldest < horizon:
                what = (
                    f"the horizon is raised to {horizon}, and {host.name} has an open transaction at {oldest}"
                )
                self.violated("I12 GC-SAFE", what)

    def _session(self, replica: str, session: SessionState) -> None:
        """A replica has begun a boot, was fenced, struck, or removed for good (I1)."""
        struck = replica in self._struck
        (self._struck.add if session.state == STRUCK else self._struck.discard)(replica)
        if session.state == REMOVED:
            self.did["removed"] += 1
            self._gone.add(replica)
            self._world.removed(replica)
            self._left(replica, struck=struck)
            return
        if replica in self._gone:
            self.violated("I1 UNIQUE", f"{replica} was removed, and boot {session.boot} has begun")
        life = LIFE.get(None)
        host = life.host if life is not None and life.host.replica == replica else None
        if (
            host is not None
            and host is not self._world.host_of(replica)
            and session.disk != self._current.get(replica)
        ):
            self.did["taken"] += 1
            self._world.taken(host)
        if session.disk:  # else it was fenced before its first start
            self._registered(replica, session.disk)

    def is_left_out(self, replica: str) -> bool:
        """Tell whether a replica is removed or struck: its open transactions are over and hold no history."""
        return state_of(self._znodes, ReplicaId(replica)) in LEFT_OUT

    def is_foreign(self, tid: Tid) -> bool:
        """Tell whether a rebuild has found nothing of a boot, in no catalog: then nobody knows its tids."""
        znode = self._znodes.get(tree.session(tid.home))
        boot = 0 if znode is None else codec.decode_session(znode.data).boot
        return self.logs.now is LogLife.REMADE and tid.boot > boot

    def _left(self, replica: str, *, struck: bool) -> None:
        """A removal leaves `copies` replicas, or all there were, and all that is committed on disks (I4)."""
        tail, horizon = (bound(self._znodes, path) for path in (tree.TAIL, tree.HORIZON))
        staying = [host for host in self._world.hosts if state_of(self._znodes, host.replica) not in LEFT_OUT]
        if not struck and len(staying) < self.roster.copies:
            self.violated("I4 DURABLE", f"the removal of {replica} leaves {len(staying)} replicas")
        if lost := self._only_elsewhere(staying, tail, horizon):
            self.violated("I4 DURABLE", f"after the removal of {replica} no member has all of {lost}")

    @property
    def roster(self) -> Roster:
        """The roster in ZooKeeper: until the members change, what the cluster was made with."""
        znode, cluster = self._znodes.get(tree.REPLICAS), self._znodes.get(tree.CLUSTER)
        if znode is not None and znode.data:
            return codec.decode_roster(znode.data)
        made_with = self._world.plan if cluster is None else codec.decode_cluster(cluster.data)
        return Roster(made_with.copies)  # a rebuild out of fewer catalogs begins with fewer copies

    def _registered(self, replica: str, disk: str) -> None:
        now = self._world.loop.time()
        known = self._disks.setdefault(replica, {})
        if (before := self._current.get(replica)) is not None:
            known[before] = now
        if not self._on_disk.is_known(disk):
            own = next(host.disk.folder.name for host in self._world.hosts if host.replica == replica)
            self._on_disk.cloned(before, disk, own)
            self.did["clone"] += 1
        self._on_disk.in_use(disk)
        self._current[replica] = disk
        known[disk] = now

    def _recorded(self, csn: Csn, record: Record) -> None:
        if self.records and csn <= max(self.records):
            self.violated("I2 MONOTONE", f"CSN {csn} came to be after {max(self.records)}")
        self.records[csn] = record
        if back := self.logs.lost & {tid.tid for tid in record.tids}:
            self.violated("I8 DECIDED", f"{sorted(back)} were left out by a rebuild, and are at CSN {csn}")
        self._world.trace.note("record", csn, record.kind.name, *(tid.tid for tid in record.tids))
        for tid in record.tids:
            self._note_entries(csn, tid)
            parts = self._parts(tid)
            if not parts:
                continue
            if len(set(tid.holders)) < self.roster.copies:
                self.violated("I4 DURABLE", f"{tid.tid} went into the log with holders {tid.holders}")
            for holder in tid.holders:
                if not any(self._on_disk.holds(disk, parts) for disk in self._lately(holder)):
                    self.violated("I4 DURABLE", f"{tid.tid} went into the log, and {holder} lacks its parts")

    def _note_entries(self, csn: Csn, tid: TidRecord) -> None:
        """Note what a transaction adds and removes."""
        for entry in self.entries(tid):
            if isinstance(entry, AddPart):
                self._added[entry.part] = csn
                if entry.table in self._dropped:
                    self.violated(
                        "I7 NOCONFLICT", f"{tid.tid} adds {entry.part} to the dropped {entry.table}"
                    )
                self._in_table.setdefault(entry.table, set()).add(entry.part)
            elif isinstance(entry, RemovePart):
                if entry.part in self._removed:
                    before = self._removed[entry.part]
                    what = f"{tid.tid} removes {entry.part} at CSN {csn}, removed at {before}"
                    self.violated("I7 NOCONFLICT", what)
                self._removed.setdefault(entry.part, csn)
                self._in_table.get(entry.table, set()).discard(entry.part)
            elif isinstance(entry, DefineTable) and not entry.drops:
                self._dropped.discard(entry.table)
            elif isinstance(entry, DefineTable):
                self._dropped.add(entry.table)
                self._removed |= dict.fromkeys(self._in_table.pop(entry.table, ()), csn)

    # -- a ZooKeeper that is set back, and made again --------------------------------------------------------

    def set_back(self, last: Csn) -> None:
        """ZooKeeper is what it was when the log ended there."""
        self._world.trace.note("set back", last)
        self.logs.set_back(last)
        self._world.acknowledged = min(self._world.acknowledged, last)
        self._another_log()
        self._members()

    def _another_log(self) -> None:
        """Begin with the entries of another log."""
        self._added, self._removed, self._in_table, self._dropped = {}, {}, {}, set()
        for csn, record in self.records.items():
            for tid in record.tids:
                self._note_entries(csn, tid)

    def _members(self) -> None:
        """Take over from ZooKeeper who is a member: changes since then never were."""
        names = children(self._znodes.get(tree.REPLICAS))
        states = {name: state_of(self._znodes, ReplicaId(name)) for name in names}
        self._gone = {name for name, state in states.items() if state == REMOVED}
        self._copies = self.roster.copies
        self._world.members_are(states.keys() - self._gone)

    def follows(self, name: str, csn: Csn) -> LogLife:
        """Return the log from which a machine has what it shows at a CSN."""
        if self.logs.now is not LogLife.OLDER:
            return self.logs.now
        if csn <= self.logs.older:
            return LogLife.FIRST
        [host] = [host for host in self._world.machines if host.name == name]
        return self._log_of(host)

    def _log_of(self, host: Host) -> LogLife:
        """Return the log that a catalog has followed behind the CSNs that both have (I10)."""
        if not self._has_catalog(host):
            return LogLife.OLDER
        db = self._on_disk.catalog(host.disk.folder.name)
        found = self.logs.of_catalog(db, snapshot_of(db))
        if len(found) > 1:
            what = f"{host.name} shows commits of two histories behind CSN {self.logs.older}"
            self.violated("I10 AGREE", what)
        return min(found, default=LogLife.OLDER)

    def nobody_serves_another_log(self, noticed_s: float) -> None:
        """A replica has stopped that has applied what the older state does not know (I15).

        It has had so many seconds to notice it, in which it was neither cut off nor frozen.
        """
        for host in self._world.hosts:
            awake = self._world.loop.time() - host.thawed_s > noticed_s
            if host.serving and awake and not host.cut_off and self._log_of(host) is LogLife.FIRST:
                what = f"{host.name} still serves, and ZooKeeper was set back behind what it has applied"
                self.violated("I15 FAILSTOP", what)

    @contextmanager
    def rebuilding(self, given: Sequence[Host]) -> Iterator[None]:
        """Make the tree again out of the catalogs of these: the log begins with what the newest one has."""
        reached = {host: snapshot_of(self._on_disk.catalog(host.disk.folder.name)) for host in given}
        newest = max(given, key=lambda host: reached[host])
        base, base_of = reached[newest], self._log_of(newest)
        self._rebuilding = True
        yield
        self._rebuilding = False
        self.logs.remade(base_of, base)
        self.did["lost by a rebuild"] += len(self.logs.lost)
        self._world.trace.note("rebuilt", base, *(host.name for host in given))
        self._world.acknowledged = min(self._world.acknowledged, base)
        closing = self._world.zookeeper.tree.get(tree.record(Csn(base + 1)))
        if closing is None:
            self.violated("I4 DURABLE", f"the log that was made again does not go on behind CSN {base}")
        else:
            self.records[Csn(base + 1)] = codec.decode_record(closing.data)
        self._another_log()
        self._looked.clear()
        states = {host.replica: state_of(self._znodes, host.replica) for host in self._world.hosts}
        self._struck = {replica for replica, state in states.items() if state == STRUCK}
        self._members()

    def proposed(self, life: AgentLife, proposal: Proposal) -> None:
        """A home hands a transaction to the log: as far as it can know, it has its copies (I4).

        Peers may have given them back where the home was fenced and does not know yet: it is refused. It is
        also refused if its copies were counted at another version of the roster than that of now.
        """
        parts, roster = self._parts(proposal.record), self._world.zookeeper.tree.get(tree.REPLICAS)
        if roster is None or roster.version != proposal.roster:
            return
        if not parts or proposal.tid in self._proposed or life.agent is None or self._fenced(life.agent):
            return
        self._proposed.add(proposal.tid)
        for holder in proposal.record.holders:
            disk = life.agent.parts.replication.members.disk_of(holder)
            if disk is None or not self._on_disk.holds(disk, parts):
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
        """Return the entries of a manifest: its home has it for certain."""
        found = self._on_disk.entries([disk for disks in self._disks.values() for disk in disks], manifest)
        if found is None:
            self.violated("I4 DURABLE", f"manifest {manifest} went into the log and lies on no disk")
        return found or ()

    def close(self) -> None:
        """Give the catalogs back."""
        self._on_disk.close()

    # -- disks -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the disks again and again."""
        while True:
            await asyncio.sleep(LOOK_S)
            for host in self._world.hosts:
                # A replica that follows another log than ZooKeeper has will stop.
                if self._has_catalog(host) and (
                    self.logs.now is not LogLife.OLDER or self._log_of(host) is LogLife.OLDER
                ):
                    self._look(host.name, host.disk)

    def _look(self, name: str, disk: SimDisk) -> None:
        """Check that a catalog has all its files on the disk, and never claims less than before (I9)."""
        db = self._on_disk.catalog(disk.folder.name)
        row = snapshot_of(db)
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
        horizon = meta_of(db, "horizon")
        for part, csn in self._added.items():
            gone = part not in there and not self._removed.get(part, horizon + 1) <= horizon
            if csn <= row and gone:
                what = f"{name} has deleted {part}, removed at CSN {self._removed.get(part)}"
                self.violated("I12 GC-SAFE", what)

    def _may_be_gone(self, db: sqlite3.Connection, part: str, csn: Csn) -> bool:
        """Whether a catalog need not hold a part any more; ``csn`` made it."""
        if part in self._added:
            return part in self._removed and self._removed[part] <= meta_of(db, "horizon")
        return csn < meta_of(db, "tail")  # a manifest

    def look_away(self, disk: SimDisk) -> None:
        """The process of a disk has ended, maybe with its machine, which may change the catalog's file."""
        self._on_disk.replaced(disk.folder.name)

    def look_again(self, name: str, disk: SimDisk) -> None:
        """It is over: all files that the catalog claims are to be checked again."""
        self._looked = {key: csn for key, csn in self._looked.items() if key[0] != disk.folder.name}
        if (found := self._published.passed_by(disk)) is not None:
            self.violated("I12 GC-SAFE", f"{name} {found}")

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
        if wait is WaitFor.HOME or self.logs.now is not LogLife.FIRST:
            return
        if any(self.did[kind] for kind in _LOSES_COPIES):
            return
        folders = [host.disk.folder.name for host in self._world.hosts]
        made = [name for name in folders if (self._world.folder / name / "data" / "catalog.db").exists()]
        there = sum(snapshot_of(self._on_disk.catalog(name)) >= csn for name in made)
        if there < self._world.plan.copies:
            self.violated("I17 TRUTHFUL", f"CSN {csn} is told to be on {wait.value}, and is on {there}")

    def tables_made(self) -> Csn:
        """Return the CSN from which on all tables exist that live for the whole run."""
        lasting = names()
        sql = f"SELECT max(from_csn) FROM tables WHERE id IN ({', '.join('?' * len(lasting))})"
        found = [
            self._on_disk.catalog(host.disk.folder.name).execute(sql, lasting).fetchone()[0]
            for host in self._world.hosts
            if self._has_catalog(host)
        ]
        return max(Csn(csn or CSN_NONE) for csn in found)

    def removed_parts(self, disk: SimDisk, horizon: Csn) -> list[str]:
        """Return the parts on a disk that the horizon has passed since their removal, by the log."""
        there = self._on_disk.catalog(disk.folder.name).execute("SELECT part FROM parts")
        return [part for (part,) in there if self._removed.get(part, horizon + 1) <= horizon]

    def past(self, disk: SimDisk, history_s: float) -> Csn:
        """Return the newest CSN that is older than that by the retention clock of a disk's replica (I12)."""
        db = self._on_disk.catalog(disk.folder.name)
        until = meta_of(db, "retention_ms") - int(history_s * 1000)
        return Csn(db.execute("SELECT max(csn) FROM csns WHERE time_ms <= ?", (until,)).fetchone()[0] or 0)

    def times(self, disk: SimDisk, end: Csn) -> dict[Csn, int]:
        """Return the effective times that a disk keeps of the CSNs up to one, in their order."""
        sql = "SELECT csn, time_ms FROM csns WHERE csn <= ? ORDER BY csn"
        rows = self._on_disk.catalog(disk.folder.name).execute(sql, (end,))
        return {Csn(csn): time_ms for csn, time_ms in rows}

    def may_lose(self, host: Host, *, struck: bool) -> bool:
        """Tell whether what a disk holds lies on other disks in use, as far as anybody may need it.

        That is every part above the horizon, and a catalog from which another replica can go on. So many
        replicas stay as a commit needs copies, if it is struck.
        """
        tail, horizon = (bound(self._znodes, path) for path in (tree.TAIL, tree.HORIZON))
        others = [
            other
            for other in self._world.hosts
            if other is not host and not other.doomed and self._has_catalog(other)
        ]
        serving = [other for other in others if state_of(self._znodes, other.replica) == SERVING]
        whole = [
            other
            for other in serving
            if snapshot_of(self._on_disk.catalog(other.disk.folder.name)) >= max(tail, horizon)
        ]
        if not whole or (struck and len(serving) < self._world.plan.copies):
            return False
        if not struck and self._has_catalog(host) and self._landed_nowhere_else(host, others):
            return False  # a clone keeps what has landed on its disk
        return not self._only_elsewhere(others, tail, horizon)

    def _landed_nowhere_else(self, host: Host, others: Sequence[Host]) -> list[str]:
        """Return the landings that only the disk of a host still has, and that no record has brought."""
        logged = {tid.tid for record in self.records.values() for tid in record.tids}
        logged |= {landed_tid(tid.label) or "" for record in self.records.values() for tid in record.tids}
        there = [self._on_disk.landed(other.disk.folder.name) for other in others]
        return [
            tid
            for tid, parts in self._on_disk.landed(host.disk.folder.name).items()
            if tid not in logged and not any(parts <= found.get(tid, set()) for found in there)
        ]

    def _only_elsewhere(self, hosts: Sequence[Host], tail: Csn, horizon: Csn) -> list[str]:
        """Return the transactions of which no disk of these hosts has all that may still be needed."""
        # A folder keeps the name of its first disk, which a clone may have replaced since: folders are asked.
        folders = [host.disk.folder.name for host in hosts if self._has_catalog(host)]
        return [
            tid.tid
            for csn, record in self.records.items()
            for tid in record.tids
            if (needed := self._needed(csn, tid, tail, horizon))
            and not any(self._on_disk.lie_in(folder, needed) for folder in folders)
        ]

    def _needed(self, csn: Csn, tid: TidRecord, tail: Csn, horizon: Csn) -> list[str]:
        """The parts of a transaction that tail and horizon have not passed."""
        if tid.manifest is not None and csn < tail:
            parts: list[str] = [entry.part for entry in self.entries(tid) if isinstance(entry, AddPart)]
        else:
            parts = self._parts(tid)
        return [part for part in parts if not self._removed.get(part, horizon + 1) <= horizon]

    def _has_catalog(self, host: Host) -> bool:
        return (host.disk.data / "catalog.db").exists()
