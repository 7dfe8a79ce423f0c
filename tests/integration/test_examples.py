"""examples/: every program runs, and prints the lines that it exists to show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.project.source import ROOT
from tests.support.spark.process import run_program
from tidelock.cluster import LocalCluster

pytestmark = pytest.mark.spark

PROGRAMS: Final = sorted(
    path.stem for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
)
#: The backfill as its user would repeat it.
RUNS: Final = ("backfill_partition", "backfill_partition", "dashboard", "etl_three_tables")


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    return module_cluster(replicas=2, settings=QUICK)


@pytest.fixture(scope="module")
def printed(local: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines that each run of each program has printed; all use one cluster and one Spark session."""
    folder = tmp_path_factory.mktemp("examples")
    run_program(folder, "tests.support.project.example_runs", local.url("r1"), str(folder), *RUNS)
    found: dict[str, list[str]] = {}
    for number, name in enumerate(RUNS):
        found.setdefault(name, []).append((folder / str(number)).read_text(encoding="utf-8"))
    return found


def test_all_programs_are_run() -> None:
    """Every program in examples/ is run here."""
    assert sorted(set(RUNS)) == PROGRAMS


@pytest.mark.slow
def test_etl_counts_a_repeated_batch_once(printed: dict[str, list[str]]) -> None:
    """Three batches are counted, although Spark ran one of them twice; the tables agree at each CSN."""
    (text,) = printed["etl_three_tables"]
    batches = re.findall(r"^batch (\d+): (\d+) documents", text, re.MULTILINE)
    assert [number for number, _ in batches] == ["0", "1", "2"]
    # Two files have arrived at the same moment; Spark chooses the first one.
    assert [sorted(count for _, count in batches[:2]), batches[2][1]] == [["31", "42"], "20"]
    assert "Spark gives it batch 1 a second time" in text
    states = re.findall(r"(\d+) orders over (\S+), \d+ lines over (\S+), (\d+) rejected", text)
    assert [(orders, rejected) for orders, _, _, rejected in states] == [("0", "0"), ("70", "3"), ("90", "3")]
    assert all(ordered == summed_up for _, ordered, summed_up, _ in states)


@pytest.mark.slow
def test_backfill_adds_nothing_when_it_is_repeated(printed: dict[str, list[str]]) -> None:
    """One day is replaced once; later runs, in this program or the next one, get the CSN of the first run."""
    wrong, right = "2026-01-02 79.7 (2 rows)", "2026-01-02 26.5 (2 rows)"
    first, second = printed["backfill_partition"]
    assert [wrong in line for line in _states(first)] == [True, False, False]
    assert [right in line for line in _states(first)] == [False, True, True]
    assert all("2026-01-01 79.7 (2 rows)" in line for line in _states(first))
    (done,) = re.findall(r"was done before, by transaction \S+ at CSN (\d+)", first)
    assert "computed again" not in second
    assert re.findall(r"was done before, by transaction \S+ at CSN (\d+)", second) == [done, done]
    assert all(right in line for line in _states(second))


def _states(text: str) -> list[str]:
    return re.findall(r"^at CSN \d+: (.*)", text, re.MULTILINE)


@pytest.mark.slow
def test_dashboard_agrees_while_writers_go_on(printed: dict[str, list[str]]) -> None:
    """Each round shows three tables at one CSN, a later one than before, and their sums agree to the cent."""
    (text,) = printed["dashboard"]
    csns = [int(csn) for csn in re.findall(r"^-- at CSN (\d+)", text, re.MULTILINE)]
    assert csns == sorted(set(csns))
    assert len(csns) == 3
    totals = re.findall(r"totals: (\S+) (\S+) (\S+)", text)
    assert all(len(set(row)) == 1 for row in totals)
    assert len(set(totals)) == 3
    assert text.count("another amount: 0") == 3


@pytest.mark.slow
def test_nothing_is_left_open_by_the_examples(local: LocalCluster, printed: dict[str, list[str]]) -> None:
    """All transactions and snapshots of the programs have ended."""
    with local.connect("r1") as db:
        assert [row for row in db.transactions() if row["state"] == "open"] == []
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_an_address_a_program_makes_its_own_cluster(name: str, tmp_path: Path) -> None:
    """A program without an address starts a cluster of its own, and leaves nothing behind."""
    printed = run_program(tmp_path, f"examples.{name}")
    assert "at CSN" in printed
