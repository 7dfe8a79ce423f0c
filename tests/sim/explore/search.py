"""Breadth-first search over all states that a model can reach, to its fixpoint.

The first broken promise that is found has a shortest history, since states are visited in the order of their
distance. When nothing new is left, the graph itself is asked whether from every state, without further
faults, a state can be reached in which everything is settled (I13, I14).
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

#: States of one exploration at most.
STATES_MAX: Final = 5_000_000
#: A step by its kind and what it is about; the kind tells a fault from the normal course of things.
Move = tuple[object, ...]
State = Hashable


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that does not hold: its name (docs/design/invariants.md), and how that shows."""

    invariant: str
    why: str


class Model(Protocol):
    """A world that can be explored: its states, moves and checks."""

    #: Kinds of moves that only trouble brings: a system that heals makes none of them.
    faults: frozenset[str]
    #: Kinds of moves that are repeated forever, whether they find anything or not.
    idle: frozenset[str]

    def initial(self) -> State:
        """The state at the beginning."""

    def moves(self, state: State) -> Iterable[tuple[Move, State | Broken]]:
        """All that can happen next."""

    def check(self, state: State) -> Broken | None:
        """The promise that a state breaks, if any."""

    def unsettled(self, state: State) -> Broken | None:
        """Return the work that is not done in a state in which only idle moves happen by themselves."""

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""


@dataclass(slots=True)
class ExplorationReport:
    """The result of an exploration."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    finals: int = 0
    cpu_s: float = 0.0
    #: The search ended at its bound before all states were visited.
    cut: bool = False
    broken: Broken | None = None
    trace: list[str] = field(default_factory=list)

    def story(self) -> str:
        """The shortest way to the broken promise, one step to a line."""
        if self.broken is None:
            return "nothing is broken"
        steps = [f"{number:3d}. {line}" for number, line in enumerate(self.trace, 1)]
        return "\n".join([*steps, f"  => {self.broken.invariant}: {self.broken.why}"])


class _Graph:
    """The states visited, in order, with the way to each, and the steps that need no fault."""

    def __init__(self, first: State) -> None:
        self.states: list[State] = [first]
        self.index: dict[State, int] = {first: 0}
        self.parents = array("l", [-1])
        self.depths = array("l", [0])
        self.by: list[Move] = [()]
        self.healing_from = array("l")
        self.healing_to = array("l")

    def add(self, state: State, parent: int, move: Move) -> tuple[int, bool]:
        """Return the number of a state, and whether it is new."""
        known = self.index.get(state)
        if known is not None:
            return known, False
        number = len(self.states)
        self.index[state] = number
        self.states.append(state)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.by.append(move)
        return number, True

    def way(self, number: int) -> list[tuple[State, Move]]:
        """The moves from the beginning to a state, each with the state that it was made in."""
        steps: list[tuple[State, Move]] = []
        while number > 0:
            parent = self.parents[number]
            steps.append((self.states[parent], self.by[number]))
            number = parent
        return steps[::-1]

    def cannot_reach(self, goals: list[int]) -> int | None:
        """The first state from which no goal can be reached without a fault."""
        before: list[list[int]] = [[] for _ in self.states]
        for source, target in zip(self.healing_from, self.healing_to, strict=True):
            before[target].append(source)
        reached = bytearray(len(self.states))
        todo = goals
        for goal in goals:
            reached[goal] = 1
        while todo:
            for source in before[todo.pop()]:
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        found = reached.find(0)
        return None if found < 0 else found


def explore(model: Model, *, states_max: int = STATES_MAX) -> ExplorationReport:
    """Visit every state; ends early at the first broken promise, or (``cut``) at the bound."""
    begun = time.process_time()
    graph = _Graph(model.initial())
    collects = gc.isenabled()
    gc.disable()  # millions of states are kept, and none of them is part of a cycle
    try:
        report = _visit(model, graph, states_max)
    finally:
        if collects:
            gc.enable()
    report.states, report.depth = len(graph.states), max(graph.depths)
    report.cpu_s = time.process_time() - begun
    return report


def _visit(model: Model, graph: _Graph, states_max: int) -> ExplorationReport:
    report = ExplorationReport()
    settled: list[int] = []
    number = 0
    while number < len(graph.states):
        state, heals, idles = graph.states[number], False, False
        for move, after in model.moves(state):
            report.steps += 1
            if isinstance(after, Broken):
                return _broken(model, graph, report, number, move, after)
            target, new = graph.add(after, number, move)
            if new and (broken := model.check(after)) is not None:
                return _broken(model, graph, report, number, move, broken)
            if move[0] not in model.faults and target != number:
                idles |= move[0] in model.idle
                heals |= move[0] not in model.idle
                graph.healing_from.append(number)
                graph.healing_to.append(target)
        if not heals:
            broken = model.unsettled(state)
            if broken is None:
                settled.append(number)
            elif not idles:
                return _broken(model, graph, report, number, None, broken)
        number += 1
        if len(graph.states) > states_max:
            report.cut = True
            return report
    report.finals = len(settled)
    stuck = graph.cannot_reach(settled)
    if stuck is not None:
        return _broken(model, graph, report, stuck, None, Broken("I14 LIVE", "from here it never heals"))
    return report


def _broken(
    model: Model, graph: _Graph, report: ExplorationReport, number: int, move: Move | None, broken: Broken
) -> ExplorationReport:
    steps = graph.way(number)
    if move is not None:
        steps.append((graph.states[number], move))
    report.trace = [model.describe(state, taken) for state, taken in steps]
    report.broken = broken
    return report
