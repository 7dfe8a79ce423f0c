"""Resolution of paths at the CSN that they name: to a folder, a part, or the metadata of a table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.errors import BadRequestError, StandbyError, UnknownTagError
from tidelock.replica_agent.footers import combined
from tidelock.replica_agent.footers.thrift import footer_in
from tidelock.replica_agent.readers import hdfs
from tidelock.replica_agent.readers.catalog import SnapshotCatalog, file_length
from tidelock.replica_agent.readers.link import AgentLink
from tidelock.replica_agent.readers.listings import Listings
from tidelock.replica_agent.readers.lru import LruCache
from tidelock.replica_agent.readers.messages import ReaderConfig
from tidelock.replica_agent.readers.paths import (
    COMMON_METADATA,
    CombinedName,
    NoSuchPathError,
    RequestTarget,
    SnapshotPath,
    combined_of,
    parse_snapshot,
    part_of,
)
from tidelock.replica_agent.readers.shapes import Shape
from tidelock.replica_agent.readers.tree import FolderTree
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.tables.layouts import Layouts, layouts_of
from tidelock.replication.core import digest
from tidelock.wire.ids import TableName


class FolderNode(msgspec.Struct, frozen=True):
    """A folder, with its serialised listing; a folder above the tables has no ``tree``."""

    listing: bytes
    tree: FolderTree | None = None
    path: str = ""

    def entry(self) -> bytes:
        """Its own FileStatus."""
        return hdfs.folder_entry("")

    def totals(self) -> tuple[int, int, int]:
        """Folders, files and bytes of it and all below it; above the tables of the folder itself only."""
        return self.tree.totals(self.path) if self.tree is not None else (1, 0, 0)


class PartsNode(msgspec.Struct, frozen=True):
    """A file with the rows of one part, or of several small ones, that are visible at the CSN of the path.

    Attributes:
        parts: The parts.
        length: Bytes of the file.
        checksum: A name of its bytes.
        time_ms: Time of the commit of the last part.
        at: The CSN, and the table.
        shape: The columns that the file shows; None: those that it has.
    """

    parts: tuple[PartId, ...]
    length: int
    checksum: str
    time_ms: int
    at: tuple[Csn, TableId]
    shape: Shape | None

    def entry(self) -> bytes:
        """Its own FileStatus."""
        return hdfs.file_entry("", self.length, self.time_ms)


class MetadataNode(msgspec.Struct, frozen=True):
    """The virtual file with a table's schema at the CSN of the path."""

    data: bytes

    @property
    def length(self) -> int:
        """Its length in bytes."""
        return len(self.data)

    def entry(self) -> bytes:
        """Its own FileStatus."""
        return hdfs.file_entry("", len(self.data), 0)


#: Pause between two looks for a tag that is not known here, in seconds.
_TAG_LOOK_S: Final = 0.05

FileNode = PartsNode | MetadataNode
Node = FolderNode | FileNode


class Resolver:
    """Resolves paths to nodes.

    The error of :meth:`resolve` decides whether rows can get lost:

    NoSuchPathError: The name does not exist at a CSN that is served here. BadRequestError: The CSN is
    malformed. SnapshotTooOldError, NoSuchCsnError, UnknownTagError, FencedError: The CSN is not served; the
    message says why.
    StandbyError: Another replica may have it.
    """

    def __init__(self, config: ReaderConfig, link: AgentLink) -> None:
        """Open the catalog."""
        self.catalog = SnapshotCatalog(Path(config.data_dir))
        self._listings = Listings(
            Path(config.data_dir), config.listing_cache_entries, config.combined_part_bytes_max
        )
        self._ids: LruCache[tuple[TableName, Csn], TableId] = LruCache(config.listing_cache_entries)
        self._layouts: LruCache[tuple[TableId, Csn], tuple[int, Layouts, bytes]] = LruCache(
            config.listing_cache_entries
        )
        self._link = link
        self._replica = config.replica
        self._read_wait_s = config.read_wait_s

    async def resolve(self, target: RequestTarget) -> Node:
        """Return the node of a path below ``/``."""
        path = parse_snapshot(target.segments)
        if path.tag is not None:
            path = msgspec.structs.replace(path, csn=await self._tagged(path.tag))
        if path.csn is None:
            return _names(["snapshots"] if not target.segments else self._snapshots())
        await self._admit(path.csn)
        self._link.read(path.csn)
        if path.table is None:
            return self._browse(path, path.csn)
        table = self._table(path.table, path.csn)
        with self.catalog.serving(path.csn, table):
            part = part_of(path.inner)
            if part is not None:
                return self._part(part, table, path.inner, path.csn)
            if path.inner == COMMON_METADATA:
                return MetadataNode(self.catalog.require_named(path.table, path.csn).common_metadata)
        name = combined_of(path.inner)
        if name is not None:
            return await self._combined(name, table, path.inner, path.csn)
        return await self._folder(path.csn, table, path.inner)

    def _snapshots(self) -> list[str]:
        return [str(self.catalog.snapshot_csn()), *self.catalog.tag_csns()]

    async def _tagged(self, name: str) -> Csn:
        """Return the CSN that a tag names; a new tag is awaited for as long as a new CSN is.

        Raises:
            UnknownTagError: No tag of this name is applied here. It must never look like a missing file.
        """
        until = asyncio.get_running_loop().time() + self._read_wait_s
        while (found := self.catalog.tag(name)) is None:
            if asyncio.get_running_loop().time() > until:
                raise UnknownTagError(
                    f"there is no tag {name!a} at replica {self._replica}, which is at CSN "
                    f"{self.catalog.snapshot_csn()}; `tidelock tags` lists the tags",
                    name=name,
                )
            await asyncio.sleep(_TAG_LOOK_S)
        return Csn(found.csn)

    def _table(self, name: TableName, csn: Csn) -> TableId:
        """Return the table that has a name at a CSN, which never changes while the CSN is promised."""
        if (known := self._ids.get((name, csn))) is not None:
            return known
        found = self.catalog.named(name, csn)
        if found is None:
            with self.catalog.serving(csn):  # what is below the horizon is not "not found"
                raise NoSuchPathError(f"table {name} does not exist at CSN {csn}")
        self._ids.put((name, csn), found.id, 1)
        return found.id

    async def _admit(self, csn: Csn) -> None:
        """Return once ``csn`` is applied here; raise the agent's refusal otherwise."""
        if csn <= self.catalog.snapshot_csn():
            return
        refusal = (await self._link.wait(csn, self._read_wait_s)).refusal(csn)
        if isinstance(refusal, StandbyError):
            raise StandbyError(f"replica {self._replica}: {refusal.message}", **refusal.details)
        if refusal is not None:
            raise refusal

    def _browse(self, path: SnapshotPath, csn: Csn) -> FolderNode:
        with self.catalog.serving(csn):
            names = [row.name for row in self.catalog.tables(csn)]
        pairs = [(namespace, table) for namespace, _, table in (name.partition(".") for name in names)]
        if path.namespace is None:
            return _names(sorted({namespace for namespace, _ in pairs}))
        tables = [table for namespace, table in pairs if namespace == path.namespace]
        if not tables:
            raise NoSuchPathError(f"there is no table in namespace {path.namespace} at CSN {csn}")
        return _names(tables)

    def _part(self, part: PartId, table: TableId, inner: str, csn: Csn) -> PartsNode:
        row = self.catalog.visible_part(part, table, csn)
        if row is None or row.name != inner:
            raise NoSuchPathError(f"{inner} is not a part of {table} at CSN {csn}")
        shape = self._shape(table, csn, row.columns_csn)
        length = file_length(1, row.rows, row.length, None if shape is None else shape.layout)
        checksum = row.checksum if shape is None else shape.checksum(row.checksum)
        return PartsNode((part,), length, checksum, self._time_ms(part), (csn, table), shape)

    def _shape(self, table: TableId, csn: Csn, columns_csn: Csn | None) -> Shape | None:
        """Return the columns as which a part is shown at a CSN; None: those that it has."""
        version, layouts, metadata = self._definition(table, csn)
        layout = layouts.of(columns_csn)
        if layout is None:
            return None
        footer = footer_in(lambda start, size: metadata[start : start + size], len(metadata))
        return Shape(table, version, layout.below, layout, footer)

    def _definition(self, table: TableId, csn: Csn) -> tuple[int, Layouts, bytes]:
        """Return version, layouts and common metadata of a table at a CSN, which never change."""
        found = self._layouts.get((table, csn))
        if found is None:
            row = self.catalog.table(table, csn)
            if row is None:
                raise NoSuchPathError(f"table {table} does not exist at CSN {csn}")
            found = row.version, layouts_of(row.definition), row.common_metadata
            self._layouts.put((table, csn), found, 1)
        return found

    def _common_shape(self, inner: str, table: TableId, csn: Csn, rows: Sequence[PartRow]) -> Shape | None:
        """Return the columns as which parts of one file are shown; BadRequestError if they differ."""
        _, layouts, _ = self._definition(table, csn)
        if not layouts.periods:
            return None
        shape = self._shape(table, csn, rows[-1].columns_csn)
        if any(self._shape(table, csn, row.columns_csn) != shape for row in rows):
            raise BadRequestError(
                f"the parts of {inner} have other columns than each other: list the folder again"
            )
        return shape

    async def _combined(self, name: CombinedName, table: TableId, inner: str, csn: Csn) -> PartsNode:
        """Return a combined file, by the listing of this replica or, if that has other files, by its name.

        A name that does not fit is never "not found", which some settings of readers turn into missing rows.
        """
        if not 1 < name.parts <= combined.PARTS_MAX:
            raise BadRequestError(
                f"{inner} names {name.parts} parts, a combined file has 2 to {combined.PARTS_MAX}: list the "
                "folder again"
            )
        parts = (await self._listings.tree(csn, table)).combined.get(inner)
        if parts is None:
            parts = await self._listings.combined(name, table, inner.rpartition("/")[0], csn)
        with self.catalog.serving(csn, table):
            if not parts:
                raise BadRequestError(f"{inner} is not a file of {table} at CSN {csn}: list the folder again")
            time_ms = self._time_ms(parts[-1])
            rows = [row for row in map(self.catalog.part, parts) if row is not None]
            shape = self._common_shape(inner, table, csn, rows)
        layout = None if shape is None else shape.layout
        length = file_length(len(parts), sum(row.rows for row in rows), name.length, layout)
        checksum = digest.checksum("\n".join(parts).encode())
        if shape is not None:
            checksum = shape.checksum(checksum)
        return PartsNode(parts, length, checksum, time_ms, (csn, table), shape)

    def _time_ms(self, part: PartId) -> int:
        row = self.catalog.part(part)
        return 0 if row is None or row.creation_csn is None else self.catalog.time_ms(row.creation_csn)

    async def _folder(self, csn: Csn, table: TableId, inner: str) -> FolderNode:
        tree = await self._listings.tree(csn, table)
        # The tree may come from the cache: each time it is checked that its CSN is still promised.
        with self.catalog.serving(csn, table):
            folder = tree.folders.get(inner)
        if folder is None:
            raise NoSuchPathError(f"{inner} does not exist in {table} at CSN {csn}")
        return FolderNode(folder.listing, tree, inner)


def _names(names: list[str]) -> FolderNode:
    return FolderNode(hdfs.file_statuses([hdfs.folder_entry(name) for name in names]))
