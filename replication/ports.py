"""The needs of replication from the agent around it, as protocols: durable knowledge of parts and records.

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
        """Return the parts of these whose bytes are durable and verified here."""

    async def known_tids(self, tids: Collection[str]) -> set[str]:
        """Return the tids of these that an applied record has committed."""

    async def want(self, wanted: Sequence[Wanted]) -> None:
        """Make durable that these parts are missing here; existing rows do not change."""

    async def read(self, part: PartId) -> bytes:
        """Return the bytes of a held part (a manifest), verified by block.

        CorruptError: the bytes are wrong, and the part is now quarantined; it is fetched again.
        """

    async def apply(self, records: Sequence[ResolvedRecord]) -> None:
        """Make records visible, all of them and the snapshot CSN in one durable transaction."""


class PartStore(Protocol):
    """The store for fetched parts, as :class:`tidelock.replication.fetch.Fetcher` needs it."""

    async def held(self, parts: Collection[PartId]) -> set[PartId]:
        """As :meth:`CatalogPort.held`."""

    async def lacking(self, part: PartId) -> bool:
        """Return whether the catalog names a part whose bytes are not here; collected parts have no row."""

    async def store(self, meta: PartMeta, tid: Tid, data: bytes) -> None:
        """Make bytes and row of a small part durable, in a pack together with other parts that wait."""

    async def share(self, wanted: Wanted) -> bool:
        """Make a part durable by the bytes of another one that is held here; False if none has them."""

    async def note_undo(self, path: str) -> None:
        """Make durable that the file ``path`` (below the data directory) is about to be written."""

    async def forget_undo(self, path: str) -> None:
        """Make durable that the file ``path`` is deleted, or was never written."""

    async def record(self, meta: PartMeta, tid: Tid, location: Location) -> None:
        """Make the row of a part durable whose file is durable; the same transaction deletes the undo row."""
