"""docs/tables.md: its Python runs, as one program, in the folder of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.project import pages

PAGE = "docs/tables.md"


def test_the_programs_of_the_page(
    module_cluster: ClusterFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are created, changed and dropped as the page says."""
    local = module_cluster(replicas=1, settings={"reader_workers": 1})
    (tmp_path / "demo").symlink_to(local.folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert len(pages.blocks(PAGE, "python")) == 17
    pages.run(PAGE, names)
    with names["db"] as db:
        found = {table.name: table for table in db.tables()}
        assert found.keys() == {
            "sales.orders",
            "sales.returns",
            "default.stock",
            "default.per_day",
            "sales.pieces",
            "travel.trips",
            "default.orders_test",
            "audit.orders",
            "default.imported",
            "sales.lines",
            "sales.visits",
            "default.prices",
        }
        assert found["sales.orders"].properties == {"comment": "with returns"}
        assert found["sales.returns"].rows == 1
        assert found["default.imported"].rows == 1
        (row,) = db.read("sales.orders", ["id", "state", "pieces", "channel"]).to_pylist()
        assert row == {"id": 8, "state": "new", "pieces": None, "channel": "web"}
