"""Judges a history by its lists alone: cycles of dependencies, each with a short proof. Pure.

A transaction has two moments: at its begin it reads, at its commit its changes take their place. ``wr``, and
the orders of processes and of real time, lead from a commit to a begin. ``rw`` leads from a begin to a
commit. ``ww`` leads from a commit to a begin if two overlapping changes of a key exclude each other, else
from commit to commit. Snapshot isolation forbids exactly the cycles in the graph of these moments;
serializability forbids every cycle of transactions.

    G0              ww only
    G1c             ww and wr
    G-single        one rw (read skew)
    G-nonadjacent   several rw, with a begin after each of them before the next one (long fork)
    G2-item         any other cycle (write skew)

A cycle that needs an edge of an order has its name behind the class: ``G-single-process``. The other classes
(`tests.checkers.dependencies`) are ``internal``, ``garbage-read``, ``duplicate-elements``,
``incompatible-order``, ``G1a`` (element of a failed transaction), ``G1b`` (part of a commit) and
``lost-update``.

One cycle is reported for each tangle of transactions and kind of graph, so a history with many anomalies is
mended and checked again. A transaction that ended ``info`` has committed if any read saw it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tests.checkers.conflicts import ADDED_ROWS, Conflicting
from tests.checkers.dependencies import Edge, Kind, infer
from tests.checkers.graphs import Arrow, Graph, components, restricted, shortest_path
from tests.checkers.levels import Level, Order, forbidden
from tests.checkers.operations import Append, End, History
from tests.checkers.violations import SHOWN, Step, Violation, first_of_each

#: Edges of one tangle that are tried for a short cycle.
_TRIES: Final = 20

_ORDERS: Final = frozenset((Kind.PROCESS, Kind.REALTIME))
_WRITES: Final = frozenset((Kind.WW,)) | _ORDERS
_WRITES_AND_READS: Final = frozenset((Kind.WR,)) | _WRITES


def check(
    history: History,
    level: Level = Level.SNAPSHOT,
    order: Order = Order.PROCESS,
    *,
    conflicting: Conflicting = ADDED_ROWS,
) -> list[Violation]:
    """Return the anomalies that a level forbids; see `anomalies`."""
    names = forbidden(level, order)
    return [one for one in anomalies(history, order, conflicting=conflicting) if one.name in names]


def anomalies(
    history: History,
    order: Order = Order.PROCESS,
    *,
    conflicting: Conflicting = ADDED_ROWS,
) -> list[Violation]:
    """Return all anomalies of a history, at most `SHOWN` of each class.

    Args:
        history: The history.
        order: The order that is taken into account beside the dependencies.
        conflicting: The micro-operations that exclude each other if they are concurrent on one key.
    """
    inference = infer(history, conflicting)
    excluding = Append in conflicting
    edges = list(inference.edges)
    cycles = list(_cycles(edges, len(history.transactions), excluding=excluding))
    if order is not Order.NONE:
        edges += _process_edges(history)
        cycles += _cycles(edges, len(history.transactions), excluding=excluding)
    if order is Order.REALTIME:
        edges += _realtime_edges(history)
        cycles += _cycles(edges, len(history.transactions), excluding=excluding)
    distinct = {frozenset(cycle): cycle for cycle in reversed(cycles)}
    found = [_violation(history, cycle, excluding=excluding) for cycle in reversed(distinct.values())]
    return list(first_of_each([*inference.found, *found]))


def classify(cycle: Sequence[Edge], *, excluding: bool) -> str:
    """Return the class of a cycle.

    Args:
        cycle: Its edges; each ends where the next one starts.
        excluding: Whether two concurrent appends to a key exclude each other.
    """
    kinds = {edge.kind for edge in cycle}
    before = itertools.chain(cycle[-1:], cycle)
    adjacent = any(
        edge.kind is Kind.RW and _ends_at_commit(last, excluding=excluding)
        for last, edge in zip(before, cycle, strict=False)
    )
    # A single rw of a cycle comes after itself only if the cycle is that one edge, which cannot be.
    if Kind.RW not in kinds:
        name = "G1c" if Kind.WR in kinds else "G0"
    elif adjacent:
        name = "G2-item"
    else:
        name = "G-single" if sum(edge.kind is Kind.RW for edge in cycle) == 1 else "G-nonadjacent"
    return name + next((f"-{kind}" for kind in (Kind.REALTIME, Kind.PROCESS) if kind in kinds), "")


def _ends_at_commit(edge: Edge, *, excluding: bool) -> bool:
    return edge.kind is Kind.RW or (edge.kind is Kind.WW and not excluding)


def _cycles(edges: Iterable[Edge], size: int, *, excluding: bool) -> Iterator[list[Edge]]:
    """Yield a short cycle of each tangle: in the writes, in writes and reads, in the moments, and in all."""
    everything = restricted(((edge.source, Arrow(edge.target, edge)) for edge in edges), size)
    tangles = components(everything)
    if not tangles:
        return
    tangle_of = {node: number for number, tangle in enumerate(tangles) for node in tangle}
    # Each cycle lies within a tangle, so the rest of the history is not looked at again.
    inner = [
        arrow.label
        for source in tangle_of
        for arrow in everything[source]
        if tangle_of.get(arrow.target) == tangle_of[source]
    ]
    for kinds, needed in ((_WRITES, Kind.WW), (_WRITES_AND_READS, Kind.WR)):
        chosen = [edge for edge in inner if edge.kind in kinds]
        graph = restricted(((edge.source, Arrow(edge.target, edge)) for edge in chosen), size)
        for component in components(graph)[:SHOWN]:
            if cycle := _shortest_cycle(component, graph, graph, needed):
                yield cycle
    yield from _cycles_of_moments(inner, size, excluding=excluding)
    graph = restricted(((edge.source, Arrow(edge.target, edge)) for edge in inner), size)
    for component in components(graph)[:SHOWN]:
        if cycle := _write_skew(component, graph, excluding=excluding):
            yield cycle


def _cycles_of_moments(edges: list[Edge], size: int, *, excluding: bool) -> Iterator[list[Edge]]:
    """Yield cycles with rw of each tangle of moments: 2n is the begin of transaction n, 2n+1 its commit."""
    arrows: list[tuple[int, Arrow[Edge | None]]] = [
        (2 * number, Arrow(2 * number + 1, None)) for number in range(size)
    ]
    for edge in edges:
        source = 2 * edge.source + (edge.kind is not Kind.RW)
        target = 2 * edge.target + _ends_at_commit(edge, excluding=excluding)
        arrows.append((source, Arrow(target, edge)))
    graph = restricted(arrows, 2 * size)
    without_rw = restricted(
        ((node, arrow) for node, arrow in arrows if not arrow.label or arrow.label.kind is not Kind.RW),
        2 * size,
    )
    for component in components(graph)[:SHOWN]:
        for ways in (without_rw, graph):
            if cycle := _shortest_cycle(component, graph, ways, Kind.RW):
                yield cycle


def _shortest_cycle(
    component: frozenset[int], graph: Graph[Edge | None], ways: Graph[Edge | None], needed: Kind
) -> list[Edge]:
    """Return the shortest cycle that is found in a component, [] for none.

    Args:
        component: The nodes.
        graph: Their edges.
        ways: The edges that the rest of the cycle may take.
        needed: The kind of the first edge of the cycle.
    """
    starts = (
        (node, arrow)
        for node in sorted(component)
        for arrow in graph[node]
        if arrow.target in component and arrow.label and arrow.label.kind is needed
    )
    best: list[Edge] = []
    steps_max: int | None = None
    for node, arrow in itertools.islice(starts, _TRIES):
        # A way that is no shorter than the best one is not searched to its end.
        way = shortest_path(ways, arrow.target, node, component, steps_max=steps_max)
        if way is not None:
            best = [one.label for one in (arrow, *way) if one.label]
            steps_max = len(way) - 1
    return best


def _write_skew(component: frozenset[int], graph: Graph[Edge], *, excluding: bool) -> list[Edge]:
    """Return a short cycle in which an rw leaves a transaction reached at its commit, [] for none."""
    into: dict[int, list[Edge]] = {node: [] for node in component}
    for node in sorted(component):
        for target, edge in graph[node]:
            if target in into and _ends_at_commit(edge, excluding=excluding):
                into[target].append(edge)
    turns = [
        (first, second)
        for node, firsts in into.items()
        for first in firsts[:_TRIES]
        for _, second in graph[node][:_TRIES]
        if second.kind is Kind.RW and second.target in into
    ]
    # The shortest proof comes first: two transactions.
    turns.sort(key=lambda turn: turn[0].source != turn[1].target)
    best: list[Edge] = []
    steps_max: int | None = None
    for first, second in turns[:_TRIES]:
        way = shortest_path(graph, second.target, first.source, component, steps_max=steps_max)
        if way is not None:
            best = [first, second, *(arrow.label for arrow in way)]
            steps_max = len(way) - 1
        if len(best) == 2:
            break
    return best


def _process_edges(history: History) -> Iterator[Edge]:
    """Yield the edges between consecutive transactions of each process."""
    last: dict[int, int] = {}
    for number, transaction in enumerate(history.transactions):
        if transaction.end is End.FAIL:
            continue
        if transaction.process in last:
            yield Edge(last[transaction.process], number, Kind.PROCESS)
        last[transaction.process] = number


def _realtime_edges(history: History) -> Iterator[Edge]:
    """Yield the edges from a transaction to those that were begun after it, without the ones that follow.

    There is none into a transaction that was content with an old snapshot.
    """
    moments: list[tuple[int, bool, int]] = []
    for number, transaction in enumerate(history.transactions):
        if transaction.end is not End.FAIL:
            moments.append((transaction.invoked_ns, False, number))
            if transaction.ended_ns is not None:
                moments.append((transaction.ended_ns, True, number))
    # No transaction of the frontier ended before another one of it was begun.
    frontier: list[int] = []
    for _, ended, number in sorted(moments):
        transaction = history.transactions[number]
        if not ended and transaction.fresh:
            yield from (Edge(before, number, Kind.REALTIME) for before in frontier)
        elif ended:
            if transaction.fresh:
                frontier = [one for one in frontier if _end(history, one) >= transaction.invoked_ns]
            frontier.append(number)


def _end(history: History, number: int) -> int:
    ended_ns = history.transactions[number].ended_ns
    assert ended_ns is not None
    return ended_ns


def _violation(history: History, cycle: list[Edge], *, excluding: bool) -> Violation:
    steps = tuple(
        Step(
            history.transactions[edge.source].index,
            history.transactions[edge.target].index,
            edge.kind,
            edge.why(),
        )
        for edge in cycle
    )
    name = classify(cycle, excluding=excluding)
    what = f"Expected an order of all transactions that {name} does not break, found a cycle of {len(cycle)}."
    return Violation(name, what, tuple(step.source for step in steps), steps)
