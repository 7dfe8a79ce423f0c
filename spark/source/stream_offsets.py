"""How far a streaming query has read, and what comes next.

An offset is `{"csn": n}`: everything up to CSN n has been read. A query that begins with the rows that are
there reads those at one CSN first, in one batch or in many: `{"csn": n, "parts": k}` is the first k of its
parts, in the order of `in_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidelock.client.feed import ChangedPart, ChangeSet
from tidelock.errors import BadRequestError


@dataclass(frozen=True, slots=True)
class Position:
    """How far a query has read.

    Attributes:
        csn: All commits up to this one are read, or its rows are being read.
        parts: In the second case the number of its parts that are read; else None.
    """

    csn: int
    parts: int | None = None

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Position:
        """Read an offset out of a checkpoint.

        Raises:
            BadRequestError: It is none of this source.
        """
        csn, parts = offset.get("csn"), offset.get("parts")
        known = {"csn"} if parts is None else {"csn", "parts"}
        if set(offset) != known or not isinstance(csn, int) or not isinstance(parts, int | None):
            raise BadRequestError(
                f"{dict(offset)} is no offset of tidelock; is the checkpoint of another source?"
            )
        return cls(csn, parts)

    def offset(self) -> dict[str, int]:
        """Return it as Spark keeps it."""
        return {"csn": self.csn} if self.parts is None else {"csn": self.csn, "parts": self.parts}


@dataclass(frozen=True, slots=True)
class Limits:
    """Most parts of a batch, and most bytes of them; None = any number. One at least is always taken."""

    files_max: int | None = None
    bytes_max: int | None = None


def in_order(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the parts at one CSN in the order in which every run of a query counts them."""
    return sorted(parts, key=lambda part: (part["path"], part["part"]))


def admit(lengths: Sequence[int], limits: Limits) -> int:
    """Return how many parts with these lengths in bytes go into the next batch."""
    taken = size = 0
    for length in lengths:
        size += length
        if taken and (
            (limits.files_max is not None and taken >= limits.files_max)
            or (limits.bytes_max is not None and size > limits.bytes_max)
        ):
            break
        taken += 1
    return taken


class Removals(Enum):
    """What a query does with commits that remove rows."""

    #: It tells each change.
    TOLD = "told"
    #: It passes over them, with what they add.
    SKIPPED = "skipped"
    #: It ends before the first one.
    REFUSED = "refused"


def added_parts(changes: ChangeSet) -> tuple[ChangedPart, ...]:
    """Return what a commit has added, without the transactions of it that remove rows.

    Several transactions can share one CSN, so one that only adds may be beside one that removes.
    """
    removing = {part.tid for part in changes.removed}
    return tuple(part for part in changes.added if part.tid not in removing)


def readable(sets: Iterable[ChangeSet], removals: Removals) -> tuple[list[ChangeSet], ChangeSet | None]:
    """Return the commits that a query reads, and the one before which it must end, if there is one."""
    taken: list[ChangeSet] = []
    for one in sets:
        if one.removed and removals is Removals.REFUSED:
            return taken, one
        if removals is Removals.TOLD or added_parts(one):
            taken.append(one)
    return taken, None


def removal_error(changes: ChangeSet, table: str) -> BadRequestError:
    """Return the error of a query that cannot go on behind a commit."""
    rows = sum(part.rows for part in changes.removed)
    tids = ", ".join(sorted({part.tid for part in changes.removed}))
    return BadRequestError(
        f"the commit at CSN {changes.csn} ({tids}) has removed or rewritten parts of table {table} with "
        f"{rows} rows, and a stream of added rows cannot tell that. Read the changes themselves (option "
        "readChangeFeed), or pass over such commits with all that they add (option skipChangeCommits)",
        table=table,
        csn=changes.csn,
    )
