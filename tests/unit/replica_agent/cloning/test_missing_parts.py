"""The fetch of what a catalog lacks: what it costs to begin, and when it is over."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelock.replica_agent.cloning.missing_parts import Arrived, MissingParts
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader


async def test_the_parts_are_counted_once_and_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every start counts all parts of the catalog, which takes seconds where there are millions."""
    threads: list[int] = []
    count = CatalogReader.visible_bytes

    def noted(reader: CatalogReader) -> Any:
        threads.append(threading.get_ident())
        return count(reader)

    monkeypatch.setattr(CatalogReader, "visible_bytes", noted)
    catalog = Catalog(tmp_path, initial={"replica": "r1", "disk": "d"}, cache_bytes=1 << 20)
    fetcher: Any = SimpleNamespace(trouble=lambda _: None)
    missing = MissingParts(catalog=catalog, fetcher=fetcher, ahead=1)
    await missing.run()
    await catalog.close()
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert (missing.complete.is_set(), missing.arrived) == (True, Arrived())


async def test_parts_of_the_past_are_fetched_last_and_waited_for(tmp_path: Path) -> None:
    """A clone serves when it has what is visible; another replica may leave when it has the rest, too."""
    catalog = Catalog(tmp_path, initial={"replica": "r1", "disk": "d"}, cache_bytes=1 << 20)
    await catalog.write(lambda db: _wanted(db, "r2-1-1", removal_csn=None))
    await catalog.write(lambda db: _wanted(db, "r2-1-2", removal_csn=5))
    asked: dict[str, str] = {}
    fetcher: Any = SimpleNamespace(
        trouble=asked.get, want=lambda item, clone: asked.setdefault(item.meta.part, f"asked, {clone}")
    )
    missing = MissingParts(catalog=catalog, fetcher=fetcher, ahead=1)
    running = asyncio.create_task(missing.run())
    await _until(lambda: bool(asked))
    assert asked == {"r2-1-1": "asked, True"}
    assert not missing.complete.is_set()
    asked.clear()
    await missing.complete.wait()
    await _until(lambda: bool(asked))
    assert asked == {"r2-1-2": "asked, True"}
    assert not missing.over.is_set()
    asked.clear()
    await running
    assert missing.over.is_set()
    await catalog.close()


async def _until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not seen():  # noqa: ASYNC110 - the double has no events
            await asyncio.sleep(0.01)


def _wanted(db: sqlite3.Connection, part: str, *, removal_csn: int | None) -> None:
    db.execute(
        """
        INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, creation_csn,
                           removal_csn, kind, state)
        VALUES (?, 'd.t', '', 1, 1, '', '1-r2-1-1', 3, ?, 'part', 'wanted')
        """,
        (part, removal_csn),
    )
