"""The configuration of a reader process, sent over its socketpair: a command line would show the secret."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

#: Share of ``unpinned_ttl_s`` after which a reader process reports again that a CSN is read.
READ_REPORT_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig:
    """Settings of one reader process.

    Attributes:
        data_dir: The agent's data directory.
        replica: Id of this replica, for messages.
        host: Advertised host name: the only location that readers report.
        port: Port that clients connect to, as advertised.
        secret: Shared secret, ``""`` when none is set; required on /parts.
        counters_file: The file with this worker's counters.
        api: ``host:port`` of the protocol process, on this machine.
        wait_bound_s: How long the agent lets a read wait for its CSN.
        read_chunk_bytes: Bytes read, verified and sent at a time.
        listing_cache_entries: Number of serialised listings that are kept.
        threads: Threads that read files.
        read_report_s: Seconds after which the agent is notified again that a CSN is read.
    """

    data_dir: str
    replica: str
    host: str
    port: int
    secret: str = dataclasses.field(repr=False)
    counters_file: str
    api: str
    wait_bound_s: float
    read_chunk_bytes: int
    listing_cache_entries: int
    threads: int
    read_report_s: float
