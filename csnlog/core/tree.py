"""Where everything stands in ZooKeeper: paths below the cluster's root, and the numbers inside names. Pure.

Pure. The tree is fixed in docs/protocol.md#zookeeper-tree. Paths have no leading slash (see
:mod:`tidelock.csnlog.core.store`). The numbers in names are always read as integers: text order is wrong as
soon as widths differ, and ZooKeeper lists children in no order at all.
"""

from __future__ import annotations

import re

import xxhash

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableName, Tid, csn, epoch_of, sequence_of

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

#: Child of a table's locks that is no part: a part id has hyphens.
WIDE = "wide"

#: Digits of the suffix that ZooKeeper appends to a sequential znode.
SEQUENCE_DIGITS = 10

_RECORD = re.compile(r"csn/(0|[1-9]\d*)/csn-(\d{10})", re.ASCII)
_RECORD_NAME = re.compile(r"csn-(\d{10})", re.ASCII)
_NUMBER = re.compile(r"0|[1-9]\d*", re.ASCII)


def number(text: str) -> int:
    """Read a non-negative decimal number without sign, blanks or leading zeros; ValueError otherwise."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a decimal number")
    return int(text)


def epoch_dir(epoch: int) -> str:
    """Directory of the commit records of an epoch; nothing else lives there."""
    return f"csn/{epoch}"


def record_prefix(epoch: int) -> str:
    """Path to give to a sequential create of a commit record; ZooKeeper appends the sequence number."""
    return f"csn/{epoch}/csn-"


def record(value: Csn) -> str:
    """Path of the commit record with this CSN."""
    return f"csn/{epoch_of(value)}/csn-{sequence_of(value):0{SEQUENCE_DIGITS}d}"


def csn_of(path: str) -> Csn:
    """Return the CSN of a commit record's path.

    Raises:
        ValueError: The path is not one of a commit record, or its number is negative or above 2^31-1: then
            the counter of the directory ran over (Z1), which epochs make impossible.
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
    """Address and labels of a replica."""
    return f"replicas/{replica_id}"


def session(replica_id: ReplicaId) -> str:
    """Boot, disk and nonce of a replica; the data version of this znode is its fence."""
    return f"replicas/{replica_id}/session"


def alive(replica_id: ReplicaId) -> str:
    """Ephemeral sign of life of a replica; liveness only, never safety."""
    return f"replicas/{replica_id}/alive"


def progress(replica_id: ReplicaId) -> str:
    """Snapshot CSN and oldest S in use of a replica."""
    return f"replicas/{replica_id}/progress"


def table(name: TableName) -> str:
    """Definition of a table; its data version is the number of the definition."""
    return f"tables/{name}"


def lock_dir(name: TableName) -> str:
    """Directory of the locks of a table's parts; its data version is raised by everyone who locks parts."""
    return f"locks/{name}"


def lock(name: TableName, part: PartId) -> str:
    """Removal lock of one part."""
    return f"locks/{name}/{part}"


def wide_dir(name: TableName) -> str:
    """Directory of the locks above parts; its data version is raised by everyone who makes one."""
    return f"locks/{name}/{WIDE}"


def wide_lock(name: TableName, kind: str, about: str, tid: Tid) -> str:
    """Lock above parts that a transaction holds; nobody ever makes one of this name but this transaction.

    Args:
        name: The table.
        kind: What it covers, a word of small letters.
        about: Which of that kind, any text: its XXH3-128 is in the name, since a path of a partition may
            hold any character.
        tid: The transaction.
    """
    return f"locks/{name}/{WIDE}/{kind}-{xxhash.xxh3_128_hexdigest(about.encode())}-{tid}"


def label(text: str) -> str:
    """Znode of a label: named by its XXH3-128, since a label may hold any character."""
    return f"labels/{xxhash.xxh3_128_hexdigest(text.encode())}"


def pin(pin_id: str) -> str:
    """Znode of one pin."""
    return f"pins/{pin_id}"
