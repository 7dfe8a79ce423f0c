"""Bodies about CSNs and their times. Pure."""

from __future__ import annotations

import msgspec


class CsnTime(msgspec.Struct, frozen=True):
    """A CSN with its effective time (Unix, ms), which never decreases along the log."""

    csn: int
    time_ms: int


class InSyncReplicas(msgspec.Struct, frozen=True):
    """The replicas that have applied `csn`, by their answers: each serves reads at it without waiting."""

    csn: int
    replicas: list[str]


class LastChange(msgspec.Struct, frozen=True):
    """The last change of a table that is applied on the replica that answers.

    Attributes:
        table: Full name of the table.
        csn: The commit that last changed its rows or its definition; compaction changes neither.
        time_ms: Effective time of that commit (Unix, ms); null if it is not known any more.
    """

    table: str
    csn: int
    time_ms: int | None
