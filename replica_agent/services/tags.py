"""The service for tags: names of CSNs whose history is kept without a process that holds it (rule tags).

A change of tags is a commit: an entry of the log, by which each replica knows the tag, and a write of the
znode ``tags``, which a replica reads before it raises the horizon. The commit checks the horizon, so a tag is
never made of a CSN that is being forgotten; and the version of ``tags``, so changes of tags have one order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import decode_csn
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import EndTag, TagCsn
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import Create, Store
from tidelock.csnlog.log import CsnLog
from tidelock.errors import (
    BadRequestError,
    SnapshotTooOldError,
    TagExistsError,
    TagsMovedError,
    TidelockError,
    TooLargeError,
    UnavailableError,
    UnknownTagError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import StagedTag
from tidelock.wire.tags import TAG_NAME_MAX, EndedTag, TagInfo, TagRequest, is_tag_name

_log = structlog.get_logger("tags")

_EXISTS = Refused(Reason.NODE_EXISTS, 0)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TagService:
    """Makes, moves, lists and ends tags.

    Attributes:
        retained: Returns the CSN that was the newest one so many seconds ago, 0 if no CSN existed then.
        clock: Monotonic seconds.
    """

    settings: AgentSettings
    condition: Condition
    log: CsnLog
    store: Store
    reader: CatalogReader
    snapshots: Snapshots
    waiters: CsnWaiters
    transactions: Transactions
    commits: Commits
    retained: Callable[[float], Csn]
    clock: Callable[[], float]
    #: The znode ``tags`` is known to exist; it is never deleted.
    _made: bool = field(default=False, init=False)

    def list(self) -> list[TagInfo]:
        """Return all tags that are applied here, by name."""
        self.condition.require(AgentAction.READ)
        return self.reader.tags()

    async def find(self, name: str, min_csn: Csn | None = None) -> TagInfo:
        """Return a tag; one that this replica does not know yet is looked for up to the end of the log.

        Raises:
            UnknownTagError: There is none of this name.
            NoSuchCsnError, StandbyError: ``min_csn`` is not applied here in time.
        """
        self.condition.require(AgentAction.READ)
        if min_csn is not None:
            await self.snapshots.reach(min_csn)
        if (found := self.reader.tag(name)) is None:
            await self.snapshots.reach(await self.log.barrier())
            found = self.reader.tag(name)
        return found or self._unknown(name)

    async def make(self, asked: TagRequest) -> TagInfo:
        """Make a tag, or move it; a tag that is there as asked for is returned.

        Raises:
            BadRequestError: The name or ``keep_s`` is wrong, or both `csn` and `at_ms` are given.
            TagExistsError: It names another CSN, or ends at another time, and is not to be moved.
            SnapshotTooOldError: The history of the CSN is not kept any more.
            NoSuchCsnError, StandbyError: As :meth:`Snapshots.require`.
            TooLargeError: There are ``tags_max`` tags.
            Others as of any commit.
        """
        self.condition.require(AgentAction.BEGIN)
        _check(asked)
        csn = await self._chosen(asked)
        deadline = self.clock() + self.settings.commit_timeout_s
        while True:
            version, tags = await self._known(deadline)
            there = self.reader.tag(asked.name)
            if there is not None and (there.csn, there.keep_s) == (csn, asked.keep_s):
                return there
            self._admit(asked, there, tags)
            tags[asked.name] = csn
            entry = TagCsn(asked.name, csn, asked.keep_s)
            if await self._commit(entry, tags, version, deadline, horizon=await self._horizon(csn)):
                return self.reader.tag(asked.name) or self._unknown(asked.name)

    async def end(self, name: str) -> EndedTag:
        """End a tag: it holds no history any more, and its path does not exist.

        Raises:
            UnknownTagError: There is none of this name.
            Others as of any commit.
        """
        self.condition.require(AgentAction.BEGIN)
        deadline = self.clock() + self.settings.commit_timeout_s
        while True:
            version, tags = await self._known(deadline)
            if tags.pop(name, None) is None:
                self._unknown(name)
            if await self._commit(EndTag(name), tags, version, deadline):
                return EndedTag(name, self.waiters.reached)

    async def end_expired(self) -> None:
        """End the tags whose time is over; what fails is tried again at the next call."""
        if not any(map(self._is_over, self.reader.tags())):
            return
        with contextlib.suppress(TidelockError):
            deadline = self.clock() + self.settings.commit_timeout_s
            version, tags = await self._known(deadline)
            over = next(filter(self._is_over, self.reader.tags()), None)  # it may have been made again
            if over is not None:
                del tags[over.name]
                if await self._commit(EndTag(over.name, expired=True), tags, version, deadline):
                    _log.info("tag_expired", tag=over.name, csn=over.csn)

    def _is_over(self, tag: TagInfo) -> bool:
        return tag.keep_s is not None and tag.made_csn <= self.retained(tag.keep_s)

    async def _chosen(self, asked: TagRequest) -> Csn:
        """Return the CSN that a request means, once it is applied here."""
        if asked.at_ms is not None:
            return await self.snapshots.at_time(asked.at_ms)
        if asked.csn is None:
            return await self.snapshots.choose(None if asked.min_csn is None else Csn(asked.min_csn))
        await self.snapshots.require(Csn(asked.csn))
        return Csn(asked.csn)

    async def _known(self, deadline: float) -> tuple[int, dict[str, Csn]]:
        """Return the version of ``tags``, and all tags at that version, which are applied here."""
        if not self._made:
            made = await self.log.fenced((Create(tree.TAGS),))
            if not isinstance(made, Ok) and made != _EXISTS:
                raise UnavailableError("ZooKeeper did not take the tag: nothing has changed; try again")
            self._made = True
        version, end = await self.log.tags()
        await self.waiters.require(end, deadline - self.clock())
        return version, dict(self.reader.tag_csns())

    async def _horizon(self, csn: Csn) -> int:
        """Return the version of ``csn/horizon``, which is not above a CSN; SnapshotTooOldError if it is."""
        node = await self.store.get(tree.HORIZON)
        if not isinstance(node, Ok):
            raise UnavailableError("the horizon cannot be read now: no connection to ZooKeeper; try again")
        horizon = decode_csn(node.value.data)
        if horizon > csn:
            raise SnapshotTooOldError(
                f"CSN {csn} is below the horizon {horizon}, so its history is not whole; tag a newer CSN",
                csn=csn,
                min_csn=horizon,
            )
        return node.value.version

    def _admit(self, asked: TagRequest, there: TagInfo | None, tags: Mapping[str, Csn]) -> None:
        if there is not None and not asked.move:
            until = "" if there.keep_s is None else f", for {there.keep_s:g} s"
            raise TagExistsError(
                f"tag {there.name} names CSN {there.csn} already{until}; choose another name, or move it "
                "(move=True)",
                name=there.name,
                csn=there.csn,
            )
        if there is None and len(tags) >= self.settings.tags_max:
            raise TooLargeError(
                f"there are {len(tags)} tags, as many as tags_max={self.settings.tags_max} allows, and each "
                "keeps history; end one of them (untag)",
                limit=self.settings.tags_max,
                found=len(tags),
            )

    async def _commit(
        self,
        entry: TagCsn | EndTag,
        tags: Mapping[str, Csn],
        version: int,
        deadline: float,
        *,
        horizon: int | None = None,
    ) -> bool:
        """Commit a change of tags; return False if tags or horizon have changed since they were read."""
        tx = self.transactions.begin(self.waiters.reached, data_change=False)
        tx.staged.tag = StagedTag(entry, tags, version, horizon)
        try:
            await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
        except TagsMovedError:
            if self.clock() > deadline:
                raise
            return False
        return True

    def _unknown(self, name: str) -> TagInfo:
        known = ", ".join(tag.name for tag in self.reader.tags()[:10])
        others = f"the tags are {known}" if known else "there are none"
        raise UnknownTagError(f"there is no tag {name[:TAG_NAME_MAX]!r}; {others}", name=name)


def _check(asked: TagRequest) -> None:
    if not is_tag_name(asked.name):
        raise BadRequestError(
            f"{asked.name[:TAG_NAME_MAX]!r} is no name of a tag: expected up to {TAG_NAME_MAX} of a-z, A-Z, "
            "0-9, _, . and -, first a letter or digit, and not digits alone, which are a CSN",
            name=asked.name,
        )
    if asked.csn is not None and asked.at_ms is not None:
        raise BadRequestError("give csn or at, not both")
    if asked.keep_s is not None and not 0 < asked.keep_s < float("inf"):
        raise BadRequestError(f"keep_s={asked.keep_s:g} is not above 0; give seconds, or leave it out")
