"""A stand-in for the catalog of a replica that fetches parts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tidelock.csnlog.core.ids import PartId, Tid
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import Location, PartMeta, Wanted
from tidelock.replication.partfs import PartFs


class PartStoreStub:
    """The knowledge of a catalog; `steps` is the order of the calls to it."""

    def __init__(self, files: PartFs) -> None:
        self.files = files
        self.small: dict[PartId, bytes] = {}
        self.large: dict[PartId, Location] = {}
        self.steps: list[str] = []
        self.collected: set[PartId] = set()
        self.origins: dict[PartId, PartId] = {}

    async def held(self, parts: Collection[PartId]) -> set[PartId]:
        """Return the parts that are kept."""
        return {name for name in parts if name in self.small or name in self.large}

    async def lacking(self, part: PartId) -> bool:
        """Return whether the part is named and not here."""
        return part not in self.collected and not await self.held((part,))

    async def store(self, meta: PartMeta, tid: Tid, data: bytes) -> None:
        """Keep a small part."""
        self.steps.append(f"store {meta.part} {tid}")
        self.small[meta.part] = data

    async def share(self, wanted: Wanted) -> bool:
        """Keep a small part by the bytes of another one with the same origin."""
        meta = wanted.meta
        twins = [data for name, data in self.small.items() if self.origins.get(name, name) == meta.origin]
        if not twins:
            return False
        self.origins[meta.part] = meta.origin
        self.steps.append(f"share {meta.part} {wanted.tid}")
        self.small[meta.part] = twins[0]
        return True

    async def note_undo(self, path: str) -> None:
        """Note a file, which must not have a byte yet."""
        assert not list((self.files.data_dir / "tmp").glob(f"{Path(path).name}.*"))
        assert not (self.files.data_dir / path).exists()
        self.steps.append(f"undo {path}")

    async def forget_undo(self, path: str) -> None:
        """Note that a file is deleted; assert that it is."""
        assert not (self.files.data_dir / path).exists()
        self.steps.append(f"forget {path}")

    async def record(self, meta: PartMeta, tid: Tid, location: Location) -> None:
        """Keep a large part, whose file must be whole."""
        assert checksum(self.files.read(location)) == meta.checksum
        self.steps.append(f"record {meta.part} {tid}")
        self.large[meta.part] = location
