"""The operator's word that parts are lost, as this replica learns it before it can apply the record of it.

A replica that waits for a lost part cannot reach the record that declares it lost. So the word also stands
in ``skips/<part>``, made in the same multi. A replica reads all of them before it serves, and that of the
part that it waits for while it is blocked. All others learn it when they apply the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import decode_skip
from tidelock.csnlog.core.ids import PartId
from tidelock.csnlog.core.model import SkipPart
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import Store
from tidelock.errors import UnavailableError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog

_log = structlog.get_logger("skips")
_NONE = Refused(Reason.NO_NODE)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SkipReader:
    """Reads ``skips`` in ZooKeeper.

    Attributes:
        held: Called with a part that no record waits for any more.
        clones: Called with the reason if this replica shows what no other may show, and has to clone.
    """

    store: Store
    catalog: Catalog
    held: Callable[[PartId], None]
    clones: Callable[[str], None]

    async def learn_all(self) -> None:
        """Learn every part that is declared lost.

        Raises:
            UnavailableError: ZooKeeper could not be read; this replica must not serve yet.
        """
        names = await self.store.children(tree.SKIPS)
        if names == _NONE:
            return  # nothing was ever declared lost in this cluster
        if not isinstance(names, Ok):
            raise UnavailableError("ZooKeeper could not be read; try again")
        for name in sorted(names.value):
            if not self.catalog.reader.is_skipped(PartId(name)) and not await self.learn(PartId(name)):
                raise UnavailableError("ZooKeeper could not be read; try again")

    async def learn(self, part: PartId) -> bool:
        """Learn whether a part is declared lost; return False if it is not, or that is not known now."""
        word = await self.read(part)
        if word is not None:
            await self.take(word)
        return word is not None

    async def read(self, part: PartId) -> SkipPart | None:
        """Return the word that a part is lost; None if there is none, or that is not known now."""
        node = await self.store.get(tree.skip(part))
        return decode_skip(node.value.data).entry if isinstance(node, Ok) else None

    async def take(self, entry: SkipPart) -> None:
        """Note a lost part in the catalog, and go on without it."""
        unused = await self.catalog.write(lambda db: jobs.skip(db, entry))
        self.catalog.late_removals.update(unused)
        _log.warning("part_declared_lost", part=entry.part, csn=entry.csn, tid=entry.tid, by=entry.by)
        if reason := self.catalog.reader.meta("clone"):
            self.clones(reason)
        else:
            self.held(entry.part)
