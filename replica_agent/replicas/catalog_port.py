"""The catalog as replication sees it.

Implements the ports of :mod:`tidelock.replication.ports` over SQLite and the part files.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog

from tidelock.csnlog.core.codec import encode_entries
from tidelock.csnlog.core.ids import Csn, PartId, Tid
from tidelock.csnlog.core.model import DefineTable
from tidelock.errors import CorruptError, UnavailableError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage import commit_history
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.pack_writer import StagedBytes, Stager
from tidelock.replica_agent.storage.shared_bytes import Sharer, share
from tidelock.replica_agent.tables.layouts import committed
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replication.core.model import Location, PartMeta, ResolvedRecord, Wanted
from tidelock.replication.partfs import PartFs

_log = structlog.get_logger("catalog")


@dataclass(slots=True, eq=False, repr=False)
class ReplicaCatalogPort:
    """Implements ``CatalogPort`` and ``PartStore``."""

    catalog: Catalog
    files: PartFs
    stager: Stager
    metrics: Metrics

    # -- CatalogPort -----------------------------------------------------------------------------------------

    async def held(self, parts: Collection[PartId]) -> set[PartId]:
        """Return those parts that no record waits for: durable and verified here, or declared lost."""
        reader = self.catalog.reader
        held = reader.held(parts)
        return held | {part for part in parts if part not in held and reader.is_skipped(part)}

    async def known_tids(self, tids: Collection[str]) -> set[str]:
        """Return those tids that an applied record has committed."""
        return self.catalog.reader.committed(tids)

    async def want(self, wanted: Sequence[Wanted]) -> None:
        """Make durable that these parts are missing here."""
        await self.catalog.write(lambda db: jobs.want(db, wanted))

    async def read(self, part: PartId) -> bytes:
        """Return the verified bytes of a held part.

        Quarantines it and raises CorruptError when they are wrong. A manifest that is declared lost reads as
        one without entries.
        """
        if self.catalog.reader.is_skipped(part):
            return encode_entries(())
        row = self.catalog.reader.part(part)
        location = row.held if row is not None else None
        if location is None:
            msg = f"part {part} is not held here"
            raise CorruptError(msg, part=part)
        try:
            return await asyncio.to_thread(self.files.read, location)
        except CorruptError:
            await self.quarantine(part)
            raise

    async def apply(self, records: Sequence[ResolvedRecord]) -> None:
        """Make records visible in one transaction, which is durable with the next one (rule write-behind)."""
        batch = [self._prepare(record) for record in records]
        before_ms = self.catalog.reader.meta("time_ms")
        self.catalog.late_removals.update(await self.catalog.repeatable(lambda db: _apply(db, batch)))
        for record in records:
            if record.time_ms < before_ms:
                _log.error(
                    "log_time_stepped_back", csn=record.csn, before_ms=before_ms, now_ms=record.time_ms
                )
            before_ms = record.time_ms
        self.metrics.records_applied.inc(len(records))
        self.metrics.tids_applied.inc(sum(len(record.tids) for record in records))

    def _prepare(self, record: ResolvedRecord) -> jobs.AppliedRecord:
        tables: dict[tuple[str, int], jobs.TableForms] = {}
        for tid in record.tids:
            for entry in tid.entries:
                if isinstance(entry, DefineTable):
                    definition = committed(entry.definition, Csn(record.csn))
                    schema = TableSchema.from_definition(entry.table, definition)
                    tables[entry.table, entry.version] = jobs.TableForms(
                        definition, schema.arrow_bytes(), schema.common_metadata()
                    )
        tids = [
            jobs.AppliedTid(
                *(
                    tid.tid,
                    tid.entries,
                    tid.label,
                    tid.data_change,
                    tid.batch,
                    tid.carrier,
                    tid.meta,
                    tid.rows,
                    tid.progress,
                )
            )
            for tid in record.tids
        ]
        return jobs.AppliedRecord(
            Csn(record.csn), record.time_ms, tids, tables, record.stamp, record.digest, record.agreed_ms,
            record.skip,
        )  # fmt: skip

    # -- PartStore -------------------------------------------------------------------------------------------

    async def lacking(self, part: PartId) -> bool:
        """Return whether the catalog names a part whose bytes are not here."""
        row = self.catalog.reader.part(part)
        return row is not None and row.state != "held"

    async def store(self, meta: PartMeta, tid: Tid, data: bytes) -> None:
        """Make a small fetched part durable, packed together with others that wait."""
        await self.stager.store([StagedBytes(meta, data, tid)], [])

    async def share(self, wanted: Wanted) -> bool:
        """Make a part durable by the bytes of another one that are here; return whether there are such."""
        if not self.catalog.reader.has_twin(wanted.meta):
            return False
        one = Sharer(wanted.meta, wanted.tid, known=wanted.csn is not None)
        done = await self.catalog.write(lambda db: share(db, [one]))
        self.catalog.late_removals.update(done.unused)
        return wanted.meta.part in done.parts

    async def note_undo(self, path: str) -> None:
        """Make durable that ``path`` is about to be written."""
        await self.catalog.write(lambda db: jobs.note_undo(db, [path]))

    async def forget_undo(self, path: str) -> None:
        """Make durable that ``path`` is deleted, or was never created."""
        await self.catalog.write(lambda db: jobs.forget_undo(db, [path]))

    async def record(self, meta: PartMeta, tid: Tid, location: Location) -> None:
        """Make the row of a fetched part durable."""
        staged = jobs.StagedPart(meta, location, tid)
        unused = await self.catalog.write(lambda db: jobs.add_staged(db, [staged], []))
        self.catalog.late_removals.update(unused)

    # -- damage ----------------------------------------------------------------------------------------------

    async def is_damaged(self, part: PartId) -> bool:
        """Return whether the bytes of a part are wrong here, by reading them all.

        A report alone does not condemn a part: a query may have failed for another reason, and a part that is
        moved while it is read looks like a deleted one.
        """
        row = self.catalog.reader.part(part)
        location = row.held if row is not None else None
        if location is None:
            return True
        try:
            await asyncio.to_thread(self.files.verify, location)
        except CorruptError:
            return True
        except UnavailableError:
            pass  # the next read finds out
        return False

    async def quarantine(self, part: PartId) -> list[PartId]:
        """Mark a part whose bytes are wrong, so that it is not served and is fetched again.

        Return it with all parts that share its bytes; none if that was known.
        """
        changed = await self.catalog.write(lambda db: jobs.quarantine(db, part))
        if changed:
            self.metrics.corrupt_parts.inc()
        return changed


def _apply(db: sqlite3.Connection, records: Sequence[jobs.AppliedRecord]) -> list[str]:
    """Apply records and note what they have changed."""
    unused = jobs.apply(db, records)
    commit_history.note(db, records)
    return unused
