"""The order of transactions that follows from their lists, and the reads that are wrong alone. Pure.

The order of the elements of a key is its longest read; every other read must be a beginning of it. Only the
part of a read that came from the store counts: where a transaction's own elements end up is decided by its
commit. From the order follow the edges:

    ww   the element of one stands behind that of the other
    wr   one has read an element of the other
    rw   one has read a list without an element of the other

Transactions of one CSN (group commit) have no order among themselves; nothing else is concluded from the
numbers. No order is concluded for keys whose lists contradict each other, or are replaced as a whole (``w``).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tests.checkers.conflicts import Conflicting
from tests.checkers.operations import Element, Elements, End, History, Write
from tests.checkers.reads import OwnView, own_view
from tests.checkers.violations import Violation


class Kind(StrEnum):
    """Why a transaction comes before another."""

    WW = "ww"
    WR = "wr"
    RW = "rw"
    PROCESS = "process"
    REALTIME = "realtime"


class Edge(NamedTuple):
    """One transaction comes before another; both are numbers in the history."""

    source: int
    target: int
    kind: Kind
    key: str = ""
    element: Element = ""

    def why(self) -> str:
        """Return the reason of the edge."""
        match self.kind:
            case Kind.WW:
                return f"{self.element!r} of the second stands next behind the first in {self.key}"
            case Kind.WR:
                return f"the second has read {self.element!r} of the first in {self.key}"
            case Kind.RW:
                return f"the first has read {self.key} without {self.element!r} of the second"
            case Kind.PROCESS:
                return "one process has run both in this order"
            case Kind.REALTIME:
                return "the first had ended before the second was begun"


class ExternalRead(NamedTuple):
    """A list as one transaction, a number in the history, has read it.

    ``elements`` are those that may be there, ``found`` is all that was read.
    """

    reader: int
    elements: Elements
    found: Elements


@dataclass(slots=True)
class Inference:
    """Everything that is concluded from the lists.

    Attributes:
        edges: The dependencies between committed transactions.
        found: The anomalies that need no cycle.
    """

    edges: list[Edge] = field(default_factory=list)
    found: list[Violation] = field(default_factory=list)


class _Key(NamedTuple):
    """A key with its reads, and the elements that committed transactions have added to it, with these."""

    key: str
    reads: list[ExternalRead]
    committed: dict[Element, int]


def infer(history: History, conflicting: Conflicting) -> Inference:
    """Return the dependencies of a history, and the anomalies that need no cycle.

    Args:
        history: The history.
        conflicting: The micro-operations of which two concurrent ones on a key make a lost update.
    """
    inference = Inference()
    views: dict[int, OwnView] = {
        number: own_view(one) for number, one in enumerate(history.transactions) if one.end is End.OK
    }
    for number, view in views.items():
        inference.found += [
            Violation("internal", f"{one}.", (history.transactions[number].index,))
            for one in view.contradictions
        ]
    replaced = {one.key for each in history.transactions for one in each.changes if type(one) is Write}
    for one in _keys(history, views, inference):
        inference.found += _lost_updates(history, one, conflicting)
        if one.key in replaced:
            inference.edges += _replaced_edges(one)
        elif contradictions := list(_contradictions(history, one)):
            inference.found += contradictions
        else:
            _ordered(history, one, inference)
    return inference


def _keys(history: History, views: dict[int, OwnView], inference: Inference) -> Iterator[_Key]:
    """Yield each key with its reads, from which elements that must not be there are reported and removed."""
    reads: dict[str, list[ExternalRead]] = defaultdict(list)
    possible: dict[str, set[Element]] = defaultdict(set)
    for (key, element), number in history.writers.items():
        if history.transactions[number].end is not End.FAIL:
            possible[key].add(element)
    seen: set[int] = set(views)
    for reader, view in views.items():
        for key, elements in view.external.items():
            if not possible[key].issuperset(elements):
                inference.found += _impossible(history, reader, key, elements, possible[key])
            clean = tuple(one for one in elements if one in possible[key])
            reads[key].append(ExternalRead(reader, clean, elements))
    # An unknown end counts as a commit if any read has seen it.
    for key, of_key in reads.items():
        seen.update(history.writers[key, one] for one in set().union(*(read.elements for read in of_key)))
    committed: dict[str, dict[Element, int]] = defaultdict(dict)
    for (key, element), number in history.writers.items():
        if number in seen:
            committed[key][element] = number
    yield from (_Key(key, reads[key], committed[key]) for key in reads.keys() | committed.keys())


def _impossible(
    history: History, reader: int, key: str, elements: Elements, possible: set[Element]
) -> Iterator[Violation]:
    for element in elements:
        if element in possible:
            continue
        writer = history.writer(key, element)
        indices = (history.transactions[reader].index, *([writer.index] if writer else []))
        name = "G1a" if writer else "garbage-read"
        by = "a failed transaction" if writer else "no transaction"
        yield Violation(
            name, f"Read of {key}: expected elements of commits, found {element!r} of {by}.", indices
        )


def _contradictions(history: History, of_key: _Key) -> Iterator[Violation]:
    """Yield the reads that have an element twice, or are no beginning of the longest read."""
    longest = max(of_key.reads, key=lambda read: len(read.elements), default=ExternalRead(0, (), ()))
    for reader, elements, _ in of_key.reads:
        index = history.transactions[reader].index
        if longest.elements[: len(elements)] == elements and reader != longest.reader:
            continue
        if len(set(elements)) < len(elements):
            twice = sorted({str(one) for one in elements if elements.count(one) > 1})
            found = f"Read of {of_key.key}: expected each element once, found {', '.join(twice)} again."
            yield Violation("duplicate-elements", found, (index,))
        elif longest.elements[: len(elements)] != elements:
            yield Violation(
                "incompatible-order",
                f"Read of {of_key.key}: expected the beginning of {list(longest.elements)}, found "
                f"{list(elements)}.",
                (index, history.transactions[longest.reader].index),
            )


def _ordered(history: History, of_key: _Key, inference: Inference) -> None:
    """Add the edges and intermediate reads of a key whose reads all are beginnings of the longest one."""
    key, reads, committed = of_key
    order = max((read.elements for read in reads), key=len, default=())
    groups = _groups(history, of_key, order)
    for before, after in itertools.pairwise(groups):
        pairs = {(committed[one], committed[other]): other for one in before for other in after}
        inference.edges += [
            Edge(one, other, Kind.WW, key, element) for (one, other), element in pairs.items() if one != other
        ]
    elements = [element for group in groups for element in group]
    # By the place of an element: where its group begins and ends.
    begins: list[int] = []
    ends: list[int] = []
    for group in groups:
        begin = len(begins)
        begins += [begin] * len(group)
        ends += [begin + len(group)] * len(group)
    partial = _partial(order, of_key)
    for reader, read, _ in reads:
        count = len(read)
        sources = {committed[one]: one for one in elements[begins[count - 1] : count]} if count else {}
        inference.edges += [
            Edge(one, reader, Kind.WR, key, element) for one, element in sources.items() if one != reader
        ]
        halves = partial.get(count, {})
        for half in halves.keys() - {reader}:
            inference.found.append(_intermediate(history, key, reader, half, halves[half]))
        behind = elements[count : ends[count]] if count < len(elements) else ()
        targets = {committed[one]: one for one in behind}
        inference.edges += [
            Edge(reader, one, Kind.RW, key, element)
            for one, element in targets.items()
            # A read in the midst of a commit is reported as such, not as a cycle with it.
            if one != reader and one not in halves
        ]


def _groups(history: History, of_key: _Key, order: Elements) -> list[list[Element]]:
    """Return the elements of a key in order; those of one CSN, and those never read, are together."""
    groups = [
        list(members)
        for _, members in itertools.groupby(order, key=lambda one: _record(history, of_key.committed[one]))
    ]
    seen = set(order)
    # No read has seen these, so they come last, in an unknown order.
    if unseen := [one for one in of_key.committed if one not in seen]:
        groups.append(unseen)
    return groups


def _intermediate(history: History, key: str, reader: int, writer: int, lacking: Element) -> Violation:
    return Violation(
        "G1b",
        f"Read of {key}: expected all elements of a transaction or no element, found it without {lacking!r}.",
        (history.transactions[reader].index, history.transactions[writer].index),
    )


def _record(history: History, number: int) -> tuple[str, int]:
    csn = history.transactions[number].csn
    return ("transaction", number) if csn is None else ("csn", csn)


def _partial(order: Elements, of_key: _Key) -> dict[int, dict[int, Element]]:
    """Return, by length of a read, the transactions that it cuts in two, with an element that it lacks."""
    places: dict[int, list[float]] = defaultdict(list)
    lacking: dict[int, Element] = {}
    place_of = {element: place for place, element in enumerate(order)}
    for element, number in of_key.committed.items():
        place = place_of.get(element, float("inf"))
        if place >= max(places[number], default=-1):
            lacking[number] = element
        places[number].append(place)
    partial: dict[int, dict[int, Element]] = defaultdict(dict)
    for number, of_one in places.items():
        if len(of_one) > 1 and min(of_one) < len(order):
            for count in range(int(min(of_one)) + 1, int(min(max(of_one), len(order))) + 1):
                partial[count][number] = lacking[number]
    return partial


def _replaced_edges(of_key: _Key) -> list[Edge]:
    return [
        Edge(of_key.committed[element], reader, Kind.WR, of_key.key, element)
        for reader, elements, _ in of_key.reads
        for element in elements
        if of_key.committed[element] != reader
    ]


def _lost_updates(history: History, of_key: _Key, conflicting: Conflicting) -> Iterator[Violation]:
    """Yield the sets of transactions that have read one version of a key and changed it."""
    updates: dict[Elements, list[int]] = defaultdict(list)
    # Two lists are two versions even if they differ by elements that must not be there.
    for reader, _, found in of_key.reads:
        transaction = history.transactions[reader]
        if any(one.key == of_key.key and type(one) in conflicting for one in transaction.changes):
            updates[found].append(transaction.index)
    for elements, indices in updates.items():
        if len(indices) > 1:
            yield Violation(
                "lost-update",
                f"Change of {of_key.key}: expected one transaction that changes what it has read as "
                f"{list(elements)}, found {len(indices)}.",
                tuple(indices),
            )
