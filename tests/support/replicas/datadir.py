"""A replica's data directory made by hand: catalog and part files as an agent leaves them."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Stamp, TableId, Tid, part_id
from tidelock.csnlog.core.model import AddPart, Entry, RecordKind, TidRecord
from tidelock.part_layout import FloatColumns, mark, parquet_options
from tidelock.partition_paths import split
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.storage.catalog_schema import FORMAT, SCHEMA
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import Statistics, statistics_of
from tidelock.replication.core.digest import RangeDigest
from tidelock.replication.core.model import ResolvedRecord

REPLICA = ReplicaId("r1")
#: Commit n of a hand-made catalog happened n milliseconds after this time.
TIME_MS = 1_700_000_000_000

_PART = """
    INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, creation_csn,
                       creation_change, file, offset, blocks, stats, form, kind, state)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'part', 'held')
"""


@dataclass(frozen=True)
class _Encoded:
    part: PartId
    table: TableId
    path: str
    rows: int
    data: bytes
    stats: Statistics


def definitions_at(path: Path, csn: int) -> list[dict[str, Any]]:
    """Return the tables' definitions in a data directory at a CSN."""
    reader = CatalogReader(path)
    try:
        return [row.definition for row in reader.tables(Csn(csn))]
    finally:
        reader.close()


def added(part: PartRow) -> AddPart:
    """Return the log entry of a part."""
    return AddPart(part.table, part.part, part.path, part.rows, part.length, part.checksum)


def applied(csn: int, entries: Sequence[Entry]) -> ResolvedRecord:
    """Return the record of one transaction as an agent applies it."""
    tid = TidRecord(tid=str(Tid(Csn(csn - 1), REPLICA, 1, csn)), entries=tuple(entries))
    stamp = Stamp(csn, TIME_MS + csn)
    return ResolvedRecord(Csn(csn), RecordKind.COMMIT, REPLICA, TIME_MS + csn, (tid,), stamp, "")


class DataDir:
    """Builds a data directory commit by commit. CSNs are given by the test; the snapshot CSN follows them."""

    def __init__(self, path: Path) -> None:
        """Make the folders and an empty catalog at CSN 1."""
        self.path = path
        self._parts = 0
        self._packs = 0
        self._schemas: dict[str, TableSchema] = {}
        path.mkdir(parents=True)
        with self.sql() as db:
            db.executescript("PRAGMA journal_mode = WAL;" + SCHEMA)
            meta = {"format": FORMAT, "replica": REPLICA, "snapshot_csn": 1, "horizon": 0, "time_ms": 0}
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

    @contextmanager
    def sql(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection to the catalog; it is committed at the end."""
        db = sqlite3.connect(self.path / "catalog.db")
        try:
            with db:
                yield db
        finally:
            db.close()

    def set(self, **meta: int) -> None:
        """Set rows of the catalog's meta table, e.g. ``horizon``."""
        with self.sql() as db:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())

    def create_table(
        self,
        csn: int,
        name: str,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        checks: Mapping[str, str] | None = None,
    ) -> TableSchema:
        """Define a table at a CSN."""
        made = TableSchema.from_request(name, schema, partition_by, sort_by, properties, checks=checks)
        self._schemas[made.name] = made
        definition = json.dumps(made.definition())
        with self.sql() as db:
            db.execute(
                "INSERT INTO tables VALUES (?, 0, ?, ?, ?, ?, 'active', ?)",
                (made.id, csn, definition, made.arrow_bytes(), made.common_metadata(), made.name),
            )
        self._applied(csn)
        return made

    def insert(
        self,
        csn: int,
        tables: Mapping[str, pa.Table],
        *,
        pack: bool = False,
        row_group_rows: int = 1 << 20,
        change: bool = True,
        formed: bool = False,
    ) -> list[PartRow]:
        """Commit rows: one part for each table and partition, in files of their own or all in one pack.

        Without ``change`` a merge makes them. Small parts that are ``formed`` are listed several as one file;
        others are as an agent of before has left them.
        """
        encoded = [part for name, rows in tables.items() for part in self._encode(name, rows, row_group_rows)]
        placed = self._write_pack(encoded) if pack else [self._write_file(part) for part in encoded]
        tid = str(Tid(Csn(csn - 1), REPLICA, 1, csn))
        with self.sql() as db:
            for part, (file, offset) in zip(encoded, placed, strict=True):
                digest = RangeDigest()
                digest.update(part.data)
                facts = (part.part, part.table, part.path, part.rows, digest.length, digest.checksum())
                place = (file, offset, digest.blocks(), json.dumps(part.stats))
                form = self._schemas[part.table].form if formed else None
                db.execute(_PART, (*facts, tid, csn, change, *place, form))
        self._applied(csn)
        return [self.part(part.part) for part in encoded]

    def remove(self, csn: int, part: PartId, *, change: bool = True) -> None:
        """Commit the removal of a part; without ``change`` a merge removes it."""
        with self.sql() as db:
            tid = str(Tid(Csn(csn - 1), REPLICA, 1, csn))
            sql = "UPDATE parts SET removal_tid = ?, removal_csn = ?, removal_change = ? WHERE part = ?"
            db.execute(sql, (tid, csn, change, part))
        self._applied(csn)

    def meta(self, key: str) -> int:
        """Return a number of the meta table."""
        with self.sql() as db:
            return int(db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0])

    def part(self, part: PartId) -> PartRow:
        """Return the row of a part."""
        reader = CatalogReader(self.path)
        try:
            row = reader.part(part)
        finally:
            reader.close()
        assert row is not None, part
        return row

    def parts(self, table: str) -> list[PartRow]:
        """Return all parts of a table, in the order of their commits."""
        sql = "SELECT part FROM parts WHERE table_name = ? ORDER BY creation_csn, rowid"
        with self.sql() as db:
            ids = [part for (part,) in db.execute(sql, (table,))]
        return [self.part(part) for part in ids]

    def data(self, part: PartRow) -> bytes:
        """Return the stored bytes of a part."""
        assert part.file is not None
        return (self.path / part.file).read_bytes()[part.offset : part.offset + part.length]

    def flip_bit(self, part: PartRow, position: int) -> None:
        """Damage one bit of a part's stored bytes, at a byte of its range."""
        assert part.file is not None
        with (self.path / part.file).open("r+b") as file:
            file.seek(part.offset + position)
            byte = file.read(1)[0]
            file.seek(part.offset + position)
            file.write(bytes([byte ^ 0x10]))

    def copy(self, path: Path) -> DataDir:
        """Make the same directory elsewhere, as another replica holds it."""
        with self.sql() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("run"))
        other = DataDir.__new__(DataDir)
        other.__dict__.update(self.__dict__ | {"path": path, "_schemas": dict(self._schemas)})
        return other

    def _encode(self, name: str, rows: pa.Table, row_group_rows: int) -> Iterator[_Encoded]:
        schema = self._schemas[name]
        for whole in rows.combine_chunks().to_batches():
            for path, batch in split(schema.conform(whole), schema.partition_by):
                sink = io.BytesIO()
                options = parquet_options(
                    batch.num_rows, small=True, schema=batch.schema, floats=FloatColumns.of(batch)
                )
                with pq.ParquetWriter(sink, batch.schema, **options) as writer:
                    writer.write_batch(batch, row_group_size=row_group_rows)
                    mark(writer)
                self._parts += 1
                stats = statistics_of(pq.read_metadata(io.BytesIO(sink.getvalue())), schema)
                yield _Encoded(
                    part_id(REPLICA, 1, self._parts),
                    schema.id,
                    path,
                    batch.num_rows,
                    sink.getvalue(),
                    stats,
                )

    def _write_file(self, part: _Encoded) -> tuple[str, int]:
        file = f"parts/{part.part[-2:]:0>2}/{part.part}.parquet"
        (self.path / file).parent.mkdir(parents=True, exist_ok=True)
        (self.path / file).write_bytes(part.data)
        return file, 0

    def _write_pack(self, parts: Sequence[_Encoded]) -> list[tuple[str, int]]:
        self._packs += 1
        file = f"packs/{self._packs % 100:02}/{REPLICA}-1-{self._packs}.pack"
        (self.path / file).parent.mkdir(parents=True, exist_ok=True)
        (self.path / file).write_bytes(b"".join(part.data for part in parts))
        ends = [sum(len(part.data) for part in parts[:count]) for count in range(len(parts))]
        return [(file, end) for end in ends]

    def _applied(self, csn: int) -> None:
        self.set(snapshot_csn=csn)
        with self.sql() as db:
            db.execute("INSERT OR REPLACE INTO csns VALUES (?, ?, 1, NULL, NULL)", (csn, TIME_MS + csn))
