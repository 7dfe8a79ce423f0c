"""The catalog: natural batches in one durable transaction, failures that reach their own caller only."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import AddPart, DefineTable
from tidelock.errors import CorruptError, UnavailableError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog, Job
from tidelock.replication.core.model import Location, PartMeta, bytes_alone

TID = Tid(Csn(1), ReplicaId("r1"), 1, 1)
TABLE = TableId("default.t")


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A new catalog, closed at the end."""
    made = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    yield made
    await made.close()


def staged(number: int, tid: Tid = TID, file: str = "packs/00/r1-1-9.pack") -> jobs.StagedPart:
    """Return a small part in a pack."""
    meta = PartMeta(PartId(f"r1-1-{number}"), TABLE, "", 5, 10, f"{number:032x}")
    return jobs.StagedPart(meta, Location(file, number * 10, 10, b"\0" * 8), tid)


def added(number: int, checksum: str | None = None) -> AddPart:
    """Return the log entry of :func:`staged`."""
    return AddPart(TABLE, PartId(f"r1-1-{number}"), "", 5, 10, checksum or f"{number:032x}")


def record(csn: int, *entries: AddPart | DefineTable, tid: Tid = TID) -> jobs.AppliedRecord:
    """Return a record with one transaction."""
    tables: dict[tuple[str, int], jobs.TableForms] = {
        (entry.table, entry.version): jobs.TableForms(entry.definition, b"schema", b"common")
        for entry in entries
        if isinstance(entry, DefineTable)
    }
    return jobs.AppliedRecord(Csn(csn), csn * 1000, [jobs.AppliedTid(str(tid), entries, "run", True)], tables)


async def test_jobs_that_wait_share_one_transaction(catalog: Catalog) -> None:
    """Jobs queued together are all stored, and each caller gets its own result."""
    results = await asyncio.gather(*(catalog.write(_put(f"k{n}", n)) for n in range(50)))
    assert results == list(range(50))
    assert [catalog.reader.meta(f"k{n}") for n in range(50)] == list(range(50))


def _put(key: str, value: int) -> Job[int]:
    def job(db: sqlite3.Connection) -> int:
        jobs.set_meta(db, **{key: value})
        return value

    return job


async def test_a_failing_job_fails_alone(catalog: Catalog) -> None:
    """The other jobs of the batch are stored although one of them raises."""

    def bad(db: sqlite3.Connection) -> None:
        jobs.set_meta(db, bad=1)
        raise CorruptError("no")

    results = await asyncio.gather(
        catalog.write(_put("a", 1)), catalog.write(bad), catalog.write(_put("b", 2)), return_exceptions=True
    )
    assert results[0] == 1
    assert isinstance(results[1], CorruptError)
    assert results[2] == 2
    assert (catalog.reader.meta("a"), catalog.reader.meta("b"), catalog.reader.meta("bad")) == (1, 2, None)


async def test_a_closed_catalog_refuses(catalog: Catalog) -> None:
    """After close() nothing is written, and the caller gets an error."""
    await catalog.close()
    with pytest.raises(UnavailableError, match="stopping"):
        await catalog.write(_put("a", 1))


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """A file that is no database is reported with its path, and left as it is."""
    (tmp_path / "catalog.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptError, match=r"catalog\.db"):
        Catalog(tmp_path, initial={}, cache_bytes=1 << 20)
    assert (tmp_path / "catalog.db").read_bytes().startswith(b"no database")


async def test_parts_become_visible_with_their_record(catalog: Catalog) -> None:
    """Staged parts are invisible to others.

    Apply shows them from their CSN on, with outcome, label and time.
    """
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1), staged(2)], [TID]))
    assert catalog.reader.parts(TABLE, Csn(9)) == []
    assert [p.part for p in catalog.reader.parts(TABLE, Csn(1), own=str(TID))] == ["r1-1-1", "r1-1-2"]
    assert catalog.reader.prepared() == [str(TID)]
    define = DefineTable(TABLE, 0, {"name": TABLE})
    await catalog.write(lambda db: jobs.apply(db, [record(5, define, added(1), added(2))]))
    reader = catalog.reader
    assert [p.part for p in reader.parts(TABLE, Csn(5))] == ["r1-1-1", "r1-1-2"]
    assert reader.parts(TABLE, Csn(4)) == []
    assert reader.totals(TABLE, Csn(5)) == (2, 10, 20)
    assert (reader.snapshot_csn(), reader.prepared(), reader.outcome(str(TID))) == (5, [], (5, 5000))
    assert (reader.csn_at(5000), reader.csn_at(4999)) == (5, None)
    assert [t.id for t in reader.tables(Csn(5))] == [TABLE]
    assert reader.table(TABLE, Csn(4)) is None


@pytest.mark.parametrize("reason", ["absent", "checksum", "quarantined"])
async def test_nothing_is_applied_whose_bytes_are_not_held(catalog: Catalog, reason: str) -> None:
    """I9: a record whose part is missing, different or damaged here does not move the snapshot CSN."""
    if reason != "absent":
        await catalog.write(lambda db: jobs.add_staged(db, [staged(1)], [TID]))
    if reason == "quarantined":
        assert await catalog.write(lambda db: jobs.quarantine(db, "r1-1-1"))
    entry = added(1, checksum="f" * 32 if reason == "checksum" else None)
    with pytest.raises(CorruptError, match="r1-1-1"):
        await catalog.write(lambda db: jobs.apply(db, [record(5, entry)]))
    assert catalog.reader.snapshot_csn() == 0


@pytest.mark.parametrize("told_by", ["the push", "the record"])
async def test_an_early_copy_learns_what_it_is(catalog: Catalog, told_by: str) -> None:
    """A part known by its bytes alone is in no table, even for its own transaction; then it is described."""
    whole = staged(1)
    alone = msgspec.structs.replace(
        whole, meta=bytes_alone(whole.meta.part, whole.meta.length, whole.meta.checksum)
    )
    await catalog.write(lambda db: jobs.add_staged(db, [alone], []))
    reader = catalog.reader
    assert reader.parts(TABLE, Csn(9), own=str(TID)) == []
    assert reader.nameless([whole.meta.part]) == reader.held([whole.meta.part]) == {whole.meta.part}
    stats = {"id": [1, 2, 0]}
    if told_by == "the push":
        named = msgspec.structs.replace(whole.meta, stats=stats)
        await catalog.write(lambda db: jobs.describe(db, [named]))
        assert [row.meta for row in reader.parts(TABLE, Csn(9), own=str(TID))] == [whole.meta]
        assert reader.statistics(whole.meta.part) == stats
        await catalog.write(lambda db: jobs.describe(db, [alone.meta]))  # it does not forget again
    await catalog.write(lambda db: jobs.apply(db, [record(5, added(1))]))
    assert [row.meta for row in reader.parts(TABLE, Csn(5))] == [whole.meta]


async def test_a_seal_leaves_the_size_of_a_pack_as_it_is(catalog: Catalog) -> None:
    """Files that were fetched share a pack, also with those of other tasks; one was never announced."""
    fetched = [
        msgspec.structs.replace(part, meta=bytes_alone(part.meta.part, part.meta.length, part.meta.checksum))
        for part in (staged(1), staged(2))
    ]
    await catalog.write(lambda db: jobs.add_staged(db, fetched, []))
    own = staged(3, file="parts/03/r1-1-3.parquet")
    await catalog.write(lambda db: jobs.name_staged(db, [staged(1), own]))
    sizes = await catalog.write(lambda db: dict(db.execute("SELECT path, bytes FROM files").fetchall()))
    assert sizes == {"packs/00/r1-1-9.pack": 20, own.location.file: 10}
    assert catalog.reader.nameless([staged(number).meta.part for number in (1, 2, 3)]) == {"r1-1-2"}


async def test_an_aborted_transaction_leaves_no_rows(catalog: Catalog) -> None:
    """Its parts are deleted; its file too, if no other transaction has a part in it, and is noted first."""
    other = Tid(Csn(1), ReplicaId("r1"), 1, 2)
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1), staged(2, other)], [TID, other]))
    assert await catalog.write(lambda db: jobs.drop_undecided(db, [str(TID)])) == []
    assert catalog.reader.parts_of(str(TID)) == []
    unused = await catalog.write(lambda db: jobs.drop_undecided(db, [str(other)]))
    assert unused == ["packs/00/r1-1-9.pack"]
    assert catalog.reader.files() == (set(), unused)
    await catalog.write(lambda db: jobs.forget_undo(db, unused))
    assert catalog.reader.files() == (set(), [])


async def test_a_committed_transaction_is_never_dropped(catalog: Catalog) -> None:
    """A late "forget" for a tid that was committed changes nothing."""
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1)], [TID]))
    await catalog.write(lambda db: jobs.apply(db, [record(5, added(1))]))
    assert await catalog.write(lambda db: jobs.drop_undecided(db, [str(TID)])) == []
    assert len(catalog.reader.parts(TABLE, Csn(5))) == 1


async def test_a_repeated_push_changes_nothing_but_fills_a_gap(catalog: Catalog) -> None:
    """Repeated bytes are ignored for a held part and heal a quarantined one."""
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1)], [TID]))
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1, file="packs/01/r1-1-10.pack")], [TID]))
    part = catalog.reader.part(PartId("r1-1-1"))
    assert part is not None
    assert part.file == "packs/00/r1-1-9.pack"
    await catalog.write(lambda db: jobs.quarantine(db, "r1-1-1"))
    damaged = catalog.reader.part(PartId("r1-1-1"))
    assert damaged is not None
    assert damaged.state == "quarantined"
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1, file="packs/01/r1-1-10.pack")], []))
    healed = catalog.reader.part(PartId("r1-1-1"))
    assert healed is not None
    assert (healed.file, healed.state) == ("packs/01/r1-1-10.pack", "held")


def committed(csn: int) -> jobs.AppliedTid:
    """Return a transaction that has changed nothing."""
    return jobs.AppliedTid(f"1-r1-1-{csn}", [], None, True)


async def test_times_that_wrong_clocks_have_made_heal(catalog: Catalog) -> None:
    """Each commit gets its own time again; one whose clocks were wrong gets the time before it."""
    wrong = 10_000_000
    applied = [
        jobs.AppliedRecord(Csn(csn), time_ms, [committed(csn)], {}, agreed_ms=own)
        for csn, time_ms, own in ((1, 1000, 1000), (2, wrong, wrong), (3, wrong, 3000), (4, wrong, 2500))
    ]
    await catalog.write(lambda db: jobs.apply(db, applied))
    healing = jobs.AppliedRecord(Csn(5), 5000, [], {}, agreed_ms=5000)
    await catalog.write(lambda db: jobs.apply(db, [healing]))
    reader = catalog.reader
    assert [reader.time_of(Csn(csn)) for csn in range(1, 6)] == [1000, 1000, 3000, 3000, 5000]
    assert [reader.outcome(f"1-r1-1-{csn}") for csn in (2, 3)] == [(2, 1000), (3, 3000)]
    assert (reader.csn_at(2999), reader.csn_at(4999), reader.meta("time_ms")) == (2, 4, 5000)


async def test_times_of_a_catalog_of_before_heal_to_the_time_of_the_healing(catalog: Catalog) -> None:
    """It does not know the records' own times; so nothing seems older than it is."""
    applied = [jobs.AppliedRecord(Csn(csn), 10_000_000, [], {}) for csn in (1, 2)]
    await catalog.write(lambda db: jobs.apply(db, applied))
    await catalog.write(lambda db: jobs.apply(db, [jobs.AppliedRecord(Csn(3), 5000, [], {}, agreed_ms=5000)]))
    assert [catalog.reader.time_of(Csn(csn)) for csn in (1, 2, 3)] == [5000, 5000, 5000]


async def test_a_log_that_steps_back_before_its_begin_has_the_time_of_the_step(catalog: Catalog) -> None:
    """If most clocks are slow, no commit gets a time of long ago, by which it would be forgotten."""
    first = jobs.AppliedRecord(Csn(1), 9_000_000, [committed(1)], {}, agreed_ms=9_000_000)
    await catalog.write(lambda db: jobs.apply(db, [first]))
    await catalog.write(lambda db: jobs.apply(db, [jobs.AppliedRecord(Csn(2), 5000, [], {}, agreed_ms=5000)]))
    assert catalog.reader.outcome("1-r1-1-1") == (1, 5000)


async def test_outcomes_are_kept_for_their_time(catalog: Catalog) -> None:
    """Pruned outcomes raise the floor, below which the answer is never "aborted" (too old to tell)."""
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1)], [TID]))
    await catalog.write(lambda db: jobs.apply(db, [record(5, added(1))]))
    assert catalog.reader.committed([str(TID), "1-r9-1-1"]) == {str(TID)}
    assert await catalog.write(lambda db: jobs.prune_outcomes(db, 5000, 5000, 0)) == 0
    assert await catalog.write(lambda db: jobs.prune_outcomes(db, 5001, 5001, 0)) == 5
    assert catalog.reader.outcome(str(TID)) is None
    assert catalog.reader.committed([str(TID)]) == set()
    assert catalog.reader.meta("outcome_floor") == 5


async def test_a_push_behind_its_record_leaves_no_mark(catalog: Catalog) -> None:
    """A transaction that is applied when its push is stored stays decided: nothing would end the mark."""
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1)], []))
    await catalog.write(lambda db: jobs.apply(db, [record(5, added(1))]))
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1)], [TID]))
    assert catalog.reader.prepared() == []


async def test_files_that_no_part_needs_become_undo_rows(catalog: Catalog) -> None:
    """Once the last part of a pack has been repaired into another file, the pack may be deleted."""
    old, new = "packs/00/r1-1-9.pack", "packs/01/r1-1-10.pack"
    await catalog.write(lambda db: jobs.add_staged(db, [staged(1, file=old), staged(2, file=old)], [TID]))
    for number in (1, 2):
        await catalog.write(lambda db, number=number: jobs.quarantine(db, f"r1-1-{number}"))  # type: ignore[misc]
    await catalog.write(jobs.drop_unneeded_files)
    assert catalog.reader.files() == ({old}, [])
    assert await catalog.write(lambda db: jobs.add_staged(db, [staged(1, file=new)], [])) == []
    assert await catalog.write(lambda db: jobs.add_staged(db, [staged(2, file=new)], [])) == [old]
    assert catalog.reader.files() == ({new}, [old])


async def test_a_writer_that_ends_leaves_nobody_waiting(catalog: Catalog) -> None:
    """An error that prevents even the rollback ends the writer: present and later callers get an error."""
    hit = asyncio.create_task(catalog.write(lambda db: db.close()))
    behind = asyncio.create_task(catalog.write(_put("a", 1)))
    for write in (hit, behind, catalog.write(_put("b", 2))):
        with pytest.raises(CorruptError, match="start the agent again"):
            await write


async def test_a_contradiction_is_not_tried_again(catalog: Catalog) -> None:
    """A record that is applied a second time is no failure of the disk, which may be better later."""
    await catalog.write(lambda db: jobs.apply(db, [record(2)]))
    with pytest.raises(CorruptError, match="contradicts"):
        await catalog.write(lambda db: jobs.apply(db, [record(2)]))


async def test_a_damaged_catalog_is_not_tried_again(catalog: Catalog, tmp_path: Path) -> None:
    """Pages that SQLite cannot read stay unreadable: the replica has to stop, not to retry forever."""

    def damage(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET rootpage = 1000000 WHERE name = 'csns'")
        db.execute("PRAGMA writable_schema = RESET")

    await catalog.write(damage)
    with pytest.raises(CorruptError, match="is damaged"):
        await catalog.write(lambda db: jobs.apply(db, [record(2)]))


async def test_a_question_about_a_time_reads_few_rows(catalog: Catalog) -> None:
    """Millions of CSNs may be kept, and the event loop asks: for status, for each table with a retention."""
    sql = """
        WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)
        INSERT INTO csns SELECT i, i / 2 * 2000, 1, NULL, NULL FROM n
    """
    await catalog.write(lambda db: db.execute(sql).rowcount)
    steps: list[int] = []
    catalog.reader._db.set_progress_handler(lambda: steps.append(1), 1000)  # each 1,000 steps of SQLite
    found = [catalog.reader.csn_at(time_ms) for time_ms in (0, 1999, 2000, 25_000_500, 10**12)]
    catalog.reader._db.set_progress_handler(None, 0)
    assert found == [None, None, 3, 25001, 50000]
    assert len(steps) < 20
