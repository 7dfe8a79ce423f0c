"""Components and shortest paths are those that a slow search finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkers.graphs import Arrow, components, restricted, shortest_path

SIZE = 7
EDGES = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=16)


def _distances(edges: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return the lengths of all shortest paths (Floyd and Warshall)."""
    length = {(one, one): 0 for one in range(SIZE)} | {edge: 1 for edge in edges if edge[0] != edge[1]}
    for middle in range(SIZE):
        for start in range(SIZE):
            for goal in range(SIZE):
                if (start, middle) in length and (middle, goal) in length:
                    through = length[start, middle] + length[middle, goal]
                    length[start, goal] = min(through, length.get((start, goal), through))
    return length


@given(EDGES)
@settings(max_examples=60)
def test_components_are_the_sets_that_reach_each_other(edges: list[tuple[int, int]]) -> None:
    """Two nodes are in one component if each is reached from the other."""
    graph = restricted(((source, Arrow(target, "")) for source, target in edges), SIZE)
    reached = _distances(edges)
    expected = {
        frozenset(other for other in range(SIZE) if {(one, other), (other, one)} <= reached.keys())
        for one in range(SIZE)
    }
    found = components(graph)
    assert set(found) == {one for one in expected if len(one) > 1}
    assert len(found) == len(set(found))


@given(EDGES)
@settings(max_examples=60)
def test_a_shortest_path_has_the_least_number_of_edges(edges: list[tuple[int, int]]) -> None:
    """A path leads from start to goal, is as short as any, and is found if one exists."""
    graph = restricted(((source, Arrow(target, (source, target))) for source, target in edges), SIZE)
    reached = _distances(edges)
    for goal in range(SIZE):
        path = shortest_path(graph, 0, goal, range(SIZE))
        assert (None if path is None else len(path)) == reached.get((0, goal))
        steps = [arrow.label for arrow in path or ()]
        assert [target for _, target in steps[:-1]] == [source for source, _ in steps[1:]]


def test_a_path_stays_within_the_nodes_that_it_is_given() -> None:
    """A cycle must lie in its component, so the way back may not leave it."""
    graph = restricted([(0, Arrow(1, "")), (1, Arrow(2, "")), (0, Arrow(3, "")), (3, Arrow(2, ""))], 4)
    assert [arrow.target for arrow in shortest_path(graph, 0, 2, {0, 2, 3}) or ()] == [3, 2]
    assert shortest_path(graph, 0, 2, {0, 2}) is None


def test_a_path_that_is_longer_than_allowed_is_not_found() -> None:
    """A search for something shorter than the best cycle so far must end early."""
    graph = restricted([(0, Arrow(1, "")), (1, Arrow(2, ""))], 3)
    assert shortest_path(graph, 0, 2, range(3), steps_max=1) is None
    assert len(shortest_path(graph, 0, 2, range(3), steps_max=2) or ()) == 2
    assert shortest_path(graph, 0, 0, range(3), steps_max=0) == []
