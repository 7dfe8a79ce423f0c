"""The service by which an operator declares a part lost, so that no replica waits for it any more.

A part is lost when no replica holds it. Every replica that is not removed is asked, and reads the bytes that
it has. A replica that does not answer may hold the part: the operator has to name it. The word of the
operator is a commit of its own: a log entry, and a znode for the replicas that cannot reach the entry before
they have the part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, TableName
from tidelock.csnlog.core.model import AddPart, DefineTable, LogRecord, SkipPart, TidRecord
from tidelock.csnlog.core.store import Create
from tidelock.csnlog.log import CsnLog
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    RefusedError,
    TidelockError,
    UnavailableError,
)
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.replicas.skips import SkipReader
from tidelock.replica_agent.services.peers import PeerService
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, SkippedPart
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replication.peers import PeerClient
from tidelock.wire.cluster import LostPart, PartHolder
from tidelock.wire.peers import PartWord

_log = structlog.get_logger("lost")

#: How long a replica may take to read a part, in seconds.
_ANSWER_S = 30.0
#: Records of the log that one request reads.
_PAGE = 500


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A part as the log says it."""

    csn: Csn
    tid: TidRecord
    added: AddPart | None

    @property
    def is_manifest(self) -> bool:
        """Whether it holds the entries of its transaction."""
        return self.added is None


def lost_part(csn: Csn, tid: TidRecord, part: PartId) -> FoundPart | None:
    """Return a part if this transaction of the log adds it."""
    if tid.manifest is not None and tid.manifest.part == part:
        return FoundPart(csn, tid, None)
    for entry in tid.entries:
        if isinstance(entry, AddPart) and entry.part == part:
            return FoundPart(csn, tid, entry)
    return None


def refusal(found: FoundPart, words: Sequence[PartHolder], without: Sequence[str]) -> str | None:
    """Return why a part cannot be declared lost, or None: nobody holds it, and all others are named. Pure.

    Args:
        found: The part.
        words: What each replica that is not removed says.
        without: The replicas that the operator leaves out although they do not answer.
    """
    if holders := [word.replica for word in words if word.word == "holds"]:
        return f"{', '.join(holders)} holds it: wait until the others have fetched it, or look at their logs"
    silent = [word.replica for word in words if word.word == "silent"]
    if unnamed := [replica for replica in silent if replica not in without]:
        return (
            f"{', '.join(unnamed)} does not answer and may hold it: start it, or confirm that you go on "
            f"without it (--confirm-without {unnamed[0]})"
        )
    if surplus := [replica for replica in without if replica not in silent]:
        return f"{', '.join(surplus)} is not silent: name only replicas that do not answer"
    applied = [word.replica for word in words if (word.snapshot_csn or CSN_NONE) >= found.csn]
    if found.is_manifest and applied:
        return (
            f"it is the manifest of its transaction, and {', '.join(applied)} has applied it: the "
            "transaction counts there; let the others clone from there"
        )
    if found.is_manifest and any(isinstance(entry, DefineTable) for entry in found.tid.entries):
        return "its transaction defines a table; restore the part from a backup"
    return None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LostPartService:
    """Tells what a lost part takes with it, and declares it lost.

    Attributes:
        wall_ms: Wall time (Unix, ms), for people.
    """

    condition: Condition
    replica: ReplicaId
    log: CsnLog
    reader: CatalogReader
    membership: Membership
    client: PeerClient
    peers: PeerService
    skips: SkipReader
    transactions: Transactions
    commits: Commits
    wall_ms: Callable[[], int]

    async def resolve(
        self, part: PartId, *, confirm: bool, without: Sequence[str], by: str, why: str
    ) -> LostPart:
        """Return what is lost with a part, and who says what; with ``confirm``, declare it lost.

        Raises:
            BadRequestError: No record that is kept adds the part, or no operator or reason is named.
            RefusedError: It cannot be declared lost now; the message says why.
            UnavailableError: Nothing is known or declared; try again.
        """
        for one in self.reader.skipped():
            if one.part == part:
                return declared_lost(one)
        found = await self._find(part)
        words = await asyncio.gather(*(self._word(replica, part) for replica in self._asked()))
        why_not = refusal(found, words, without)
        if not confirm:
            return _described(found, part, words, why_not)
        if not by or not why:
            raise BadRequestError(
                "an operator and a reason are needed to declare a part lost: give by and why"
            )
        if why_not is not None:
            raise RefusedError(f"part {part} is not declared lost: {why_not}", part=part)
        added = found.added
        entry = SkipPart(
            table=added.table if added else TableName(""),
            part=part,
            rows=added.rows if added else 0,
            csn=found.csn,
            tid=found.tid.tid,
            by=by,
            why=why,
            time_ms=self.wall_ms(),
            without=tuple(ReplicaId(name) for name in without),
        )
        await self._declare(entry)
        return _described(found, part, words, None, declared=True, by=by, why=why)

    async def _declare(self, entry: SkipPart) -> None:
        self.condition.require(AgentAction.COMMIT)
        await self.log.fenced((Create(tree.SKIPS),))  # refused if it exists, which is as good
        tx = self.transactions.begin(self.membership.waiters.reached)
        tx.staged.skip = entry
        committing = asyncio.create_task(self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None))
        while not committing.done():
            await asyncio.wait([committing], timeout=0.2)
            # This replica may wait for the part: it learns the word before it can apply the record.
            if await self.skips.learn(entry.part):
                break
        try:
            await committing
        except CommitUnknownError as error:
            if error.details.get("csn") is None:
                raise
            _log.info("declared_but_not_applied", part=entry.part, reason=error.message)

    # -- what is lost ----------------------------------------------------------------------------------------

    async def _find(self, part: PartId) -> FoundPart:
        row = self.reader.part(part)
        after = row.creation_csn - 1 if row and row.creation_csn else self.membership.waiters.reached
        end = self.log.end
        while after < end:
            page = await self.log.records(Csn(after), _PAGE)
            if not page:
                break
            if (found := _in_page(page, part)) is not None:
                return found
            after = page[-1].csn
        raise BadRequestError(
            f"no record after CSN {self.membership.waiters.reached} adds part {part}: name a part that "
            "`tidelock status` shows as missing",
            part=part,
        )

    def _asked(self) -> list[ReplicaId]:
        return [
            replica
            for replica, found in sorted(self.membership.view.items())
            if found.session is None or found.session.state != "removed"
        ]

    async def _word(self, replica: ReplicaId, part: PartId) -> PartHolder:
        try:
            async with asyncio.timeout(_ANSWER_S):
                if replica == self.replica:
                    said = await self.peers.holds(part)
                else:
                    said = await self._ask(replica, part)
        except (TidelockError, TimeoutError):
            found = self.membership.view.get(replica)
            progress = found.progress if found else None
            return PartHolder(replica, "silent", progress.snapshot if progress else None)
        return PartHolder(replica, "holds" if said.held else "lacks", said.snapshot_csn)

    async def _ask(self, replica: ReplicaId, part: PartId) -> PartWord:
        peer = next((peer for peer in self.membership.peers() if peer.replica == replica), None)
        if peer is None:
            raise UnavailableError(f"replica {replica} is not known here any more")
        said = await self.client.holds(peer.api, part)
        if (said.replica, said.disk) != (replica, peer.disk):
            raise RefusedError(f"{said.replica} answers at the address of {replica}")
        return said


def _in_page(page: Sequence[LogRecord], part: PartId) -> FoundPart | None:
    for item in page:
        for tid in item.record.tids:
            if (found := lost_part(item.csn, tid, part)) is not None:
                return found
    return None


def _described(
    found: FoundPart,
    part: PartId,
    words: Sequence[PartHolder],
    why_not: str | None,
    *,
    declared: bool = False,
    by: str | None = None,
    why: str | None = None,
) -> LostPart:
    added = found.added
    return LostPart(
        part=part,
        kind="manifest" if found.is_manifest else "part",
        table=added.table if added else None,
        path=added.path if added else None,
        rows=added.rows if added else None,
        length=added.length if added else None,
        csn=found.csn,
        tid=found.tid.tid,
        label=found.tid.label,
        replicas=list(words),
        why_not=why_not,
        declared=declared,
        by=by,
        why=why,
    )


def declared_lost(one: SkippedPart) -> LostPart:
    """Return a part that is declared lost, as operators see it."""
    return LostPart(
        part=one.part,
        kind="part" if one.table else "manifest",
        table=one.table or None,
        rows=one.rows,
        csn=one.csn,
        tid=one.tid,
        replicas=[],
        declared=True,
        by=one.by,
        why=one.why,
        without=list(one.without),
        time_ms=one.time_ms,
    )
