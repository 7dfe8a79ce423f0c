"""Options of streams, parsed; see `options`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelock.errors import BadRequestError
from tidelock.spark.source.options import PARTITION_BYTES, Begin, Given, Target, Use

#: How long a transaction of a batch outlives the last sign of life of its tasks, in seconds.
BATCH_LEASE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class ReadStreamOptions:
    """Options of a streaming read.

    Attributes:
        target: The table.
        begin: Where a new query begins, unless `csn` or `at_ms` is given.
        csn: Behind this CSN.
        at_ms: Behind the newest CSN that was committed by this time (Unix, ms).
        files_max: Most parts of a batch; None = any number.
        bytes_max: Most bytes of its parts, likewise.
        change_feed: Removals are rows too, and each row says what has happened to it.
        skip_changes: Pass over transactions that remove rows, with what they add.
        failover: Go on to other replicas.
        partition_bytes: Bytes of one task.
        lease_s: How long the history that is still to be read outlives the reader; None: the agents' default.
    """

    target: Target
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

    target: Target
    lease_s: float


def read_stream_options(options: Mapping[str, str], environ: Mapping[str, str]) -> ReadStreamOptions:
    """Return the options of a streaming read.

    Raises:
        BadRequestError: See `Given`; or two of them contradict each other.
    """
    given = Given(options, Use.READ_STREAM, environ)
    starts = [
        name
        for name in ("startingCsn", "startingTimestamp", "startingOffsets")
        if given.get(name) is not None
    ]
    if len(starts) > 1:
        raise BadRequestError(f"options {' and '.join(starts)} name two beginnings; give one of them")
    change_feed, skip_changes = given.get("readChangeFeed", False), given.get("skipChangeCommits", False)
    if change_feed and skip_changes:
        raise BadRequestError(
            "options readChangeFeed and skipChangeCommits contradict each other: the first tells of "
            "removals, the second passes over them; give one of them"
        )
    return ReadStreamOptions(
        given.target(),
        given.get("startingOffsets", Begin.EARLIEST),
        given.get("startingCsn"),
        given.get("startingTimestamp"),
        given.get("maxFilesPerTrigger"),
        given.get("maxBytesPerTrigger"),
        change_feed,
        skip_changes,
        given.get("failover", True),
        given.get("partitionBytes", PARTITION_BYTES),
        given.get("leaseSeconds"),
    )


def write_stream_options(options: Mapping[str, str], environ: Mapping[str, str]) -> WriteStreamOptions:
    """Return the options of a streaming write.

    Raises:
        BadRequestError: See `Given`.
    """
    given = Given(options, Use.WRITE_STREAM, environ)
    return WriteStreamOptions(given.target(), given.get("leaseSeconds", BATCH_LEASE_S))
