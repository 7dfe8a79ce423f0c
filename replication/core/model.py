"""The values of replication: parts, sealed transactions, peers and the answers of peers. Pure.

:class:`PartMeta` and :class:`Held` travel between agents (docs/protocol.md#stage,
:mod:`tidelock.wire.peers`). The rest stays inside one agent.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, Stamp, TableId, Tid
from tidelock.csnlog.core.model import RecordKind, ReplicaPhase, SkippedRecord, TidRecord
from tidelock.wire.peers import Held, PartKind, PartMeta

__all__ = [
    "Held",
    "Location",
    "PartBytes",
    "PartKind",
    "PartMeta",
    "Peer",
    "ResolvedRecord",
    "SealedTid",
    "Wanted",
    "bytes_alone",
]


def bytes_alone(part: PartId, length: int, checksum: str) -> PartMeta:
    """Return the known facts of a part before its job is sealed: enough to transfer it."""
    return PartMeta(part, TableId(""), "", 0, length, checksum)


class PartBytes(NamedTuple):
    """A small part in memory."""

    meta: PartMeta
    data: bytes


class SealedTid(msgspec.Struct, frozen=True):
    """A transaction that accepts no more statements, with every part that it adds (its manifest included)."""

    tid: Tid
    parts: tuple[PartMeta, ...]


class Location(msgspec.Struct, frozen=True):
    """The location of the durable bytes of a part.

    Attributes:
        file: Path relative to the data directory.
        offset: Where the range begins in the file.
        length: Bytes of the range.
        blocks: XXH3-64 digests of its 256 KiB blocks, 8 bytes each.
    """

    file: str
    offset: int
    length: int
    blocks: bytes


class Wanted(msgspec.Struct, frozen=True):
    """A part that this replica lacks.

    Attributes:
        meta: Its metadata; length and checksum decide whether bytes are this part.
        tid: The transaction that added it.
        csn: The record that adds it, or None while the transaction is undecided (an early fetch).
        holders: Replicas that had it when the record was written, the home first; others may have it now.
    """

    meta: PartMeta
    tid: Tid
    csn: Csn | None
    holders: tuple[ReplicaId, ...]


class Peer(msgspec.Struct, frozen=True):
    """Another replica, as the member list in ZooKeeper shows it at the moment.

    Attributes:
        replica: Its id.
        api: Address (``host:port``) of its protocol process.
        data: Address (``host:port``) of its reader workers.
        disk: Id of its data directory.
        alive: Whether it shows a sign of life; this never decides about safety.
        struck: Whether it was struck: no replica waits for it, and its copies do not count.
        snapshot: Its snapshot CSN as last published.
        phase: How it follows the log, as last published.
    """

    replica: ReplicaId
    api: str
    data: str
    disk: str
    alive: bool = True
    struck: bool = False
    snapshot: Csn = CSN_NONE
    phase: ReplicaPhase = ReplicaPhase.FOLLOWING


class CopyPlace(msgspec.Struct, frozen=True):
    """The place of a replica's copies.

    Attributes:
        disk: Id of its data directory; copies on another disk do not count.
        group: Copies of one group count as one: the rack, or the replica itself.
    """

    disk: str
    group: str


class CountingRules(msgspec.Struct, frozen=True):
    """The facts at one version of ``replicas`` that decide whose copies count.

    Attributes:
        version: That version; the commit checks it.
        copies: Durable copies that a commit needs, the home's own among them.
        home: Group of the home.
        places: The other replicas whose copies count.
    """

    version: int
    copies: int
    home: str
    places: tuple[tuple[ReplicaId, CopyPlace], ...] = ()


class CountedCopies(msgspec.Struct, frozen=True):
    """The replicas that hold a transaction, the home first, as counted at a version of ``replicas``."""

    holders: tuple[ReplicaId, ...]
    version: int


class ResolvedRecord(msgspec.Struct, frozen=True):
    """A record that is executed here and may be applied.

    Attributes:
        csn: Its number.
        kind: COMMIT, or END and GENESIS, which only move the snapshot CSN.
        home: The replica that wrote it.
        time_ms: Effective wall time (Unix, ms). Larger times of earlier CSNs were wrong, and are made again.
        tids: Its transactions, without those that an earlier record has committed; manifests are resolved.
        stamp: When its znode was created.
        digest: SHA-256 of its bytes, 64 hexadecimal digits.
        agreed_ms: The agreed time of the clocks in it.
        skip: The word of an operator by which it is passed over; it has no transactions then.
    """

    csn: Csn
    kind: RecordKind
    home: ReplicaId
    time_ms: int
    tids: tuple[TidRecord, ...]
    stamp: Stamp
    digest: str
    agreed_ms: int | None = None
    skip: SkippedRecord | None = None
