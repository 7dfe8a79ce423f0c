"""Data directories with many part files or many rows of the catalog, made without as many commits.

They come from copying one committed part, or one row: that many commits would take an hour.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tidelock.csnlog.core.ids import ReplicaId, TableId, Tid, part_id
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import PartFs

#: Far above what the agent itself has numbered.
_FIRST: Final = 1_000_000
#: Small parts of one pack file.
_PACKED: Final = 500


def copy_rows(
    db: sqlite3.Connection, rows: str, like: tuple[str, object], changed: Mapping[str, str], count: int
) -> None:
    """Copy a row of a catalog so many times.

    Args:
        db: The catalog of an agent that does not run.
        rows: The table of the catalog.
        like: A column, and its value in the row that is copied.
        changed: Columns with other values, as SQL of the copy's number `n`, from 1.
        count: So many copies.
    """
    columns = [name for _, name, *_ in db.execute(f"pragma table_info({rows})")]
    copied = ", ".join(changed.get(name, name) for name in columns)
    sql = f"""
        INSERT INTO {rows} WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers
        WHERE n < ?) SELECT {copied} FROM numbers, (SELECT * FROM {rows} WHERE {like[0]} = ? LIMIT 1)
    """
    db.execute(sql, (count, like[1]))


def fill(data_dir: Path, table: str, replica: str, count: int, *, like: Path | None = None) -> None:
    """Copy the one committed part of a table until there are so many files.

    Args:
        data_dir: Of an agent that does not run.
        table: Its full name; the table has one part, in a file of its own.
        replica: The replica whose part ids are used.
        count: So many parts in all.
        like: A data directory that was filled in the same way: its files are linked, not copied.
    """
    files = PartFs(data_dir)
    first, present = _first(data_dir, table)
    _commit(data_dir, first, [_copy(files, first, replica, number, like) for number in range(present, count)])


def fill_packs(data_dir: Path, table: str, replica: str, count: int) -> None:
    """As :func:`fill`, but the table's part is small: the copies share pack files, as those of commits do."""
    files = PartFs(data_dir)
    first, present = _first(data_dir, table)
    data = files.read(Location(str(first.file), first.offset, first.length, first.blocks))
    for begin in range(present, count, _PACKED):
        numbers = range(begin, min(begin + _PACKED, count))
        packs = files.pack_paths([part_id(ReplicaId(replica), 1, _FIRST + count + begin)])
        files.create_packs(packs)
        locations = files.write_pack(packs[0], [data] * len(numbers), lambda _: b"").locations
        made = [_staged(first, replica, *one) for one in zip(numbers, locations, strict=True)]
        _commit(data_dir, first, made)


def _first(data_dir: Path, table: str) -> tuple[PartRow, int]:
    """Return a part of a table, and how many it has."""
    with contextlib.closing(CatalogReader(data_dir)) as reader:
        rows = reader.parts(TableId(table), reader.snapshot_csn())
    return next(row for row in rows if row.file is not None), len(rows)


def _commit(data_dir: Path, first: PartRow, made: list[jobs.StagedPart]) -> None:
    """Add parts to the catalog, visible like ``first``."""
    with contextlib.closing(sqlite3.connect(data_dir / "catalog.db")) as db, db:
        jobs.add_staged(db, made, [])
        db.execute("update parts set creation_csn = ? where creation_csn is null", (first.creation_csn,))


def _copy(files: PartFs, first: PartRow, replica: str, number: int, like: Path | None) -> jobs.StagedPart:
    part = part_id(ReplicaId(replica), 1, _FIRST + number)
    path = files.part_path(part)
    if like is None:
        shutil.copyfile(files.data_dir / str(first.file), files.data_dir / path)
    else:
        os.link(like / path, files.data_dir / path)
    return _staged(first, replica, number, Location(path, first.offset, first.length, first.blocks))


def _staged(first: PartRow, replica: str, number: int, location: Location) -> jobs.StagedPart:
    part = part_id(ReplicaId(replica), 1, _FIRST + number)
    return jobs.StagedPart(
        msgspec.structs.replace(first.meta, part=part), location, Tid.parse(first.creation_tid)
    )
