"""A store of lists with snapshot isolation in memory, and defects that can be switched on.

Without a defect it keeps its promises: a transaction reads at one snapshot, commits at one CSN that others of
the same call may share, and of two overlapping transactions that conflict the second is refused. With
``serializable`` a transaction that changes something is refused if a list that it has read has changed.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tests.checkers.conflicts import ADDED_ROWS, Conflicting
from tests.checkers.operations import Append, Element, Elements, Write

#: The CSNs by which a defective replica or snapshot is behind.
_LAG: Final = 3
#: How often a defect that strikes at random does.
_STRIKES: Final = 0.2

Change = Append | Write


class Defect(StrEnum):
    """The ways in which the store can be wrong."""

    #: A read shows the changes of open transactions.
    DIRTY_READ = "dirty-read"
    #: The changes of a transaction that is rolled back stay.
    ABORT_LEAVES_ROWS = "abort-leaves-rows"
    #: Of two appends to one key the second is visible one commit later.
    HALF_A_COMMIT = "half-a-commit"
    #: The second key of a transaction is visible one commit later.
    FRACTURED_COMMIT = "fractured-commit"
    #: Concurrent changes of a key are all accepted.
    NO_CONFLICT_CHECK = "no-conflict-check"
    #: A serializable store does not check the reads at the commit.
    NO_READ_CHECK = "no-read-check"
    #: Each read has a snapshot of its own.
    READ_SKEW = "read-skew"
    #: One replica answers with an older state than it says.
    LAGGING_REPLICA = "lagging-replica"
    #: Each replica is behind in another half of the keys.
    LONG_FORK = "long-fork"
    #: One replica shows the last two elements in the other order.
    SWAPPED_ORDER = "swapped-order"
    #: Two consecutive commits have one order in some keys, and the other one in the others.
    DIRTY_WRITE = "dirty-write"
    #: A tid is answered with a second CSN.
    TWO_CSNS = "two-csns"
    #: The CSN that is reported is the snapshot.
    CSN_OF_SNAPSHOT = "csn-of-snapshot"
    #: A process gets an older snapshot than before.
    SNAPSHOT_GOES_BACK = "snapshot-goes-back"
    #: A reader that asks for the newest snapshot gets an older one.
    STALE_FRESH_READ = "stale-fresh-read"
    #: A commit is acknowledged, and its changes are lost.
    LOST_COMMIT = "lost-commit"
    #: A commit adds its elements twice.
    DUPLICATE_APPEND = "duplicate-append"
    #: A transaction does not see its own changes.
    OWN_WRITES_UNSEEN = "own-writes-unseen"
    #: An element that no transaction has appended.
    GARBAGE = "garbage"
    #: A transaction whose answer is lost is applied to one of its keys.
    HALF_AN_UNKNOWN = "half-an-unknown"


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that has begun.

    Attributes:
        tid: Its name.
        replica: 0 or 1.
        snapshot: The CSN at which it reads.
        changes: Its changes so far.
        keys_read: The keys that it has read.
    """

    tid: str
    replica: int
    snapshot: int
    changes: list[Change] = field(default_factory=list)
    keys_read: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Versions:
    """The changes of one key, with the CSN from which each is visible; the CSNs are sorted."""

    csns: list[int] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)


class Store:
    """The store.

    Args:
        generator: Source of all random decisions.
        defects: The defects that are switched on.
        conflicting: The kinds of changes of which two concurrent ones on a key conflict.
        serializable: Whether reads are checked at the commit.
    """

    def __init__(
        self,
        generator: random.Random,
        *,
        defects: Iterable[Defect] = (),
        conflicting: Conflicting = ADDED_ROWS,
        serializable: bool = False,
    ) -> None:
        self._random = generator
        self._defects = frozenset(defects)
        self._conflicting = conflicting
        self._serializable = serializable
        self._versions: dict[str, _Versions] = defaultdict(_Versions)
        self._open: dict[str, OpenTransaction] = {}
        self._begun = 0
        self._csn = 0

    def begin(self, *, seen: int, replica: int, fresh: bool) -> OpenTransaction:
        """Begin a transaction.

        Args:
            seen: The highest CSN that the process has seen or committed.
            replica: 0 or 1.
            fresh: Whether the newest snapshot is wanted; else any from ``seen`` on will do.
        """
        snapshot = self._csn
        if not fresh or Defect.STALE_FRESH_READ in self._defects:
            snapshot = self._random.randint(seen, self._csn)
        if Defect.SNAPSHOT_GOES_BACK in self._defects and self._strikes():
            snapshot = max(0, seen - _LAG)
        self._begun += 1
        transaction = OpenTransaction(f"t{self._begun}", replica, snapshot)
        self._open[transaction.tid] = transaction
        return transaction

    def read(self, transaction: OpenTransaction, key: str) -> Elements:
        """Return a list as the transaction sees it."""
        transaction.keys_read.add(key)
        shown = self._visible(transaction, key)
        if Defect.DIRTY_READ in self._defects:
            shown += [
                one
                for other in self._open.values()
                if other is not transaction
                for one in other.changes
                if one.key == key
            ]
        if Defect.OWN_WRITES_UNSEEN not in self._defects:
            shown += [one for one in transaction.changes if one.key == key]
        elements: list[Element] = []
        for change in shown:
            if isinstance(change, Write):
                elements.clear()
            elements.append(change.element)
        if Defect.GARBAGE in self._defects and self._strikes():
            elements.insert(0, "garbage")
        return tuple(elements)

    def change(self, transaction: OpenTransaction, change: Change) -> None:
        """Append to a list or replace it, within the transaction."""
        transaction.changes.append(change)

    def roll_back(self, transaction: OpenTransaction) -> None:
        """End a transaction without its changes."""
        del self._open[transaction.tid]
        if Defect.ABORT_LEAVES_ROWS in self._defects:
            self._install(transaction.changes, self._csn)

    def commit(
        self, transactions: Iterable[OpenTransaction], *, answered: bool = True
    ) -> list[OpenTransaction]:
        """Commit those transactions that do not conflict, all with the next CSN, and return them.

        Args:
            transactions: The transactions, which have changed something.
            answered: Whether the answers reach the clients.
        """
        committed = []
        for transaction in transactions:
            del self._open[transaction.tid]
            if not self._conflicts(transaction):
                committed.append(transaction)
                self._apply(transaction, self._csn + 1, answered=answered)
        if committed:
            self._csn += 1
        return committed

    def finish(self, transaction: OpenTransaction) -> None:
        """End a transaction that has changed nothing."""
        del self._open[transaction.tid]

    def report(self, transaction: OpenTransaction) -> dict[str, object]:
        """Return what the client is told about a transaction whose commit was the last one."""
        tid, csn = transaction.tid, self._csn
        if Defect.TWO_CSNS in self._defects and self._strikes():
            tid = "t1"
        if Defect.CSN_OF_SNAPSHOT in self._defects and self._strikes():
            csn = transaction.snapshot
        return {
            "tid": tid,
            "snapshot": transaction.snapshot,
            "csn": csn,
            "replica": f"r{transaction.replica}",
        }

    def _strikes(self) -> bool:
        return self._random.random() < _STRIKES

    def _visible(self, transaction: OpenTransaction, key: str) -> list[Change]:
        """Return the committed changes of a key that a transaction sees."""
        snapshot = transaction.snapshot
        if Defect.READ_SKEW in self._defects:
            snapshot = self._csn
        behind = Defect.LAGGING_REPLICA in self._defects and transaction.replica == 1
        if Defect.LONG_FORK in self._defects:
            behind = _is_odd(key) == (transaction.replica == 1)
        if behind:
            snapshot = max(0, snapshot - _LAG)
        versions = self._versions[key]
        count = bisect_right(versions.csns, snapshot)
        shown = versions.changes[:count]
        if Defect.SWAPPED_ORDER in self._defects and transaction.replica == 1:
            shown[-2:] = reversed(shown[-2:])
        return shown

    def _conflicts(self, transaction: OpenTransaction) -> bool:
        """Return whether a commit after the snapshot forbids this one."""
        for key in {one.key for one in transaction.changes}:
            kinds = {type(one) for one in transaction.changes if one.key == key}
            if Defect.NO_CONFLICT_CHECK not in self._defects and any(
                kind in self._conflicting
                and {type(one) for one in self._since(transaction, key)} & self._conflicting
                for kind in kinds
            ):
                return True
        return (
            self._serializable
            and Defect.NO_READ_CHECK not in self._defects
            and any(self._since(transaction, key) for key in transaction.keys_read)
        )

    def _since(self, transaction: OpenTransaction, key: str) -> list[Change]:
        versions = self._versions[key]
        return versions.changes[bisect_right(versions.csns, transaction.snapshot) :]

    def _apply(self, transaction: OpenTransaction, csn: int, *, answered: bool) -> None:
        changes = transaction.changes
        if Defect.LOST_COMMIT in self._defects and self._strikes():
            return
        if Defect.HALF_AN_UNKNOWN in self._defects and not answered:
            changes = [one for one in changes if one.key == changes[0].key]
        if Defect.DUPLICATE_APPEND in self._defects and self._strikes():
            changes = [*changes, *changes]
        late: list[Change] = []
        if Defect.HALF_A_COMMIT in self._defects:
            firsts = {one.key: one for one in reversed(changes)}
            late = [one for one in changes if firsts[one.key] is not one]
        if Defect.FRACTURED_COMMIT in self._defects:
            late = [one for one in changes if one.key != changes[0].key]
        self._install([one for one in changes if one not in late], csn)
        self._install(late, csn + 1)

    def _install(self, changes: Iterable[Change], csn: int) -> None:
        for change in changes:
            versions = self._versions[change.key]
            place = bisect_right(versions.csns, csn)
            versions.csns.insert(place, csn)
            before = versions.csns[place - 1] == csn - 1 if place else False
            crossed = before and Defect.DIRTY_WRITE in self._defects and _is_odd(change.key)
            versions.changes.insert(place - crossed, change)


def _is_odd(key: str) -> bool:
    """Return a fixed bit of a key, by which the keys are of two kinds."""
    return bool(sum(key.encode()) % 2)
