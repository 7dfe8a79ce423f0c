"""Forgets outcomes that are older than their retention, and releases their labels.

A label is kept for a time of its own, and with it the outcome of its transaction. Only the home of that
transaction deletes the label's znode: under its own fence, while the znode names that transaction. So no
other transaction can take the label between the check and the deletion. After the deletion a transaction with
this label is new work.

The label of a streaming query is kept longer, counted from its last move, and with it the outcome of the last
batch. Its deletion raises the version of ``labels``. So a client of the log that has read the label before
cannot move a label that is created later under its name (:mod:`tidelock.csnlog.core.labels`). If two homes
delete at once, one of them succeeds, and the other checks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tidelock.csnlog.cluster.replica_progress import Fenced
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import Delete, Op, SetData, Store
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import EndingLabel

#: Number of labels that are checked, and deleted with one request.
_BATCH = 100
_NO_LABEL = Refused(Reason.NO_NODE)


@dataclass(slots=True, eq=False, repr=False)
class OutcomeRetention:
    """The retention of outcomes on this replica, and of the labels of its own transactions."""

    replica: ReplicaId
    catalog: Catalog
    store: Store
    fenced: Fenced

    async def forget(self, before_ms: int, labels_before_ms: int, streams_before_ms: int) -> None:
        """Forget the outcomes of records that became visible before a time (Unix, ms).

        They are kept for now if a label that has ended cannot be released. The outcome of a labelled run is
        kept until it is older than ``labels_before_ms``, that of a streaming query's last batch until it is
        older than ``streams_before_ms``.

        Raises:
            FencedError, UnavailableError, DiskFullError: The call failed; the next call goes on.
        """
        labels = self.catalog.reader.ending_labels(self.replica, labels_before_ms, streams_before_ms)
        for begin in range(0, len(labels), _BATCH):
            if not await self._give_back(labels[begin : begin + _BATCH]):
                return
        await self.catalog.write(
            lambda db: jobs.prune_outcomes(db, before_ms, labels_before_ms, streams_before_ms)
        )

    async def _give_back(self, labels: Sequence[EndingLabel]) -> bool:
        """Delete those labels that still name their transaction; return False if one may remain."""
        parent = await self.store.get(tree.LABELS)
        if not isinstance(parent, Ok):
            return False
        paths = [tree.label(label.name) for label in labels]
        nodes = await asyncio.gather(*map(self.store.get, paths))
        deletes: list[Op] = []
        streams = False
        for label, path, node in zip(labels, paths, nodes, strict=True):
            if isinstance(node, Ok):
                if codec.decode_label(node.value.data).tid == label.tid:
                    deletes.append(Delete(path, node.value.version))
                    streams = streams or label.stream
            elif node != _NO_LABEL:
                return False
        if streams:
            deletes.append(SetData(tree.LABELS, version=parent.value.version))
        return not deletes or isinstance(await self.fenced(tuple(deletes)), Ok)
