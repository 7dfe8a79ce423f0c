"""Resolution of paths at the CSN that they name: to a folder, a part, or the metadata of a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidelock.csnlog.core.ids import Csn, PartId, TableName
from tidelock.errors import StandbyError
from tidelock.replica_agent.readers import hdfs
from tidelock.replica_agent.readers.catalog import SnapshotCatalog
from tidelock.replica_agent.readers.footers import merged
from tidelock.replica_agent.readers.link import AgentLink
from tidelock.replica_agent.readers.listings import Listings
from tidelock.replica_agent.readers.lru import LruCache
from tidelock.replica_agent.readers.messages import ReaderConfig
from tidelock.replica_agent.readers.paths import (
    COMMON_METADATA,
    MergedName,
    NoSuchPathError,
    RequestTarget,
    SnapshotPath,
    merged_of,
    parse_snapshot,
    part_of,
)
from tidelock.replica_agent.readers.tree import FolderTree
from tidelock.replica_agent.storage.catalog_reads import PartRow


@dataclass(frozen=True, slots=True)
class FolderNode:
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


@dataclass(frozen=True, slots=True)
class PartsNode:
    """A file with the rows of one part, or of several small ones, that are visible at the CSN of the path.

    Attributes:
        rows: The parts.
        length: Bytes of the file.
        time_ms: Time of the commit of the last part.
        csn: The CSN.
    """

    rows: tuple[PartRow, ...]
    length: int
    time_ms: int
    csn: Csn

    def entry(self) -> bytes:
        """Its own FileStatus."""
        return hdfs.file_entry("", self.length, self.time_ms)


@dataclass(frozen=True, slots=True)
class MetadataNode:
    """The virtual file with a table's schema at the CSN of the path."""

    data: bytes

    @property
    def length(self) -> int:
        """Its length in bytes."""
        return len(self.data)

    def entry(self) -> bytes:
        """Its own FileStatus."""
        return hdfs.file_entry("", len(self.data), 0)


FileNode = PartsNode | MetadataNode
Node = FolderNode | FileNode


class Resolver:
    """Resolves paths to nodes.

    The error of :meth:`resolve` decides whether rows can get lost:

    NoSuchPathError: The name does not exist at a CSN that is served here. BadRequestError: The CSN is
    malformed. SnapshotTooOldError, NoSuchCsnError, FencedError: The CSN is not served; the message says why.
    StandbyError: Another replica may have it.
    """

    def __init__(self, config: ReaderConfig, link: AgentLink) -> None:
        """Open the catalog."""
        self.catalog = SnapshotCatalog(Path(config.data_dir))
        self._listings = Listings(
            Path(config.data_dir), config.listing_cache_entries, config.merged_part_bytes_max
        )
        #: Parts of merged files: a reader asks for several ranges of a file.
        self._merged_nodes: LruCache[tuple[Csn, TableName, str], PartsNode] = LruCache(
            config.footer_cache_entries
        )
        self._link = link
        self._replica = config.replica
        self._read_wait_s = config.read_wait_s

    async def resolve(self, target: RequestTarget) -> Node:
        """Return the node of a path below ``/``."""
        path = parse_snapshot(target.segments)
        if path.csn is None:
            return _names(["snapshots"] if not target.segments else [str(self.catalog.snapshot_csn())])
        await self._admit(path.csn)
        self._link.read(path.csn)
        if path.table is None:
            return self._browse(path, path.csn)
        with self.catalog.serving(path.csn, path.table):
            part = part_of(path.inner)
            if part is not None:
                return self._part(part, path.table, path.inner, path.csn)
            name = merged_of(path.inner)
            if name is not None:
                return self._merged(name, path.table, path.inner, path.csn)
            table = self.catalog.table(path.table, path.csn)
        if table is None:
            raise NoSuchPathError(f"table {path.table} does not exist at CSN {path.csn}")
        if path.inner == COMMON_METADATA:
            return MetadataNode(table.common_metadata)
        return await self._folder(path.csn, path.table, path.inner)

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

    def _part(self, part: PartId, table: TableName, inner: str, csn: Csn) -> PartsNode:
        row = self.catalog.visible_part(part, table, csn)
        if row is None or row.name != inner:
            raise NoSuchPathError(f"{inner} is not a part of {table} at CSN {csn}")
        return self._file([row], row.length, csn)

    def _merged(self, name: MergedName, table: TableName, inner: str, csn: Csn) -> PartsNode:
        if not 1 < name.parts <= merged.PARTS_MAX:
            raise NoSuchPathError(
                f"{inner} names {name.parts} parts, a merged file has 2 to {merged.PARTS_MAX}"
            )
        key = (csn, table, inner)
        if (known := self._merged_nodes.get(key)) is not None:
            return known
        rows = self.catalog.merged_parts(name, table, inner.rpartition("/")[0], csn)
        if not rows:
            raise NoSuchPathError(f"{inner} is not a file of {table} at CSN {csn}")
        found = self._file(rows, merged.length_of(name.length), csn)
        self._merged_nodes.put(key, found, len(rows))
        return found

    def _file(self, rows: list[PartRow], length: int, csn: Csn) -> PartsNode:
        last = rows[-1].creation_csn
        return PartsNode(tuple(rows), length, 0 if last is None else self.catalog.time_ms(last), csn)

    async def _folder(self, csn: Csn, table: TableName, inner: str) -> FolderNode:
        tree = await self._listings.tree(csn, table)
        # The tree may come from the cache: each time it is checked that its CSN is still promised.
        with self.catalog.serving(csn, table):
            folder = tree.folders.get(inner)
        if folder is None:
            raise NoSuchPathError(f"{inner} does not exist in {table} at CSN {csn}")
        return FolderNode(folder.listing, tree, inner)


def _names(names: list[str]) -> FolderNode:
    return FolderNode(hdfs.file_statuses([hdfs.folder_entry(name) for name in names]))
