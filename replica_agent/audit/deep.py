"""Reads the bytes of every held part and compares them with their checksum and the digests of their blocks.

One part after the other in the order of the files, a few blocks at a time, at a limited rate of bytes per
second: readers have priority. A part that is found damaged is read once more, at the location that its row
has by then, since it may have been fetched again or collected meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import structlog

from tidelock.csnlog.core.ids import PartId
from tidelock.replica_agent.audit.judgements import CheckResult
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.storage.held_bytes import HeldParts, Place, fault_in
from tidelock.wire.audit import AuditFinding, Severity

_log = structlog.get_logger("audit")

#: Rows that are read from the catalog at a time.
_PAGE: Final = 500
#: Seconds between two log lines about the progress.
_PROGRESS_S: Final = 10.0


class DeepCheck:
    """Reads all parts once.

    Args:
        data_dir: The agent's data directory.
        bytes_per_s: Most bytes read per second.
        findings_max: The number of damaged parts at which the check stops.
        stopped: Returns whether the client has hung up, or too much time has passed.
        read: Called with the number of bytes that were read, in the reading thread.
        damaged: Called there with each damaged part and the finding, as soon as it is certain: a part of a
            large disk is mended before the disk is read.
    """

    name = "bytes"

    def __init__(
        self,
        data_dir: Path,
        *,
        bytes_per_s: int,
        findings_max: int,
        stopped: Callable[[], bool],
        read: Callable[[int], None],
        damaged: Callable[[PartId, str], object],
    ) -> None:
        self._data_dir = data_dir
        self._findings_max, self._stopped = findings_max, stopped
        self._on_read, self._damaged = read, damaged
        self._pace = _Pace(bytes_per_s)
        self._found: list[AuditFinding] = []
        self._parts = self._bytes = 0
        self._said_at = time.monotonic()

    async def run(self) -> CheckResult:
        """Read the bytes of all parts; see the class."""
        return await asyncio.to_thread(self._read_all)

    def _read_all(self) -> CheckResult:
        with closing(HeldParts(self._data_dir)) as held:
            total, size = held.total()
            place = Place()
            while not self._ends(total) and (page := held.after(place, _PAGE)):
                for row in page:
                    if self._ends(total):
                        break
                    self._read_part(held, row)
                    self._say(total, size)
                place = Place.of(page[-1])
        return CheckResult(self._parts, frozenset(self._found))

    def _read_part(self, held: HeldParts, row: PartRow) -> None:
        self._parts += 1
        if self._wrong(row) is None:
            return
        again = held.part(row.part)
        wrong = None if again is None else self._wrong(again)
        if again is None or wrong is None:
            return
        self._damaged(again.part, wrong)
        self._found.append(
            AuditFinding(
                check=self.name,
                fault="damaged_part",
                severity=Severity.ERROR,
                table=again.table or None,
                part=again.part,
                file=again.file,
                expected=f"{again.length} bytes from {again.offset} with checksum {again.checksum}",
                found=wrong,
                next_step="it is fetched from another replica now; look at the disk, and run the audit again",
            )
        )

    def _wrong(self, row: PartRow) -> str | None:
        """Return the fault in the bytes of a part, None for no fault."""
        return fault_in(self._data_dir, row, read=self._note)

    def _note(self, count: int) -> None:
        self._bytes += count
        self._on_read(count)
        self._pace.spend(count)

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
