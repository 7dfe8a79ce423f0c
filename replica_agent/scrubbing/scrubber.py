"""Reads all held parts again and again, at a bounded rate, so that rot is found before a reader needs them.

A pass takes the parts in the order in which they lie on the disk. It is done in pieces: each tick reads what
the rate allows since the tick before. The place is kept in the catalog, so a restart goes on there.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import CorruptError
from tidelock.replica_agent.config.metrics import ScrubMetrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.storage.held_bytes import PIECE_BYTES, HeldBytes, HeldParts, Place, fault_in

_log = structlog.get_logger("scrub")

#: Rows that are read from the catalog at a time.
_PAGE: Final = 500
#: A part counts as at least so many bytes: a disk reads whole pages.
_PART_BYTES_MIN: Final = 4 << 10
#: After a pause, e.g. of a replica that did not serve, no more is read at once than for so many seconds.
_BEHIND_MAX_S: Final = 2.0
#: The place is stored once in so many seconds. A restart reads again what was read since.
_NOTED_EACH_S: Final = 30.0
#: The key of the place in the catalog.
_META: Final = "scrub"


class Pass(msgspec.Struct, frozen=True):
    """The memory of a pass in the catalog.

    Attributes:
        begun_ms: When it began, by the log's time (Unix, ms).
        place: The last part that was read.
        over: Whether all parts were read.
    """

    begun_ms: int
    place: Place = Place()
    over: bool = False


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Scrubber:
    """The scrubber of one boot.

    Attributes:
        catalog: The catalog of this replica.
        settings: `scrub_bytes_per_s` and `scrub_interval_s`.
        metrics: Its counters.
        damaged: Called with a part whose bytes are wrong, and with the fault; it has the part fetched again.
        log_ms: The log's time (Unix, ms): a wall clock that is wrong delays no pass.
        monotonic: Seconds.
    """

    catalog: Catalog
    settings: AgentSettings
    metrics: ScrubMetrics
    damaged: Callable[[PartId, str], None]
    log_ms: Callable[[], int]
    monotonic: Callable[[], float]
    _pass: Pass | None = field(default=None, init=False)
    #: The parts that are read next, at most a page of them.
    _rows: deque[PartRow] = field(default_factory=deque, init=False)
    _reading: HeldBytes | None = field(default=None, init=False)
    _last_s: float | None = field(default=None, init=False)
    _noted_s: float = field(default=0.0, init=False)
    _owed: int = field(default=0, init=False)
    _closing: bool = field(default=False, init=False)
    _in_thread: threading.Lock = field(default_factory=threading.Lock, init=False)

    async def tick(self) -> None:
        """Read what the rate allows since the last tick, and report the parts that are damaged.

        Raises:
            DiskFullError, UnavailableError: The place could not be stored, or nothing can be read now. The
                next tick goes on.
        """
        allowed = self._allowed()
        if not self._begin():
            return
        self._owed = min(self._owed + allowed, round(_BEHIND_MAX_S * self.settings.scrub_bytes_per_s))
        found = await asyncio.to_thread(self._read)
        for part, fault in found:
            _log.error("part_rotten", part=part, fault=fault)
            self.damaged(part, fault)
        assert self._pass is not None
        now_s = self.monotonic()
        if self._pass.over or now_s - self._noted_s >= _NOTED_EACH_S:
            self._noted_s = now_s
            noted = msgspec.json.encode(self._pass).decode()
            await self.catalog.repeatable(lambda db: jobs.set_meta(db, **{_META: noted}))
        if self._pass.over:
            self.metrics.passes.inc()
            _log.info("scrubbed", since_ms=self._pass.begun_ms)

    def close(self) -> None:
        """End the reading, which may go on in a thread of a tick that was cancelled, and close its file."""
        self._closing = True
        with self._in_thread:
            self._close_file()

    def _close_file(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _allowed(self) -> int:
        """Return how many bytes may be read for the time since the last tick."""
        now_s = self.monotonic()
        since_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._last_s = now_s
        return round(since_s * self.settings.scrub_bytes_per_s)

    def _begin(self) -> bool:
        """Return whether a pass runs; the next one begins when its time has come."""
        if not self.settings.scrub_bytes_per_s:
            return False
        if self._pass is None and (noted := self.catalog.reader.meta(_META)) is not None:
            self._pass = msgspec.json.decode(noted, type=Pass)
        now_ms = self.log_ms()
        if self._pass is None or (
            self._pass.over and now_ms - self._pass.begun_ms >= self.settings.scrub_interval_s * 1000
        ):
            self._pass = Pass(now_ms)
        return not self._pass.over

    def _read(self) -> list[tuple[PartId, str]]:
        """Read as many bytes as are owed; returns the parts that are damaged. Blocks."""
        assert self._pass is not None
        found: list[tuple[PartId, str]] = []
        with self._in_thread, closing(HeldParts(self.settings.data_dir)) as held:
            while self._owed > 0 and not self._pass.over and not self._closing:
                if not self._rows:
                    self._rows.extend(held.after(self._pass.place, _PAGE))
                if not self._rows:
                    self._pass = msgspec.structs.replace(self._pass, over=True)
                    break
                row = self._rows[0]
                fault = self._read_some(row)
                if self._reading is not None:
                    continue
                self._rows.popleft()
                self._pass = msgspec.structs.replace(self._pass, place=Place.of(row))
                if fault and (fault := self._lasting(held, row.part)):
                    found.append((row.part, fault))
        return found

    def _read_some(self, row: PartRow) -> str | None:
        """Read a piece of a part; returns its fault. No file is open behind the last piece, or a fault."""
        try:
            if self._reading is None:
                self._reading = HeldBytes(self.settings.data_dir, row, from_disk=True)
                self._owed -= max(0, _PART_BYTES_MIN - row.length)
            count = self._reading.read(min(max(self._owed, 1), PIECE_BYTES))
            self._owed -= count
            self.metrics.bytes.inc(count)
            if not self._reading.done:
                return None
            fault = None
        except CorruptError as error:
            fault = error.message
        self._close_file()
        return fault

    def _lasting(self, held: HeldParts, part: PartId) -> str | None:
        """Read a part once more, where its row has it by now: it may have been fetched again meanwhile."""
        row = held.part(part)
        return None if row is None else fault_in(self.settings.data_dir, row, from_disk=True)
