"""TPC-H data for the bench: the generated tables, and a lineitem that was committed in many small parts."""

from __future__ import annotations

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelock.cluster import LocalCluster
from workloads.tpch import data
from workloads.tpch.tables import LINEITEM, TpchTable

#: lineitem in many small parts.
SMALL: Final = dataclasses.replace(LINEITEM, name="lineitem_small")
_THREADS: Final = 4


def source(folder: Path) -> Path:
    """Return where the generator's files lie."""
    return folder / "tpch"


def scale_factor(folder: Path) -> float:
    """Return the scale factor that was generated."""
    return float((source(folder) / "scale_factor").read_text(encoding="ascii"))


def generate(folder: Path, scale: float) -> None:
    """Generate the eight tables."""
    data.generate(source(folder), scale)
    (source(folder) / "scale_factor").write_text(f"{scale:g}", encoding="ascii")


def parquet(folder: Path, table: TpchTable) -> Path:
    """Write a table with its partition column into a Parquet file, unless it is there."""
    path = folder / f"{table.name}.parquet"
    if not path.exists():
        with data.TpchRows(source(folder)) as generated, pq.ParquetWriter(path, table.schema) as file:
            for batch in generated.rows(table):
                file.write_batch(batch)
    return path


def load_small(cluster: LocalCluster, parts: int, *, name: str = SMALL.name, compaction: str = "off") -> None:
    """Fill a table with the rows of lineitem, in as many transactions as it shall have parts.

    A part is of one year, and the years take equal numbers of parts.
    """
    with cluster.connect() as db:
        db.create_table(
            name,
            SMALL.schema,
            partition_by=SMALL.partition_by,
            sort_by=SMALL.sort_by,
            properties={"compaction": compaction},
        )
        with db.snapshot() as snap:
            years = snap.sql("select distinct l_year from lineitem order by 1")["l_year"].to_pylist()
            for number, year in enumerate(years):
                count = parts * (number + 1) // len(years) - parts * number // len(years)
                rows = snap.read(LINEITEM.name, where="l_year = ?", params=[year])
                with ThreadPoolExecutor(_THREADS) as pool:
                    list(pool.map(lambda piece: db.insert(name, piece), _slices(rows, count)))


def _slices(rows: pa.Table, count: int) -> list[pa.Table]:
    bounds = [rows.num_rows * number // count for number in range(count + 1)]
    return [rows.slice(begin, end - begin) for begin, end in itertools.pairwise(bounds)]
