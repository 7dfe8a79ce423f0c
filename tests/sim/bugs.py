"""Planted bugs: each replaces a piece of the product by a wrong one, and the simulation has to find it.

A simulation that finds nothing is worth nothing unless it would find something.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from tests.sim.disk import Disk
from tidelock.csnlog.engine import Engine
from tidelock.csnlog.faults import Step
from tidelock.csnlog.messages import MultiResult
from tidelock.csnlog.results import Reason, Refused, Unknown
from tidelock.csnlog.store import Op
from tidelock.errors import CorruptError
from tidelock.replica_agent import catalog_jobs
from tidelock.replica_agent.acceptor import Acceptor
from tidelock.replica_agent.ledger import CatalogLedger
from tidelock.replication.core import Copies
from tidelock.replication.model import Held, Peer
from tidelock.replication.push import Pusher
from tidelock.replication.wire import decode


@contextmanager
def acknowledge_before_durable() -> Iterator[None]:
    """A peer says that it holds a transaction while it is still writing it."""
    store = Acceptor.stage

    async def stage(self: Acceptor, raw: bytes) -> Held:
        push = decode(raw)
        task = asyncio.create_task(store(self, raw))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        tids = tuple(str(sealed.tid) for sealed in push.tids)
        return Held(self._replica, self._disk, self._boot, self._waiters.reached, tids, {})

    with mock.patch.object(Acceptor, "stage", stage):
        yield


@contextmanager
def count_a_replaced_disk() -> Iterator[None]:
    """A copy counts for ever, whatever becomes of the disk that it was on."""
    change = Pusher._change_lane

    def holders(self: Copies, state: Any) -> tuple[Any, ...]:
        acked = sorted({replica for replica, _ in state.acks})
        return (self.home, *acked) if state.persisted else tuple(acked)

    def change_lane(self: Pusher, lane: Any, peer: Peer) -> None:
        lane.peer = replace(lane.peer, disk=peer.disk)
        change(self, lane, peer)

    with (
        mock.patch.object(Copies, "_holders", holders),
        mock.patch.object(Pusher, "_change_lane", change_lane),
    ):
        yield


@contextmanager
def apply_over_a_gap() -> Iterator[None]:
    """A record is applied although parts of it are missing."""
    apply = catalog_jobs._apply_tid

    async def held(_self: CatalogLedger, parts: Any) -> set[Any]:
        return set(parts)

    def apply_what_is_there(*args: Any) -> None:
        with contextlib.suppress(CorruptError):
            apply(*args)

    with (
        mock.patch.object(CatalogLedger, "held", held),
        mock.patch.object(catalog_jobs, "_apply_tid", apply_what_is_there),
    ):
        yield


@contextmanager
def send_again_what_may_have_landed() -> Iterator[None]:
    """A multi whose answer was lost counts as not applied, and is sent again without raising the fence."""
    multi = Engine._multi

    async def certain(self: Engine, step: Step, ops: tuple[Op, ...]) -> tuple[MultiResult, int]:
        result, session = await multi(self, step, ops)
        return (Refused(Reason.NOT_CONNECTED) if isinstance(result, Unknown) else result), session

    with mock.patch.object(Engine, "_multi", certain):
        yield


@contextmanager
def forget_to_fsync() -> Iterator[None]:
    """Part files are not made durable."""
    with mock.patch.object(Disk, "fsync", return_value=None):
        yield


BUGS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    bug.__name__.replace("_", "-"): bug
    for bug in (
        acknowledge_before_durable,
        count_a_replaced_disk,
        apply_over_a_gap,
        send_again_what_may_have_landed,
        forget_to_fsync,
    )
}
