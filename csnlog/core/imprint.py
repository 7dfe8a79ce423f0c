"""The imprint of a record, which tells it from every other record at its CSN. Pure.

A ZooKeeper that was set back gives CSNs, versions and even zxids out again, to other writes (Z19). Nothing in
it shows that. What a replica remembers of the last record that it has taken does: whatever has been written
since the backup, the record at that CSN is another one, or does not exist (rule follow; I10, I15).
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import LogRecord

#: The work of the operator; the last words of each message.
NEXT_STEP: Final = (
    "Stop all agents, keep their data directories as they are, and bring back ZooKeeper's newest state, or "
    "make it again out of them with `tidelock admin rebuild-zookeeper`"
)
#: Digits of a digest in messages.
_SHOWN_DIGITS: Final = 12


class Imprint(msgspec.Struct, frozen=True):
    """The memory of a replica of the last record that it has taken.

    Attributes:
        zxid: The ``czxid`` of its znode, the largest of all records taken; 0 = not known.
        digest: SHA-256 of its bytes; empty = not known: an earlier version has applied it.
    """

    zxid: int = 0
    digest: str = ""

    @classmethod
    def of(cls, record: LogRecord) -> Imprint:
        """Return the imprint of a record."""
        return cls(record.stamp.zxid, record.digest)

    def differs(self, found: Imprint) -> bool:
        """Return whether another record is certainly another one."""
        other_digest = bool(self.digest and found.digest) and self.digest != found.digest
        return other_digest or (bool(self.zxid and found.zxid) and self.zxid != found.zxid)

    def __str__(self) -> str:
        """Return it for messages."""
        return f"{self.digest[:_SHOWN_DIGITS] or '?'} (zxid {self.zxid:#x})"


#: Nothing is known of the last record.
UNKNOWN: Final = Imprint()


def another_record(csn: Csn, *, here: Imprint, there: Imprint) -> str:
    """Return the message for a CSN at which ZooKeeper holds another record than this replica has applied."""
    return (
        f"ZooKeeper holds another history: at CSN {csn} it has the record {there}, and this replica has "
        f"applied {here}. It was set back to an older state, and other commits have got its CSNs. {NEXT_STEP}"
    )


def missing_record(csn: Csn) -> str:
    """Return the message for a CSN at or above the tail that this replica has taken and ZooKeeper lacks."""
    return (
        f"ZooKeeper holds an older state: it lacks the record of CSN {csn}, which this replica has. It was "
        f"set back, or emptied. {NEXT_STEP}"
    )


def older_stamp(csn: Csn, *, here: int, there: int) -> str:
    """Return the message for a record whose zxid is lower than that of a record before it."""
    return (
        f"ZooKeeper holds another history: the record of CSN {csn} has zxid {there:#x}, and the one before "
        f"it had {here:#x}. It was set back to an older state between the two. {NEXT_STEP}"
    )


def older_servers(*, here: int, there: int) -> str:
    """Return the message for servers whose newest write is older than one that they have shown before.

    Args:
        here: The largest zxid that a server has shown to this replica.
        there: The zxid of a write that was made just now.
    """
    return (
        f"ZooKeeper holds an older state: this replica has seen its writes up to zxid {here:#x}, and a write "
        f"of now has zxid {there:#x}. It was set back, and its servers refuse this replica. {NEXT_STEP}"
    )


def used_csn(csn: Csn, end: Csn) -> str:
    """Return the message for a commit that got a CSN which this replica knew before it sent the commit."""
    return (
        f"ZooKeeper holds another history: a commit got CSN {csn}, and this replica had seen the log up to "
        f"CSN {end} when it sent it. It was set back to an older state. {NEXT_STEP}"
    )


def older_fence(path: str, *, here: int, there: int) -> str:
    """Return the message for an own fence in ZooKeeper that is lower than the one that was raised.

    Args:
        path: Its znode.
        here: The version that this replica has written.
        there: The version that ZooKeeper holds.
    """
    return (
        f"ZooKeeper holds an older state: {path} has version {there}, and this replica has written version "
        f"{here}. It was set back. {NEXT_STEP}"
    )


def another_fence(path: str, version: int) -> str:
    """Return the message for an own fence that has other data than this replica wrote at its version."""
    return (
        f"ZooKeeper holds another history: version {version} of {path} has other data than this replica has "
        f"written. It was set back to an older state, and others have written since. {NEXT_STEP}"
    )


def missing_fence(path: str) -> str:
    """Return the message for the znode of an own fence that is not there, although nothing deletes it."""
    return f"ZooKeeper holds an older state: it lacks {path}. It was set back, or emptied. {NEXT_STEP}"
