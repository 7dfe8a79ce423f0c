"""The arrears of a boot: its duties before it serves (rules restart and clone), kept in the catalog.

``serve_from`` is the end of the log when this replica began with a new or a cloned catalog. Locks of removals
up to there may be gone, since all others have applied them; a transaction that began below would find their
parts unlocked, and remove them once more. ``clone_base`` is the CSN of the clone while its parts are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.catalog_schema import SERVE_FROM_UNKNOWN


def is_incomplete(reader: CatalogReader) -> bool:
    """Return whether parts of the clone that this catalog is may be missing."""
    return bool(reader.meta("clone_base"))


@dataclass(slots=True)
class Arrears:
    """The arrears of one boot.

    Attributes:
        serve_from: It takes no transaction before it has applied this CSN.
        base: The CSN of its clone while parts of it are missing: those that are visible there must not be
            collected anywhere, so its progress holds the horizon at this CSN. CSN_NONE when none are missing.
    """

    serve_from: Csn
    base: Csn

    @classmethod
    def noted(cls, reader: CatalogReader, published: Csn) -> Arrears:
        """Return the arrears as far as the catalog remembers them.

        Args:
            reader: The catalog.
            published: The largest snapshot CSN that was ever published for the replica.
        """
        serve_from = max(published, reader.meta("serve_from") or CSN_NONE)
        return cls(Csn(serve_from), Csn(reader.meta("clone_base") or CSN_NONE))

    async def registered(self, catalog: Catalog, end: Csn) -> None:
        """Note the end of the log behind the registration of this boot, for a new or cloned catalog."""
        if catalog.reader.meta("serve_from") == SERVE_FROM_UNKNOWN:
            await catalog.write(partial(jobs.set_meta, serve_from=end))
            self.serve_from = Csn(max(self.serve_from, end))

    async def fetched(self, catalog: Catalog) -> None:
        """Note that no part of the clone is missing any more."""
        if self.base:
            await catalog.write(partial(jobs.set_meta, clone_base=CSN_NONE))
            self.base = CSN_NONE
