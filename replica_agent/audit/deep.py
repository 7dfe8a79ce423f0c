"""Reads the bytes of every held part and compares them with their checksum and the digests of their blocks.

One part after the other in the order of the files, a few blocks at a time, at a limited rate of bytes per
second: readers have priority. A part that is found damaged is read once more, at the location that its row
has by then, since it may have been fetched again or collected meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import structlog
import xxhash

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import CorruptError
from tidelock.replica_agent.audit.judgements import CheckResult
from tidelock.replica_agent.audit.scratch import AuditDatabase
from tidelock.replication.core.digest import BLOCK_BYTES
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import VerifiedRange
from tidelock.wire.audit import AuditFinding, Severity

_log = structlog.get_logger("audit")

_READ_BYTES: Final = 4 * BLOCK_BYTES
#: Rows that are read from the catalog at a time.
_PAGE: Final = 500
#: Seconds between two log lines about the progress.
_PROGRESS_S: Final = 10.0


class _Held(msgspec.Struct, frozen=True):
    part: PartId
    table: str
    checksum: str
    at: Location


class DeepCheck:
    """Reads all parts once.

    Args:
        scratch: The database through which the catalog is read.
        data_dir: The agent's data directory.
        bytes_per_s: Most bytes read per second.
        findings_max: The number of damaged parts at which the check stops.
        stopped: Returns whether the client has hung up, or too much time has passed.
        read: Called with the number of bytes that were read, in the reading thread.
    """

    name = "bytes"

    def __init__(
        self,
        scratch: AuditDatabase,
        data_dir: Path,
        *,
        bytes_per_s: int,
        findings_max: int,
        stopped: Callable[[], bool],
        read: Callable[[int], None],
    ) -> None:
        self._scratch, self._data_dir, self._bytes_per_s = scratch, data_dir, bytes_per_s
        self._findings_max, self._stopped, self._on_read = findings_max, stopped, read
        self._pace = _Pace(bytes_per_s)
        self._found: list[AuditFinding] = []
        self._parts = self._bytes = 0
        self._said_at = time.monotonic()

    async def run(self) -> CheckResult:
        """Read the bytes of all parts; see the class."""
        return await asyncio.to_thread(self._read_all)

    def _read_all(self) -> CheckResult:
        total, size = next(
            self._scratch.rows("SELECT count(*), coalesce(sum(length), 0) FROM parts WHERE state = 'held'")
        )
        after = ("", -1, "")
        while not self._ends(total) and (page := self._page(after)):
            for held in page:
                if self._ends(total):
                    break
                self._read_part(held)
                self._say(total, size)
            after = (page[-1].at.file, page[-1].at.offset, page[-1].part)
        return CheckResult(self._parts, frozenset(self._found))

    def _page(self, after: tuple[str, int, str]) -> list[_Held]:
        sql = """
            SELECT part, table_name, checksum, file, offset, length, coalesce(blocks, x'') AS blocks
            FROM parts
            WHERE state = 'held' AND file >= :file AND (file, offset, part) > (:file, :offset, :part)
            ORDER BY file, offset, part LIMIT :limit
        """
        args = {"file": after[0], "offset": after[1], "part": after[2], "limit": _PAGE}
        return [_held(row) for row in self._scratch.rows(sql, args)]

    def _read_part(self, held: _Held) -> None:
        self._parts += 1
        wrong = self._wrong(held)
        if wrong is None:
            return
        sql = """
            SELECT part, table_name, checksum, file, offset, length, coalesce(blocks, x'') AS blocks
            FROM parts WHERE part = :part AND state = 'held' AND file IS NOT NULL
        """
        row = next(self._scratch.rows(sql, {"part": held.part}), None)
        again = None if row is None else _held(row)
        wrong = None if again is None else self._wrong(again)
        if again is None or wrong is None:
            return
        self._found.append(
            AuditFinding(
                check=self.name,
                fault="damaged_part",
                severity=Severity.ERROR,
                table=again.table or None,
                part=again.part,
                file=again.at.file,
                expected=f"{again.at.length} bytes from {again.at.offset} with checksum {again.checksum}",
                found=wrong,
                next_step="it is fetched from another replica now; look at the disk, and run the audit again",
            )
        )

    def _wrong(self, held: _Held) -> str | None:
        """Return the fault in the bytes of a part, None for no fault."""
        whole = xxhash.xxh3_128()
        try:
            with closing(VerifiedRange(self._data_dir, held.at)) as part:
                for start in range(0, held.at.length, _READ_BYTES):
                    data = part.read(start, min(_READ_BYTES, held.at.length - start))
                    whole.update(data)
                    self._bytes += len(data)
                    self._on_read(len(data))
                    self._pace.spend(len(data))
        except CorruptError as error:
            return error.message
        found = whole.hexdigest()
        return None if found == held.checksum else f"all blocks as noted, but checksum {found}"

    def _ends(self, total: int) -> bool:
        """Return whether to read no further; parts that were not read are a finding."""
        if len(self._found) >= self._findings_max:
            return True
        if not self._stopped():
            return False
        self._found.append(
            AuditFinding(
                check=self.name,
                fault="not_all_read",
                severity=Severity.WARNING,
                expected=f"all {total} parts read",
                found=f"{self._parts} parts read when audit_timeout_s was over",
                next_step="raise audit_timeout_s, or audit_bytes_per_s, of this agent",
            )
        )
        return True

    def _say(self, total: int, size: int) -> None:
        now = time.monotonic()
        if now - self._said_at >= _PROGRESS_S:
            self._said_at = now
            _log.info("audit_reads", parts=self._parts, of=total, bytes=self._bytes, of_bytes=size)


class _Pace:
    """Spreads bytes over time: sleeps when more bytes were read than the elapsed time allows."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._begun = time.monotonic()
        self._spent = 0

    def spend(self, count: int) -> None:
        self._spent += count
        ahead_s = self._spent / self._bytes_per_s - (time.monotonic() - self._begun)
        if ahead_s > 0:
            time.sleep(ahead_s)


def _held(row: sqlite3.Row) -> _Held:
    at = Location(row["file"], row["offset"], row["length"], row["blocks"])
    return _Held(PartId(row["part"]), row["table_name"], row["checksum"], at)
