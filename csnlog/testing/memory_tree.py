"""A tree of znodes in memory with ZooKeeper's rules: versions, sequence numbers, ephemerals, atomic multis.

Pure. :mod:`tidelock.csnlog.testing.memory_store` adds sessions, watches and faults. The rules are those that
were measured on a real server (docs/design/zookeeper-facts.md); one test suite runs against both.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core.ids import NO_STAMP, Stamp
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, Create, Delete, Node, Op, SetData, Written

_SEQUENCE_DIGITS = 10
#: The limit of the counter of creates: from then on ZooKeeper gives the same number again and again
#: (measured, Z1).
_SEQUENCE_MAX = 2**31 - 1


class Znode(msgspec.Struct, frozen=True):
    """One znode. ``creates`` counts all children ever made below it: the next sequence number."""

    data: bytes
    version: int = 0
    owner_session: int = 0
    creates: int = 0
    children: frozenset[str] = frozenset()
    created: Stamp = NO_STAMP
    modified: int = 0

    @property
    def node(self) -> Node:
        """The znode as a reader receives it."""
        return Node(
            self.data, self.version, len(self.children), self.owner_session, self.created, self.modified
        )


class TreeChanges(msgspec.Struct, frozen=True):
    """The changes of a multi, for watches: znodes changed in data or existence, and in their children."""

    nodes: frozenset[str]
    children: frozenset[str]


class ZnodeTree:
    """All znodes by path; the root is ``""``."""

    def __init__(self) -> None:
        self._znodes: dict[str, Znode] = {"": Znode(b"")}

    def get(self, path: str) -> Znode | None:
        """Return a znode, or None."""
        return self._znodes.get(path)

    def copy(self) -> ZnodeTree:
        """Return a copy that changes independently of this tree."""
        copied = ZnodeTree()
        copied._znodes = dict(self._znodes)  # znodes are immutable
        return copied

    def state(self) -> frozenset[tuple[str, Znode]]:
        """Return all znodes as one hashable value."""
        return frozenset(self._znodes.items())

    def owned_by(self, session: int) -> tuple[str, ...]:
        """Return the paths of the ephemeral znodes of a session."""
        return tuple(path for path, znode in self._znodes.items() if znode.owner_session == session)

    def apply(
        self, ops: Iterable[Op], session: int, stamp: Stamp = NO_STAMP
    ) -> tuple[Ok[tuple[object, ...]] | Refused | Unknown, TreeChanges]:
        """Apply all operations in the name of a session, or none; return the result and the changes.

        The caller gives the stamp of the write. An explorer gives none: states that differ only in the order
        of their past writes are one state for it.
        """
        draft = _Draft(self._znodes, stamp)
        values: list[object] = []
        for index, op in enumerate(ops):
            value = draft.apply(op, session)
            if isinstance(value, Reason):
                return Refused(value, index), TreeChanges(frozenset(), frozenset())
            if isinstance(value, Unknown):
                return value, TreeChanges(frozenset(), frozenset())
            values.append(value)
        return Ok(tuple(values)), draft.commit()


class _Draft:
    """The changes of one multi before it is known whether all of its operations pass."""

    def __init__(self, znodes: dict[str, Znode], stamp: Stamp) -> None:
        self._znodes = znodes
        self._stamp = stamp
        self._drafted: dict[str, Znode | None] = {}
        self._nodes: set[str] = set()
        self._children: set[str] = set()

    def apply(self, op: Op, session: int) -> object:
        """Apply one operation; return its value, the Reason of a refusal, or Unknown where no Reason fits."""
        match op:
            case Create():
                return self._create(op, session)
            case SetData():
                return self._set(op)
            case Delete():
                return self._delete(op)
            case Check():
                znode = self._get(op.path)
                return _version_refused(znode, op.version)

    def commit(self) -> TreeChanges:
        for path, znode in self._drafted.items():
            if znode is None:
                self._znodes.pop(path, None)  # it does not exist if this multi has made it
            else:
                self._znodes[path] = znode
        return TreeChanges(frozenset(self._nodes), frozenset(self._children))

    def _get(self, path: str) -> Znode | None:
        return self._drafted[path] if path in self._drafted else self._znodes.get(path)

    def _create(self, op: Create, session: int) -> str | Reason | Unknown:
        parent_path, _, _ = op.path.rpartition("/")
        parent = self._get(parent_path)
        if parent is None:
            return Reason.NO_NODE
        if parent.owner_session:
            return Unknown("an ephemeral znode has no children")
        path = f"{op.path}{parent.creates:0{_SEQUENCE_DIGITS}d}" if op.sequential else op.path
        if self._get(path) is not None:
            return Reason.NODE_EXISTS
        self._drafted[path] = Znode(
            op.data,
            owner_session=session if op.ephemeral else 0,
            created=self._stamp,
            modified=self._stamp.zxid,
        )
        self._drafted[parent_path] = replace(
            parent,
            creates=min(parent.creates + 1, _SEQUENCE_MAX),
            children=parent.children | {path.rpartition("/")[2]},
        )
        self._nodes.add(path)
        self._children.add(parent_path)
        return path

    def _set(self, op: SetData) -> Written | Reason:
        znode = self._get(op.path)
        refused = _version_refused(znode, op.version)
        if znode is None or refused is not None:
            return refused or Reason.NO_NODE
        self._drafted[op.path] = replace(
            znode, data=op.data, version=znode.version + 1, modified=self._stamp.zxid
        )
        self._nodes.add(op.path)
        return Written(znode.version + 1, self._stamp)

    def _delete(self, op: Delete) -> Reason | None:
        znode = self._get(op.path)
        refused = _version_refused(znode, op.version)
        if znode is None or refused is not None:
            return refused or Reason.NO_NODE
        if znode.children:
            return Reason.NOT_EMPTY
        parent_path, _, name = op.path.rpartition("/")
        parent = self._get(parent_path)
        assert parent is not None, f"{op.path} has no parent"
        self._drafted[op.path] = None
        self._drafted[parent_path] = replace(parent, children=parent.children - {name})
        self._nodes.add(op.path)
        self._children.update((op.path, parent_path))
        return None


def _version_refused(znode: Znode | None, version: int | None) -> Reason | None:
    if znode is None:
        return Reason.NO_NODE
    # ZooKeeper interprets -1 as "any version" in every operation.
    if version not in {None, -1, znode.version}:
        return Reason.BAD_VERSION
    return None
