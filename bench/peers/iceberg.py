"""Apache Iceberg through pyiceberg, with a SQLite catalogue, on a local folder."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import OperationalError

from bench.peers.peer import retrying
from bench.tools.workload import SCHEMA, Commit, batch

_TABLE = "bench.rows"


class Iceberg:
    """One table; pyiceberg has no transaction over several."""

    name = "pyiceberg"
    tables = 1
    note = "only its SQLite catalogue fsyncs, its data files and metadata files are not forced to disk"

    def prepare(self, folder: Path) -> None:
        """Create catalogue and table."""
        catalog = _catalog(folder)
        catalog.create_namespace("bench")
        catalog.create_table(_TABLE, schema=SCHEMA)

    def open(self, number: int, folder: Path) -> Commit:
        """Return the appends of a client; pyiceberg itself tries each several times."""
        table = _catalog(folder).load_table(_TABLE)

        def append(count: int) -> None:
            try:
                table.append(batch(number, count))
            except Exception:
                table.refresh()
                raise

        return retrying(append, (CommitFailedException, OperationalError))

    def rows(self, folder: Path) -> int:
        """Return the rows of the table, by its newest snapshot."""
        snapshot = _catalog(folder).load_table(_TABLE).current_snapshot()
        assert snapshot is not None, "nothing was appended"
        assert snapshot.summary is not None, "a snapshot of pyiceberg has a summary"
        return int(snapshot.summary["total-records"] or 0)


def _catalog(folder: Path) -> SqlCatalog:
    return SqlCatalog(
        "bench", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=f"file://{folder / 'warehouse'}"
    )
