"""DuckLake with a SQLite catalogue, the one of its local catalogues that several processes may share."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import duckdb

from bench.peers.peer import retrying
from bench.tools.workload import TABLES, Commit, batch


class DuckLake:
    """Two tables in one transaction."""

    name = "ducklake"
    tables = 2
    note = "SQLite catalogue; its makers advise PostgreSQL for several writers"

    def prepare(self, folder: Path) -> None:
        """Create catalogue and tables."""
        (folder / "data").mkdir(parents=True)
        with _connect(folder) as db:
            for table in TABLES:
                db.execute(
                    f"create table lake.{table} (key bigint, year integer, status varchar, "
                    "price decimal(15, 2), day date, comment varchar)"
                )

    def open(self, number: int, folder: Path) -> Commit:
        """Return the transactions of a client; DuckLake itself tries each commit up to 10 times."""
        db = _connect(folder)

        def commit(count: int) -> None:
            db.register("batch", batch(number, count))
            db.execute("begin")
            try:
                for table in TABLES:
                    db.execute(f"insert into lake.{table} select * from batch")
                db.execute("commit")
            except duckdb.Error:
                _roll_back(db)
                raise

        return retrying(commit, (duckdb.Error,))

    def rows(self, folder: Path) -> int:
        """Return the rows of both tables."""
        with _connect(folder) as db:
            counts = [db.execute(f"select count(*) from lake.{table}").fetchall() for table in TABLES]
        return int(sum(count for [(count,)] in counts))


def _connect(folder: Path) -> duckdb.DuckDBPyConnection:
    db = duckdb.connect()
    db.execute("set threads = 1")  # a client is one of many on this machine
    for name in ("sqlite_scanner", "ducklake"):
        db.execute(f"load '{_extension(name)}'")
    db.execute(f"attach 'ducklake:sqlite:{folder / 'catalog.db'}' as lake (data_path '{folder / 'data'}')")
    return db


def _roll_back(db: duckdb.DuckDBPyConnection) -> None:
    with contextlib.suppress(duckdb.Error):  # a commit that failed has ended its transaction already
        db.execute("rollback")


def _extension(name: str) -> Path:
    extension = importlib.util.find_spec(f"duckdb_extension_{name}")
    if extension is None or extension.origin is None:
        raise RuntimeError(f"the extension {name} is not installed; `make bench` does that")
    [file] = Path(extension.origin).parent.rglob(f"{name}.duckdb_extension")
    return file
