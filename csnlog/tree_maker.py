"""The tree of a cluster that is made again, after ZooKeeper has lost it or was set back.

The plan of the tree is made elsewhere, out of the catalogs of replicas
(:mod:`tidelock.replica_agent.rebuilding`). Here it is written. The znode ``cluster`` is deleted first and
created last, so no agent starts on a tree that is not whole, and a run that was cut short is repeated from
its beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tidelock.csnlog import faults
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableName, epoch_of
from tidelock.csnlog.core.model import (
    ClusterState,
    LabelState,
    MemberState,
    Progress,
    Record,
    RecordKind,
    SessionState,
    SkipPart,
    SkipState,
)
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Create, Delete, Op, SetData, Store
from tidelock.errors import ConfigError, UnavailableError

#: The result of a request to the store.
Answer = Ok[Any] | Refused | Unknown

#: Passed with each write of the new tree.
REBUILD: Final = faults.step("rebuild.write")

#: The znodes below the root, those first that decide whether an agent starts.
_TOPS: Final = (
    *(tree.CLUSTER, tree.CSN, tree.REPLICAS, tree.TABLES),
    *(tree.LOCKS, tree.LABELS, tree.PINS, tree.SKIPS),
)
#: Requests on their way at once.
_AT_ONCE: Final = 32
#: Pause before a request is repeated, in seconds.
_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Seat:
    """A replica in the tree."""

    session: SessionState
    progress: Progress


@dataclass(frozen=True, slots=True)
class TreePlan:
    """The content of the tree.

    Attributes:
        cluster: The identity; its incarnation is a new one.
        end: The CSN up to which the replicas have applied. The log goes on behind it with the record that
            closes its epoch.
        horizon: The largest horizon of the replicas.
        home: The replica that counts as the writer of that record.
        time_ms: Its wall time (Unix, ms).
        seats: The replicas.
        tables: The definitions of each table, in the order of their versions.
        labels: Labels, each with its newest commit.
        skips: Parts that were declared lost.
    """

    cluster: ClusterState
    end: Csn
    horizon: Csn
    home: ReplicaId
    time_ms: int
    seats: Mapping[ReplicaId, Seat]
    tables: Mapping[TableName, Sequence[Mapping[str, Any]]]
    labels: Mapping[str, LabelState]
    skips: Sequence[SkipPart]


async def require_idle(store: Store, cluster_id: str, *, silence_s: float, patience_s: float) -> None:
    """Raise unless the tree that is there may be deleted: it is this cluster's, and no agent lives on it.

    Args:
        store: A connected store.
        cluster_id: The cluster that the catalogs belong to.
        silence_s: How long to wait for the end of the sign of life of agents that were stopped.
        patience_s: How long a request is repeated while ZooKeeper does not answer.

    Raises:
        ConfigError: Another cluster is there, or an agent shows a sign of life.
        UnavailableError: ZooKeeper does not answer.
    """
    node, _ = await _answered(lambda: store.get(tree.CLUSTER), patience_s)
    if isinstance(node, Ok):
        found = codec.decode_cluster(node.value.data).cluster_id
        if found != cluster_id:
            raise ConfigError(
                f"expected cluster {cluster_id} or an empty root, found cluster {found}: check the root"
            )
    until = asyncio.get_running_loop().time() + silence_s
    while living := await _living(store, patience_s):
        if asyncio.get_running_loop().time() > until:
            raise ConfigError(
                f"expected that all agents are stopped, found {', '.join(living)} alive: stop them, and run "
                "the command again"
            )
        await asyncio.sleep(_RETRY_S)


async def make_again(store: Store, plan: TreePlan, *, patience_s: float) -> None:
    """Delete the tree and write it again. It may be repeated: it begins from the start each time.

    Args:
        store: A connected store.
        plan: The content.
        patience_s: How long a request is repeated while ZooKeeper does not answer.

    Raises:
        ConfigError: A znode does not fit a request.
        UnavailableError: ZooKeeper does not answer; run it again.
    """
    for top in _TOPS:
        await _delete(store, top, patience_s)
    for ops in _frame(plan):
        await _write(store, ops, patience_s)
    # ZooKeeper counts the definitions: the version of a table is that of its znode.
    places = asyncio.Semaphore(_AT_ONCE)

    async def one_after_the_other(writes: Sequence[Op]) -> None:
        async with places:
            for op in writes:
                await _write(store, (op,), patience_s)

    try:
        async with asyncio.TaskGroup() as group:
            for writes in _contents(plan):
                group.create_task(one_after_the_other(writes))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    await _write(store, (Create(tree.CLUSTER, codec.encode_cluster(plan.cluster)),), patience_s)


def _frame(plan: TreePlan) -> list[tuple[Op, ...]]:
    """Return the folders, the log, and the replicas."""
    last = epoch_of(plan.end)
    closing = Csn(plan.end + 1)
    record = Record(RecordKind.END, plan.home, plan.time_ms, witnesses=())
    log: tuple[Op, ...] = (
        Create(tree.CSN),
        Create(tree.EPOCH, codec.encode_epoch(last + 1)),
        Create(tree.epoch_dir(last)),
        Create(tree.record(closing), codec.encode_record(record)),
        Create(tree.epoch_dir(last + 1)),
        Create(tree.HEAD),
        Create(tree.TAIL, codec.encode_csn(closing)),
        Create(tree.HORIZON, codec.encode_csn(plan.horizon)),
    )
    folders = tuple(Create(path) for path in _TOPS if path not in {tree.CLUSTER, tree.CSN})
    seats: list[tuple[Op, ...]] = [
        (
            Create(tree.replica(name), codec.encode_member(MemberState())),
            Create(tree.session(name), codec.encode_session(seat.session)),
            Create(tree.progress(name), codec.encode_progress(seat.progress)),
        )
        for name, seat in sorted(plan.seats.items())
    ]
    return [log, folders, *seats]


def _contents(plan: TreePlan) -> list[tuple[Op, ...]]:
    """Return the writes of each table, label and lost part, in their order."""
    writes: list[tuple[Op, ...]] = []
    for name, definitions in sorted(plan.tables.items()):
        path, (first, *others) = tree.table(name), definitions
        later = (SetData(path, codec.encode_definition(one), version) for version, one in enumerate(others))
        writes.append((Create(path, codec.encode_definition(first)), *later))
    writes += [
        (Create(tree.label(text), codec.encode_label(state)),) for text, state in sorted(plan.labels.items())
    ]
    writes += [(Create(tree.skip(one.part), codec.encode_skip(SkipState(one))),) for one in plan.skips]
    return writes


async def _living(store: Store, patience_s: float) -> list[str]:
    names, _ = await _answered(lambda: store.children(tree.REPLICAS), patience_s)
    if not isinstance(names, Ok):
        return []
    living = []
    for name in sorted(names.value):
        path = tree.alive(ReplicaId(name))
        sign, _ = await _answered(partial(store.exists, path), patience_s)
        if isinstance(sign, Ok) and sign.value is not None:
            living.append(name)
    return living


async def _delete(store: Store, path: str, patience_s: float) -> None:
    """Delete a znode and all below it."""
    while True:
        names, _ = await _answered(lambda: store.children(path), patience_s)
        if not isinstance(names, Ok):  # it does not exist
            return
        for begin in range(0, len(names.value), _AT_ONCE):
            some = names.value[begin : begin + _AT_ONCE]
            await asyncio.gather(*(_delete(store, f"{path}/{name}", patience_s) for name in some))
        done, _ = await _answered(lambda: store.multi((Delete(path, -1),)), patience_s)
        match done:
            case Ok() | Refused(reason=Reason.NO_NODE):
                return
            case Refused(reason=Reason.NOT_EMPTY):  # something was made meanwhile
                await asyncio.sleep(_RETRY_S)
            case _:
                raise _misfit("delete", path, done.reason)


async def _write(store: Store, ops: tuple[Op, ...], patience_s: float) -> None:
    """Apply a multi once, although answers are lost: after a lost one a refusal says that it was applied."""

    async def request() -> Answer:
        await REBUILD.before()
        done = await store.multi(ops)
        await REBUILD.after()
        return done

    match await _answered(request, patience_s):
        case Ok(), _:
            return
        case Refused(reason=Reason.NODE_EXISTS | Reason.BAD_VERSION), True:
            return
        case Refused(reason=reason), _:
            raise _misfit("make", ops[0].path, reason)


def _misfit(verb: str, path: str, reason: Reason) -> ConfigError:
    return ConfigError(
        f"expected to {verb} {path!r} in ZooKeeper, found {reason.value}: check that nothing else writes "
        "below this root"
    )


async def _answered(
    request: Callable[[], Awaitable[Answer]], patience_s: float
) -> tuple[Ok[Any] | Refused, bool]:
    """Repeat a request until it has an answer. Return it, and whether one before it may have been applied.

    Raises:
        UnavailableError: There was no answer for so long.
    """
    clock = asyncio.get_running_loop().time
    until, doubtful = clock() + patience_s, False
    while True:
        found = await request()
        match found:
            case Unknown():
                doubtful = True
            case Refused(reason=Reason.NOT_CONNECTED):
                pass
            case _:
                return found, doubtful
        if clock() >= until:
            raise UnavailableError(
                "ZooKeeper does not answer; check that it has a quorum, and run the command again"
            )
        await asyncio.sleep(_RETRY_S)
