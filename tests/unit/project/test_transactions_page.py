"""docs/transactions.md has every error, state and outcome of the code, with their properties."""

from __future__ import annotations

import re
from itertools import takewhile

from tests.support.project import source
from tidelock import errors
from tidelock.client import Decision, TransactionState

PAGE = (source.ROOT / "docs" / "transactions.md").read_text(encoding="utf-8")


def rows(first: str) -> list[list[str]]:
    """The rows of the table whose first column has this title."""
    _, _, rest = PAGE.partition(f"\n| {first} |")
    lines = takewhile(lambda line: line.startswith("|"), rest.splitlines()[1:])
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines][1:]


def test_every_error_is_in_the_table() -> None:
    """Each class is there once; refusals alone are certain, and the class says whether it is retriable."""
    kinds = [getattr(errors, name) for name in errors.__all__ if name != "from_wire"]
    expected = {
        kind.__name__: [
            "yes" if issubclass(kind, errors.RefusedError) else "no",
            "yes" if kind.retriable else "no",
        ]
        for kind in kinds
    }
    table = rows("error")
    assert {row[0]: row[1:3] for row in table} == expected
    assert len(table) == len(expected)
    assert all(len(row) == 5 and all(row) for row in table)


def test_states_and_outcomes_have_their_rows() -> None:
    """Each state of a transaction and each outcome has its row, by the name that programs see."""
    assert [row[0] for row in rows("state")] == [str(state) for state in TransactionState]
    assert [row[0] for row in rows("outcome")] == [str(decision) for decision in Decision]


def test_the_page_is_found() -> None:
    """README and the page of the command line lead to it."""
    for name in ("README.md", "docs/command-line.md"):
        assert re.search(r"\]\((docs/)?transactions\.md\)", (source.ROOT / name).read_text(encoding="utf-8"))
