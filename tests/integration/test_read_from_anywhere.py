"""docs/read-from-anywhere.md: its Python runs, as one program, and its asserts hold; so does its shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.clusters.cluster import ClusterFactory
from tests.support.project import pages

PAGE = "docs/read-from-anywhere.md"


def test_the_programs_of_the_page(module_cluster: ClusterFactory, tmp_path: Path) -> None:
    """pandas, polars, pyarrow, DuckDB, plain HTTP and curl read what the client has written."""
    local = module_cluster(replicas=1, settings={"reader_workers": 1})
    names: dict[str, Any] = {"url": local.url("r1")}
    assert len(pages.blocks(PAGE, "python")) > 7
    pages.run(PAGE, names)
    environment = {**os.environ, "url": names["url"], "data": f"http://{names['place'].netloc}"}
    [script] = pages.blocks(PAGE, "sh")
    command = ["bash", "-euo", "pipefail", "-c", script]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert 0 < pq.read_table(tmp_path / "trips.parquet").num_rows < 3
    names["db"].close()
