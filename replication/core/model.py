"""The values of replication: parts, sealed transactions, peers and what peers answer. Pure.

Pure. :class:`PartMeta` and :class:`Held` travel between agents (docs/protocol.md#stage); the patterns
are checked when they are decoded, since a part id becomes a file name. The rest stays inside one agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, TableName, Tid
from tidelock.csnlog.core.model import Kind, TidRecord

#: A Parquet range of a table, or the stored entries of a large transaction.
PartKind = Literal["part", "manifest"]

_Part = Annotated[PartId, msgspec.Meta(pattern=r"\A[a-z][a-z0-9_]{0,31}-[0-9]{1,18}-[0-9]{1,18}\Z")]
_Checksum = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class PartMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replica has to know of a part besides its bytes.

    Attributes:
        part: Part id, unique for ever.
        table: Full table name; empty for a manifest, and for an early copy of which nobody knows yet what it
            is a part of.
        path: Hive-style partition path, ``""`` without partitions.
        rows: Rows of the part; 0 for a manifest.
        length: Bytes of the range.
        checksum: XXH3-128 of these bytes, 32 hexadecimal digits.
        stats: Column statistics, or None where nobody has computed them yet.
        kind: ``part`` or ``manifest``.
    """

    part: _Part
    table: TableName
    path: str
    rows: _Count
    length: _Count
    checksum: _Checksum
    stats: dict[str, Any] | None = None
    kind: PartKind = "part"


def bytes_alone(part: PartId, length: int, checksum: str) -> PartMeta:
    """Return all that is known of a part before its job is sealed: enough to move it."""
    return PartMeta(part, TableName(""), "", 0, length, checksum)


class PartBytes(NamedTuple):
    """A small part in memory."""

    meta: PartMeta
    data: bytes


@dataclass(frozen=True, slots=True)
class SealedTid:
    """A transaction that takes no more statements, with every part that it adds (its manifest included)."""

    tid: Tid
    parts: tuple[PartMeta, ...]


class Held(msgspec.Struct, frozen=True):
    """A peer's answer to a push: a statement about its present, which may be repeated or lost.

    Attributes:
        replica: Who answers.
        disk: Its data directory's id; the answer counts only while ``replicas/<id>/session`` shows this one.
        boot: Start number of its agent.
        snapshot_csn: Its snapshot CSN.
        held: Tids whose files, rows and prepared marks are durable there.
        refused: Tids that it cannot take now, with the reason. A tid in neither is still on its way.
    """

    replica: ReplicaId
    disk: str
    boot: int
    snapshot_csn: Csn
    held: tuple[str, ...]
    refused: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Location:
    """Where the durable bytes of a part lie.

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part that this replica lacks.

    Attributes:
        meta: What it must be; length and checksum decide whether it is.
        tid: The transaction that added it.
        csn: The record that adds it, or None while the transaction is undecided (an early fetch).
        holders: Replicas that had it when the record was written, the home first; others may have it by now.
    """

    meta: PartMeta
    tid: Tid
    csn: Csn | None
    holders: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica, as the member list in ZooKeeper shows it at the moment.

    Attributes:
        replica: Its id.
        api: Address (``host:port``) of its protocol process.
        data: Address (``host:port``) of its reader workers.
        disk: Id of its data directory.
        alive: Whether it shows a sign of life; never decides about safety.
        struck: Whether it was struck off: nobody waits for it, and its copies do not count.
        snapshot: Its snapshot CSN as last published.
    """

    replica: ReplicaId
    api: str
    data: str
    disk: str
    alive: bool = True
    struck: bool = False
    snapshot: Csn = CSN_NONE


@dataclass(frozen=True, slots=True)
class ResolvedRecord:
    """A record that is executed here and may be applied.

    Attributes:
        csn: Its number.
        kind: COMMIT, or END and GENESIS, which only move the snapshot CSN.
        home: The replica that wrote it.
        time_ms: Effective wall time (Unix, ms): never smaller than that of the CSN before.
        tids: Its transactions, without those that an earlier record has committed; manifests are resolved.
    """

    csn: Csn
    kind: Kind
    home: ReplicaId
    time_ms: int
    tids: tuple[TidRecord, ...]
