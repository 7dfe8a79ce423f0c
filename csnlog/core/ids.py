"""Identifiers of the CSN log: CSN, tid, replica and part ids, with their one textual form each. Pure.

A CSN is ``epoch << 31 | sequence`` (rule numbers): ZooKeeper's sequence suffix is an int32
that counts all creates below one parent, so an epoch ends long before it overflows, and the CSN orders across
epochs as a plain integer. CSNs are compared as integers only, never as text (ZOOKEEPER-4706; Z1).
"""

from __future__ import annotations

import re

import msgspec

from tidelock.wire.ids import Csn, PartId, ReplicaId, TableId

__all__ = [
    "CSN_IMPORT",
    "CSN_MAX",
    "CSN_NONE",
    "NO_STAMP",
    "SEQUENCE_BITS",
    "SEQUENCE_MAX",
    "Csn",
    "PartId",
    "ReplicaId",
    "Stamp",
    "TableId",
    "Tid",
    "csn",
    "epoch_of",
    "parse_part_id",
    "part_id",
    "replica_id",
    "sequence_of",
]

SEQUENCE_BITS = 31
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
CSN_MAX = (1 << 63) - 1

#: Nothing is visible at this CSN.
CSN_NONE = Csn(0)
#: The creation CSN of imported parts; also the snapshot CSN of a new cluster (the log starts with two genesis
#: records).
CSN_IMPORT = Csn(1)


class Stamp(msgspec.Struct, frozen=True):
    """ZooKeeper's mark on a write, the same for everything that one multi writes (Z19).

    Attributes:
        zxid: Number of the write in the one order of all writes to the ensemble, under whatever root. It
            grows with each write. An ensemble that was set back gives the same numbers to other writes.
        time_ms: Wall clock of the leader when it proposed the write, Unix time in ms.
    """

    zxid: int
    time_ms: int


#: The stamp of a record that an earlier version of Tidelock applied, which kept no stamps.
NO_STAMP = Stamp(0, 0)

# One value has exactly one text: ASCII digits without leading zeros.
_NUMBER = r"(0|[1-9][0-9]*)"
_NAME = r"([a-z][a-z0-9_]{0,31})"
_REPLICA = re.compile(_NAME)
_TID = re.compile(f"{_NUMBER}-{_NAME}-{_NUMBER}-{_NUMBER}")
_PART = re.compile(f"{_NAME}-{_NUMBER}-{_NUMBER}")


def csn(epoch: int, sequence: int) -> Csn:
    """Return the CSN of a number within an epoch; ValueError outside 0..2^31-1 or above 64 bit signed."""
    if not 0 <= sequence <= SEQUENCE_MAX:
        msg = f"sequence number {sequence} is outside 0..{SEQUENCE_MAX}"
        raise ValueError(msg)
    if not 0 <= epoch <= CSN_MAX >> SEQUENCE_BITS:
        msg = f"epoch {epoch} is outside 0..{CSN_MAX >> SEQUENCE_BITS}"
        raise ValueError(msg)
    return Csn(epoch << SEQUENCE_BITS | sequence)


def epoch_of(value: Csn) -> int:
    """Return the epoch of a CSN."""
    return value >> SEQUENCE_BITS


def sequence_of(value: Csn) -> int:
    """Return the number of a CSN within its epoch."""
    return value & SEQUENCE_MAX


def replica_id(text: str) -> ReplicaId:
    """Check and return a replica id: a lower-case letter, then at most 31 of ``[a-z0-9_]``."""
    if not _REPLICA.fullmatch(text):
        msg = f"replica id {text!r} is not of the form [a-z][a-z0-9_]{{0,31}}"
        raise ValueError(msg)
    return ReplicaId(text)


class Tid(msgspec.Struct, frozen=True, order=True):
    """Transaction id, made by the home replica alone.

    It never repeats, because ``boot`` is raised and fenced at each start of the home's agent.

    Attributes:
        snapshot: The CSN that the transaction reads at (its S).
        home: The replica where it was begun.
        boot: The start number of the home's agent.
        counter: Number of the transaction within that boot, from 1.
    """

    snapshot: Csn
    home: ReplicaId
    boot: int
    counter: int

    def __str__(self) -> str:
        """Return the textual form ``<snapshot>-<home>-<boot>-<counter>``."""
        return f"{self.snapshot}-{self.home}-{self.boot}-{self.counter}"

    @classmethod
    def parse(cls, text: str) -> Tid:
        """Parse the textual form; raise ValueError for any other text."""
        match = _TID.fullmatch(text)
        if match is None:
            msg = f"{text!r} is not a tid; expected <snapshot csn>-<replica>-<boot>-<counter>"
            raise ValueError(msg)
        snapshot, home, boot, counter = match.groups()
        return cls(Csn(int(snapshot)), ReplicaId(home), int(boot), int(counter))


def part_id(replica: ReplicaId, boot: int, counter: int) -> PartId:
    """Return the id of a part that ``replica`` made in its boot ``boot``; the id is unique forever."""
    return PartId(f"{replica}-{boot}-{counter}")


def parse_part_id(text: str) -> tuple[ReplicaId, int, int]:
    """Return (replica, boot, counter) of a part id; raise ValueError for any other text."""
    match = _PART.fullmatch(text)
    if match is None:
        msg = f"{text!r} is not a part id; expected <replica>-<boot>-<counter>"
        raise ValueError(msg)
    replica, boot, counter = match.groups()
    return ReplicaId(replica), int(boot), int(counter)
