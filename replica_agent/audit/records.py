"""Reads the log into the facts of an audit, with the entries of the manifests that are held here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tidelock.csnlog.core.codec import decode_entries
from tidelock.csnlog.core.follower import number_after
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.log_time import clocking
from tidelock.csnlog.core.model import (
    AddPart,
    DefineTable,
    Entry,
    LogRecord,
    Manifest,
    RemovePart,
    TidRecord,
)
from tidelock.errors import CorruptError, SnapshotTooOldError, TidelockError
from tidelock.replica_agent.audit.scratch import AuditDatabase
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import PartFs

#: Records that are read at a time; each can have 384 KiB.
PAGE: Final = 64
_FACTS: Final = ("log_csns", "log_tids", "log_parts", "log_removals", "log_drops", "log_unread")


class LogFacts:
    """The records of the log from ``log_from`` up to ``end``, without a gap, as facts.

    Args:
        scratch: The database of the facts.
        files: The part files, for manifests.
        read: Returns records after a CSN, in order, up to a number; after CSN 0 the kept ones.
            SnapshotTooOldError where the next records are deleted.
        barrier: Makes the next reads at least as new as this moment, and returns ``csn/tail``.
    """

    def __init__(
        self,
        scratch: AuditDatabase,
        files: PartFs,
        *,
        read: Callable[[Csn, int], Awaitable[Sequence[LogRecord]]],
        barrier: Callable[[], Awaitable[Csn]],
    ) -> None:
        self._scratch, self._files, self._read, self._barrier = scratch, files, read, barrier
        self.log_from = self.end = CSN_NONE
        self._next: Csn | None = None

    async def extend(self, to: Csn) -> bool:
        """Continue to read, up to a CSN that is applied here.

        Returns:
            Whether the facts reach up to it. They do not if the tail has passed it: then no record up to it
            is kept, and a newer CSN is applied here.

        Raises:
            CorruptError: A record cannot be read, or is missing although no tail has passed it.
            UnavailableError: ZooKeeper cannot be reached.
        """
        missed_at: Csn | None = None
        while self.end < to:
            page = [one for one in await self._page() if one.csn <= to]
            if page:
                await asyncio.to_thread(self._take, page)
                continue
            tail = await self._barrier()
            if tail > to:
                return False
            if tail == missed_at:
                raise CorruptError(
                    f"the log has no record after CSN {self.end} but is applied here up to {to}, and its "
                    f"tail is {tail}: records are lost",
                    csn=self.end,
                )
            missed_at = tail
        await asyncio.to_thread(self._read_manifests_again)
        return True

    async def _page(self) -> Sequence[LogRecord]:
        """Return the next page of records; if the tail has passed its start, the first kept page."""
        try:
            return await self._read(self.end, PAGE)
        except SnapshotTooOldError:
            return await self._read(CSN_NONE, PAGE)

    def _take(self, page: Sequence[LogRecord]) -> None:
        if page[0].csn != self._next:  # the first records, or the tail has passed the last position
            self._scratch.clear(*_FACTS)
            self.log_from, self.end = page[0].csn, CSN_NONE
        self._scratch.db.execute("BEGIN")
        try:
            for one in page:
                tids = one.record.tids
                change = any(tid.data_change for tid in tids)
                said = clocking(one.record, one.stamp.time_ms)
                row = (one.csn, self.end or None, said.time_ms, said.wrong_above_ms, change)
                self._scratch.add("log_csns", [row])
                for tid in tids:
                    self._take_tid(one.csn, tid)
                self.end = one.csn
        finally:
            self._scratch.db.execute("COMMIT")
        self._next = number_after(page[-1].csn, page[-1].record)

    def _take_tid(self, csn: Csn, tid: TidRecord) -> None:
        known = self._scratch.count("SELECT count(*) FROM log_tids WHERE tid = :tid", {"tid": tid.tid})
        if known:
            return  # a tid counts once, at its first record
        self._scratch.add("log_tids", [(tid.tid, csn, tid.label, tid.batch, tid.progress)])
        self._add_entries(csn, tid.tid, tid.entries, change=tid.data_change)
        if tid.manifest is not None:
            found = tid.manifest
            facts = (found.part, csn, tid.tid, "", "", 0, found.length, found.checksum, True, "manifest")
            self._scratch.add("log_parts", [(*facts, None, None)])
            listed = self._entries(csn, tid, found)
            self._add_entries(csn, tid.tid, listed, change=tid.data_change)

    def _add_entries(self, csn: Csn, tid: str, entries: Sequence[Entry], *, change: bool) -> None:
        added = [entry for entry in entries if isinstance(entry, AddPart)]
        removed = [entry for entry in entries if isinstance(entry, RemovePart)]
        dropped = [entry for entry in entries if isinstance(entry, DefineTable) and entry.drops]
        self._scratch.add(
            "log_parts",
            [
                (
                    *(one.part, csn, tid, one.table, one.path, one.rows, one.length, one.checksum),
                    *(change, "part", *one.shared),
                )
                for one in added
            ],
        )
        self._scratch.add("log_removals", [(one.part, csn, tid, one.table, change) for one in removed])
        self._scratch.add("log_drops", [(one.table, csn, tid) for one in dropped])

    def _entries(self, csn: Csn, tid: TidRecord, manifest: Manifest) -> Sequence[Entry]:
        """Read a manifest here; an unreadable one is noted, and read again at the next run."""
        try:
            return decode_entries(self._bytes(manifest.part))
        except TidelockError as error:
            unread = (tid.tid, csn, manifest.part, error.message, tid.data_change)
            self._scratch.add("log_unread", [unread])
            return ()

    def _bytes(self, part: str) -> bytes:
        sql = "SELECT file, offset, length, blocks FROM parts WHERE part = :part AND state = 'held'"
        row: Any = next(self._scratch.rows(sql, {"part": part}), None)
        if row is None or row["file"] is None:
            raise CorruptError(f"manifest {part} is not held here", part=part)
        return self._files.read(Location(row["file"], row["offset"], row["length"], row["blocks"] or b""))

    def _read_manifests_again(self) -> None:
        for row in list(self._scratch.rows("SELECT * FROM log_unread")):
            try:
                entries = decode_entries(self._bytes(row["part"]))
            except TidelockError:
                continue
            self._add_entries(row["csn"], row["tid"], entries, change=bool(row["change"]))
            self._scratch.db.execute("DELETE FROM log_unread WHERE tid = ?", (row["tid"],))
