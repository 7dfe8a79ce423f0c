"""Positions of a streaming query, and the choice of the next batch.

The offset `{"csn": n}` says that all commits up to CSN n have been read. A query that begins with the
existing rows reads them at one CSN first, in one or more batches: the offset `{"csn": n, "parts": k}` says
that the first k parts at CSN n have been read, in the order of `in_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidelock.client.reads.feed import ChangedPart, ChangeSet
from tidelock.errors import BadRequestError
from tidelock.wire.rows import Fields


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a query.

    Attributes:
        csn: All commits up to this CSN have been read; or, if `parts` is given, the initial rows at this CSN
            are being read.
        parts: Number of parts of the initial rows that have been read; None after the initial rows.
    """

    csn: int
    parts: int | None = None

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Position:
        """Parse an offset of a checkpoint.

        Raises:
            BadRequestError: It is not an offset of this source.
        """
        csn, parts = offset.get("csn"), offset.get("parts")
        expected = {"csn"} if parts is None else {"csn", "parts"}
        if set(offset) != expected or not isinstance(csn, int) or not isinstance(parts, int | None):
            raise BadRequestError(
                f"{dict(offset)} is not an offset of tidelock; is this the checkpoint of another source?"
            )
        return cls(csn, parts)

    def offset(self) -> dict[str, int]:
        """Return the position as an offset, the form that Spark keeps."""
        return {"csn": self.csn} if self.parts is None else {"csn": self.csn, "parts": self.parts}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The most parts of a batch, and the most bytes of them; None = any. A batch has at least one part."""

    files_max: int | None = None
    bytes_max: int | None = None


def in_order(parts: Iterable[Fields]) -> list[Fields]:
    """Return the parts at one CSN in the order in which `Position.parts` counts them."""
    return sorted(parts, key=lambda part: (part["path"], part["part"]))


def admit(lengths: Sequence[int], limits: BatchLimits) -> int:
    """Return how many of the parts with these lengths in bytes go into the next batch."""
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


class RemovalPolicy(Enum):
    """The treatment of commits that remove rows."""

    #: Read each change, as a row of the change feed.
    READ = "read"
    #: Skip transactions that remove rows, including the rows that they add.
    SKIP = "skip"
    #: End the query before the first commit that removes rows.
    REFUSE = "refuse"


def added_parts(changes: ChangeSet) -> tuple[ChangedPart, ...]:
    """Return the parts that a commit has added, without those of transactions that also remove rows.

    Several transactions can share one CSN, so a commit may have transactions of both kinds.
    """
    removing = {part.tid for part in changes.removed}
    return tuple(part for part in changes.added if part.tid not in removing)


def readable(sets: Iterable[ChangeSet], removals: RemovalPolicy) -> tuple[list[ChangeSet], ChangeSet | None]:
    """Return the commits that a query reads, and the commit before which it must end, or None."""
    taken: list[ChangeSet] = []
    for changes in sets:
        if changes.removed and removals is RemovalPolicy.REFUSE:
            return taken, changes
        if removals is RemovalPolicy.READ or added_parts(changes):
            taken.append(changes)
    return taken, None


def removal_error(changes: ChangeSet, table: str) -> BadRequestError:
    """Return the error of a query that cannot continue after a commit that removes rows."""
    rows = sum(part.rows for part in changes.removed)
    tids = ", ".join(sorted({part.tid for part in changes.removed}))
    return BadRequestError(
        f"the commit at CSN {changes.csn} ({tids}) has removed or rewritten parts of table {table} with "
        f"{rows} rows, and a stream of added rows cannot represent that. Read the changes themselves (option "
        "readChangeFeed), or skip such commits with all that they add (option skipChangeCommits)",
        table=table,
        csn=changes.csn,
    )
