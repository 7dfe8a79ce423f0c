"""Damage done to a running replica behind its agent's back: in its catalog, its files and in ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Op
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore

#: How long the agent's writer may lock the catalog, in seconds.
_BUSY_S: Final = 30.0


@contextlib.contextmanager
def catalog(data_dir: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a catalog; it is committed at the end."""
    with contextlib.closing(sqlite3.connect(data_dir / "catalog.db", timeout=_BUSY_S)) as db, db:
        yield db


def rows(data_dir: Path, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query on a catalog."""
    with catalog(data_dir) as db:
        return list(db.execute(sql, args))


def flip_byte(file: Path, position: int) -> None:
    """Change a byte of a file; a second time changes it back."""
    with file.open("r+b") as opened:
        opened.seek(position)
        (byte,) = opened.read(1)
        opened.seek(position)
        opened.write(bytes([byte ^ 0xFF]))


def change_znodes(connect: str, ops: Sequence[Op]) -> None:
    """Apply operations below a cluster's root, one by one."""

    async def apply() -> None:
        store = ZkStore(connect, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
        await store.open()
        try:
            for op in ops:
                result = await store.multi((op,))
                assert isinstance(result, Ok), (op, result)
        finally:
            await store.close()

    asyncio.run(apply())
