"""Messages between an agent and its reader processes: the configuration, then tagged JSON objects. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.replica_agent.readers.availability import ReadAvailability

#: Share of ``unpinned_ttl_s`` after which a reader process reports again that a CSN is read.
READ_REPORT_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig:
    """Settings of one reader process: the first frame, since a command line would show the secret.

    Attributes:
        data_dir: The agent's data directory.
        replica: Id of this replica, for messages.
        host: Advertised host name: the only location that readers report.
        port: Port that clients connect to, as advertised.
        secret: Shared secret, ``""`` when none is set; required on /parts.
        counters_file: The file with this worker's counters.
        api: ``host:port`` of the protocol process, on this machine.
        read_wait_s: How long the agent lets a read wait for its CSN.
        read_chunk_bytes: Most bytes read and verified at a time.
        send_buffer_bytes: Send buffer of a socket.
        listing_cache_entries: Number of serialised listings that are kept.
        combined_part_bytes_max: Parts below this length are listed several as one file; 0: none are.
        threads: Threads that read files.
        footer_cache_entries: Number of parts of whose footers something is remembered, KiB of combined ones
            likewise.
        read_report_s: Seconds after which the agent is notified again that a CSN is read.
    """

    data_dir: str
    replica: str
    host: str
    port: int
    secret: str = field(repr=False)
    counters_file: str
    api: str
    read_wait_s: float
    read_chunk_bytes: int
    send_buffer_bytes: int
    listing_cache_entries: int
    combined_part_bytes_max: int
    threads: int
    footer_cache_entries: int
    read_report_s: float


# -- from a reader


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """The reader asks when ``csn`` can be served; :class:`WaitAnswer` with the same ``id`` replies."""

    id: int
    csn: Csn


class CsnRead(msgspec.Struct, frozen=True, tag="read"):
    """``csn`` is read: it may have to be pinned. Sent now and then as long as it is read."""

    csn: Csn


class CorruptPart(msgspec.Struct, frozen=True, tag="corrupt"):
    """The bytes of a part differ from the catalog."""

    part: PartId
    detail: str


class LogError(msgspec.Struct, frozen=True, tag="log"):
    """An error for the agent's log."""

    event: str
    fields: dict[str, str]


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """After :class:`Drain`: no read is running any more."""


# -- to a reader


class WaitAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The agent's answer to :class:`Wait`."""

    id: int
    availability: ReadAvailability


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Refuse new reads, and send :class:`Drained` when the running ones have ended."""


class Released(msgspec.Struct, frozen=True, tag="released"):
    """A part that the reader may have found damaged is whole."""

    part: PartId


FromReader = Wait | CsnRead | CorruptPart | LogError | Drained
ToReader = WaitAnswer | Drain | Released
