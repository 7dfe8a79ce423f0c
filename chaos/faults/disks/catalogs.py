"""Damage to the catalog of a replica: how it comes about, how it is found, and what is done then."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from chaos.faults.fault import Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import LogSince
from chaos.world import World

#: Tables that every start reads, or the first records.
TABLES: Final = ("meta", "parts", "outcomes")
#: Bits of a page's first byte that no kind of page has: SQLite cannot take it for another page.
BITS: Final = (0x10, 0x20, 0x40, 0x80)
#: Where the first page, which has a header of its own, says what it is.
_FIRST_PAGE: Final = 100
#: SQLite takes a file of one byte for an empty one.
_LEFT_BYTES_MIN: Final = 2
#: How SQLite names damage; the second one is that of a file whose first bytes are gone.
_NAMES: Final = ("malformed", "not a database")


@contextlib.contextmanager
def spoilt(
    world: World, target: str, chosen: random.Random, *, harm: Callable[[Path, random.Random], None]
) -> Iterator[Proof]:
    """Kill a replica, harm its catalog and start it; afterwards its operator gives it an empty disk.

    Args:
        world: The run.
        target: The replica.
        chosen: Draws the damage.
        harm: Harms a catalog that no process uses.
    """
    node = world.cluster.node(target)
    node.kill()
    log = LogSince(node)

    def refused() -> str | None:
        # A start reads some of the tables itself, and the others with the first records.
        for line in (*log.lines("agent_cannot_run"), *log.lines("stopped")):
            if any(name in line["reason"] for name in _NAMES) and not node.running:
                return f"{target} has ended: {line['reason']}"
        return None

    proof = Signs(refused)
    try:
        harm(node.data_dir / "catalog.db", chosen)
        node.start(wait=False)
        yield shown(proof)
    finally:
        if there(world, target):
            node.replace(start=False)
            serve_again(world, target)


def flip_page(catalog: Path, chosen: random.Random) -> None:
    """Change a bit in the first page of a table."""
    size = _page_bytes(catalog)
    with contextlib.closing(sqlite3.connect(catalog)) as db:
        table = chosen.choice(TABLES)
        [page] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    with catalog.open("r+b", buffering=0) as file:
        at = (page - 1) * size + (_FIRST_PAGE if page == 1 else 0)
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ chosen.choice(BITS)]))


def cut_end(catalog: Path, chosen: random.Random) -> None:
    """Cut the end off, one page or more: SQLite fills up a page that is cut, and may not need the rest of it.

    Some bytes are left. An empty file is a disk that was emptied, which is another fault.
    """
    size = _page_bytes(catalog)
    os.truncate(catalog, chosen.randint(_LEFT_BYTES_MIN, catalog.stat().st_size - size))


def _page_bytes(catalog: Path) -> int:
    """Return the size of a page, when all pages are in the file itself."""
    with contextlib.closing(sqlite3.connect(catalog)) as db:
        # A page that is in the write-ahead log too would be read from there.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [size] = db.execute("PRAGMA page_size").fetchone()
    return int(size)
