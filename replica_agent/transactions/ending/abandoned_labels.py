"""Releases the labels that their homes will not release: their names would be taken forever.

A label is released by the home of its transaction, together with the outcome
(:mod:`tidelock.replica_agent.transactions.ending.outcome_retention`). A home that was removed or struck
commits nothing in the life that has ended. So any other replica may release its labels, once the outcome is
older than its retention: the catalog keeps it no more, and the snapshot of the transaction is below the floor
of the kept outcomes. A home that was struck and comes back with the catalog of a peer knows nothing of such
outcomes either, so each agent looks once for labels of its own former lives.

Each deletion raises the version of ``labels``, read first and checked. Of two replicas that delete at once
one is refused, so a label that was created again in between is never deleted (F5, Z10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from tidelock.csnlog.cluster.replica_progress import Fenced
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Delete, Op, SetData, Store
from tidelock.replica_agent.storage.catalog_reads import CatalogReader

_log = structlog.get_logger("labels")

#: Labels that are read, and deleted, with one request.
_BATCH = 100
#: Seconds between two readings of all labels: a home that has ended may hold some for a month.
PAUSE_S = 3600.0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AbandonedLabels:
    """The labels of homes that have ended, as one replica releases them.

    Attributes:
        replica: The replica of this agent.
        ended: Returns the homes that were removed or struck, with the boot that has ended.
        clock: Monotonic clock, in seconds.
    """

    replica: ReplicaId
    store: Store
    fenced: Fenced
    reader: CatalogReader
    ended: Callable[[], Mapping[ReplicaId, int]]
    clock: Callable[[], float]
    #: Lives of ended homes that hold no label any more.
    _done: set[tuple[ReplicaId, int]] = field(default_factory=set, init=False)
    _own_done: bool = field(default=False, init=False)
    _next_s: float = field(default=0.0, init=False)

    async def release(self) -> None:
        """Delete the labels of ended homes whose outcomes are over; a later call goes on.

        Raises:
            FencedError, UnavailableError: A later call goes on.
        """
        ended = set(self.ended().items())
        self._done &= ended
        ended -= self._done
        homes = {home for home, _ in ended} | (set() if self._own_done else {self.replica})
        if not homes or self.clock() < self._next_s:
            return
        names = await self.store.children(tree.LABELS)
        if not isinstance(names, Ok):
            return
        holding: set[ReplicaId] = set()
        for begin in range(0, len(names.value), _BATCH):
            held = await self._release(homes, names.value[begin : begin + _BATCH])
            if held is None:
                return
            holding |= held
        self._own_done = True
        self._done |= {(home, boot) for home, boot in ended if home not in holding}
        self._next_s = self.clock() + PAUSE_S

    async def _release(self, homes: set[ReplicaId], names: tuple[str, ...]) -> set[ReplicaId] | None:
        """Delete some labels; return the homes that may hold some of them still, None if that is unknown."""
        session = self.store.session
        parent = await self.store.get(tree.LABELS)
        paths = [f"{tree.LABELS}/{name}" for name in names]
        nodes = await asyncio.gather(*map(self.store.get, paths))
        if not isinstance(parent, Ok) or self.store.session != session:
            return None
        deletes: list[Op] = []
        holding: set[ReplicaId] = set()
        for path, node in zip(paths, nodes, strict=True):
            if not isinstance(node, Ok):
                continue  # it was deleted meanwhile, or the next call reads it
            tid = Tid.parse(codec.decode_label(node.value.data).tid)
            if tid.home in homes:
                holding.add(tid.home)
                if self._is_over(tid):
                    deletes.append(Delete(path, node.value.version))
        if deletes:
            raised = SetData(tree.LABELS, version=parent.value.version)
            if isinstance(await self.fenced((*deletes, raised)), Ok):
                _log.info("labels_released", homes=sorted(holding), labels=len(deletes))
        return holding

    def _is_over(self, tid: Tid) -> bool:
        """Return whether the outcome of a transaction is older than its retention."""
        return self.reader.outcome(str(tid)) is None and tid.snapshot < self.reader.meta("outcome_floor")
