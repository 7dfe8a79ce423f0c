"""The tree of a cluster that is made again, after ZooKeeper has lost it or was set back.

The plan of the tree is made elsewhere, out of the catalogs of replicas
(:mod:`tidelock.replica_agent.rebuilding`). Here it is written. The znode ``cluster`` is deleted first and
created last, so no agent starts on a tree that is not whole, and a run that was cut short is repeated from
its beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


async def require_idle(store: Store, cluster_id: str, *, silence_s: float) -> None:
    """Raise unless the tree that is there may be deleted: it is this cluster's, and no agent lives on it.

    Args:
        store: A connected store.
        cluster_id: The cluster that the catalogs belong to.
        silence_s: How long to wait for the end of the sign of life of agents that were stopped.

    Raises:
        ConfigError: Another cluster is there, or an agent shows a sign of life.
        UnavailableError: ZooKeeper does not answer.
    """
    node = await _read(store.get(tree.CLUSTER))
    if isinstance(node, Ok):
        found = codec.decode_cluster(node.value.data).cluster_id
        if found != cluster_id:
            raise ConfigError(
                f"expected cluster {cluster_id} or an empty root, found cluster {found}: check the root"
            )
    until = asyncio.get_running_loop().time() + silence_s
    while living := await _living(store):
        if asyncio.get_running_loop().time() > until:
            raise ConfigError(
                f"expected that all agents are stopped, found {', '.join(living)} alive: stop them, and run "
                "the command again"
            )
        await asyncio.sleep(_RETRY_S)


async def make_again(store: Store, plan: TreePlan) -> None:
    """Delete the tree and write it again. It may be repeated: it begins from the start each time.

    Raises:
        ConfigError: A znode does not fit a request.
        UnavailableError: ZooKeeper does not answer; run it again.
    """
    for top in _TOPS:
        await _delete(store, top)
    for ops in _frame(plan):
        await _write(store, ops)
    # ZooKeeper counts the definitions: the version of a table is that of its znode.
    places = asyncio.Semaphore(_AT_ONCE)

    async def one_after_the_other(writes: Sequence[Op]) -> None:
        async with places:
            for op in writes:
                await _write(store, (op,))

    async with asyncio.TaskGroup() as group:
        for writes in _contents(plan):
            group.create_task(one_after_the_other(writes))
    await _write(store, (Create(tree.CLUSTER, codec.encode_cluster(plan.cluster)),))


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


async def _living(store: Store) -> list[str]:
    names = await _read(store.children(tree.REPLICAS))
    if not isinstance(names, Ok):
        return []
    signs = [(name, await _read(store.exists(tree.alive(ReplicaId(name))))) for name in sorted(names.value)]
    return [name for name, sign in signs if isinstance(sign, Ok) and sign.value is not None]


async def _delete(store: Store, path: str) -> None:
    """Delete a znode and all below it."""
    while True:
        names = await _read(store.children(path))
        if not isinstance(names, Ok):  # it does not exist
            return
        for begin in range(0, len(names.value), _AT_ONCE):
            some = names.value[begin : begin + _AT_ONCE]
            await asyncio.gather(*(_delete(store, f"{path}/{name}") for name in some))
        done = await store.multi((Delete(path, -1),))
        if isinstance(done, Ok) or done == Refused(Reason.NO_NODE, 0):
            return
        await asyncio.sleep(_RETRY_S)


async def _write(store: Store, ops: tuple[Op, ...]) -> None:
    """Apply a multi once, although answers are lost: after a lost one a refusal says that it was applied."""
    sent = False
    while True:
        await REBUILD.before()
        done = await store.multi(ops)
        await REBUILD.after()
        match done:
            case Ok():
                return
            case Refused(reason=Reason.NODE_EXISTS | Reason.BAD_VERSION) if sent:
                return
            case Refused(reason=Reason.TOO_LARGE | Reason.DENIED | Reason.NODE_EXISTS | Reason.BAD_VERSION):
                raise ConfigError(
                    f"expected to make {ops[0].path!r} in ZooKeeper, found {done.reason.value}: check that "
                    "nothing else writes below this root"
                )
            case Unknown():
                sent = True
        await asyncio.sleep(_RETRY_S)


async def _read(call: Any) -> Any:
    """Return the answer to a read: a value, or Refused(NO_NODE).

    Raises:
        UnavailableError: There was no answer.
    """
    found = await call
    if isinstance(found, Ok) or (isinstance(found, Refused) and found.reason is Reason.NO_NODE):
        return found
    raise UnavailableError("ZooKeeper does not answer; check that it has a quorum, and run the command again")
