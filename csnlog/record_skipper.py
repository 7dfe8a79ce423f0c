"""The word of an operator that skips a record, as it is given in ZooKeeper without the help of any agent.

All agents may be stopped by the record. The rules are in :mod:`tidelock.csnlog.core.skipped`; here the znodes
are read and the multi is sent. It is one multi: a command that is cut short has done all of it or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from tidelock.csnlog import faults
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId, epoch_of
from tidelock.csnlog.core.model import SkippedRecord
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.skipped import Facts, Member, ops_of, why_not, word_of
from tidelock.csnlog.core.store import Check, Node, Store
from tidelock.csnlog.patience import RETRY_S, answered
from tidelock.errors import ConfigError, CorruptError, NoSuchCsnError, RefusedError, UnavailableError

#: Passed with the multi of the word.
SKIP: Final = faults.step("csnlog.skip")

#: Znodes that are read at once.
_READS: Final = 64


class _MovedError(Exception):
    """The session has changed or a znode is gone since the last read: read again."""


async def read(store: Store, csn: Csn, *, patience_s: float) -> Facts:
    """Return all that ZooKeeper shows about the record at a CSN.

    Args:
        store: A connected store.
        csn: The CSN.
        patience_s: How long to repeat requests while ZooKeeper does not answer.

    Raises:
        ConfigError: There is no cluster below the root.
        NoSuchCsnError: There is no such record.
        CorruptError, UpgradeNeededError: Another znode cannot be read.
        UnavailableError: ZooKeeper does not answer.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + patience_s
    while True:
        try:
            return await _Reader(store, patience_s).facts(csn)
        except _MovedError as error:
            if clock() >= until:
                raise UnavailableError(f"{error}; check ZooKeeper, and run the command again") from error
        await asyncio.sleep(RETRY_S)


async def skip(
    store: Store,
    csn: Csn,
    *,
    by: str,
    why: str,
    decodable: bool,
    digest: str,
    time_ms: int,
    nonce: Callable[[], str],
    patience_s: float,
) -> SkippedRecord:
    """Skip a record on all replicas: every member is fenced, and its next boot knows the word.

    Agents that are started again and again by a supervisor move their sessions; then all is read again.

    Args:
        store: A connected store.
        csn: The CSN of the record.
        by: The operator.
        why: The reason.
        decodable: Skip it although this version can read it.
        digest: The digest of the record that the operator has looked at.
        time_ms: The present wall time (Unix, ms).
        nonce: Returns a text that is unique.
        patience_s: How long to repeat requests.

    Raises:
        RefusedError: It cannot be skipped; nothing was changed.
        Others as :func:`read`.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + patience_s
    sent: SkippedRecord | None = None
    while True:
        facts = await read(store, csn, patience_s=patience_s)
        if sent is not None and facts.word == sent:
            return sent
        if refused := why_not(facts, decodable=decodable):
            raise RefusedError(f"CSN {csn} is not skipped: {refused}", csn=csn)
        if codec.digest(facts.node.data) != digest:
            raise RefusedError(
                f"CSN {csn} is not skipped: expected the record with digest {digest}, found "
                f"{codec.digest(facts.node.data)}; look at it again",
                csn=csn,
            )
        sent = word_of(facts, by=by, why=why, time_ms=time_ms)
        await SKIP.before()
        done = await store.multi(ops_of(facts, sent, nonce()))
        await SKIP.after()
        if isinstance(done, Ok):
            return sent
        if isinstance(done, Refused) and done.reason is Reason.TOO_LARGE:
            raise ConfigError("the word does not fit one request: raise --multi-bytes-max, or shorten --why")
        if clock() >= until:
            raise UnavailableError(
                "expected that the replicas stand still for a moment, found that their znodes change: stop "
                "their agents, and run the command again (it says whether the record is skipped)"
            )
        await asyncio.sleep(RETRY_S)


class _Reader:
    """One read behind a barrier, in one session."""

    def __init__(self, store: Store, patience_s: float) -> None:
        self._store, self._patience_s = store, patience_s

    async def facts(self, csn: Csn) -> Facts:
        barrier, _ = await answered(lambda: self._store.multi((Check(tree.CLUSTER, 0),)), self._patience_s)
        if barrier == Refused(Reason.NO_NODE):
            raise ConfigError("there is no cluster in ZooKeeper below this root; check the root")
        session = self._store.session
        node = await self._get(tree.record(csn))
        if node is None:
            tail = codec.decode_csn((await self._there(tree.TAIL)).data)
            gone = f"records below CSN {tail} are deleted: all replicas have applied them"
            raise NoSuchCsnError(
                f"expected a record at CSN {csn}, found none; "
                + (gone if csn < tail else "check the number"),
                csn=csn,
            )
        epoch = await self._there(tree.EPOCH)
        later = codec.decode_epoch(epoch.data) > epoch_of(csn)
        word = await self._get(tree.skipped_record(csn))
        zxid = node.created.zxid
        # Before the list of replicas: the first boot of one that is registered after it raises the roster.
        roster = await self._there(tree.REPLICAS)
        members = [await self._member(ReplicaId(name)) for name in await self._names(tree.REPLICAS)]
        facts = Facts(
            csn=csn,
            node=node,
            epoch=epoch,
            roster=roster,
            labels_dir=await self._there(tree.LABELS),
            closes=later and await self._get(tree.record(Csn(csn + 1))) is None,
            members=tuple(members),
            labels=await self._written(tree.LABELS, zxid),
            definitions=(
                *await self._written(tree.TABLES, zxid),
                *await self._written(tree.SKIPS, zxid),
            ),
            word=None if word is None else codec.decode_skipped(word.data),
            first=await self._get(tree.SKIPPED_RECORDS) is None,
        )
        if self._store.session != session:
            raise _MovedError("the session to ZooKeeper has changed")
        return facts

    async def _member(self, replica: ReplicaId) -> Member:
        return Member(
            replica, await self._there(tree.session(replica)), await self._there(tree.progress(replica))
        )

    async def _written(self, folder: str, zxid: int) -> dict[str, Node]:
        """Return the znodes below a folder that one multi has written and no later one."""
        found: dict[str, Node] = {}
        names = await self._names(folder)
        for begin in range(0, len(names), _READS):
            paths = [f"{folder}/{name}" for name in names[begin : begin + _READS]]
            nodes = zip(paths, await asyncio.gather(*map(self._get, paths)), strict=True)
            found |= {path: node for path, node in nodes if node is not None and node.modified == zxid}
        return found

    async def _names(self, path: str) -> Sequence[str]:
        found, _ = await answered(lambda: self._store.children(path), self._patience_s)
        return sorted(found.value) if isinstance(found, Ok) else ()

    async def _there(self, path: str) -> Node:
        node = await self._get(path)
        if node is None:
            raise CorruptError(
                f"expected {path}, which is never deleted, found none; was ZooKeeper restored?"
            )
        return node

    async def _get(self, path: str) -> Node | None:
        found, _ = await answered(lambda: self._store.get(path), self._patience_s)
        if isinstance(found, Ok):
            node: Node = found.value
            return node
        if found == Refused(Reason.NO_NODE):
            return None
        raise _MovedError(f"{path} could not be read")
