"""Reads of the catalog for system tables: any expressions, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidelock.csnlog.core.ids import Csn, TableId, Tid
from tidelock.replica_agent.storage.catalog_reads import CatalogReader


class SystemReader(CatalogReader):
    """The catalog as system tables read it. DuckDB takes each batch of a scan in another thread.

    Expressions may use the functions ``tid_home`` and ``tid_snapshot``, the replica of a transaction and the
    CSN at which it was begun, and ``namespace_of`` and ``name_of``, the two parts of the name of a table.
    """

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, one_thread=False)
        self._db.create_function("tid_home", 1, lambda tid: Tid.parse(tid).home, deterministic=True)
        self._db.create_function("namespace_of", 1, lambda name: name.rpartition(".")[0], deterministic=True)
        self._db.create_function("name_of", 1, lambda name: name.rpartition(".")[2], deterministic=True)
        self._db.create_function("tid_snapshot", 1, lambda tid: Tid.parse(tid).snapshot, deterministic=True)

    def selected(
        self, expressions: Sequence[str], source: str, args: Mapping[str, Any], rows: int
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Yield the values of expressions over the rows of a source, so many rows at a time.

        All of them are of one moment of the catalog, and SQLite holds none of them back: a table of a million
        parts takes as little memory as one of ten.
        """
        # A row without columns is still a row: it is counted.
        wanted = ", ".join(expressions) or "NULL"
        found = self._db.execute(f"SELECT {wanted} FROM {source}", args)  # noqa: S608 - of the definitions
        while batch := found.fetchmany(rows):
            yield batch

    def changed(self, table: TableId, at: Csn) -> Csn | None:
        """Return the CSN not above ``at`` that last changed the rows or the definition of a table.

        None if it is not known any more: it is below the horizon of the table.
        """
        last = self.last_change(table)
        if last is not None and last <= at:
            return last
        sql = """
            SELECT max(csn) FROM (
                SELECT max(from_csn) AS csn FROM tables WHERE id = :t AND from_csn <= :s
                UNION ALL
                SELECT max(creation_csn) FROM parts
                WHERE table_name = :t AND creation_csn <= :s AND creation_change
                UNION ALL
                SELECT max(removal_csn) FROM parts
                WHERE table_name = :t AND removal_csn <= :s AND removal_change
            )
        """
        found = self._db.execute(sql, {"t": table, "s": at}).fetchone()[0]
        return None if found is None else Csn(found)
