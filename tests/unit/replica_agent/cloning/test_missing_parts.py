"""The fetch of what a catalog lacks: what it costs to begin."""

from __future__ import annotations

import threading
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
