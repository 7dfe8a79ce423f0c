"""Parts that share bytes, against a model: bytes exist exactly as long as some part needs them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import AddPart, Entry, RemovePart, SharePart
from tidelock.replica_agent.storage import catalog_garbage as garbage
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_schema import SCHEMA
from tidelock.replica_agent.storage.shared_bytes import Sharer, share
from tidelock.replication.core.model import Location, PartMeta, Wanted

TABLE = TableId("default.t")
LENGTH = 10


def _tid(number: int) -> Tid:
    return Tid(Csn(1), ReplicaId("r1"), 1, number)


def _catalog() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    zeros = ("snapshot_csn", "time_ms", "tail", "horizon", "zxid_max")
    db.executemany("INSERT INTO meta VALUES (?, 0)", [(key,) for key in zeros])
    return db


def _entry(meta: PartMeta) -> AddPart:
    values = (meta.table, meta.part, meta.path, meta.rows, meta.length, meta.checksum)
    return AddPart(*values) if meta.source is None else SharePart(*values, meta.source, meta.columns_csn)


@dataclass(slots=True)
class _Part:
    """A part of the model; ``content`` is the number of its bytes."""

    meta: PartMeta
    tid: int
    content: int
    held: bool = True
    committed: bool = False
    removed: Csn | None = None


class SharedBytes(RuleBasedStateMachine):
    """A catalog, the files of its disk, and what each part of the model needs."""

    def __init__(self) -> None:
        super().__init__()
        self.db = _catalog()
        #: The files, each with the numbers of the contents that were written there, by offset.
        self.disk: dict[str, dict[int, int]] = {}
        self.parts: dict[PartId, _Part] = {}
        self.numbers = 0
        self.csn = Csn(1)
        self.horizon = Csn(0)

    def _next(self) -> int:
        self.numbers += 1
        return self.numbers

    def _file(self, contents: Iterable[int]) -> str:
        path = f"packs/00/r1-1-{self._next()}.pack"
        self.disk[path] = {index * LENGTH: content for index, content in enumerate(contents)}
        return path

    def _delete(self, unused: Iterable[str]) -> None:
        for path in unused:
            del self.disk[path]  # a file that is deleted twice fails here

    def _meta(self, content: int, source: PartId | None = None) -> PartMeta:
        part = PartId(f"r1-1-{self._next()}")
        columns_csn = None if source is None else Csn(self.csn - self.numbers % 3)
        return PartMeta(part, TABLE, "", 1, LENGTH, f"{content:032x}", source=source, columns_csn=columns_csn)

    def _named(self, draw: st.DataObject, *, held: bool | None = None) -> _Part:
        found = [one for one in self.parts.values() if held is None or one.held == held]
        return draw.draw(st.sampled_from(found))

    def _commit(self, entries: Iterable[Entry], tid: int) -> None:
        self.csn = Csn(self.csn + 1)
        applied = [jobs.AppliedTid(str(_tid(tid)), [*entries], None, data_change=True)]
        self._delete(jobs.apply(self.db, [jobs.AppliedRecord(self.csn, self.csn, applied, {})]))

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        """A transaction writes a pack with new parts."""
        tid, metas = self._next(), [self._meta(self._next()) for _ in range(count)]
        file = self._file(int(meta.checksum, 16) for meta in metas)
        staged = [
            jobs.StagedPart(meta, Location(file, index * LENGTH, LENGTH, b""), _tid(tid))
            for index, meta in enumerate(metas)
        ]
        self._delete(jobs.add_staged(self.db, staged, []))
        self.parts |= {meta.part: _Part(meta, tid, int(meta.checksum, 16)) for meta in metas}

    @precondition(lambda self: self.parts)
    @rule(draw=st.data(), count=st.integers(1, 3), wanted=st.booleans())
    def reuse(self, draw: st.DataObject, count: int, wanted: bool) -> None:
        """A transaction adds parts with the bytes of parts in any state, removed and damaged ones too."""
        tid = self._next()
        for _ in range(count):
            source = self._named(draw)
            meta = self._meta(source.content, source.meta.origin)
            if wanted:
                jobs.want(self.db, [Wanted(meta, _tid(tid), Csn(1), ())])
            held = self._a_twin_is_held(meta)
            done = share(self.db, [Sharer(meta, _tid(tid), known=wanted)])
            self._delete(done.unused)
            assert done.parts == ({meta.part} if held else set())
            if held or wanted:
                self.parts[meta.part] = _Part(meta, tid, source.content, held)

    def _a_twin_is_held(self, meta: PartMeta) -> bool:
        return any(
            one.held and one.meta.origin == meta.origin and one.meta.part != meta.part
            for one in self.parts.values()
        )

    @precondition(lambda self: any(not one.committed for one in self.parts.values()))
    @rule(draw=st.data(), commits=st.booleans())
    def end(self, draw: st.DataObject, commits: bool) -> None:
        """A transaction commits, or is rolled back; one that lacks bytes cannot commit yet."""
        tid = draw.draw(st.sampled_from([one.tid for one in self.parts.values() if not one.committed]))
        mine = [one for one in self.parts.values() if one.tid == tid]
        if commits and all(one.held for one in mine):
            self._commit([_entry(one.meta) for one in mine], tid)
            for one in mine:
                one.committed = True
        else:
            self._delete(jobs.drop_undecided(self.db, [str(_tid(tid))]))
            for one in mine:
                del self.parts[one.meta.part]

    @precondition(lambda self: any(one.committed and one.removed is None for one in self.parts.values()))
    @rule(draw=st.data())
    def remove(self, draw: st.DataObject) -> None:
        """A transaction removes a part."""
        present = [one for one in self.parts.values() if one.committed and one.removed is None]
        gone = draw.draw(st.sampled_from(present))
        self._commit([RemovePart(TABLE, gone.meta.part)], self._next())
        gone.removed = self.csn

    @rule(keep=st.integers(0, 3))
    def collect(self, keep: int) -> None:
        """The horizon rises, and all parts below it are collected."""
        self.horizon = max(self.horizon, Csn(self.csn - keep))
        garbage.note_horizon(self.db, self.horizon, Csn(0), {})
        self._delete(garbage.collect_parts(self.db, list(self.parts)))
        self.parts = {
            name: one for name, one in self.parts.items() if one.removed is None or one.removed > self.horizon
        }

    @precondition(lambda self: any(one.held for one in self.parts.values()))
    @rule(draw=st.data())
    def damage(self, draw: st.DataObject) -> None:
        """The bytes of a part rot: all parts at that place are damaged."""
        rotten = self._named(draw, held=True)
        place = self._place(rotten.meta.part)
        sharing = {name for name, one in self.parts.items() if one.held and self._place(name) == place}
        assert set(jobs.quarantine(self.db, rotten.meta.part)) == sharing
        for name in sharing:
            self.parts[name].held = False

    @precondition(lambda self: any(not one.held for one in self.parts.values()))
    @rule(draw=st.data(), fetched=st.booleans())
    def mend(self, draw: st.DataObject, fetched: bool) -> None:
        """A missing part takes bytes that are here, or comes from another replica."""
        missing = self._named(draw, held=False)
        known = Sharer(missing.meta, _tid(missing.tid), known=True)
        twin = self._a_twin_is_held(missing.meta)
        done = share(self.db, [known])
        assert bool(done.parts) == twin
        self._delete(done.unused)
        if not twin and not fetched:
            return
        if not twin:
            location = Location(self._file([missing.content]), 0, LENGTH, b"")
            staged = jobs.StagedPart(missing.meta, location, _tid(missing.tid))
            self._delete(jobs.add_staged(self.db, [staged], []))
        missing.held = True

    def _place(self, part: PartId) -> tuple[str, int]:
        file, offset = self.db.execute("SELECT file, offset FROM parts WHERE part = ?", (part,)).fetchone()
        return file, offset

    @invariant()
    def bytes_exist_exactly_while_a_part_needs_them(self) -> None:
        """A held part finds its own content; a file without any part is deleted; both sides know the same."""
        rows = self.db.execute("SELECT part, file, offset, state, source, columns_csn FROM parts").fetchall()
        assert {part for part, *_ in rows} == set(self.parts)
        for part, file, offset, state, source, columns_csn in rows:
            one = self.parts[part]
            assert (state == "held") == one.held
            assert (source, columns_csn) == (one.meta.source, one.meta.columns_csn)
            if one.held:
                assert self.disk[file][offset] == one.content
        assert {file for _, file, *_ in rows if file is not None} == set(self.disk)


TestSharedBytes = SharedBytes.TestCase
TestSharedBytes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("other", ["length", "checksum"])
def test_bytes_of_another_content_are_never_shared(other: str) -> None:
    """A part whose length or checksum differs from its origin's comes from elsewhere, like every part."""
    db = _catalog()
    first = PartMeta(PartId("r1-1-1"), TABLE, "", 1, LENGTH, "1" * 32)
    location = Location("packs/00/r1-1-9.pack", 0, LENGTH, b"")
    jobs.add_staged(db, [jobs.StagedPart(first, location, _tid(1))], [])
    changed = msgspec.structs.replace(
        first, part=PartId("r1-1-2"), source=first.part, **{other: 11 if other == "length" else "2" * 32}
    )
    assert share(db, [Sharer(changed, _tid(2))]).parts == frozenset()


def test_a_collected_part_does_not_come_back() -> None:
    """A late push of a committed part that was collected makes no row: nothing would delete it."""
    db = _catalog()
    first = PartMeta(PartId("r1-1-1"), TABLE, "", 1, LENGTH, "1" * 32)
    location = Location("packs/00/r1-1-9.pack", 0, LENGTH, b"")
    jobs.add_staged(db, [jobs.StagedPart(first, location, _tid(1))], [])
    late = msgspec.structs.replace(first, part=PartId("r1-1-2"), source=first.part)
    assert share(db, [Sharer(late, _tid(2), known=True)]).parts == frozenset()
    assert db.execute("SELECT count(*) FROM parts").fetchone() == (1,)
