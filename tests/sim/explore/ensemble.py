"""ZooKeeper for the explorers: the product's tree, with every state of it known by a number.

What a multi does, and what a read says, is asked of :mod:`tidelock.csnlog.testing.memory_tree` once for each
state of the tree; so a step of the explorer costs a look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from tidelock.csnlog.cluster.start_check import FORMAT_VERSION
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.committer_messages import MultiResult, ReadResult
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, csn, epoch_of
from tidelock.csnlog.core.model import ClusterState, MemberState, Record, RecordKind, SessionState
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import Create, Op
from tidelock.csnlog.testing.memory_tree import Znode, ZnodeTree

T = TypeVar("T", bound=Hashable)


class Numbered(Generic[T]):
    """Values by number: equal values have one number."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self.values: list[T] = []

    def number(self, value: T) -> int:
        """Return the number of a value."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class RecordFacts(NamedTuple):
    """The fields of a record that the invariants need."""

    csn: Csn
    ends_epoch: bool
    home: ReplicaId
    tids: tuple[str, ...]


class Ensemble:
    """All states of the tree that were met, by number; number 0 is the new cluster."""

    def __init__(self, first: ZnodeTree) -> None:
        self._trees: list[ZnodeTree] = []
        self._numbers: dict[frozenset[tuple[str, Znode]], int] = {}
        self._applied: dict[tuple[int, int], tuple[int, int]] = {}
        self._logs: dict[int, tuple[RecordFacts, ...]] = {}
        self.multis: Numbered[tuple[Op, ...]] = Numbered()
        self.results: Numbered[MultiResult] = Numbered()
        self._number(first)

    def tree(self, state: int) -> ZnodeTree:
        """The tree in a state; not to be changed."""
        return self._trees[state]

    def apply(self, state: int, multi: int) -> tuple[int, int]:
        """Return (number of the result, state after it) of a multi in a state."""
        key = (state, multi)
        known = self._applied.get(key)
        if known is None:
            after = self._trees[state].copy()
            result, _ = after.apply(self.multis.values[multi], 1)
            changed = isinstance(result, Ok)
            known = (self.results.number(result), self._number(after) if changed else state)
            self._applied[key] = known
        return known

    def read(self, state: int, path: str) -> ReadResult:
        """Read a znode."""
        znode = self._trees[state].get(path)
        return Refused(Reason.NO_NODE) if znode is None else Ok(znode.node)

    def log(self, state: int) -> tuple[RecordFacts, ...]:
        """The records that are there, in order, from the tail on, across epochs."""
        known = self._logs.get(state)
        if known is None:
            known = self._logs[state] = tuple(self._read_log(state))
        return known

    def tail(self, state: int) -> Csn:
        """``csn/tail``."""
        found = self.read(state, tree.TAIL)
        assert isinstance(found, Ok)
        return codec.decode_csn(found.value.data)

    def _read_log(self, state: int) -> list[RecordFacts]:
        epochs = self._trees[state].get(tree.CSN)
        assert epochs is not None
        numbers = [int(name) for name in epochs.children if name.isdecimal()]
        found: list[RecordFacts] = []
        for epoch in sorted(numbers):
            directory = self._trees[state].get(tree.epoch_dir(epoch))
            assert directory is not None
            for sequence in sorted(tree.sequence_of_name(name) for name in directory.children):
                number = csn(epoch, sequence)
                znode = self._trees[state].get(tree.record(number))
                assert znode is not None
                record = codec.decode_record(znode.data)
                tids = tuple(tid.tid for tid in record.tids)
                found.append(RecordFacts(number, record.kind is RecordKind.END, record.home, tids))
        return found

    def _number(self, new: ZnodeTree) -> int:
        content = new.state()
        number = self._numbers.setdefault(content, len(self._trees))
        if number == len(self._trees):
            self._trees.append(new)
        return number


def new_cluster(replicas: tuple[ReplicaId, ...], tables: tuple[str, ...], *, epoch_limit: int) -> ZnodeTree:
    """A cluster's tree with these replicas in their first life (boot 1), and these tables."""
    made = ZnodeTree()
    genesis = codec.encode_record(Record(RecordKind.GENESIS, replicas[0], 0))
    ops: list[Op] = [
        Create(tree.CLUSTER, codec.encode_cluster(ClusterState("c", FORMAT_VERSION, 2, epoch_limit))),
        *(Create(path) for path in (tree.CSN, tree.REPLICAS, tree.TABLES, tree.LABELS)),
        *(Create(path) for path in (tree.HEAD, tree.epoch_dir(0))),
        Create(tree.EPOCH, codec.encode_epoch(0)),
        *(Create(path, codec.encode_csn(CSN_NONE)) for path in (tree.TAIL, tree.HORIZON)),
        *(Create(tree.record_prefix(0), genesis, sequential=True) for _ in range(2)),
        *(Create(f"tables/{name}") for name in tables),
    ]
    for name in replicas:
        ops += [
            Create(tree.replica(name), codec.encode_member(MemberState())),
            Create(tree.session(name), codec.encode_session(first_life(name))),
        ]
    result, _ = made.apply(ops, 0)
    assert isinstance(result, Ok), result
    return made


def first_life(replica: ReplicaId) -> SessionState:
    """Return the content of a session znode after the first start of its replica, at version 0."""
    return SessionState(1, f"disk-{replica}", f"{replica}.1", "serving")


def follows(earlier: RecordFacts, later: RecordFacts) -> bool:
    """Tell whether two records are neighbours in the log: the next number, or number 0 behind an END."""
    if earlier.ends_epoch:
        return later.csn == csn(epoch_of(earlier.csn) + 1, 0)
    return later.csn == earlier.csn + 1
