"""The tree of a cluster that is made again, after ZooKeeper has lost it or was set back.

The plan of the tree is made elsewhere, out of the catalogs of replicas
(:mod:`tidelock.replica_agent.rebuilding`). Here it is written. The znode ``cluster`` is deleted first and
created last, so no agent starts on a tree that is not whole, and a run that was cut short is repeated from
its beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from tidelock.csnlog import faults
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, epoch_of
from tidelock.csnlog.core.model import (
    ClusterState,
    LabelState,
    MemberState,
    Progress,
    Record,
    RecordKind,
    SessionState,
    SkipPart,
    SkippedRecord,
    SkipState,
)
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import ANY_VERSION, Create, Delete, Op, SetData, Store, multi_bytes
from tidelock.csnlog.patience import RETRY_S, Answer, answered
from tidelock.errors import ConfigError

#: Passed with each write of the new tree.
REBUILD: Final = faults.step("rebuild.write")

#: The znodes below the root, those first that decide whether an agent starts.
_TOPS: Final = (
    *(tree.CLUSTER, tree.CSN, tree.REPLICAS, tree.TABLES),
    *(tree.LOCKS, tree.LABELS, tree.PINS, tree.TAGS, tree.SKIPS),
    tree.SKIPPED_RECORDS,
)
#: Znodes of one request.
_TOGETHER: Final = 200


class Seat(msgspec.Struct, frozen=True):
    """A replica in the tree."""

    session: SessionState
    progress: Progress


class TreePlan(msgspec.Struct, frozen=True):
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
        skipped: Records that were skipped.
        tags: The CSNs of the tags; the horizon is not above them.
    """

    cluster: ClusterState
    end: Csn
    horizon: Csn
    home: ReplicaId
    time_ms: int
    seats: Mapping[ReplicaId, Seat]
    tables: Mapping[TableId, Sequence[Mapping[str, Any]]]
    labels: Mapping[str, LabelState]
    skips: Sequence[SkipPart]
    skipped: Sequence[SkippedRecord]
    tags: Mapping[str, Csn]


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
    node, _ = await answered(lambda: store.get(tree.CLUSTER), patience_s)
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
        await asyncio.sleep(RETRY_S)


async def make_again(store: Store, plan: TreePlan, *, patience_s: float, multi_bytes_max: int) -> None:
    """Delete the tree and write it again. It may be repeated: it begins from the start each time.

    Requests are sent one after the other, each with many znodes, so memory and ZooKeeper have little to hold
    however large the tree is, and nothing is under way any more when this ends.

    Args:
        store: A connected store.
        plan: The content.
        patience_s: How long a request is repeated while ZooKeeper does not answer, and a folder is deleted
            again that others fill.
        multi_bytes_max: Largest request.

    Raises:
        ConfigError: A znode does not fit a request, or another writer is at work below the root.
        UnavailableError: ZooKeeper does not answer; run it again.
    """
    writer = _Writer(store, patience_s, multi_bytes_max)
    for top in _TOPS:
        await writer.delete(top)
    for ops in _frame(plan):
        await writer.write(ops)
    for ops in writer.packed(_contents(plan)):
        await writer.write(ops)
    await writer.write((Create(tree.CLUSTER, codec.encode_cluster(plan.cluster)),))


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


def _contents(plan: TreePlan) -> Iterator[Op]:
    """Yield the writes of tables, labels, lost parts, skipped records and tags.

    ZooKeeper counts the definitions of a table: their number is the version of the znode. So the first ones
    of all tables come first, then the second ones, and so on.
    """
    for name, definitions in sorted(plan.tables.items()):
        yield Create(tree.table(name), codec.encode_definition(definitions[0]))
    for version in range(max(map(len, plan.tables.values()), default=1) - 1):
        for name, definitions in sorted(plan.tables.items()):
            if version + 1 < len(definitions):
                yield SetData(tree.table(name), codec.encode_definition(definitions[version + 1]), version)
    for text, state in sorted(plan.labels.items()):
        yield Create(tree.label(text), codec.encode_label(state))
    for one in plan.skips:
        yield Create(tree.skip(one.part), codec.encode_skip(SkipState(one)))
    for word in plan.skipped:
        yield Create(tree.skipped_record(word.csn), codec.encode_skipped(word))
    if plan.tags:
        yield SetData(tree.TAGS, codec.encode_tags(plan.tags), 0)


async def _living(store: Store, patience_s: float) -> list[str]:
    names, _ = await answered(lambda: store.children(tree.REPLICAS), patience_s)
    if not isinstance(names, Ok):
        return []
    living = []
    for name in sorted(names.value):
        path = tree.alive(ReplicaId(name))
        sign, _ = await answered(partial(store.exists, path), patience_s)
        if isinstance(sign, Ok) and sign.value is not None:
            living.append(name)
    return living


@dataclass(slots=True)
class _Writer:
    """Deletes and writes znodes, many in a request."""

    store: Store
    patience_s: float
    multi_bytes_max: int

    async def delete(self, path: str) -> None:
        """Delete a znode and all below it.

        Raises:
            ConfigError: It is filled again and again.
        """
        clock = asyncio.get_running_loop().time
        until: float | None = None
        while True:
            names, _ = await answered(lambda: self.store.children(path), self.patience_s)
            if not isinstance(names, Ok):  # it does not exist
                return
            for ops in self.packed(Delete(f"{path}/{name}", ANY_VERSION) for name in names.value):
                await self._delete_all(ops)
            done, _ = await self._sent((Delete(path, ANY_VERSION),))
            match done:
                case Ok() | Refused(reason=Reason.NO_NODE):
                    return
                case Refused(reason=Reason.NOT_EMPTY) if until is None or clock() < until:
                    # Something was made meanwhile.
                    until = clock() + self.patience_s if until is None else until
                    await asyncio.sleep(RETRY_S)
                case Refused(reason=reason):
                    raise _misfit("delete", path, reason)

    async def _delete_all(self, ops: tuple[Op, ...]) -> None:
        """Delete znodes in one request, or one after the other if not all of them are there and empty."""
        done, _ = await self._sent(ops)
        if isinstance(done, Refused):
            for op in ops:
                await self.delete(op.path)

    async def write(self, ops: tuple[Op, ...]) -> None:
        """Apply a multi once, although answers are lost: a refusal after a lost one says so."""
        match await self._sent(ops, REBUILD):
            case Ok(), _:
                return
            case Refused(reason=Reason.NODE_EXISTS | Reason.BAD_VERSION), True:
                return
            case Refused(reason=reason, index=index), _:
                raise _misfit("make", ops[index].path, reason)

    def packed(self, ops: Iterable[Op]) -> Iterator[tuple[Op, ...]]:
        """Yield multis of these operations in their order, each path once in a multi.

        Half of the bytes are left for the root, which precedes each path on the wire.
        """
        pack: dict[str, Op] = {}
        size = 0
        for op in ops:
            more = multi_bytes((op,))
            if pack and (
                op.path in pack or len(pack) == _TOGETHER or size + more > self.multi_bytes_max // 2
            ):
                yield tuple(pack.values())
                pack, size = {}, 0
            pack[op.path] = op
            size += more
        if pack:
            yield tuple(pack.values())

    async def _sent(
        self, ops: tuple[Op, ...], step: faults.FaultStep | None = None
    ) -> tuple[Ok[Any] | Refused, bool]:
        async def request() -> Answer:
            if step is not None:
                await step.before()
            done = await self.store.multi(ops)
            if step is not None:
                await step.after()
            return done

        return await answered(request, self.patience_s)


def _misfit(verb: str, path: str, reason: Reason) -> ConfigError:
    return ConfigError(
        f"expected to {verb} {path!r} in ZooKeeper, found {reason.value}: check that nothing else writes "
        "below this root"
    )
