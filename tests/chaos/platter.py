"""Compare the claims of a replica's data directory with its bytes, while no agent runs.

A replica that lost power is repaired from its peers when it is back. So a part that it had promised and did
not have would go unseen. Here the directory is read before any agent starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.pack_index import recover
from tidelock.replication.core.digest import checksum
from tidelock.replication.partfs import PartFs

_PARTS = "SELECT part, file, offset, length, checksum FROM parts WHERE state = 'held'"


def broken_claims(data_dir: Path) -> list[str]:
    """Return the parts that are not durable although the catalog says so, and files without a row."""
    with _catalog(data_dir) as db:
        (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
        found = [] if verdict == "ok" else [f"the catalog: {verdict}"]
        for part, file, offset, length, expected in db.execute(_PARTS):
            if (wrong := _wrong(data_dir / file, offset, length, expected)) is not None:
                found.append(f"part {part} is held, and {wrong}")
        named = {path for (path,) in db.execute("SELECT path FROM files UNION SELECT path FROM undo")}
    there = {
        str(path.relative_to(data_dir))
        for top in ("parts", "packs")
        for path in data_dir.joinpath(top).rglob("*")
        if path.is_file()
    }
    return found + [f"no row names {path}" for path in sorted(there - named)]


def holds(data_dir: Path, tid: str, parts: int) -> bool:
    """Return whether this number of parts of a transaction exist, with their rows and the right bytes."""
    with _catalog(data_dir) as db:
        rows = db.execute(f"{_PARTS} AND creation_tid = ?", (tid,)).fetchall()
    return len(rows) == parts and all(
        _wrong(data_dir / file, offset, length, expected) is None
        for _, file, offset, length, expected in rows
    )


@contextlib.contextmanager
def _catalog(data_dir: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of the catalog: a read in place would apply its write-ahead log, and remove that.

    The copy is as a start would find it: the rows that only packs know are in it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in data_dir.glob("catalog.db*"):  # and its log
            shutil.copy(path, folder)
        (folder / "packs").symlink_to(data_dir / "packs")
        asyncio.run(_recover(folder))
        with contextlib.closing(sqlite3.connect(folder / "catalog.db")) as db:
            yield db


async def _recover(folder: Path) -> None:
    catalog = Catalog(folder, initial={}, cache_bytes=1 << 20)
    await recover(catalog, PartFs(folder))
    await catalog.close()


def _wrong(path: Path, offset: int, length: int, expected: str) -> str | None:
    """Return what is wrong with a part's bytes; None if they are right."""
    if not path.exists():
        return f"{path.name} is not there"
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        return f"{path.name} has {len(data)} of its {length} bytes"
    return None if checksum(data) == expected else f"{path.name} has other bytes at {offset}"
