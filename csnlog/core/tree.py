"""The tree in ZooKeeper: paths below the cluster's root, and the numbers inside names. Pure.

The tree is fixed in docs/protocol.md#zookeeper-tree. Paths have no leading slash (see
:mod:`tidelock.csnlog.core.store`). The numbers in names are always read as integers: text order is wrong as
soon as widths differ, and ZooKeeper lists children in no order at all.
"""

from __future__ import annotations

import re

import xxhash

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid, csn, epoch_of, sequence_of

CLUSTER = "cluster"
CSN = "csn"
EPOCH = "csn/epoch"
HEAD = "csn/head"
TAIL = "csn/tail"
HORIZON = "csn/horizon"
REPLICAS = "replicas"
TABLES = "tables"
LOCKS = "locks"
LABELS = "labels"
PINS = "pins"
TAGS = "tags"
SKIPS = "skips"
SKIPPED_RECORDS = "skipped-records"

#: Child of a table's locks that is no part lock: a part id has hyphens.
WIDE = "wide"

#: Digits of the suffix that ZooKeeper appends to a sequential znode.
SEQUENCE_DIGITS = 10

_RECORD = re.compile(r"csn/(0|[1-9]\d*)/csn-(\d{10})", re.ASCII)
_RECORD_NAME = re.compile(r"csn-(\d{10})", re.ASCII)
_NUMBER = re.compile(r"0|[1-9]\d*", re.ASCII)


def number(text: str) -> int:
    """Parse a non-negative decimal number without sign, blanks or leading zeros; ValueError otherwise."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a decimal number")
    return int(text)


def epoch_dir(epoch: int) -> str:
    """Return the directory of the commit records of an epoch; it contains nothing else."""
    return f"csn/{epoch}"


def record_prefix(epoch: int) -> str:
    """Return the path for the sequential create of a commit record; ZooKeeper appends the sequence number."""
    return f"csn/{epoch}/csn-"


def record(value: Csn) -> str:
    """Return the path of the commit record with this CSN."""
    return f"csn/{epoch_of(value)}/csn-{sequence_of(value):0{SEQUENCE_DIGITS}d}"


def csn_of(path: str) -> Csn:
    """Return the CSN of a commit record's path.

    Raises:
        ValueError: The path is not the path of a commit record, or its number is negative or above 2^31-1:
            then the counter of the directory overflowed (Z1), which epochs make impossible.
    """
    match = _RECORD.fullmatch(path)
    if match is None:
        raise ValueError(f"{path!r} is not the path of a commit record")
    return csn(int(match[1]), int(match[2]))


def sequence_of_name(name: str) -> int:
    """Return the sequence number in the name of a commit record; ValueError for any other name."""
    match = _RECORD_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a commit record")
    return int(match[1])


def replica(replica_id: ReplicaId) -> str:
    """Return the path of the address and labels of a replica."""
    return f"replicas/{replica_id}"


def session(replica_id: ReplicaId) -> str:
    """Return the path of boot, disk and nonce of a replica; the data version of this znode is its fence."""
    return f"replicas/{replica_id}/session"


def alive(replica_id: ReplicaId) -> str:
    """Return the path of the ephemeral sign of life of a replica; it serves liveness only, never safety."""
    return f"replicas/{replica_id}/alive"


def progress(replica_id: ReplicaId) -> str:
    """Return the path of the snapshot CSN and oldest S in use of a replica."""
    return f"replicas/{replica_id}/progress"


def table(name: TableId) -> str:
    """Return the path of the definition of a table; its data version is the number of the definition."""
    return f"tables/{name}"


def lock_dir(name: TableId) -> str:
    """Return the directory of the locks of parts; each replica that locks parts raises its data version."""
    return f"locks/{name}"


def lock(name: TableId, part: PartId) -> str:
    """Return the path of the removal lock of one part."""
    return f"locks/{name}/{part}"


def wide_dir(name: TableId) -> str:
    """Return the directory of the locks above parts; every replica that makes one raises its data version."""
    return f"locks/{name}/{WIDE}"


def wide_lock(name: TableId, kind: str, about: str, tid: Tid) -> str:
    """Return the path of a lock above parts of a transaction; only that transaction ever makes this name.

    Args:
        name: The table.
        kind: What the lock covers, a word of small letters.
        about: Identifies the locked object within the kind, any text: its XXH3-128 is in the name, since a
            partition path may hold any character.
        tid: The transaction.
    """
    return f"locks/{name}/{WIDE}/{kind}-{xxhash.xxh3_128_hexdigest(about.encode())}-{tid}"


def label(text: str) -> str:
    """Return the path of a label: it is named by its XXH3-128, since a label may hold any character."""
    return f"labels/{xxhash.xxh3_128_hexdigest(text.encode())}"


def pin(pin_id: str) -> str:
    """Return the path of one pin."""
    return f"pins/{pin_id}"


def skip(part: PartId) -> str:
    """Return the path of an operator's word that a part is lost."""
    return f"skips/{part}"


def skipped_record(value: Csn) -> str:
    """Return the path of an operator's word that a record is skipped."""
    return f"{SKIPPED_RECORDS}/{value}"
