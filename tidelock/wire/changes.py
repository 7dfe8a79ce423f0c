"""Bodies of the change feed: /api/v1/tables/{table}/changes. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class ChangedRowsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of POST /tables/{table}/changes/rows: `from` and `to`, or `csn`.

    Attributes:
        since: The changes begin after this CSN.
        to: The last CSN.
        csn: The changes of this commit alone.
        net: Answer the difference of the rows at `to` and the rows at `from`, not commit by commit.
        named_at: The CSN, not below `to`, at which the table has its name and the columns of the answer;
            default: `to`. So the pages of a range have the same columns.
    """

    since: int | None = msgspec.field(name="from", default=None)
    to: int | None = None
    csn: int | None = None
    net: bool = False
    named_at: int | None = None


class ChangedPart(msgspec.Struct, frozen=True):
    """A part that a commit has added to a table, or removed from it.

    Attributes:
        part: Its id.
        tid: The transaction that has added or removed it.
        path: Its file in the snapshot file system of every replica, at a CSN that shows it. Characters that
            a URL does not allow are not quoted.
        partition: Values of the partition columns, which the file lacks; dates and decimals as text.
        rows: Number of its rows.
        length: Number of its bytes.
        file_length: Number of bytes of the file.
    """

    part: str
    tid: str
    path: str
    partition: dict[str, Any]
    rows: int
    length: int
    file_length: int


class ChangeSetAnswer(msgspec.Struct, frozen=True):
    """The changes of a table by the commit at one CSN.

    Attributes:
        csn: The CSN.
        time_ms: Its effective time (Unix, ms).
        tids: The transactions of the CSN that have changed the table.
        added: Parts that are visible from this CSN on.
        removed: Parts that were visible before.
    """

    csn: int
    time_ms: int
    tids: tuple[str, ...]
    added: tuple[ChangedPart, ...]
    removed: tuple[ChangedPart, ...]


class ChangePageAnswer(msgspec.Struct, frozen=True):
    """The change sets of one answer.

    Attributes:
        to: The page holds all change sets up to this CSN.
        complete: Whether nothing was left out because of a limit.
        sets: The change sets in the order of their CSNs.
        time_ms: Effective time (Unix, ms) of `to`; 0 if it is not known.
    """

    to: int
    complete: bool
    sets: tuple[ChangeSetAnswer, ...]
    time_ms: int = 0
