"""Reads the removal locks of a cluster from ZooKeeper itself, and what its catalogs say of parts."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import NamedTuple

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import TableId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.replication.core.lock_rules import LockInfo, OnePart, read_lock


class LockedPartRow(NamedTuple):
    """The row of a part in a catalog."""

    part: str
    creation_tid: str
    creation_csn: int | None
    removal_tid: str | None
    removal_csn: int | None


def part_rows(data_dir: Path, table: str) -> list[LockedPartRow]:
    """Return the parts of a table in the catalog of a replica, by their ids."""
    db = sqlite3.connect(f"file:{data_dir / 'catalog.db'}?mode=ro", uri=True)
    try:
        sql = f"SELECT {', '.join(LockedPartRow._fields)} FROM parts WHERE table_name = ? ORDER BY part"
        return [LockedPartRow(*row) for row in db.execute(sql, (f"default.{table}",))]
    finally:
        db.close()


def locks(connect: str, table: str) -> dict[str, str]:
    """Return the locks of a table: part, or kind of a wide lock, with the transaction that holds it."""
    found = asyncio.run(_locks(connect, TableId(f"default.{table}")))
    return {
        lock.scope.part if isinstance(lock.scope, OnePart) else type(lock.scope).__name__: str(lock.tid)
        for lock in found
    }


async def _locks(connect: str, table: TableId) -> list[LockInfo]:
    store = ZkStore(connect, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
    await store.open()
    try:
        found = []
        for directory in (tree.lock_dir(table), tree.wide_dir(table)):
            names = await store.children(directory)
            for name in names.value if isinstance(names, Ok) else ():
                node = await store.get(f"{directory}/{name}")
                if name != tree.WIDE and isinstance(node, Ok):
                    found.append(read_lock(table, f"{directory}/{name}", node.value.data))
        return found
    finally:
        await store.close()
