"""The service by which an operator declares a part lost, so that no replica waits for it any more.

A part is lost when no replica holds it. Every replica that is not removed is asked, and reads the bytes that
it has. A replica that does not answer may hold the part: the operator has to name it, and that is refused
while it shows a sign of life. The word of the operator is a commit of its own: a log entry, and a znode for
the replicas that cannot reach the entry before they have the part.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import decode_entries
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, TableId
from tidelock.csnlog.core.model import REMOVED, AddPart, Entry, SkipPart, TidRecord
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import Create
from tidelock.csnlog.log import CsnLog
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    CorruptError,
    RefusedError,
    TidelockError,
    UnavailableError,
)
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.replicas.skips import SkipReader
from tidelock.replica_agent.services.peers import PeerService
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow, SkippedPart
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replication.peers import PeerClient
from tidelock.wire.cluster import HolderWord, LostPart, PartHolder
from tidelock.wire.peers import PartWord

_log = structlog.get_logger("lost")

_EXISTS = Refused(Reason.NODE_EXISTS, 0)

#: How long a request waits for replicas, in seconds. A read that takes longer goes on: ask again.
_ANSWER_S = 10.0
#: Records of the log that one request reads.
_PAGE = 500
#: Pause between two looks for the word in ZooKeeper, in seconds.
_LOOK_S = 0.2


class FoundPart(msgspec.Struct, frozen=True):
    """A part as the log or the catalog says it.

    Attributes:
        csn: The CSN from which on it is visible.
        tid: Its transaction.
        added: The part; None for a manifest.
        label: The label of the transaction, as far as the log still has it.
    """

    csn: Csn
    tid: str
    added: AddPart | None
    label: str | None = None

    @property
    def is_manifest(self) -> bool:
        """Whether it holds the entries of its transaction."""
        return self.added is None


def lost_part(csn: Csn, tid: TidRecord, entries: Sequence[Entry], part: PartId) -> FoundPart | None:
    """Return a part if this transaction of the log adds it by these entries, or is listed in it."""
    if tid.manifest is not None and tid.manifest.part == part:
        return FoundPart(csn, tid.tid, None, tid.label)
    for entry in entries:
        if isinstance(entry, AddPart) and entry.part == part:
            return FoundPart(csn, tid.tid, entry, tid.label)
    return None


def applied_part(row: PartRow) -> FoundPart | None:
    """Return a part of the catalog if a record has made it visible, which the log may not have any more."""
    if row.creation_csn is None:
        return None
    added = AddPart(row.table, row.part, row.path, row.rows, row.length, row.checksum)
    return FoundPart(row.creation_csn, row.creation_tid, added if row.kind == "part" else None)


def refusal(found: FoundPart, words: Sequence[PartHolder], without: Sequence[str]) -> str | None:
    """Return why a part cannot be declared lost, or None: nobody holds it, and all others are named. Pure.

    Args:
        found: The part.
        words: What each replica that is not removed says.
        without: The replicas that the operator leaves out although they do not answer.
    """
    if holders := [word.replica for word in words if word.word == "holds"]:
        return f"{', '.join(holders)} holds it: wait until the others have fetched it, or look at their logs"
    if readers := [word.replica for word in words if word.word == "reads"]:
        return f"{', '.join(readers)} still reads it, and may hold it: ask again in a moment"
    silent = [word.replica for word in words if word.word == "silent"]
    if found.is_manifest and (applied := _have_applied(found, words)):
        return (
            f"it is the manifest of its transaction, and {', '.join(applied)} has applied it: the "
            "transaction counts there; let the others clone from there"
        )
    if living := [word.replica for word in words if word.replica in silent and word.alive]:
        return (
            f"{', '.join(living)} shows a sign of life, gives no answer, and may hold it: look at its log, "
            "and start it again or stop it"
        )
    if unnamed := [replica for replica in silent if replica not in without]:
        return (
            f"{', '.join(unnamed)} does not answer and may hold it"
            f"{', or have applied its transaction' if found.is_manifest else ''}: start it, or confirm that "
            f"you go on without it (--confirm-without {unnamed[0]})"
        )
    if surplus := [replica for replica in without if replica not in silent]:
        return f"{', '.join(surplus)} is not silent: name only replicas that do not answer"
    return None


def _have_applied(found: FoundPart, words: Sequence[PartHolder]) -> list[str]:
    """Return the replicas from which others can still get the changes that a manifest lists.

    One that is silent for good is not among them, whatever it has applied. It cannot be removed either: that
    waits for the others, which wait for the manifest. So the operator may go on without it, and it clones
    when it comes back and learns of the word.
    """
    return [
        word.replica
        for word in words
        if word.word != "silent" and (word.snapshot_csn or CSN_NONE) >= found.csn
    ]


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
    port: ReplicaCatalogPort
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
        if (known := await self._known(part)) is not None:
            return declared_lost(known)
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
            table=added.table if added else TableId(""),
            part=part,
            rows=added.rows if added else 0,
            csn=found.csn,
            tid=found.tid,
            by=by,
            why=why,
            time_ms=self.wall_ms(),
            without=tuple(ReplicaId(name) for name in without),
        )
        word = await self._declare(entry)
        return _described(found, part, words, None, declared=True, by=word.by, why=word.why)

    async def _known(self, part: PartId) -> SkippedPart | None:
        """Return the word about a part, which another replica may have written a moment ago."""
        if not self.reader.is_skipped(part):
            await self.skips.learn(part)
        return next((one for one in self.reader.skipped() if one.part == part), None)

    async def _declare(self, entry: SkipPart) -> SkipPart:
        """Commit the word of the operator; return the one that counts, which may have come first."""
        self.condition.require(AgentAction.COMMIT)
        made = await self.log.fenced((Create(tree.SKIPS),))
        if not isinstance(made, Ok) and made != _EXISTS:
            raise UnavailableError("ZooKeeper did not take the word: nothing is declared lost; try again")
        tx = self.transactions.begin(self.membership.waiters.reached)
        tx.staged.skip = entry
        committing = asyncio.create_task(self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None))
        learned = False
        while not committing.done() and not learned:
            await asyncio.wait([committing], timeout=_LOOK_S)
            # This replica may wait for the part: it learns the word before it can apply the record.
            with contextlib.suppress(TidelockError):  # its disk may be full; the commit goes on
                learned = await self.skips.learn(entry.part)
        try:
            await committing
        except TidelockError as error:
            word = await self.skips.read(entry.part)
            if word is None and not _is_committed(error):
                raise
            _log.info("declared_but_not_applied", part=entry.part, reason=error.message)
            return word or entry
        return entry

    # -- what is lost ----------------------------------------------------------------------------------------

    async def _find(self, part: PartId) -> FoundPart:
        row = self.reader.part(part)
        if row is not None and (found := applied_part(row)) is not None:
            return found
        after, end = self.membership.waiters.reached, self.log.end
        unread: list[str] = []
        while after < end and (page := await self.log.records(after, _PAGE)):
            for csn, tid in ((item.csn, tid) for item in page for tid in item.record.tids):
                entries = await self._entries(tid)
                if entries is None and tid.manifest is not None:
                    unread.append(f"{tid.manifest.part} of CSN {csn}")
                if (found := lost_part(csn, tid, entries or (), part)) is not None:
                    return found
            after = page[-1].csn
        raise BadRequestError(
            f"no record after CSN {self.membership.waiters.reached} adds part {part}"
            + (f", unless manifest {' or '.join(unread)}, which is not held here, lists it" if unread else "")
            + ": name a part that `tidelock status` shows as missing, at the replica that waits for it",
            part=part,
        )

    async def _entries(self, tid: TidRecord) -> Sequence[Entry] | None:
        """Return the entries of a transaction, or None: they are in a manifest that is not held here."""
        if tid.manifest is None:
            return tid.entries
        try:
            return (*tid.entries, *decode_entries(await self.port.read(tid.manifest.part)))
        except CorruptError:
            return None

    def _asked(self) -> list[ReplicaId]:
        return [
            replica
            for replica, found in sorted(self.membership.view.items())
            if found.session is None or found.session.state != REMOVED
        ]

    async def _word(self, replica: ReplicaId, part: PartId) -> PartHolder:
        said: PartWord | None = None
        with contextlib.suppress(TidelockError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                while said is None or said.reading:
                    said = await self._ask(replica, part)
        if said is not None:
            word: HolderWord = "reads" if said.reading else "holds" if said.held else "lacks"
            return PartHolder(replica, word, said.snapshot_csn, alive=True)
        found = self.membership.view.get(replica)
        if found is None:
            return PartHolder(replica, "silent")
        csn = found.progress.snapshot if found.progress else None
        return PartHolder(replica, "silent", csn, alive=found.alive)

    async def _ask(self, replica: ReplicaId, part: PartId) -> PartWord:
        if replica == self.replica:
            return await self.peers.holds(part)
        peer = next((peer for peer in self.membership.peers() if peer.replica == replica), None)
        if peer is None:
            raise UnavailableError(f"replica {replica} is not known here any more")
        said = await self.client.holds(peer.api, part)
        if (said.replica, said.disk) != (replica, peer.disk):
            raise RefusedError(f"{said.replica} answers at the address of {replica}")
        return said


def _is_committed(error: TidelockError) -> bool:
    """Return whether an error of a commit says that it has a CSN."""
    return isinstance(error, CommitUnknownError) and error.details.get("csn") is not None


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
        tid=found.tid,
        label=found.label,
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
