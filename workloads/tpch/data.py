"""TPC-H data: made by tpchgen-cli as Parquet files, loaded into all eight tables in one transaction."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import duckdb
import pyarrow as pa

from tidelock.client import CommitResult, Database
from tidelock.errors import ConfigError
from workloads.tpch.tables import ORDERS, TABLES, TpchTable

_GENERATOR: Final = "tpchgen-cli"
#: Rows that DuckDB hands over at a time.
_BATCH_ROWS: Final = 64 * 1024
#: Memory of DuckDB for the join and the sort; beyond it, DuckDB spills into the folder.
_MEMORY: Final = "1GB"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of the tables before the first new order: the largest order key, and rows by table."""

    last_orderkey: int
    rows: dict[str, int]


def generate(folder: Path, scale_factor: float) -> None:
    """Write the generator's eight files into a folder.

    ConfigError when the generator is not installed, or fails.
    """
    program = find_generator()
    done = subprocess.run(
        [program, "parquet", "--scale-factor", f"{scale_factor:g}", "--output-dir", str(folder), "--quiet"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise ConfigError(f"{program} ended with exit code {done.returncode}: {done.stderr.strip()}")


def find_generator() -> str:
    """The path of the generator; ConfigError when it is not installed."""
    beside = Path(sys.executable).with_name(_GENERATOR)  # the environment need not be on the PATH
    program = str(beside) if beside.exists() else shutil.which(_GENERATOR)
    if program is None:
        raise ConfigError(f"the demo needs {_GENERATOR}, which makes TPC-H data; `pip install {_GENERATOR}`")
    return program


class TpchRows:
    """The generated files as rows of the tables; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._duckdb = duckdb.connect()
        self._duckdb.execute(f"set memory_limit = '{_MEMORY}'")
        self._duckdb.execute(f"set temp_directory = '{_quoted(folder / 'spill')}'")
        for table in TABLES:
            file = _quoted(folder / f"{table.name}.parquet")
            self._duckdb.execute(f"create view {table.name} as select * from read_parquet('{file}')")  # noqa: S608

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._duckdb.close()

    def rows(self, table: TpchTable) -> pa.RecordBatchReader:
        """All rows of a table, in its own columns, read as they are taken."""
        reader = self._duckdb.cursor().sql(table.select).to_arrow_reader(_BATCH_ROWS)
        return pa.RecordBatchReader.from_batches(table.schema, _conform(reader, table.schema))

    def loaded(self) -> Loaded:
        """Return the content of the tables after a load of these rows."""
        return Loaded(
            last_orderkey=self._number(f"select max(o_orderkey) from {ORDERS.name}"),  # noqa: S608
            rows={table.name: self._number(f"select count(*) from {table.name}") for table in TABLES},  # noqa: S608
        )

    def _number(self, sql: str) -> int:
        [(number,)] = self._duckdb.execute(sql).fetchall()
        return int(number)


def create_tables(db: Database) -> None:
    """Create the eight tables; errors as in `Database.create_table`.

    Their small parts stay as the writers leave them: replicas are killed and frozen in the middle of a Spark
    task, and over merged parts a task is too short to be met.
    """
    for table in TABLES:
        db.create_table(
            table.name,
            table.schema,
            partition_by=table.partition_by,
            sort_by=table.sort_by,
            properties={"compaction": "off"},
        )


def load(db: Database, source: TpchRows) -> CommitResult:
    """Insert all rows of all tables as one transaction; errors as in `Transaction.insert` and `commit`."""
    with db.begin() as tx:
        for table in TABLES:
            tx.insert(table.name, source.rows(table))
        return tx.commit()


def _conform(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same columns under the table's schema: DuckDB does not know that they hold no nulls."""
    for batch in reader:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
