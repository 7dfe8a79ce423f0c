"""Delta Lake through deltalake (delta-rs), on a local folder."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from bench.peers.peer import retrying
from bench.tools.workload import SCHEMA, Commit, batch


class Delta:
    """One table; it has no transaction over several."""

    name = "deltalake"
    tables = 1
    note = "does not fsync: what it acknowledges a power cut may take"

    def prepare(self, folder: Path) -> None:
        """Create the table."""
        write_deltalake(_path(folder), SCHEMA.empty_table())

    def open(self, number: int, folder: Path) -> Commit:
        """Return the appends of a client; deltalake itself tries each up to 15 times."""
        # The first write of a process takes many times as long as the next; it goes to a table of its own.
        write_deltalake(str(folder / f"warm-{number}"), batch(number, 0))

        def append(count: int) -> None:
            write_deltalake(_path(folder), batch(number, count), mode="append")

        return retrying(append, (CommitFailedError, DeltaError))

    def rows(self, folder: Path) -> int:
        """Return the rows of the table, by its log."""
        table = DeltaTable(_path(folder))
        return int(sum(table.get_add_actions(flatten=True)["num_records"].to_pylist()))


def _path(folder: Path) -> str:
    return str(folder / "table")
