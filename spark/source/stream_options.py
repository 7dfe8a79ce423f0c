"""Options of streaming reads and writes, parsed; see `options`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelock.errors import BadRequestError
from tidelock.spark.source.options import PARTITION_BYTES, Begin, CheckedOptions, TableTarget, Use

#: Time after the last heartbeat of its tasks at which a batch's transaction is rolled back, in seconds.
BATCH_LEASE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class ReadStreamOptions:
    """Options of a streaming read.

    Attributes:
        target: The table.
        begin: Beginning of a new query, unless `csn` or `at_ms` is given.
        csn: A new query begins after this CSN.
        at_ms: A new query begins after the newest CSN that was committed by this time (Unix, ms).
        files_max: Most parts of a batch; None = any number.
        bytes_max: Most bytes of the parts of a batch; None = any number.
        change_feed: Read the change feed: removed rows too, each row with the kind of its change.
        skip_changes: Skip transactions that remove rows, including the rows that they add.
        failover: Go on to other replicas.
        partition_bytes: Bytes of one task.
        lease_s: Time for which unread history stays pinned after the reader has died; None = the agents'
            default.
    """

    target: TableTarget
    begin: Begin
    csn: int | None
    at_ms: int | None
    files_max: int | None
    bytes_max: int | None
    change_feed: bool
    skip_changes: bool
    failover: bool
    partition_bytes: int
    lease_s: float | None


@dataclass(frozen=True, slots=True)
class WriteStreamOptions:
    """Options of a streaming write."""

    target: TableTarget
    lease_s: float


def read_stream_options(options: Mapping[str, str], environ: Mapping[str, str]) -> ReadStreamOptions:
    """Return the options of a streaming read.

    Raises:
        BadRequestError: See `CheckedOptions`; or two options contradict each other.
    """
    checked = CheckedOptions(options, Use.READ_STREAM, environ)
    starts = [
        name
        for name in ("startingCsn", "startingTimestamp", "startingOffsets")
        if checked.get(name) is not None
    ]
    if len(starts) > 1:
        raise BadRequestError(f"options {' and '.join(starts)} name two beginnings; give one of them")
    change_feed, skip_changes = checked.get("readChangeFeed", False), checked.get("skipChangeCommits", False)
    if change_feed and skip_changes:
        raise BadRequestError(
            "options readChangeFeed and skipChangeCommits contradict each other: the first reads "
            "removals, the second skips them; give one of them"
        )
    return ReadStreamOptions(
        checked.target(),
        checked.get("startingOffsets", Begin.EARLIEST),
        checked.get("startingCsn"),
        checked.get("startingTimestamp"),
        checked.get("maxFilesPerTrigger"),
        checked.get("maxBytesPerTrigger"),
        change_feed,
        skip_changes,
        checked.get("failover", True),
        checked.get("partitionBytes", PARTITION_BYTES),
        checked.get("leaseSeconds"),
    )


def write_stream_options(options: Mapping[str, str], environ: Mapping[str, str]) -> WriteStreamOptions:
    """Return the options of a streaming write.

    Raises:
        BadRequestError: See `CheckedOptions`.
    """
    checked = CheckedOptions(options, Use.WRITE_STREAM, environ)
    return WriteStreamOptions(checked.target(), checked.get("leaseSeconds", BATCH_LEASE_S))
