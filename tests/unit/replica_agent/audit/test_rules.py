"""Files, catalog and log of one replica: a sound replica has no finding, each planted fault has its name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.log_records import in_log
from tests.support.replicas.audited import RULE_SETS, TABLE, AuditedReplica, tid
from tidelock.csnlog.core.ids import Csn, PartId, csn
from tidelock.csnlog.core.model import ChangeTable, LogRecord, RecordKind
from tidelock.errors import CorruptError, UnavailableError
from tidelock.replica_agent.audit import rules
from tidelock.replica_agent.audit.checks import CatalogCheck
from tidelock.replica_agent.audit.deep import DeepCheck
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.wire.audit import AuditFinding

#: Parts of the replica: the removed one and its neighbour in a pack, one in a file, one of a manifest.
REMOVED, PACKED, LARGE, LISTED, MANIFEST = "r1-1-30", "r1-1-31", "r1-1-40", "r1-1-50", "r1-1-9"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> AuditedReplica:
    """A sound replica, closed, to be copied."""

    async def make() -> AuditedReplica:
        made = AuditedReplica(tmp_path_factory.mktemp("sound"))
        await made.fill()
        await made.close()
        return made

    return asyncio.run(make())


@pytest.fixture
async def replica(sound: AuditedReplica, tmp_path: Path) -> AsyncIterator[AuditedReplica]:
    """A sound replica."""
    copy = sound.copy(tmp_path)
    yield copy
    await copy.close()


def _sql(*statements: str) -> Callable[[AuditedReplica], None]:
    return lambda replica: replica.sql(*statements)


def _grow(replica: AuditedReplica) -> None:
    with replica.file_of(LARGE).open("ab") as file:
        file.write(b"x")


def _cut_pack(replica: AuditedReplica) -> None:
    """Cut the pack in its last part; the one before it begins at its first byte, and is whole."""
    with contextlib.closing(sqlite3.connect(replica.path / "catalog.db")) as db:
        [offset] = db.execute("SELECT offset FROM parts WHERE part = ?", (PACKED,)).fetchone()
    os.truncate(replica.file_of(PACKED), offset + 1)


def _cut_and_lose(replica: AuditedReplica) -> None:
    _cut_pack(replica)
    replica.sql(f"UPDATE parts SET state = 'quarantined' WHERE part = '{PACKED}'")


#: How a fault is planted, and the findings that it makes: (fault, what it names).
PLANTED: dict[str, tuple[Callable[[AuditedReplica], object], set[tuple[str, str | None]]]] = {
    "a file that nobody knows": (
        lambda replica: (replica.path / "parts/40/stray").write_bytes(b"x"),
        {("surplus_file", "parts/40/stray")},
    ),
    "a file that is gone": (
        lambda replica: replica.file_of(LARGE).unlink(),
        {("missing_file", "parts/40/r1-1-40.parquet")},
    ),
    "a file that has grown": (_grow, {("file_size", "parts/40/r1-1-40.parquet")}),
    "a pack that ends before its last part": (_cut_pack, {("file_size", "packs/01/r1-1-1.pack")}),
    "a pack that is whole but for a lost part": (_cut_and_lose, {("part_not_held", PACKED)}),
    "a file without the row of its part": (
        _sql(f"DELETE FROM parts WHERE part = '{LARGE}'"),
        {("file_without_part", "parts/40/r1-1-40.parquet"), ("record_without_row", LARGE)},
    ),
    "a row whose file has no row": (
        _sql(f"UPDATE parts SET file = 'parts/99/none.parquet' WHERE part = '{LISTED}'"),
        {("part_without_file", LISTED), ("file_without_part", "parts/50/r1-1-50.parquet")},
    ),
    "a row of which no record tells": (
        _sql(
            "INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, creation_csn, "
            f"file, offset, blocks, kind, state) SELECT 'r1-1-77', '{TABLE}', '', 1, length, checksum, "
            f"'3-r1-1-77', 4, file, offset, blocks, kind, state FROM parts WHERE part = '{LARGE}'"
        ),
        {("row_without_record", "r1-1-77")},
    ),
    "a range beyond the end": (
        _sql(f"UPDATE parts SET offset = 200 WHERE part = '{PACKED}'"),
        {("range_beyond_file", PACKED)},
    ),
    "ranges that overlap": (
        _sql(f"UPDATE parts SET offset = 50 WHERE part = '{PACKED}'"),
        {("ranges_overlap", "packs/01/r1-1-1.pack")},
    ),
    "one range with two checksums": (
        _sql(f"UPDATE parts SET offset = 0, length = 100, blocks = zeroblob(8) WHERE part = '{PACKED}'"),
        {("one_range_two_checksums", "packs/01/r1-1-1.pack"), ("row_differs_from_record", PACKED)},
    ),
    "digests of another length": (
        _sql(f"UPDATE parts SET blocks = zeroblob(8) WHERE part = '{LARGE}'"),
        {("digests_of_another_length", LARGE)},
    ),
    "a part that is lost": (
        _sql(f"UPDATE parts SET state = 'quarantined' WHERE part = '{LARGE}'"),
        {("part_not_held", LARGE)},
    ),
    "a removal before the creation": (
        _sql(f"UPDATE parts SET removal_csn = 2 WHERE part = '{REMOVED}'"),
        {("contradictory_csns", REMOVED), ("removal_missing", REMOVED)},
    ),
    "a part of no table": (
        _sql(f"DELETE FROM tables WHERE name = '{TABLE}'"),
        {("part_of_no_table", part) for part in (REMOVED, PACKED, LARGE, LISTED)},
    ),
    "another checksum than the record's": (
        _sql(f"UPDATE parts SET checksum = '{'0' * 32}' WHERE part = '{PACKED}'"),
        {("row_differs_from_record", PACKED)},
    ),
    "bytes that show the columns of another CSN": (
        _sql(f"UPDATE parts SET columns_csn = 3 WHERE part = '{PACKED}'"),
        {("row_differs_from_record", PACKED)},
    ),
    "a commit of which the part was forgotten": (
        _sql(f"UPDATE parts SET creation_csn = NULL WHERE part = '{PACKED}'"),
        {("row_differs_from_record", PACKED)},
    ),
    "a change of rows that was none": (
        _sql(f"UPDATE parts SET creation_change = 1 WHERE part = '{LARGE}'"),
        {("row_differs_from_record", LARGE)},
    ),
    "a removal that is lacking": (
        _sql(f"UPDATE parts SET removal_csn = NULL, removal_tid = NULL WHERE part = '{REMOVED}'"),
        {("removal_missing", REMOVED)},
    ),
    "a removal of which no record tells": (
        _sql(f"UPDATE parts SET removal_csn = 5, removal_tid = '{tid(5)}' WHERE part = '{PACKED}'"),
        {("removal_without_record", PACKED)},
    ),
    "a part of a manifest that is lacking": (
        _sql(f"DELETE FROM parts WHERE part = '{LISTED}'"),
        {("record_without_row", LISTED), ("file_without_part", "parts/50/r1-1-50.parquet")},
    ),
    "a part that an operator has declared lost": (
        _sql(
            f"INSERT INTO skips VALUES ('{LISTED}', '{TABLE}', 1, 5, '{tid(5)}', 'ann', 'burnt', '', 0)",
            f"DELETE FROM parts WHERE part = '{LISTED}'",
        ),
        {("part_declared_lost", LISTED), ("file_without_part", "parts/50/r1-1-50.parquet")},
    ),
    "a record that an operator has had skipped": (
        _sql("INSERT INTO skipped_records VALUES (4, 7, 'ab', 'ann', 'rolled back', 9, '[]', 0)"),
        {("record_skipped", None)},
    ),
    "a manifest that is lost": (
        _sql(f"UPDATE parts SET state = 'quarantined' WHERE part = '{MANIFEST}'"),
        {("part_not_held", MANIFEST), ("manifest_unread", MANIFEST)},
    ),
    "a CSN without its time": (
        _sql("DELETE FROM csns WHERE csn = 4"),
        {("record_without_time", None)},
    ),
    "a time that runs backwards": (
        _sql("UPDATE csns SET time_ms = 2 WHERE csn = 4"),
        {("time_differs", None)},
    ),
    "a time that no healing explains": (
        _sql("UPDATE csns SET time_ms = 3000 WHERE csn = 4"),
        {("time_differs", None)},
    ),
    "a compaction that is none": (
        _sql("UPDATE csns SET data_change = 1 WHERE csn = 4"),
        {("change_differs", None)},
    ),
    "an outcome that is lacking": (
        _sql(f"DELETE FROM outcomes WHERE tid = '{tid(4)}'"),
        {("record_without_outcome", str(tid(4)))},
    ),
    "an outcome at another CSN": (
        _sql(f"UPDATE outcomes SET csn = 4 WHERE tid = '{tid(3)}'"),
        {("outcome_differs", str(tid(3)))},
    ),
    "an outcome under another label": (
        _sql(f"UPDATE outcomes SET label = 'second' WHERE tid = '{tid(3)}'"),
        {("outcome_differs", str(tid(3)))},
    ),
    "an outcome of another batch": (
        _sql(f"UPDATE outcomes SET batch = 2 WHERE tid = '{tid(3)}'"),
        {("outcome_differs", str(tid(3)))},
    ),
    "an outcome with other progress": (
        _sql(f"UPDATE outcomes SET progress = 'offset 7' WHERE tid = '{tid(3)}'"),
        {("outcome_differs", str(tid(3)))},
    ),
    "an outcome of nobody": (
        _sql("INSERT INTO outcomes VALUES ('3-r1-1-77', 4, 4000, NULL, NULL, NULL, NULL)"),
        {("outcome_without_record", "3-r1-1-77")},
    ),
    "an outcome of the future": (
        _sql("INSERT INTO outcomes VALUES ('3-r1-1-77', 9, 4000, NULL, NULL, NULL, NULL)"),
        {("outcome_of_the_future", "3-r1-1-77")},
    ),
}


def _named(found: list[AuditFinding]) -> set[tuple[str, str | None]]:
    return {(one.fault, one.part or one.file or one.tid) for one in found}


async def test_a_sound_replica_has_no_finding(replica: AuditedReplica) -> None:
    """No rule finds a fault in a replica with packs, files, a removal, a compaction and a manifest."""
    assert await replica.audit() == []


@pytest.mark.parametrize("fault", PLANTED)
async def test_a_planted_fault_is_found(replica: AuditedReplica, fault: str) -> None:
    """A planted fault is found by its name, and no other fault is found."""
    plant, expected = PLANTED[fault]
    plant(replica)
    found = await replica.audit()
    assert _named(found) == expected, found
    assert all(one.expected != one.found and one.next_step for one in found)


def test_every_rule_has_its_fault() -> None:
    """Every rule has found a planted fault; names are unique."""
    names = [rule.fault for one in RULE_SETS for rule in one.rules]
    assert len(names) == len(set(names))
    planted = {name for _, expected in PLANTED.values() for name, _ in expected}
    assert set(names) - planted == {"time_without_record", "csn_of_no_record", "drop_missing"}  # below


async def test_what_the_tail_has_passed_is_not_missed(replica: AuditedReplica) -> None:
    """Records below the tail are deleted with their manifests; times of CSNs explain the remaining parts."""
    replica.tail = Csn(5)
    assert await replica.audit() == []
    replica.tail = Csn(6)
    await replica.commit(6, tid(6))
    replica.sql(
        "UPDATE meta SET value = 6 WHERE key = 'tail'", f"DELETE FROM parts WHERE part = '{MANIFEST}'"
    )
    assert _named(await replica.audit()) == {("file_without_part", "packs/08/r1-1-8.pack")}
    replica.sql("DELETE FROM csns WHERE csn = 4")
    assert ("csn_of_no_record", LARGE) in _named(await replica.audit())


async def test_a_time_that_was_made_again_is_right_without_the_record_before_it(
    replica: AuditedReplica,
) -> None:
    """The record of CSN 5 had a wrong clock, and CSN 6 has let the time step back; the log begins with 5."""
    await replica.commit(6, tid(6))
    clocks = {5: (9_000_000, (9_000_000,)), 6: (6000, (6000, 6000))}
    replica.log = [
        in_log(one.csn, msgspec.structs.replace(one.record, time_ms=time_ms, witnesses=witnesses))
        for one in replica.log
        for time_ms, witnesses in [clocks.get(one.csn, (one.record.time_ms, one.record.witnesses))]
    ]
    replica.tail = Csn(5)
    replica.sql("UPDATE meta SET value = 5 WHERE key = 'tail'")
    replica.sql("UPDATE csns SET time_ms = 4000 WHERE csn = 5")
    assert await replica.audit() == []
    replica.sql("UPDATE csns SET time_ms = 7000 WHERE csn = 5")
    assert "time_differs" in {one.fault for one in await replica.audit()}


async def test_what_the_horizon_has_passed_is_not_missed(replica: AuditedReplica) -> None:
    """A removed part may be collected up to the horizon, and no earlier."""
    replica.sql(f"DELETE FROM parts WHERE part = '{REMOVED}'")
    assert _named(await replica.audit()) == {("record_without_row", REMOVED)}
    replica.sql("UPDATE meta SET value = 4 WHERE key = 'horizon'")
    assert await replica.audit() == []


async def _drop(replica: AuditedReplica) -> None:
    definition = {"name": TABLE, "columns": [], "partition_by": [], "sort_by": [], "properties": {}}
    await replica.commit(6, tid(6), [ChangeTable(TABLE, 1, {**definition, "dropped": True})])
    assert await replica.audit() == []


async def test_the_parts_of_a_dropped_table_may_be_collected(replica: AuditedReplica) -> None:
    """No removal names them: they may go when the horizon has passed the drop, and no earlier."""
    await _drop(replica)
    replica.sql(f"DELETE FROM parts WHERE part = '{LARGE}'")
    replica.sql("UPDATE meta SET value = 5 WHERE key = 'horizon'")
    assert ("record_without_row", LARGE) in _named(await replica.audit())
    replica.sql("UPDATE meta SET value = 6 WHERE key = 'horizon'")
    assert ("record_without_row", LARGE) not in _named(await replica.audit())


@pytest.mark.parametrize("removed_at", ["NULL", "7"])
async def test_a_part_that_stays_in_a_dropped_table_is_told(replica: AuditedReplica, removed_at: str) -> None:
    """A drop takes all parts, whatever else the row says; a part that was removed before stays that way."""
    await _drop(replica)
    replica.sql(f"UPDATE parts SET removal_csn = {removed_at} WHERE part = '{LARGE}'")
    assert ("drop_missing", LARGE) in _named(await replica.audit())


async def test_the_tail_moves_while_the_log_is_read(replica: AuditedReplica) -> None:
    """Records that were read before the tail passed them are forgotten, so that no gap is judged."""
    with replica.scratch() as scratch:
        facts = replica.facts(scratch)
        await facts.extend(Csn(2))
        replica.tail = Csn(4)
        await facts.extend(Csn(5))
        assert (facts.log_from, facts.end) == (4, 5)
        assert scratch.count("SELECT count(*) FROM log_csns") == 2


async def test_the_tail_passes_all_that_was_to_be_read(replica: AuditedReplica) -> None:
    """Nothing is lost: newer records are applied here, and the check reads up to those."""
    await replica.commit(6, tid(6))
    replica.tail = Csn(6)
    with replica.scratch() as scratch:
        facts = replica.facts(scratch)
        assert not await facts.extend(Csn(5))
        assert await facts.extend(Csn(6))
        assert (facts.log_from, facts.end) == (6, 6)


async def test_a_log_that_is_cut_faster_than_it_is_read_ends_the_audit(replica: AuditedReplica) -> None:
    """The check gives up and says what helps; it neither goes on forever nor reports lost records."""
    with replica.scratch() as scratch:
        facts = replica.facts(scratch)

        async def cut(after: Csn, limit: int) -> list[LogRecord]:
            replica.tail = Csn(int(replica.tail) + 10)
            return []

        facts._read = cut
        with pytest.raises(UnavailableError, match="log_keep_records"):
            await CatalogCheck(scratch, rules.LOG, facts, findings_max=100).run()


async def test_a_gap_in_the_log_is_told(replica: AuditedReplica) -> None:
    """A missing record above the tail is not the end of the log."""
    replica.log = [one for one in replica.log if one.csn != 3]
    with replica.scratch() as scratch, pytest.raises(CorruptError, match="records are lost"):
        await replica.facts(scratch).extend(Csn(5))


async def test_the_log_goes_on_in_another_epoch(replica: AuditedReplica) -> None:
    """Numbers that an epoch left out are not a gap, and no row may have them."""
    await replica.commit(6, kind=RecordKind.END)
    await replica.commit(csn(1, 0), tid(9))
    assert await replica.audit() == []
    replica.sql("INSERT INTO csns VALUES (7, 7000, 1, 77, 7000)")
    assert {one.fault for one in await replica.audit()} == {"time_without_record"}


async def test_what_is_above_the_snapshot_is_not_judged(replica: AuditedReplica) -> None:
    """Parts of an undecided transaction, and a record that is not applied yet, are not a fault."""
    entries = await replica.store(tid(7), [b"e" * 10])
    await replica.catalog.write(lambda db: jobs.mark_removed(db, str(tid(7)), [PACKED]))
    before = list(replica.log)
    await replica.commit(6, tid(7), entries)
    replica.log = before + replica.log[-1:]
    assert await replica.audit() == []


async def _deep(
    replica: AuditedReplica,
    *,
    stopped: Callable[[], bool] = lambda: False,
    damaged: Callable[[PartId, str], object] = lambda *_: None,
) -> tuple[int, list[AuditFinding], int]:
    read: list[int] = []
    result = await DeepCheck(
        replica.path, bytes_per_s=1 << 40, findings_max=10, stopped=stopped, read=read.append, damaged=damaged
    ).run()
    return result.compared, list(result.findings), sum(read)


async def test_all_bytes_are_read(replica: AuditedReplica) -> None:
    """Parts in packs and files, and manifests, are read once each."""
    parts, found, count = await _deep(replica)
    row = replica.catalog.reader.part(MANIFEST)  # type: ignore[arg-type]
    assert row is not None
    assert (parts, found, count) == (5, [], 100 + 300 + 300_000 + 500 + row.length)


@pytest.mark.parametrize("part", [REMOVED, PACKED, LARGE, LISTED, MANIFEST])
async def test_a_flipped_bit_is_found(replica: AuditedReplica, part: str) -> None:
    """The part is named; its neighbours in the file are sound."""
    row = replica.catalog.reader.part(part)  # type: ignore[arg-type]
    assert row is not None
    with replica.file_of(part).open("r+b") as file:
        file.seek(row.offset + row.length - 1)
        (byte,) = file.read(1)
        file.seek(row.offset + row.length - 1)
        file.write(bytes([byte ^ 1]))
    _, found, _ = await _deep(replica)
    assert _named(found) == {("damaged_part", part)}


async def test_a_damaged_part_is_fetched_before_all_others_are_read(replica: AuditedReplica) -> None:
    """A client that waits no longer, or a disk of hours, leaves no damage as it is."""
    for part in (PACKED, LARGE):
        replica.sql(f"UPDATE parts SET checksum = '{'0' * 32}' WHERE part = '{part}'")
    told: list[str] = []
    parts, found, _ = await _deep(
        replica, damaged=lambda part, what: told.append(f"{part}: {what}"), stopped=lambda: bool(told)
    )
    assert parts < 5
    first = next(one for one in found if one.fault == "damaged_part")
    assert told == [f"{first.part}: {first.found}"]
    assert _named(found) == {("damaged_part", first.part), ("not_all_read", None)}


async def test_a_checksum_that_the_blocks_do_not_show(replica: AuditedReplica) -> None:
    """Both the digests of blocks and the checksum are compared."""
    replica.sql(f"UPDATE parts SET checksum = '{'0' * 32}' WHERE part = '{LARGE}'")
    _, found, _ = await _deep(replica)
    assert _named(found) == {("damaged_part", LARGE)}


async def test_reading_that_was_stopped_says_so(replica: AuditedReplica) -> None:
    """An audit that did not read all bytes proves nothing."""
    parts, found, _ = await _deep(replica, stopped=lambda: True)
    assert (parts, _named(found)) == (0, {("not_all_read", None)})
