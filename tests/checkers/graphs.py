"""Strongly connected components and short cycles of a graph with labelled edges. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

Label_co = TypeVar("Label_co", covariant=True)


class Arrow(NamedTuple, Generic[Label_co]):
    """An edge to a node, with what it stands for."""

    target: int
    label: Label_co


#: The edges that leave each node.
Graph = Sequence[Sequence[Arrow[Label_co]]]


def components(graph: Graph[Label_co]) -> list[frozenset[int]]:
    """Return the strongly connected components of more than one node (Tarjan, without recursion).

    Edges from a node to itself are ignored.
    """
    found: list[frozenset[int]] = []
    visited = [0] * len(graph)
    lowest = [0] * len(graph)
    stacked = [False] * len(graph)
    stack: list[int] = []
    clock = 0
    for root in range(len(graph)):
        if visited[root]:
            continue
        path = [(root, iter(graph[root]))]
        clock += 1
        visited[root] = lowest[root] = clock
        stack.append(root)
        stacked[root] = True
        while path:
            node, rest = path[-1]
            for target, _ in rest:
                if not visited[target]:
                    clock += 1
                    visited[target] = lowest[target] = clock
                    stack.append(target)
                    stacked[target] = True
                    path.append((target, iter(graph[target])))
                    break
                if stacked[target] and visited[target] < lowest[node]:
                    lowest[node] = visited[target]
            else:
                path.pop()
                if path and lowest[node] < lowest[path[-1][0]]:
                    lowest[path[-1][0]] = lowest[node]
                if lowest[node] == visited[node]:
                    start = len(stack) - 1
                    while stack[start] != node:
                        start -= 1
                    if len(stack) - start > 1:
                        found.append(frozenset(stack[start:]))
                    for member in stack[start:]:
                        stacked[member] = False
                    del stack[start:]
    return found


def shortest_path(
    graph: Graph[Label_co], start: int, goal: int, within: Container[int], *, steps_max: int | None = None
) -> list[Arrow[Label_co]] | None:
    """Return the edges of a shortest path; [] from a node to itself, None if no path is found.

    Args:
        graph: The graph.
        start: Where the path begins.
        goal: Where it ends.
        within: The nodes that it may touch.
        steps_max: Largest number of its edges; None for any.
    """
    came: dict[int, tuple[int, Arrow[Label_co]] | None] = {start: None}
    layer = [start]
    steps = 0
    while layer and goal not in came and (steps_max is None or steps < steps_max):
        steps += 1
        following = []
        for node in layer:
            for arrow in graph[node]:
                if arrow.target in within and arrow.target not in came:
                    came[arrow.target] = (node, arrow)
                    following.append(arrow.target)
        layer = following
    if goal not in came:
        return None
    path: list[Arrow[Label_co]] = []
    step = came[goal]
    while step is not None:
        path.append(step[1])
        step = came[step[0]]
    return path[::-1]


def restricted(arrows: Iterable[tuple[int, Arrow[Label_co]]], size: int) -> list[list[Arrow[Label_co]]]:
    """Return the graph of some edges, each given with its source, over the nodes 0 to ``size`` - 1."""
    graph: list[list[Arrow[Label_co]]] = [[] for _ in range(size)]
    for source, arrow in arrows:
        graph[source].append(arrow)
    return graph
