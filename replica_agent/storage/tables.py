"""The tables at a CSN: versions and decoded definitions, in memory.

Every insert needs both. To read them from the catalog costs a commit several per cent of its processor time:
after each write of the catalog a reader begins with an empty cache of pages. So the versions of a table stay
here until a record that defines it is applied. All of this runs in the thread of the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.csnlog.core.model import DefineTable
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replication.core.model import ResolvedRecord

#: Definitions that are kept decoded, and tables whose versions are kept. A definition never changes under
#: its (name, version).
_KEPT = 1000


@dataclass(slots=True, eq=False, repr=False)
class Tables:
    """The schemas of the tables that the catalog of this replica knows."""

    reader: CatalogReader
    _versions: dict[TableName, list[tuple[Csn, int | None]]] = field(default_factory=dict, init=False)
    _schemas: dict[tuple[TableName, int], TableSchema] = field(default_factory=dict, init=False)

    def applied(self, records: Sequence[ResolvedRecord]) -> None:
        """Forget the versions of tables that the catalog has just got new definitions of."""
        for record in records:
            for tid in record.tids:
                for entry in tid.entries:
                    if isinstance(entry, DefineTable):
                        self._versions.pop(entry.table, None)

    def version(self, name: TableName, at: Csn) -> int | None:
        """Return the version of a table's definition at a CSN that is applied here; None without a table."""
        found = self._versions.get(name)
        if found is None:
            if len(self._versions) >= _KEPT:
                self._versions.clear()
            found = self._versions[name] = self.reader.table_versions(name)
        return next((version for since, version in found if since <= at), None)

    def schema(self, name: TableName, at: Csn) -> tuple[int, TableSchema]:
        """Return version and schema of a table at a CSN.

        Raises:
            UnknownTableError: The table does not exist at ``at``.
        """
        version = self.version(name, at)
        found = None if version is None else self._schemas.get((name, version))
        if version is None or found is None:
            row = self.reader.require_table(name, at)
            if len(self._schemas) >= _KEPT:
                self._schemas.clear()
            version, found = row.version, TableSchema.from_definition(row.definition)
            self._schemas[name, version] = found
        return version, found
