"""The merges above its CSN that a transaction reads in place of the parts that they replaced.

The rule is :func:`tidelock.csnlog.core.visibility.adoptable`; this module keeps the merges that the rule has
found so far. They are kept in memory: after a restart no transaction is open. Each request of a process that
reads inside a transaction carries them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.visibility import adoptable
from tidelock.replica_agent.storage.catalog_reads import CatalogReader


@dataclass(slots=True, eq=False, repr=False)
class AdoptedMerges:
    """The merges that one transaction has adopted, or could adopt; empty before the first check.

    Attributes:
        tids: Their textual tids.
    """

    tids: set[str] = field(default_factory=set)
    _checked_to: dict[TableId | None, Csn] = field(default_factory=dict)

    def adopt(self, reader: CatalogReader, table: TableId | None, *, at: Csn, newest: Csn) -> None:
        """Adopt the merges up to at least CSN ``newest`` that a reader at ``at`` may adopt.

        The merges are those of one table, or of all tables (None). A range that was checked once is not
        checked again, so ``at`` must not fall; if it rises, the reader sees the merges up to it anyway.
        """
        since = max(at, self._checked_to.get(table, at))
        self.tids |= adoptable(reader.replaced_since(table, since), at, self.tids)
        self._checked_to[table] = max(since, newest)
