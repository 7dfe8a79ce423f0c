"""The tables of docs/testing.md have a row for each fault, workload and check, in the order of the lists."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chaos import checks, faults, workloads
from tests.support.project.source import ROOT


def rows(page: str, heading: str) -> list[str]:
    """Return the first column of the table below this first cell of a heading; ValueError without one."""
    lines = page.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith(f"| {heading} |")), None)
    if begin is None:
        raise ValueError(f"expected a table with the column {heading}, found none")
    found = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        found.append(line.split("|")[1].strip())
    return found


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("fault", [fault.kind for fault in faults.ALL]),
        ("workload", [workload.name for workload in workloads.ALL]),
        ("check", [check.name for check in checks.ALL]),
    ],
    ids=["faults", "workloads", "checks"],
)
def test_a_table_of_the_page_has_the_names_of_its_list(heading: str, names: Sequence[str]) -> None:
    """A kind that the page does not tell of is missed by its readers."""
    chapter = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8").partition("\n## Chaos\n")[2]
    assert rows(chapter, heading) == names


def test_rows_end_with_their_table_and_need_one() -> None:
    """Lines behind the table are no rows, and a table that was renamed is no empty one."""
    page = "| fault | what |\n|---|---|\n| a b | c |\n| d | e |\n\n| f | g |\n"
    assert rows(page, "fault") == ["a b", "d"]
    with pytest.raises(ValueError, match="workload"):
        rows(page, "workload")
