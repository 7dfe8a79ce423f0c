"""What replication needs from the agent around it, as protocols: durable knowledge about parts and records.

All methods are called from the event loop. "Durable" means on disk when the call returns. Errors are those of
:mod:`tidelock.errors`: UnavailableError and DiskFullError are tried again, CorruptError stops the agent (I15)
unless a method says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from tidelock.csnlog.core.ids import PartId, Tid
from tidelock.replication.core.model import Location, PartMeta, ResolvedRecord, Wanted


class CatalogPort(Protocol):
    """The catalog, as :class:`tidelock.replication.apply.Applier` sees it."""

    async def held(self, parts: Collection[PartId]) -> set[PartId]:
        """Return those parts whose bytes are durable and verified here."""

    async def known_tids(self, tids: Collection[str]) -> set[str]:
        """Return those tids that an applied record has committed."""

    async def want(self, wanted: Sequence[Wanted]) -> None:
        """Make durable that these parts are missing here; rows that exist stay as they are."""

    async def read(self, part: PartId) -> bytes:
        """Return the bytes of a held part (a manifest), verified by block.

        CorruptError: they are wrong, and the part is quarantined by now; it is fetched again.
        """

    async def apply(self, records: Sequence[ResolvedRecord]) -> None:
        """Make records visible, all of them and the snapshot CSN in one durable transaction."""


class PartStore(Protocol):
    """Where fetched parts go: what :class:`tidelock.replication.fetch.Fetcher` needs."""

    async def held(self, parts: Collection[PartId]) -> set[PartId]:
        """As :meth:`CatalogPort.held`."""

    async def store(self, meta: PartMeta, tid: Tid, data: bytes) -> None:
        """Make the bytes and the row of a small part durable, in a pack together with others that wait."""

    async def note_undo(self, path: str) -> None:
        """Make durable that the file ``path`` (below the data directory) is about to be written."""

    async def forget_undo(self, path: str) -> None:
        """Make durable that the file ``path`` is gone, or never came to be."""

    async def record(self, meta: PartMeta, tid: Tid, location: Location) -> None:
        """Make the row of a part durable whose file is; the undo row goes in the same transaction."""
