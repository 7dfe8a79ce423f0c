"""The tables at a CSN: the catalog's rows, with their definitions decoded once and kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.tables.schema import TableSchema

#: Definitions kept in their decoded form; a definition never changes under its (name, version).
_SCHEMAS_KEPT = 1000


@dataclass(slots=True, eq=False, repr=False)
class Tables:
    """The schemas of the tables that the catalog of this replica knows."""

    reader: CatalogReader
    _schemas: dict[tuple[TableName, int], TableSchema] = field(default_factory=dict, init=False)

    def schema(self, name: TableName, at: Csn) -> tuple[int, TableSchema]:
        """Return version and schema of a table at a CSN.

        Raises:
            UnknownTableError: The table does not exist at ``at``.
        """
        version = self.reader.table_version(name, at)
        found = None if version is None else self._schemas.get((name, version))
        if version is None or found is None:
            row = self.reader.require_table(name, at)
            if len(self._schemas) >= _SCHEMAS_KEPT:
                self._schemas.clear()
            version, found = row.version, TableSchema.from_definition(row.definition)
            self._schemas[name, version] = found
        return version, found
