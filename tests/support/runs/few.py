"""The mark `few`: of the cases of a test so many are part of `make test`, the others are slow.

Cases of one test are mostly alike: a fault at another point, a statement of another kind. So a change that
breaks one of them mostly breaks others, too.
"""

from __future__ import annotations

import pytest


def chosen(cases: int, few: int) -> set[int]:
    """Return the places of ``few`` of so many cases: the first, the last, and others at even distances."""
    if few >= cases:
        return set(range(cases))
    return {round(number * (cases - 1) / max(few - 1, 1)) for number in range(few)}


@pytest.hookimpl(tryfirst=True)  # before those that are slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that are not chosen."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker("few")
        assert mark is not None
        kept = chosen(len(cases), *mark.args)
        for place, item in enumerate(cases):
            if place not in kept:
                item.add_marker("slow")
