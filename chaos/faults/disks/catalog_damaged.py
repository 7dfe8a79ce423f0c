"""A bit of a catalog changes on a disk."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from chaos.faults.fault import Aim, Fault, Proof
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


class CatalogDamaged(Fault):
    """A replica dies, a bit of a page of its catalog changes, and it is started again.

    It refuses to start, or ends soon, and names the damage. Its operator gives it an empty disk.
    """

    kind: ClassVar[str] = "catalog damaged"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        node = world.cluster.node(target)
        node.kill()
        log = LogSince(node)

        def refused() -> str | None:
            # A start reads some of the tables itself, and the others with the first records.
            for line in (*log.lines("agent_cannot_run"), *log.lines("stopped")):
                if "malformed" in line["reason"] and not node.running:
                    return f"{target} has ended: {line['reason']}"
            return None

        proof = Signs(refused)
        try:
            damage(node.data_dir / "catalog.db", chosen)
            node.start(wait=False)
            yield shown(proof)
        finally:
            if there(world, target):
                node.replace(start=False)
                serve_again(world, target)


def damage(catalog: Path, chosen: random.Random) -> None:
    """Change a bit in the first page of a table, in a catalog that no process uses."""
    with contextlib.closing(sqlite3.connect(catalog)) as db:
        # A page that is in the write-ahead log too would be read from there.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [size] = db.execute("PRAGMA page_size").fetchone()
        table = chosen.choice(TABLES)
        [page] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    with catalog.open("r+b", buffering=0) as file:
        at = (page - 1) * size + (_FIRST_PAGE if page == 1 else 0)
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ chosen.choice(BITS)]))
