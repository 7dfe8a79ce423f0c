"""docs/read-from-anywhere.md: its Python runs, as one program, and its asserts hold."""

from __future__ import annotations

from typing import Any

from tests.support.clusters.cluster import ClusterFactory
from tests.support.project import pages

PAGE = "docs/read-from-anywhere.md"


def test_the_programs_of_the_page(module_cluster: ClusterFactory) -> None:
    """pandas, pyarrow, DuckDB and plain HTTP read what the client has written."""
    local = module_cluster(replicas=1, settings={"reader_workers": 1})
    names: dict[str, Any] = {"url": local.url("r1")}
    assert len(pages.blocks(PAGE, "python")) > 5
    pages.run(PAGE, names)
    names["db"].close()
