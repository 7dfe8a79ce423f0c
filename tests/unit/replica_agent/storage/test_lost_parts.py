"""Parts that an operator has declared lost, in the catalog: no record waits for them, no CSN has them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tidelock.csnlog.core.ids import NO_STAMP, Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import (
    AddPart,
    DefineTable,
    Entry,
    RecordKind,
    RemovePart,
    SkipPart,
    TidRecord,
)
from tidelock.errors import CorruptError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replication.core.model import Location, PartMeta, ResolvedRecord, Wanted
from tidelock.replication.partfs import PartFs

TABLE = TableId("default.t")
TID, OTHER, OPERATOR = (Tid(Csn(1), ReplicaId("r1"), 1, number) for number in (1, 2, 3))
LOST, KEPT = PartId("r1-1-1"), PartId("r1-1-2")
SKIP = SkipPart(TABLE, LOST, 5, Csn(3), str(TID), "ann", "burnt", 7000, (ReplicaId("r3"),))


def opened(folder: Path) -> Catalog:
    """Open the catalog of a folder."""
    return Catalog(folder, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog with a table, and with the part that is not lost."""
    made = opened(tmp_path)
    await made.write(lambda db: jobs.add_staged(db, [staged(KEPT)], []))
    definition = DefineTable(TABLE, 0, {"name": TABLE})
    forms: dict[tuple[str, int], jobs.TableForms] = {
        (TABLE, 0): jobs.TableForms(definition.definition, b"", b"")
    }
    table = jobs.AppliedRecord(Csn(2), 2000, [jobs.AppliedTid("0-r1-1-9", [definition], None, True)], forms)
    await made.write(lambda db: jobs.apply(db, [table]))
    yield made
    await made.close()


def meta(part: PartId) -> PartMeta:
    """Return what the log says of a part."""
    return PartMeta(part, TABLE, "", 5, 10, f"{part:0>32}")


def staged(part: PartId) -> jobs.StagedPart:
    """Return a part with its bytes."""
    return jobs.StagedPart(meta(part), Location(f"packs/00/{part}.pack", 0, 10, b"\0" * 8), TID)


def added(part: PartId) -> AddPart:
    """Return the entry that adds a part."""
    return AddPart(TABLE, part, "", 5, 10, f"{part:0>32}")


def record(csn: int, tid: Tid, *entries: Entry) -> jobs.AppliedRecord:
    """Return a record with one transaction."""
    return jobs.AppliedRecord(Csn(csn), csn * 1000, [jobs.AppliedTid(str(tid), entries, None, True)], {})


ADDS = record(3, TID, added(LOST), added(KEPT))
REMOVES = record(4, OTHER, RemovePart(TABLE, LOST))
SKIPS = record(5, OPERATOR, SKIP)


async def test_a_lost_part_stops_the_catalog_until_an_operator_speaks(catalog: Catalog) -> None:
    """Without the word the record cannot be applied; with it the rest of the record is there."""
    with pytest.raises(CorruptError, match=LOST):
        await catalog.write(lambda db: jobs.apply(db, [ADDS]))
    await catalog.write(lambda db: jobs.skip(db, SKIP))
    await catalog.write(lambda db: jobs.apply(db, [ADDS]))
    assert [row.part for row in catalog.reader.parts(TABLE, Csn(3))] == [KEPT]
    assert catalog.reader.is_skipped(LOST)
    [told] = catalog.reader.skipped(str(TID))
    assert (told.part, told.csn, told.by, told.why, told.without) == (LOST, 3, "ann", "burnt", ("r3",))
    assert catalog.reader.skipped(str(OTHER)) == []


async def test_a_lost_part_is_a_loss_of_all_whose_rows_were_in_it(catalog: Catalog) -> None:
    """A transaction that was carried has no parts of its own; what its carrier has lost, it has lost."""
    rider = jobs.AppliedTid(str(OTHER), (), None, True, carrier=str(TID))
    carried = jobs.AppliedRecord(Csn(3), 3000, [*ADDS.tids, rider], {})
    await catalog.write(lambda db: jobs.skip(db, SKIP))
    await catalog.write(lambda db: jobs.apply(db, [carried]))
    for tid in (TID, OTHER):
        assert [told.part for told in catalog.reader.skipped(str(tid))] == [LOST]
        assert [row.part for row in catalog.reader.parts_of(str(tid))] == [KEPT]
    assert catalog.reader.skipped(str(OPERATOR)) == []
    assert catalog.reader.parts_of(str(OPERATOR)) == []


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("known_after", range(4))
async def test_whenever_the_word_comes_the_end_is_the_same(
    catalog: Catalog, known_after: int, held: bool
) -> None:
    """Before the part, after it, after its removal, or by the record alone: the same parts at every CSN."""
    if held or known_after:  # else the records could not be applied before the word is known
        await catalog.write(lambda db: jobs.add_staged(db, [staged(LOST)], []))
    for number, one in enumerate((ADDS, REMOVES, SKIPS)):
        if number == known_after:
            await catalog.write(lambda db: jobs.skip(db, SKIP))
        await catalog.write(lambda db, one=one: jobs.apply(db, [one]))  # type: ignore[misc]
    for csn in (3, 4, 5):
        assert [row.part for row in catalog.reader.parts(TABLE, Csn(csn))] == [KEPT]
    assert catalog.reader.part(LOST) is None
    assert len(catalog.reader.skipped()) == 1
    named, undo = catalog.reader.files()
    assert f"packs/00/{LOST}.pack" not in named
    assert (f"packs/00/{LOST}.pack" in undo) == (held or known_after > 0)


async def test_a_removal_after_the_word_passes(catalog: Catalog) -> None:
    """A home that has not heard of the word may still remove the part: its record stops nobody."""
    for one in (SKIPS, ADDS, record(6, OTHER, RemovePart(TABLE, LOST), RemovePart(TABLE, KEPT))):
        await catalog.write(lambda db, one=one: jobs.apply(db, [one]))  # type: ignore[misc]
    assert catalog.reader.parts(TABLE, Csn(6)) == []


async def test_a_removal_of_what_a_lost_manifest_listed_passes(catalog: Catalog) -> None:
    """Its replica had applied the manifest, and has removed and merged such parts before it was lost."""
    word = msgspec.structs.replace(SKIP, table=TableId(""), part=PartId("r1-1-9"), rows=0)
    await catalog.write(lambda db: jobs.skip(db, word))
    merge = record(5, OTHER, RemovePart(TABLE, PartId("r1-1-8")), added(KEPT))
    removal = record(6, OPERATOR, RemovePart(TABLE, KEPT))
    await catalog.write(lambda db: jobs.apply(db, [merge, removal]))
    assert catalog.reader.meta("snapshot_csn") == 6
    again = record(7, Tid(Csn(1), ReplicaId("r1"), 1, 4), RemovePart(TABLE, KEPT))
    with pytest.raises(CorruptError, match="not there to be removed"):  # of a part that is known
        await catalog.write(lambda db: jobs.apply(db, [again]))


async def test_a_wanted_part_is_not_wanted_any_more(catalog: Catalog) -> None:
    """A restart does not begin to fetch it again."""
    await catalog.write(lambda db: jobs.want(db, [Wanted(meta(LOST), TID, Csn(3), ())]))
    row = catalog.reader.part(LOST)
    assert row is not None
    assert row.state == "wanted"
    await catalog.write(lambda db: jobs.skip(db, SKIP))
    assert catalog.reader.part(LOST) is None


async def test_the_word_is_kept_once_and_forever(tmp_path: Path, catalog: Catalog) -> None:
    """It may be learned twice, in any order, and outlives the part and the agent."""
    for _ in itertools.repeat(None, 2):
        await catalog.write(lambda db: jobs.skip(db, SKIP))
    await catalog.close()
    again = opened(tmp_path)
    assert [one.part for one in again.reader.skipped()] == [LOST]
    await again.close()


MANIFEST = PartId("r1-1-3")
MANIFEST_SKIP = SkipPart(TableId(""), MANIFEST, 0, Csn(3), str(TID), "ann", "burnt", 7000)


async def test_a_word_after_the_changes_of_a_manifest_has_the_catalog_replaced(catalog: Catalog) -> None:
    """They are visible here and nowhere else; a word before them finds nothing to undo."""
    await catalog.write(lambda db: jobs.add_staged(db, [staged(KEPT)], []))
    await catalog.write(lambda db: jobs.apply(db, [record(3, TID, added(KEPT))]))
    await catalog.write(lambda db: jobs.skip(db, MANIFEST_SKIP))
    assert "r1-1-3 was declared lost after CSN 3" in catalog.reader.meta("clone")


async def test_a_word_that_is_applied_with_the_changes_has_the_catalog_replaced(catalog: Catalog) -> None:
    """One batch may hold both: the manifest was read before the word was known."""
    batch = [record(3, TID, added(KEPT)), record(5, OPERATOR, MANIFEST_SKIP)]
    await catalog.write(lambda db: jobs.apply(db, batch))
    assert "r1-1-3 was declared lost after CSN 3" in catalog.reader.meta("clone")


async def test_a_word_that_came_first_leaves_the_catalog_as_it_is(catalog: Catalog) -> None:
    """The manifest reads as one without entries; the record of the word says nothing new then."""
    await catalog.write(lambda db: jobs.skip(db, MANIFEST_SKIP))
    for one in (record(3, TID), record(5, OPERATOR, MANIFEST_SKIP)):
        await catalog.write(lambda db, one=one: jobs.apply(db, [one]))  # type: ignore[misc]
    assert not catalog.reader.meta("clone")


async def test_the_file_of_a_part_is_deleted_soon_after_the_record_of_the_word(
    tmp_path: Path, catalog: Catalog
) -> None:
    """Not only at the next start, when the rows of `undo` are read."""
    port = ReplicaCatalogPort(catalog, PartFs(tmp_path), cast("Any", None), Metrics())
    await catalog.write(lambda db: jobs.add_staged(db, [staged(LOST)], []))
    await port.apply([resolved(3, TID, added(LOST), added(KEPT)), resolved(5, OPERATOR, SKIP)])
    assert catalog.late_removals == {f"packs/00/{LOST}.pack"}


def resolved(csn: int, tid: Tid, *entries: Entry) -> ResolvedRecord:
    """Return a record with one transaction, as the log has it."""
    tids = (TidRecord(str(tid), tuple(entries)),)
    return ResolvedRecord(Csn(csn), RecordKind.COMMIT, ReplicaId("r1"), csn * 1000, tids, NO_STAMP, "", None)
