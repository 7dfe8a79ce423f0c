"""Loads TPC-H; beside the load of lineitem into three replicas stands what it cannot do without.

That is cp and fsync of what it has written, three times; and pyarrow's own `write_table` of the same
rows, once, with the same codec.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.tools import tpch
from bench.tools.machine import memory_mb
from tidelock.cluster import LocalCluster
from workloads.tpch import data
from workloads.tpch.tables import LINEITEM, TABLES

#: A load has settled when this has passed.
_SETTLE_S: Final = 5.0


def run(cluster: LocalCluster, folder: Path) -> dict[str, Any]:
    """Load all tables; lineitem alone is timed, until all three replicas have applied it."""
    before = memory_mb(cluster)
    with cluster.connect("r1") as db, data.TpchRows(tpch.source(folder)) as source:
        data.create_tables(db)
        rows = source.rows(LINEITEM).read_all()  # before the clock runs: the rows come from a join and a sort
        begun = time.monotonic()
        with db.begin() as tx:
            tx.insert(LINEITEM.name, rows)
            tx.commit(wait="all")
        lineitem_s = time.monotonic() - begun
        encode_s = _write_table(rows, folder / "written.parquet")
        del rows
        written = db.table(LINEITEM.name)
        copies_s = _copy_three_times(cluster.data_dir("r1"), folder / "copies")
        with db.begin() as tx:
            for table in TABLES:
                if table is not LINEITEM:
                    tx.insert(table.name, source.rows(table))
            tx.commit(wait="all")
    time.sleep(_SETTLE_S)
    return {
        "scale_factor": tpch.scale_factor(folder),
        "lineitem_mb": round(written["bytes"] / 1e6, 1),
        "lineitem_parts": written["parts"],
        "lineitem_s": round(lineitem_s, 2),
        "three_copies_s": round(copies_s, 2),
        "write_table_s": round(encode_s, 2),
        "ratio": round(lineitem_s / copies_s, 1),
        "ratio_to_encoding": round(lineitem_s / (encode_s + copies_s), 3),
        "memory_before_mb": before,
        "memory_after_mb": memory_mb(cluster),
    }


def _write_table(rows: pa.Table, path: Path) -> float:
    """Encode the rows as one Parquet file; returns the seconds."""
    begun = time.monotonic()
    pq.write_table(rows, path, compression="zstd")
    return time.monotonic() - begun


def _copy_three_times(data_dir: Path, target: Path) -> float:
    """Copy all part files of a replica three times, each copy forced to disk; returns the seconds."""
    files = [path for top in ("parts", "packs") for path in (data_dir / top).rglob("*") if path.is_file()]
    begun = time.monotonic()
    for number in range(3):
        folder = target / str(number)
        folder.mkdir(parents=True)
        subprocess.run([program("cp"), *map(str, files), str(folder)], check=True)
        subprocess.run(
            [program("sync"), *(str(folder / path.name) for path in files), str(folder)], check=True
        )
    return time.monotonic() - begun


def program(name: str) -> str:
    """Return the path of a program of GNU coreutils; RuntimeError when there is none."""
    program = shutil.which(name)
    if program is None:
        raise RuntimeError(f"the comparison needs `{name}` of GNU coreutils")
    return program
