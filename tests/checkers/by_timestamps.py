"""Judges a history by the CSNs that the store has reported: white box, a few sorted passes. Pure.

    INT         a transaction sees its own earlier changes, and its reads of one key agree
    EXT         a read at snapshot S returns all commits with csn <= S in their order, and nothing else
    NOCONFLICT  of two overlapping transactions that conflict about a key, one is refused
    ABORT       no element of a failed transaction is read
    SESSION     snapshots and CSNs of a process never go back, and it sees its own commits
    REALTIME    strict mode: a fresh reader sees all that was acknowledged before it was begun
    SERIAL      a serializable transaction would read at its commit what it has read
    CSN         a tid has one CSN, above its snapshot; CSNs follow the order of a process
    AGREE       all replicas return the same list of a key at a CSN

Elements of one CSN (group commit) may have any order that is the same in all reads. The CSN of a transaction
that ended ``info`` may be unknown: reads then bound it from both sides, and a violation is a pair of bounds
between which no CSN is left. So such a transaction is seen as a whole or not at all, and forever once seen.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tests.checkers.conflicts import ADDED_ROWS, Conflicting
from tests.checkers.operations import (
    Append,
    Element,
    Elements,
    End,
    History,
    Transaction,
    Write,
)
from tests.checkers.reads import OwnView, own_view
from tests.checkers.violations import Violation, first_of_each


def check(
    history: History, *, conflicting: Conflicting = ADDED_ROWS, strict: bool = False
) -> list[Violation]:
    """Return the violations, at most `SHOWN` for each invariant.

    Args:
        history: The history, whose transactions report their snapshots and CSNs.
        conflicting: The micro-operations that conflict with each other about a key.
        strict: Whether REALTIME holds too.
    """
    facts = _Facts(history)
    found = itertools.chain(
        _int(facts),
        _ext(facts),
        _no_conflict(facts, conflicting),
        _abort(facts),
        _session(facts),
        _realtime(facts) if strict else (),
        _serial(facts),
        _csn(facts),
        _agree(facts),
    )
    return list(first_of_each(found))


def has_timestamps(history: History) -> bool:
    """Return whether a history says at which snapshots it was read; without them `check` can see little."""
    return any(one.snapshot is not None for one in history.transactions)


@dataclass(slots=True)
class _Bounds:
    """The CSNs between which a transaction of unknown end must have committed, both included.

    ``low_from`` and ``high_from`` are the operations that have set them.
    """

    low: int
    high: float = float("inf")
    low_from: int = 0
    high_from: int = 0

    def raise_low(self, csn: int, by: int) -> None:
        if csn > self.low:
            self.low, self.low_from = csn, by

    def lower_high(self, csn: int, by: int) -> None:
        if csn < self.high:
            self.high, self.high_from = csn, by


@dataclass(slots=True)
class _KeyOrder:
    """All known versions of a key in the order of their CSNs.

    ``starts[n]`` is where the list of the first n elements begins: behind what was replaced.
    """

    csns: list[int] = field(default_factory=list)
    elements: Elements = ()
    starts: list[int] = field(default_factory=lambda: [0])

    def at(self, snapshot: int) -> Elements:
        """Return the list that a read at a snapshot must return."""
        count = bisect_right(self.csns, snapshot)
        return self.elements[self.starts[count] : count]


class _Facts:
    """A history, and the facts that follow from it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.ok = [one for one in history.transactions if one.end is End.OK]

    @cached_property
    def views(self) -> list[tuple[Transaction, OwnView]]:
        """The reads of each transaction that ended ok."""
        return [(one, own_view(one)) for one in self.ok]

    @cached_property
    def reads(self) -> list[tuple[Transaction, str, Elements]]:
        """Each external read at a known snapshot."""
        return [
            (one, key, elements)
            for one, view in self.views
            if one.snapshot is not None
            for key, elements in view.external.items()
        ]

    @cached_property
    def committed(self) -> list[tuple[int, Transaction]]:
        """The transactions whose CSN is known, in its order."""
        known = [
            (one.csn, one)
            for one in self.history.transactions
            if one.csn is not None and one.end is not End.FAIL
        ]
        return sorted(known, key=lambda item: item[0])

    @cached_property
    def undecided(self) -> dict[int, tuple[Transaction, _Bounds]]:
        """The transactions that may have committed at an unknown CSN, by index."""
        return {
            one.index: (one, _Bounds((one.snapshot if one.snapshot is not None else -1) + 1))
            for one in self.history.transactions
            if one.end is not End.FAIL and one.csn is None and one.changes
        }

    @cached_property
    def undecided_elements(self) -> dict[str, dict[Element, int]]:
        """Their elements, by key, with the index of the transaction."""
        by_key: dict[str, dict[Element, int]] = defaultdict(dict)
        for index, (transaction, _) in self.undecided.items():
            for key, element in transaction.changes:
                by_key[key][element] = index
        return by_key

    @cached_property
    def failed_elements(self) -> dict[str, set[Element]]:
        """The elements of failed transactions, by key."""
        by_key: dict[str, set[Element]] = defaultdict(set)
        for transaction in self.history.transactions:
            if transaction.end is End.FAIL:
                for key, element in transaction.changes:
                    by_key[key].add(element)
        return by_key

    @cached_property
    def replaced_keys(self) -> set[str]:
        """The keys whose lists do not only grow."""
        return {
            change.key
            for transaction in self.history.transactions
            for change in transaction.changes
            if isinstance(change, Write)
        }

    @cached_property
    def orders(self) -> dict[str, _KeyOrder]:
        """The order of the versions of each key."""
        places = self._places_in_reads()
        changes: dict[str, list[tuple[int, int, int, Append | Write]]] = defaultdict(list)
        for number, (csn, transaction) in enumerate(self.committed):
            for one in transaction.changes:
                changes[one.key].append((csn, places[one.key].get(one.element, -1), number, one))
        orders: dict[str, _KeyOrder] = defaultdict(_KeyOrder)
        for key, of_key in changes.items():
            # Only reads show the order within one CSN. The sort is stable, so changes of one
            # transaction that no read has seen stay in their order.
            of_key.sort(key=lambda item: item[:3])
            order = orders[key]
            order.csns = [csn for csn, *_ in of_key]
            order.elements = tuple(one.element for *_, one in of_key)
            for count, (_, _, _, one) in enumerate(of_key):
                order.starts.append(count if isinstance(one, Write) else order.starts[-1])
        return orders

    def _places_in_reads(self) -> dict[str, dict[Element, int]]:
        """Return the place of each element in the longest read of its key.

        If lists are replaced, no read shows all elements: then it is the place in the first read with it.
        """
        showing: dict[str, list[Elements]] = defaultdict(list)
        for _, key, elements in sorted(self.reads, key=lambda read: read[0].snapshot or 0):
            if key in self.replaced_keys or not showing[key]:
                showing[key].append(elements)
            elif len(elements) > len(showing[key][0]):
                showing[key][0] = elements
        places: dict[str, dict[Element, int]] = defaultdict(dict)
        for key, shown in showing.items():
            for elements in shown:
                for place, element in enumerate(elements):
                    places[key].setdefault(element, place)
        return places


def _int(facts: _Facts) -> Iterator[Violation]:
    for transaction, view in facts.views:
        for contradiction in view.contradictions:
            yield Violation("INT", f"{contradiction}.", (transaction.index,))


def _ext(facts: _Facts) -> Iterator[Violation]:
    for reader, key, found in facts.reads:
        assert reader.snapshot is not None
        expected = facts.orders[key].at(reader.snapshot) if key in facts.orders else ()
        if key in facts.undecided_elements:
            _bound(facts, reader, key, found)
        if found != expected and (wrong := _unexpected(facts, reader, key, found, expected)):
            yield wrong
    for index, (_, bounds) in facts.undecided.items():
        if bounds.low > bounds.high:
            yield Violation(
                "EXT",
                f"Operation {index} ended unknown: expected one CSN that fits all reads, found that it is at "
                f"least {bounds.low} by operation {bounds.low_from} and at most {bounds.high} by operation "
                f"{bounds.high_from}.",
                (index, bounds.low_from, bounds.high_from),
            )


def _bound(facts: _Facts, reader: Transaction, key: str, found: Elements) -> None:
    """Narrow the CSNs of undecided transactions by what one read has seen of them."""
    snapshot = reader.snapshot or 0
    places = {element: place for place, element in enumerate(found)}
    for element, index in facts.undecided_elements[key].items():
        bounds = facts.undecided[index][1]
        if element not in places:
            # An element that was replaced meanwhile says nothing.
            if key not in facts.replaced_keys:
                bounds.raise_low(snapshot + 1, reader.index)
            continue
        bounds.lower_high(snapshot, reader.index)
        place = places[element]
        if place and (csn := _csn_of(facts, key, found[place - 1])) is not None:
            bounds.raise_low(csn, reader.index)
        if place + 1 < len(found) and (csn := _csn_of(facts, key, found[place + 1])) is not None:
            bounds.lower_high(csn, reader.index)


def _csn_of(facts: _Facts, key: str, element: Element) -> int | None:
    writer = facts.history.writer(key, element)
    return writer.csn if writer else None


def _unexpected(
    facts: _Facts, reader: Transaction, key: str, found: Elements, expected: Elements
) -> Violation | None:
    """Return the violation of a read that differs, unless undecided or failed transactions explain it."""
    undecided, failed = facts.undecided_elements[key], facts.failed_elements[key]
    known = tuple(one for one in found if one not in undecided and one not in failed)
    if found and found[0] in undecided and key in facts.replaced_keys:
        # An undecided transaction may have replaced the beginning.
        expected = expected[len(expected) - len(known) :]
    if known == expected:
        return None
    same = next(
        (place for place, (one, other) in enumerate(zip(known, expected, strict=False)) if one != other),
        min(len(known), len(expected)),
    )
    writers = (
        facts.history.writer(key, element)
        for element in (*known[same : same + 1], *expected[same : same + 1])
    )
    return Violation(
        "EXT",
        f"Read of {key} at CSN {reader.snapshot}: expected, behind the first {same} elements, "
        f"{list(expected[same:])}, found {list(known[same:])}.",
        (reader.index, *(writer.index for writer in writers if writer)),
    )


def _no_conflict(facts: _Facts, conflicting: Conflicting) -> Iterator[Violation]:
    latest: dict[str, tuple[int, Transaction]] = {}
    for csn, transaction in facts.committed:
        for key in {one.key for one in transaction.changes if type(one) in conflicting}:
            before = latest.get(key)
            latest[key] = (csn, transaction)
            # The one before has the highest CSN so far: if it is no conflict, no earlier one is.
            if before and transaction.snapshot is not None and transaction.snapshot < before[0]:
                yield Violation(
                    "NOCONFLICT",
                    f"Change of {key} from snapshot {transaction.snapshot} to CSN {csn}: expected no other "
                    f"change in between, found one at CSN {before[0]}.",
                    (before[1].index, transaction.index),
                )


def _abort(facts: _Facts) -> Iterator[Violation]:
    for reader, view in facts.views:
        for key, elements in view.external.items():
            for element in facts.failed_elements.get(key, set()).intersection(elements):
                writer = facts.history.writer(key, element)
                assert writer
                yield Violation(
                    "ABORT",
                    f"Read of {key}: expected no element of a failed transaction, found {element!r}.",
                    (reader.index, writer.index),
                )


def _session(facts: _Facts) -> Iterator[Violation]:
    highest: dict[int, tuple[int, Transaction]] = {}
    for transaction in facts.history.transactions:
        number, by = highest.get(transaction.process, (-1, transaction))
        if transaction.snapshot is not None and transaction.snapshot < number:
            yield Violation(
                "SESSION",
                f"Process {transaction.process}: expected a snapshot of at least {number}, which it has seen "
                f"or committed before, found {transaction.snapshot}.",
                (by.index, transaction.index),
            )
        if (reached := _reached(transaction)) > number:
            highest[transaction.process] = (reached, transaction)


def _realtime(facts: _Facts) -> Iterator[Violation]:
    ended = sorted(
        ((one.ended_ns, one.index, one) for one in facts.ok if one.ended_ns is not None),
        key=lambda item: item[:2],
    )
    begun = sorted(facts.history.transactions, key=lambda one: one.invoked_ns)
    number, behind = -1, 0
    by: Transaction | None = None
    for transaction in begun:
        while behind < len(ended) and ended[behind][0] < transaction.invoked_ns:
            if (reached := _reached(ended[behind][2])) > number:
                number, by = reached, ended[behind][2]
            behind += 1
        stale = transaction.fresh and transaction.snapshot is not None and transaction.snapshot < number
        if by and (stale or (transaction.csn is not None and transaction.csn <= number)):
            yield Violation(
                "REALTIME",
                f"Expected at least CSN {number}, which was reached before the transaction was begun, found "
                f"snapshot {transaction.snapshot} and CSN {transaction.csn}.",
                (by.index, transaction.index),
            )


def _serial(facts: _Facts) -> Iterator[Violation]:
    """Compare the snapshot of each serializable transaction with the state that its commit follows.

    What has the same CSN has no known order beside it, so it counts as later.
    """
    for transaction, view in facts.views:
        snapshot, csn = transaction.snapshot, transaction.csn
        if not transaction.serializable or snapshot is None or csn is None:
            continue
        for key in sorted(view.external.keys() & facts.orders.keys()):
            order = facts.orders[key]
            if order.at(snapshot) == order.at(csn - 1):
                continue
            first = bisect_right(order.csns, snapshot)
            writer = facts.history.writer(key, order.elements[first])
            yield Violation(
                "SERIAL",
                f"Read of {key} at CSN {snapshot}, commit at CSN {csn}: expected the same list there, "
                f"found a change at CSN {order.csns[first]}.",
                (transaction.index, *([writer.index] if writer else [])),
            )


def _reached(transaction: Transaction) -> int:
    """Return the highest CSN that the client of a transaction knows of at its end; -1 for none."""
    return max(-1 if number is None else number for number in (transaction.snapshot, transaction.csn))


def _csn(facts: _Facts) -> Iterator[Violation]:
    of_tid: dict[str, Transaction] = {}
    of_process: dict[int, Transaction] = {}
    for transaction in facts.history.transactions:
        csn, snapshot = transaction.csn, transaction.snapshot
        if (
            snapshot is None
            and transaction.end is End.OK
            and len(transaction.changes) < len(transaction.operations)
        ):
            yield Violation("CSN", "Expected the snapshot of a read, found none.", (transaction.index,))
        if csn is None:
            if transaction.end is End.OK and transaction.changes:
                yield Violation("CSN", "Expected the CSN of a commit, found none.", (transaction.index,))
            continue
        if snapshot is not None and csn <= snapshot:
            found = f"Expected a CSN above the snapshot {snapshot}, found {csn}."
            yield Violation("CSN", found, (transaction.index,))
        if transaction.tid is not None:
            first = of_tid.setdefault(transaction.tid, transaction)
            if first.csn != csn:
                found = f"Expected CSN {first.csn} of {transaction.tid} everywhere, found {csn}."
                yield Violation("CSN", found, (first.index, transaction.index))
        before = of_process.get(transaction.process)
        if before and before.csn is not None and csn <= before.csn:
            found = f"Expected a CSN above {before.csn}, the last one of this process, found {csn}."
            yield Violation("CSN", found, (before.index, transaction.index))
        of_process[transaction.process] = transaction


def _agree(facts: _Facts) -> Iterator[Violation]:
    first: dict[tuple[str, int], tuple[Transaction, Elements]] = {}
    for reader, key, found in facts.reads:
        assert reader.snapshot is not None
        other, elements = first.setdefault((key, reader.snapshot), (reader, found))
        if other.replica != reader.replica and elements != found:
            yield Violation(
                "AGREE",
                f"{key} at CSN {reader.snapshot}: expected {list(elements)} as on {other.replica}, found "
                f"{list(found)} on {reader.replica}.",
                (other.index, reader.index),
            )
