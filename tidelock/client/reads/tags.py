"""Tags: names of CSNs whose history is kept. Part of `Database`."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.transport import segment
from tidelock.client.values.arguments import csn_or_name, milliseconds, seconds
from tidelock.wire.cluster import StatusAnswer
from tidelock.wire.rows import RowList
from tidelock.wire.tags import EndedTag, TagInfo, TagRequest

T = TypeVar("T")


class Tags:
    """The tags of a cluster; part of `Database`."""

    _connection: Connection

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
            CommitUnknownError: It is not known whether the tag was made; call again.
        """
        body = TagRequest(
            name=name,
            csn=self._tagged(csn),
            at_ms=None if at is None else milliseconds(at),
            min_csn=self._connection.highest_csn.at_least(None) if csn is None and at is None else None,
            keep_s=seconds(keep),
            move=move,
        )
        made = self._connection.ask("POST", "/tags", answer=TagInfo, body=body)
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
        ended = self._connection.ask("DELETE", f"/tags/{segment(name)}", answer=EndedTag)
        self._connection.highest_csn.note(ended.csn)
        return ended.csn

    def _tagged(self, csn: int | str | None) -> int | None:
        """Return a CSN, also of its digits, or that of a tag; UnknownTagError if there is no such tag."""
        chosen = csn_or_name(csn)
        if not isinstance(chosen, str):
            return chosen
        query = {"min_csn": self._connection.highest_csn.at_least(None)}
        return self._connection.ask("GET", f"/tags/{segment(chosen)}", answer=TagInfo, query=query).csn

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
