"""A replica for audits, made by hand: files and catalog as an agent leaves them, and the log."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.log_records import in_log
from tidelock.csnlog.core.codec import checksum, encode_entries
from tidelock.csnlog.core.follower import number_after
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import (
    AddPart,
    DefineTable,
    Entry,
    LogRecord,
    Manifest,
    Record,
    RecordKind,
    RemovePart,
    TidRecord,
)
from tidelock.errors import SnapshotTooOldError
from tidelock.replica_agent.audit import rules
from tidelock.replica_agent.audit.checks import CatalogCheck
from tidelock.replica_agent.audit.records import LogFacts
from tidelock.replica_agent.audit.scratch import AuditDatabase
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replication.core.model import PartMeta
from tidelock.replication.partfs import PartFs, WrittenPack
from tidelock.wire.audit import AuditFinding

R1 = ReplicaId("r1")
TABLE = TableId("default.t")
RULE_SETS = (rules.FILES, rules.PARTS, rules.LOG, rules.OUTCOMES)


class AuditedReplica:
    """Replica r1 after five commits: four parts, two of them in a pack, one removed, one of a manifest."""

    def __init__(self, path: Path, log: Sequence[LogRecord] = ()) -> None:
        self.path = path
        for top in ("parts", "packs", "tmp"):
            (path / top).mkdir(exist_ok=True)
        self.files = PartFs(path)
        self.catalog = Catalog(path, initial={"replica": R1, "disk": "d1"}, cache_bytes=1 << 20)
        self.log = list(log)
        self.tail = Csn(0)

    def copy(self, path: Path) -> AuditedReplica:
        """Return a copy in this folder. This replica must be closed."""
        shutil.copytree(self.path, path, dirs_exist_ok=True)
        return AuditedReplica(path, self.log)

    async def fill(self) -> None:
        """Make the commits: CSN 1 is a genesis record, CSN 2 defines the table."""
        await self.commit(1, kind=RecordKind.GENESIS)
        definition = {"name": TABLE, "columns": [], "partition_by": [], "sort_by": [], "properties": {}}
        await self.commit(2, tid(2), [DefineTable(TABLE, 0, definition)])
        small = await self.store(tid(3), [b"a" * 100, b"b" * 300], pack="r1-1-1")
        await self.commit(3, tid(3), small, label="first")
        large = await self.store(tid(4), [b"c" * 300_000])
        await self.commit(4, tid(4), [*large, RemovePart(TABLE, small[0].part)], data_change=False)
        many = await self.store(tid(5), [b"d" * 500])
        await self.commit(5, tid(5), many, manifest=PartId("r1-1-9"))

    async def store(self, by: Tid, contents: Sequence[bytes], pack: str | None = None) -> list[AddPart]:
        """Store parts, all in a pack or each in a file of its own; return their entries."""
        first = 10 * by.counter
        metas = [
            PartMeta(PartId(f"r1-1-{first + n}"), TABLE, "", 1, len(data), checksum(data))
            for n, data in enumerate(contents)
        ]
        file_bytes = None
        if pack is not None:
            places, file_bytes = self._write_pack(pack, contents)
        else:
            places = []
            for meta, data in zip(metas, contents, strict=True):
                (self.path / self.files.part_path(meta.part)).parent.mkdir(exist_ok=True)
                sink = self.files.begin(meta.part)
                sink.write(data)
                places.append(sink.finish())
        staged = [jobs.StagedPart(meta, at, by) for meta, at in zip(metas, places, strict=True)]
        await self.catalog.write(lambda db: jobs.add_staged(db, staged, [by], file_bytes=file_bytes))
        return [AddPart(TABLE, one.part, one.path, one.rows, one.length, one.checksum) for one in metas]

    def _write_pack(self, pack: str, contents: Sequence[bytes]) -> WrittenPack:
        (path,) = self.files.pack_paths([PartId(pack)])
        (self.path / path).parent.mkdir(exist_ok=True)
        self.files.create_packs([path])
        return self.files.write_pack(path, contents, lambda _: b"")

    async def commit(
        self,
        csn: int,
        by: Tid | None = None,
        entries: Sequence[Entry] = (),
        *,
        label: str | None = None,
        data_change: bool = True,
        manifest: PartId | None = None,
        kind: RecordKind = RecordKind.COMMIT,
    ) -> None:
        """Write a record and apply it."""
        records: list[TidRecord] = []
        if by is not None:
            made = None
            if manifest is not None:
                data = encode_entries(entries)
                meta = PartMeta(manifest, TableId(""), "", 0, len(data), checksum(data), kind="manifest")
                (at,), length = self._write_pack("r1-1-8", [data])
                staged = [jobs.StagedPart(meta, at, by)]
                await self.catalog.write(lambda db: jobs.add_staged(db, staged, [], file_bytes=length))
                made = Manifest(manifest, len(data), meta.checksum, len(entries))
            shown = () if made else tuple(entries)
            records = [TidRecord(str(by), shown, made, (R1,), label, data_change)]
        self.log.append(in_log(Csn(csn), Record(kind, R1, csn * 1000, tuple(records))))
        tables: dict[tuple[str, int], jobs.TableForms] = {
            (entry.table, entry.version): jobs.TableForms(entry.definition, b"schema", b"common")
            for entry in entries
            if isinstance(entry, DefineTable)
        }
        tids = [jobs.AppliedTid(str(by), entries, label, data_change)] if by is not None else []
        applied = jobs.AppliedRecord(Csn(csn), csn * 1000, tids, tables)
        await self.catalog.write(lambda db: jobs.apply(db, [applied]))

    def sql(self, *statements: str) -> None:
        """Change the catalog behind the agent's back."""
        with sqlite3.connect(self.path / "catalog.db") as db:
            for statement in statements:
                db.execute(statement)
        db.close()

    def file_of(self, part: str) -> Path:
        """Return the file of a part."""
        row = self.catalog.reader.part(PartId(part))
        assert row is not None
        assert row.file is not None
        return self.path / row.file

    @contextmanager
    def scratch(self) -> Iterator[AuditDatabase]:
        """Return the database of an audit."""
        made = AuditDatabase(self.path, "audit.db")
        try:
            yield made
        finally:
            made.close()

    def facts(self, scratch: AuditDatabase) -> LogFacts:
        """The log as an audit reads it."""
        return LogFacts(scratch, self.files, read=self._read, barrier=self._barrier)

    async def audit(self) -> list[AuditFinding]:
        """Run an audit once, with all rules."""
        with self.scratch() as scratch:
            facts = self.facts(scratch)
            found: list[AuditFinding] = []
            for one in RULE_SETS:
                disk = self.path if one is rules.FILES else None
                result = await CatalogCheck(scratch, one, facts, findings_max=100, disk=disk).run()
                assert result.compared > 0
                found += result.findings
        return found

    async def _read(self, after: Csn, limit: int) -> list[LogRecord]:
        """Return records as `CsnLog.records` does: without a gap, from the tail on."""
        numbers = {one.csn: one for one in self.log}
        known = numbers.get(after)
        number = number_after(after, known.record) if known else Csn(after + 1)
        if after and number < self.tail:
            raise SnapshotTooOldError("deleted", min_csn=self.tail)
        number = max(number, self.tail)
        page: list[LogRecord] = []
        while len(page) < limit and number in numbers:
            page.append(numbers[number])
            number = number_after(number, page[-1].record)
        return page

    async def _barrier(self) -> Csn:
        return self.tail

    async def close(self) -> None:
        """Close all files."""
        await self.catalog.close()


def tid(number: int) -> Tid:
    """Return the transaction of the n-th CSN."""
    return Tid(Csn(number - 1), R1, 1, number)
