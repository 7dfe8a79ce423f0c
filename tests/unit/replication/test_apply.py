"""Applying the log against a catalog in memory: batches, missing parts, failures, back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import cast

import pytest

from tests.support.aio import until
from tests.support.log_records import in_log
from tests.support.machines.names import HOME, part, tid
from tidelock.csnlog import faults
from tidelock.csnlog.core.codec import encode_entries
from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import AddPart, LogRecord, Manifest, Record, RecordKind, TidRecord
from tidelock.errors import CorruptError, DiskFullError, TidelockError, UnavailableError, UpgradeNeededError
from tidelock.replication.apply import Applier
from tidelock.replication.core.model import ResolvedRecord, Wanted
from tidelock.replication.fetch import Fetcher


class CatalogStub:
    """A catalog port in memory. `gate` delays applies; `failures` are raised by the next ones."""

    def __init__(self) -> None:
        self.parts: set[PartId] = set()
        self.wanted: list[Wanted] = []
        self.batches: list[list[Csn]] = []
        self.outcomes: dict[str, Csn] = {}
        self.manifests: dict[PartId, bytes | TidelockError] = {}
        self.failures: list[TidelockError] = []
        self.busy: list[TidelockError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.applying = False

    async def held(self, parts: Collection[PartId]) -> set[PartId]:
        """Return what is held."""
        return self.parts & set(parts)

    async def known_tids(self, tids: Collection[str]) -> set[str]:
        """Return what was applied."""
        return self.outcomes.keys() & set(tids)

    async def want(self, wanted: Sequence[Wanted]) -> None:
        """Note what is missing."""
        if self.failures:
            raise self.failures.pop(0)
        self.wanted += wanted

    async def read(self, part: PartId) -> bytes:
        """Return a manifest, or raise what the test put in its place, once."""
        if self.busy:
            raise self.busy.pop()
        found = self.manifests[part]
        if isinstance(found, TidelockError):
            self.parts.discard(part)
            del self.manifests[part]
            raise found
        return found

    async def apply(self, records: Sequence[ResolvedRecord]) -> None:
        """Apply; what is not held must never come here (I9)."""
        self.applying = True
        await self.gate.wait()
        self.applying = False
        if self.failures:
            raise self.failures.pop(0)
        for record in records:
            for member in record.tids:
                assert {entry.part for entry in member.entries if isinstance(entry, AddPart)} <= self.parts
                assert member.tid not in self.outcomes
                self.outcomes[member.tid] = record.csn
        self.batches.append([record.csn for record in records])


class Parts:
    """A stand-in for the fetcher, which records the wanted parts."""

    def __init__(self, catalog: CatalogStub) -> None:
        self.catalog = catalog
        self.wanted: list[PartId] = []
        self.came: list[PartId] = []

    def want(self, wanted: Wanted) -> None:
        """Want a part whose want is durable already (F13)."""
        assert wanted in self.catalog.wanted
        self.wanted.append(wanted.meta.part)

    def arrived(self, part: PartId) -> None:
        """Note what came."""
        self.came.append(part)

    def trouble(self, part: PartId) -> str | None:
        """Say why a part does not come."""
        return "r2: 404" if part in self.wanted else None


class Here:
    """A replica that applies."""

    def __init__(self, apply_records_max: int = 3) -> None:
        self.catalog = CatalogStub()
        self.parts = Parts(self.catalog)
        self.told: list[Csn] = []
        self.applier = Applier(
            self.catalog,
            cast("Fetcher", self.parts),
            applied=Csn(1),
            time_ms=0,
            apply_records_max=apply_records_max,
            ahead_records=4 * apply_records_max,
            missing_parts_max=5,
            retry_wait_max_s=0.02,
            on_applied=self._applied,
        )
        self.running = asyncio.create_task(self.applier.run())

    def _applied(self, records: Sequence[ResolvedRecord]) -> None:
        assert self.applier.snapshot_csn == records[-1].csn
        self.told += [record.csn for record in records]

    def gets(self, *names: str) -> None:
        """Make parts durable and say so."""
        for name in names:
            self.catalog.parts.add(part(name))
            self.applier.part_held(part(name))

    async def reaches(self, csn: int) -> None:
        """Wait for a snapshot CSN."""
        await until(lambda: self.applier.snapshot_csn == csn or self.running.done())
        assert self.applier.snapshot_csn == csn, self.running

    async def close(self) -> None:
        """Stop."""
        self.running.cancel()
        await asyncio.wait([self.running])


@pytest.fixture
async def here() -> AsyncIterator[Here]:
    """Give a replica at CSN 1."""
    made = Here()
    yield made
    await made.close()


def add(name: str) -> AddPart:
    """Return the entry that adds a part."""
    return AddPart(TableId("db.t"), part(name), "", 1, 10, "0" * 32)


def record(number: int, *tids: TidRecord, kind: RecordKind = RecordKind.COMMIT) -> LogRecord:
    """Return a record."""
    return in_log(Csn(number), Record(kind, HOME, 0, tids))


def adds(name: str, *parts: str) -> TidRecord:
    """Return a transaction that adds parts."""
    return TidRecord(str(tid(name)), tuple(map(add, parts)), None, (HOME,))


async def test_records_are_applied_in_order_and_in_batches(here: Here) -> None:
    """While one batch is being written the next collects, up to the bound, and each is told (F14)."""
    here.catalog.parts = {part(f"p{number}") for number in range(2, 9)}
    here.catalog.gate.clear()
    await here.applier.deliver(record(2, adds("t2", "p2")))
    await until(lambda: here.catalog.applying)
    for number in range(3, 9):
        await here.applier.deliver(record(number, adds(f"t{number}", f"p{number}")))
    here.catalog.gate.set()
    await here.reaches(8)
    assert here.catalog.batches == [[2], [3, 4, 5], [6, 7, 8]]
    assert here.told == [2, 3, 4, 5, 6, 7, 8]
    assert here.parts.wanted == []


async def test_a_transaction_is_taken_until_it_is_applied(here: Here) -> None:
    """From its delivery on, and no longer than until the catalog knows it, which knows its time as well."""
    here.catalog.parts = {part("p2")}
    here.catalog.gate.clear()
    await here.applier.deliver(record(2, adds("t2", "p2")))
    assert here.applier.taken(str(tid("t2"))) == 2
    await until(lambda: here.catalog.applying)
    assert here.applier.taken(str(tid("t2"))) == 2
    here.catalog.gate.set()
    await here.reaches(2)
    assert here.applier.taken(str(tid("t2"))) is None


async def test_a_missing_part_holds_back_all_that_follows(here: Here) -> None:
    """The replica stays at its CSN, says which part of which tid of which CSN is missing, and why."""
    here.catalog.parts = {part("p3")}
    await here.applier.deliver(record(2, adds("t1", "p1"), adds("t2", "p2")))
    await here.applier.deliver(record(3, adds("t3", "p3")))
    await until(lambda: len(here.parts.wanted) == 2)
    here.gets("p1")
    await until(lambda: here.applier.blocked is not None and here.applier.blocked.part == part("p2"))
    blocked = here.applier.blocked
    assert blocked is not None
    assert (blocked.csn, blocked.tid) == (2, str(tid("t2")))
    assert blocked.reason.endswith("committed with copies on r1; r2: 404")
    assert here.catalog.batches == []
    here.gets("p2")
    await here.reaches(3)
    assert here.applier.blocked is None
    assert here.parts.came == [part("p1"), part("p2")]


async def test_a_part_that_comes_during_the_look_up_is_seen(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push that lands between the catalog's answer and the machine's step is not forgotten."""
    look_up = here.catalog.held

    async def landing(parts: Collection[PartId]) -> set[PartId]:
        found = await look_up(parts)
        here.gets("p1")
        return found

    monkeypatch.setattr(here.catalog, "held", landing)
    await here.applier.deliver(record(2, adds("t1", "p1")))
    await here.reaches(2)


@pytest.mark.scenario("S48")
async def test_a_tid_that_was_applied_before_is_ignored(here: Here) -> None:
    """A second record of a transaction changes nothing (I1)."""
    here.catalog.parts = {part("p1"), part("p2")}
    await here.applier.deliver(record(2, adds("t1", "p1")))
    await here.reaches(2)
    await here.applier.deliver(record(3, adds("t1", "p1"), adds("t2", "p2")))
    await here.reaches(3)
    assert here.catalog.outcomes == {str(tid("t1")): 2, str(tid("t2")): 3}


@pytest.mark.parametrize("error", [DiskFullError("no room"), UnavailableError("locked")])
async def test_a_catalog_that_fails_is_tried_again(here: Here, error: TidelockError) -> None:
    """A catalog that cannot be written now stops nothing for good, and the reason is shown meanwhile."""
    here.catalog.failures = [error] * 3
    await here.applier.deliver(record(2, adds("t1", "p1")))
    await until(lambda: here.applier.trouble == error.message)
    await until(lambda: here.parts.wanted == [part("p1")])
    here.catalog.failures = [error] * 3
    here.gets("p1")
    await here.reaches(2)
    assert here.applier.trouble is None
    assert here.told == [2]


async def test_a_part_found_damaged_by_the_apply_is_fetched_again(here: Here) -> None:
    """A part that was quarantined after it had been looked up is wanted again; the record waits for it."""
    here.catalog.parts = {part("p1")}
    here.catalog.failures = [CorruptError("not held", part=part("p1"), csn=2)]
    await here.applier.deliver(record(2, adds("t1", "p1")))
    await until(lambda: here.parts.wanted == [part("p1")])
    assert here.applier.blocked is not None
    here.gets("p1")
    await here.reaches(2)


async def test_a_part_quarantined_by_a_reader_is_fetched_again(here: Here) -> None:
    """A part of a waiting record that a reader found damaged is wanted again at once."""
    here.catalog.parts = {part("p2")}
    await here.applier.deliver(record(2, adds("t1", "p1"), adds("t2", "p2")))
    await until(lambda: here.parts.wanted == [part("p1")])
    here.catalog.parts.clear()
    here.applier.part_lost(part("p2"))
    await until(lambda: here.parts.wanted == [part("p1"), part("p2")])
    here.gets("p1", "p2")
    await here.reaches(2)


@pytest.mark.parametrize(
    "error",
    [CorruptError("row of another world"), CorruptError("not held", part="r7-7-7"), TypeError("a bug")],
)
async def test_what_cannot_be_explained_stops_the_replica(here: Here, error: Exception) -> None:
    """A contradiction that fetching does not mend ends the applier with its error (I15)."""
    here.catalog.failures = [cast("TidelockError", error)]
    await here.applier.deliver(record(2))
    with pytest.raises(type(error)):
        await here.running


async def test_a_gap_in_the_log_stops_the_replica(here: Here) -> None:
    """A record is never skipped, whatever follows it (I15)."""
    await here.applier.deliver(record(3))
    with pytest.raises(CorruptError, match="a record is missing"):
        await here.running


@pytest.mark.scenario("S11")
async def test_a_manifest_is_fetched_read_and_resolved(here: Here) -> None:
    """The entries of a large transaction come from its manifest, which may be late and damaged."""
    manifest = Manifest(part("m1"), 10, "0" * 32, 2)
    await here.applier.deliver(record(2, TidRecord(str(tid("t1")), (), manifest, (HOME,))))
    await until(lambda: here.parts.wanted == [part("m1")])
    assert here.catalog.wanted[0].meta.kind == "manifest"
    here.catalog.manifests = {part("m1"): CorruptError("a bit flipped")}
    here.gets("m1")
    await until(lambda: here.parts.wanted == [part("m1")] * 2)
    here.catalog.manifests = {part("m1"): encode_entries([add("p1"), add("p2")])}
    here.catalog.parts.add(part("p1"))
    here.gets("m1")
    await until(lambda: here.parts.wanted[2:] == [part("p2")])
    here.gets("p2")
    await here.reaches(2)


@pytest.mark.scenario("S50")
async def test_a_manifest_of_a_newer_version_stops_the_replica(here: Here) -> None:
    """A manifest that this version cannot read must not be skipped, nor fetched forever (S50)."""
    here.catalog.parts = {part("m1")}
    here.catalog.manifests = {part("m1"): b'{"v":9,"entries":[]}'}
    await here.applier.deliver(
        record(2, TidRecord(str(tid("t1")), (), Manifest(part("m1"), 10, "0" * 32, 0)))
    )
    with pytest.raises(UpgradeNeededError):
        await here.running


async def test_a_replica_that_is_stuck_reads_no_further(here: Here) -> None:
    """The follower is held up when enough records wait, and goes on when they are applied (I16)."""
    delivered = 0

    async def follow() -> None:
        nonlocal delivered
        await here.applier.deliver(record(2, adds("t1", "p1")))
        for number in range(3, 60):
            await here.applier.deliver(record(number))
            delivered = number

    following = asyncio.create_task(follow())
    await until(lambda: here.parts.wanted == [part("p1")] and delivered >= 13)
    for _ in range(20):
        await asyncio.sleep(0)
    assert delivered == 13  # with the first one four batches of three
    here.gets("p1")
    await here.reaches(59)
    await following


async def test_the_end_of_an_epoch_moves_the_snapshot(here: Here) -> None:
    """END and GENESIS records carry nothing and are applied like others."""
    await here.applier.deliver(record(2, kind=RecordKind.END))
    await here.applier.deliver(record(1 << 31))
    await here.reaches(1 << 31)
    assert here.told == [2, 1 << 31]


async def test_faults_around_the_apply_end_it(here: Here) -> None:
    """An error that is not a catalog error ends the applier before anything is applied."""
    with faults.armed("replication.apply.before", "once"):
        await here.applier.deliver(record(2))
        with pytest.raises(faults.Injected):
            await here.running
    assert here.catalog.batches == []


async def test_a_manifest_that_cannot_be_read_now_is_read_later(here: Here) -> None:
    """Too many open files are no damage: the manifest is neither fetched again nor a reason to stop."""
    entries = [add("p1")]
    data = encode_entries(entries)
    here.catalog.busy = [UnavailableError("too many open files")] * 2
    here.catalog.manifests[part("m1")] = data
    here.catalog.parts |= {part("m1"), part("p1")}
    manifest = Manifest(part("m1"), len(data), "0" * 32, 1)
    await here.applier.deliver(record(2, TidRecord(tid=str(tid("t1")), manifest=manifest, holders=(HOME,))))
    await here.reaches(2)
    assert here.catalog.wanted == []
    await here.close()


async def test_a_replica_that_lacks_much_reads_no_further(here: Here) -> None:
    """Missing parts have a bound of their own: a record can name many."""
    await here.applier.deliver(record(2, adds("t1", *(f"p{number}" for number in range(5)))))
    await until(lambda: len(here.parts.wanted) == 5)
    further = asyncio.create_task(here.applier.deliver(record(3)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not further.done()
    here.gets("p0")
    await further
    await here.close()
