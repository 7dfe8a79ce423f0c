"""Has the parts fetched that the catalog names and the disk lacks: after a clone all of them, else a few.

The catalog is read page by page, and a bounded number of parts is wanted at a time: a clone of a million
parts needs no more memory than one of a thousand. Parts that are visible come first; the removed ones, which
only readers of the past need, follow.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from tidelock.csnlog.core.ids import PartId, Tid
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replication.core.model import Wanted
from tidelock.replication.fetch import Fetcher

_log = structlog.get_logger("clone")

#: Pause between two looks at what has arrived.
_LOOK_S: Final = 0.05
#: Seconds between two looks at whether parts are needed still.
_NEEDED_S: Final = 1.0
#: Rows of the catalog that are read at a time.
_PAGE: Final = 500
#: Seconds between two log lines about the progress.
_TOLD_S: Final = 10.0
_STATES: Final = ("wanted", "quarantined")


class Arrived(msgspec.Struct, frozen=True):
    """How much of what is visible is here: parts and bytes, of how many."""

    parts: int = 0
    parts_all: int = 0
    size: int = 0
    size_all: int = 0

    @property
    def percent(self) -> float:
        """The share of the bytes, 100 when all are here."""
        return 100.0 if not self.size_all else round(100.0 * self.size / self.size_all, 1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MissingParts:
    """The fetch of everything that the catalog lacks, once after a start.

    Attributes:
        fetcher: Fetches; it is asked which parts it still fetches.
        ahead: Parts that are wanted at a time.
    """

    catalog: Catalog
    fetcher: Fetcher
    ahead: int
    #: Set when all parts that were visible at the start are here.
    complete: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    #: Set when those that only readers of the past need are here too, or were collected.
    over: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    arrived: Arrived = field(default=Arrived(), init=False)
    #: The parts under way, with their bytes.
    _out: dict[PartId, int] = field(default_factory=dict, init=False)
    _told: float = field(default=0.0, init=False)
    _looked: float = field(default=0.0, init=False)

    @property
    def reader(self) -> CatalogReader:
        """The catalog, for questions with short answers."""
        return self.catalog.reader

    def want(self, row: PartRow, *, clone: bool = False) -> None:
        """Have a part fetched; an undecided part is wanted only by the record that commits it.

        Args:
            row: The part.
            clone: It is one of very many, which take no place from the parts of new transactions.
        """
        if row.creation_csn is not None:
            wanted = Wanted(row.meta, Tid.parse(row.creation_tid), row.creation_csn, ())
            self.fetcher.want(wanted, clone=clone)

    async def run(self) -> None:
        """Fetch all; returns when nothing is missing that can be had."""
        found = await self.catalog.read(CatalogReader.visible_bytes)
        here, lacking = found[True], found[False]
        self.arrived = Arrived(here[0], here[0] + lacking[0], here[1], here[1] + lacking[1])
        for state in _STATES:
            await self._fetch(state, visible=True)
        await self._until(0)
        self.complete.set()
        for state in _STATES:
            await self._fetch(state, visible=False)
        await self._until(0)
        self.over.set()

    async def _fetch(self, state: str, *, visible: bool) -> None:
        after = 0
        while page := self.reader.missing(state, visible=visible, after=after, limit=_PAGE):
            after = page[-1][0]
            for _, row in page:
                self.want(row, clone=True)
                self._out[row.part] = row.length if visible else 0
            await self._until(self.ahead)

    async def _until(self, most: int) -> None:
        """Wait until at most so many parts are under way."""
        while self._look() > most:  # noqa: ASYNC110 - looked at together, not part by part
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> int:
        """Count what has arrived since the last look; return the number of parts under way."""
        over = [part for part in self._out if self.fetcher.trouble(part) is None]
        over = over or self._not_needed()  # a question only while nothing arrives
        size = sum(self._out.pop(part) for part in over)
        before = self.arrived
        if not self.complete.is_set():
            self.arrived = Arrived(
                before.parts + len(over), before.parts_all, before.size + size, before.size_all
            )
            self._tell()
        return len(self._out)

    def _not_needed(self) -> list[PartId]:
        """Return the parts that are not visible any more: they were removed, or are declared lost."""
        now = time.monotonic()
        if self.complete.is_set() or now - self._looked < _NEEDED_S:
            return []
        self._looked = now
        needed = self.reader.visible(self._out)
        return [part for part in self._out if part not in needed]

    def _tell(self) -> None:
        now, at = time.monotonic(), self.arrived
        if self._out and now - self._told >= _TOLD_S:
            self._told = now
            _log.info(
                "parts_arrive", percent=at.percent, bytes=at.size, of_bytes=at.size_all, parts=at.parts,
                of_parts=at.parts_all,
            )  # fmt: skip
