"""Which merges above its CSN a transaction sees, in place of the parts that they have replaced.

The rule is :func:`tidelock.csnlog.core.visibility.adoptable`; here is what was found by it so far. It is kept
in memory: after a restart no transaction is open. Those who read inside of a transaction are told with each
request.
"""

from __future__ import annotations

from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.csnlog.core.visibility import adoptable
from tidelock.replica_agent.storage.catalog_reads import CatalogReader


class AdoptedMerges:
    """The merges that one transaction has adopted, or could adopt; none before the first look.

    Attributes:
        tids: Their textual tids.
    """

    def __init__(self) -> None:
        self.tids: set[str] = set()
        self._looked_to: dict[TableName | None, Csn] = {}

    def look(self, reader: CatalogReader, table: TableName | None, *, at: Csn, newest: Csn) -> None:
        """Adopt the merges, up to CSN ``newest`` at least, that one who reads at ``at`` may adopt.

        Those of one table, or of all (None). What was looked at once is not looked at again, so ``at`` must
        not fall; where it rises, the merges up to it are seen anyway.
        """
        since = max(at, self._looked_to.get(table, at))
        self.tids |= adoptable(reader.replaced_since(table, since), at, self.tids)
        self._looked_to[table] = max(since, newest)
