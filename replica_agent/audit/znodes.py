"""The reads of an audit in ZooKeeper: many znodes, a bounded number of them at a time.

A znode that cannot be decoded does not stop the audit: it is a separate finding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.csnlog.core.model import LabelState, PinState
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import Node, Store
from tidelock.errors import CorruptError, UnavailableError
from tidelock.replica_agent.audit.judgements import Definition, Label
from tidelock.wire.audit import AuditFinding, Severity

T = TypeVar("T")

#: Concurrent reads.
_READS: Final = 64


class Znodes:
    """Reads for one run of one check; ``unreadable`` has the findings about unreadable znodes.

    Args:
        store: The agent's store.
        check: The check, for findings.
    """

    def __init__(self, store: Store, check: str) -> None:
        self._store, self._check = store, check
        self.unreadable: list[AuditFinding] = []

    async def labels(self) -> list[Label]:
        """Return all labels."""
        names = await self._names(tree.LABELS)
        found = await self._read([f"{tree.LABELS}/{name}" for name in names], codec.decode_label)
        return [
            Label(name, state.tid, state.batch)
            for name, state in zip(names, found, strict=True)
            if isinstance(state, LabelState)
        ]

    async def pins(self) -> dict[str, PinState]:
        """Return all pins by their ids."""
        names = await self._names(tree.PINS)
        found = await self._read([tree.pin(name) for name in names], codec.decode_pin)
        return {name: state for name, state in zip(names, found, strict=True) if isinstance(state, PinState)}

    async def tables(self) -> dict[TableId, Definition]:
        """Return the definitions of all tables."""
        names = await self._names(tree.TABLES)
        paths = [tree.table(TableId(name)) for name in names]
        nodes = await self._nodes(paths)
        found: dict[TableId, Definition] = {}
        for name, path, node in zip(names, paths, nodes, strict=True):
            content = None if node is None else self._decoded(path, node.data, _definition)
            if node is not None and content is not None:
                found[TableId(name)] = Definition(node.version, content)
        return found

    async def tags(self) -> tuple[int, Mapping[str, Csn] | None]:
        """Return the version of the znode ``tags``, -1 before the first tag, and its tags.

        None: they cannot be decoded.
        """
        (node,) = await self._nodes([tree.TAGS])
        if node is None:
            return -1, {}
        return node.version, self._decoded(tree.TAGS, node.data, codec.decode_tags)

    async def csn(self, path: str) -> Csn:
        """Return ``csn/tail`` or ``csn/horizon``; CorruptError when it holds no CSN."""
        (node,) = await self._nodes([path])
        if node is None:
            raise CorruptError(f"there is no znode {path}; it is never deleted", znode=path)
        return codec.decode_csn(node.data)

    async def published(self, replica: ReplicaId) -> Csn:
        """Return the snapshot CSN that a replica has published."""
        path = tree.progress(replica)
        (node,) = await self._nodes([path])
        if node is None:
            raise CorruptError(f"there is no znode {path}; it is never deleted", znode=path)
        return codec.decode_progress(node.data).snapshot

    async def _names(self, path: str) -> list[str]:
        names = await self._store.children(path)
        if not isinstance(names, Ok):
            raise _unavailable(path)
        return sorted(names.value)

    async def _read(self, paths: Sequence[str], decode: Callable[[bytes], T]) -> list[T | None]:
        """Read znodes; None for one that is deleted by now or cannot be decoded."""
        return [
            None if node is None else self._decoded(path, node.data, decode)
            for path, node in zip(paths, await self._nodes(paths), strict=True)
        ]

    async def _nodes(self, paths: Sequence[str]) -> list[Node | None]:
        found: list[Node | None] = []
        for begin in range(0, len(paths), _READS):
            some = paths[begin : begin + _READS]
            for path, result in zip(some, await asyncio.gather(*map(self._store.get, some)), strict=True):
                if isinstance(result, Ok):
                    found.append(result.value)
                elif result == Refused(Reason.NO_NODE):
                    found.append(None)
                else:
                    raise _unavailable(path)
        return found

    def _decoded(self, path: str, data: bytes, decode: Callable[[bytes], T]) -> T | None:
        try:
            return decode(data)
        except CorruptError as error:
            self.unreadable.append(
                AuditFinding(
                    check=self._check,
                    fault="unreadable_znode",
                    severity=Severity.ERROR,
                    znode=path,
                    expected="what this version writes there",
                    found=error.message,
                    next_step="look at it with any ZooKeeper client; if a newer version wrote it, upgrade",
                )
            )
            return None


def _definition(data: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise CorruptError(f"expected a definition as JSON, found {data[:64]!r}: {error}") from error
    content.pop("v", None)
    return content


def _unavailable(path: str) -> UnavailableError:
    return UnavailableError(f"ZooKeeper could not be read ({path}); try again")
