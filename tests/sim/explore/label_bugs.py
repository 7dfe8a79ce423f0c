"""Planted bugs of labels: pieces of the product replaced, each of which an exploration must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

import msgspec

from tests.sim.explore.labelling import Labelling, LabelRun, RunLog
from tests.sim.explore.planted import Bug
from tests.sim.explore.replay import Replays
from tests.sim.explore.search import Model
from tidelock.csnlog.core import batch
from tidelock.csnlog.core.batch import ElementRole, Proposal
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.core.store import Check, Delete, Op, SetData
from tidelock.replica_agent.transactions.ending import outcome_retention

#: Two runs of the next batch, one at each home.
TWICE: Final = (LabelRun(0, 1), LabelRun(1, 1))

_ELEMENTS = batch._elements


class LabelAfterwards(RunLog):
    """The label is looked up before the commit, and written behind it in a multi of its own."""

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """The commit says nothing of the label."""
        del timeout_s
        done = await self.send(proposal, self.plan(msgspec.structs.replace(proposal, label=None, move=None)))
        ops = tuple(op for op, part in _ELEMENTS(proposal) if part is ElementRole.LABEL)
        await self._store.multi(ops)
        return done


def _moved_at_any_version(proposal: Proposal) -> Iterator[tuple[Op, ElementRole]]:
    for op, part in _ELEMENTS(proposal):
        if part is ElementRole.LABEL and isinstance(op, SetData):
            yield msgspec.structs.replace(op, version=None), part
        else:
            yield op, part


def _without_deletions(proposal: Proposal) -> Iterator[tuple[Op, ElementRole]]:
    return (item for item in _ELEMENTS(proposal) if item[1] is not ElementRole.LABELS)


def _delete_at_any_version(path: str, _: int) -> Op:
    return Delete(path, -1)


def _leave_version(path: str, *, version: int) -> Op:
    """The deletion of a label leaves its version: a client that moves the label does not notice it."""
    return Check(path, version)


def _labelling(*runs: LabelRun, **more: Any) -> Callable[..., Model]:
    def model(replays: Replays, **classes: Any) -> Model:
        return Labelling(replays, runs, **more, **classes)

    return model


def _elements(
    replaced: Callable[[Proposal], Iterator[tuple[Op, ElementRole]]],
) -> AbstractContextManager[Any]:
    return mock.patch.object(batch, "_elements", replaced)


LABEL_BUGS = (
    Bug(
        "a label looked up before the multi only",
        frozenset({"I7 NOCONFLICT"}),
        _labelling(*TWICE),
        {"log": LabelAfterwards},
    ),
    Bug(
        "a label moved without its version",
        frozenset({"I7 NOCONFLICT"}),
        _labelling(*TWICE, begun=True),
        planted=lambda: _elements(_moved_at_any_version),
    ),
    Bug(
        "a label moved that was deleted and made anew",
        frozenset({"I7 NOCONFLICT"}),
        _labelling(*TWICE, begun=True),
        planted=lambda: _elements(_without_deletions),
    ),
    Bug(
        "a deletion of a label that movers are not told of",
        frozenset({"I7 NOCONFLICT"}),
        _labelling(*TWICE, begun=True),
        planted=lambda: mock.patch.object(outcome_retention, "SetData", _leave_version),
    ),
    Bug(
        "a label deleted that was moved meanwhile",
        frozenset({"I12 GC-SAFE"}),
        _labelling(*TWICE, begun=True),
        planted=lambda: mock.patch.object(outcome_retention, "Delete", _delete_at_any_version),
    ),
)
