"""Tags: names of CSNs whose history is kept. Part of `Database`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.agents.transport import segment
from tidelock.client.reads.snapshot import Snapshot
from tidelock.client.values.arguments import csn_or_name, milliseconds, seconds
from tidelock.errors import CommitUnknownError, NoAnswerError, UnavailableError, UnknownTagError
from tidelock.wire.cluster import StatusAnswer
from tidelock.wire.rows import RowList
from tidelock.wire.tags import EndedTag, TagInfo, TagRequest

T = TypeVar("T")


class Tags:
    """The tags of a cluster; part of `Database`."""

    _connection: Connection

    def snapshot(self) -> Snapshot:
        """Open a snapshot of the newest CSN."""
        raise NotImplementedError

    def tag(
        self,
        name: str,
        csn: int | str | None = None,
        *,
        at: datetime | int | str | None = None,
        keep: str | float | None = None,
        move: bool = False,
    ) -> TagInfo:
        """Give a CSN a name; all tables stay readable at it until the tag is ended, without a process.

        Where this client takes a CSN it takes the name too, and `/snapshots/<name>` is a folder of the
        snapshot file system. The call may be repeated: a tag that is there as asked for is returned.

        Args:
            name: Up to 64 of a-z, A-Z, 0-9, `_`, `.` and `-`, not digits alone.
            csn: The CSN, or another tag; default: the newest one, as in `snapshot`.
            at: Instead: the newest CSN whose effective time is not after this.
            keep: The tag ends by itself after this time, e.g. "720h" (or seconds).
            move: A tag of this name may exist, and names the CSN from now on.

        Raises:
            TagExistsError: It names another CSN, or ends at another time, and `move` is not given.
            SnapshotTooOldError: The history of the CSN is not kept any more.
            NoSuchCsnError: Above the end of the log; `at` has not come yet.
            TooLargeError: There are as many tags as the setting `tags_max` allows.
            BadRequestError: The name is none for a tag, or an argument has a wrong form.
            NotCommittedError: Nothing has changed, as a commit is not possible now; call again.
            CommitUnknownError: It is not known whether the tag was made; `tags` shows it.
        """
        chosen, at_ms, keep_s = self._tagged(csn), None if at is None else milliseconds(at), seconds(keep)
        with contextlib.ExitStack() as held:
            if chosen is None and at_ms is None:
                # Another attempt must mean the same CSN, since the tag of the first one may have been made.
                chosen = held.enter_context(self.snapshot()).csn
            body = TagRequest(name=name, csn=chosen, at_ms=at_ms, keep_s=keep_s, move=move)
            send = self._connection.small(
                "POST", "/tags", answer=TagInfo, body=body, elsewhere=self._connection.members.others
            )
            named = "the CSN of that time" if chosen is None else f"CSN {chosen}"
            made = self._change(lambda member, _: send(member), f"tag {name} names {named} now")
        self._connection.highest_csn.note(made.made_csn)
        return made

    def tags(self) -> RowList[TagInfo]:
        """Return all tags, by name."""
        return RowList(self._connection.ask("GET", "/tags", answer=list[TagInfo]))

    def untag(self, name: str) -> int:
        """End a tag and return the CSN of the commit: the history that it alone has kept may be forgotten.

        Raises:
            UnknownTagError: There is no such tag.
            NotCommittedError, CommitUnknownError: As of `tag`.
        """
        path = f"/tags/{segment(name)}"
        self._tag_info(name)  # so a later attempt that finds no tag knows that an earlier one has ended it
        elsewhere = self._connection.members.others
        send = self._connection.small("DELETE", path, answer=EndedTag, elsewhere=elsewhere)
        look = self._connection.small("GET", "/status", answer=StatusAnswer, elsewhere=elsewhere)

        def end(member: KnownMember, again: bool) -> int:
            try:
                return send(member).csn
            except UnknownTagError:
                if not again:
                    raise
                return look(member).snapshot_csn

        csn = self._change(end, f"tag {name} has ended")
        self._connection.highest_csn.note(csn)
        return csn

    def _change(self, call: Callable[[KnownMember, bool], T], what: str) -> T:
        """Ask one replica after the other for a change; `call` gets whether an earlier attempt may have run.

        Raises:
            CommitUnknownError: No replica could answer, and one of the attempts may have run.
            Others as the call.
        """
        lost: list[NoAnswerError] = []

        def attempt(member: KnownMember) -> T:
            try:
                return call(member, bool(lost))
            except NoAnswerError as error:
                lost.append(error)
                raise

        try:
            return self._connection.members.ask(attempt)
        except UnavailableError as error:
            if not lost:
                raise
            raise CommitUnknownError(
                f"it is not known whether {what} ({error.message}); tags() shows it"
            ) from error

    def _tagged(self, csn: int | str | None) -> int | None:
        """Return a CSN, also of its digits, or that of a tag; UnknownTagError if there is no such tag."""
        chosen = csn_or_name(csn)
        if not isinstance(chosen, str):
            return chosen
        return self._tag_info(chosen).csn

    def _tag_info(self, name: str) -> TagInfo:
        """Return a tag; UnknownTagError if there is none of this name at the end of the log."""
        query = {"min_csn": self._connection.highest_csn.at_least(None)}
        return self._connection.ask("GET", f"/tags/{segment(name)}", answer=TagInfo, query=query)

    def _at_csn(self, path: str, csn: int | str | None, kind: type[T], **query: str | int | None) -> T:
        """Return what an agent answers for a CSN or a tag; None: the newest that this client may see."""
        at = self._tagged(csn)
        at = self._newest() if at is None else at
        answer = self._connection.ask("GET", path, answer=kind, query={"csn": at, **query})
        self._connection.highest_csn.note(at)
        return answer

    def _newest(self) -> int:
        """Return the higher of the newest CSN of the replica that answers and the highest seen CSN."""
        newest = self._connection.ask("GET", "/status", answer=StatusAnswer).snapshot_csn
        return self._connection.highest_csn.at_least(newest) or 0
