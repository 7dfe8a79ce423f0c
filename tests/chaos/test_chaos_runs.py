"""Whole runs of the chaos runner: a short one, fresh seeds, seeds that found something, and planted bugs.

    python -m chaos --seed 7 --minutes 3

repeats one by hand; a failure prints its seed, its folder and the command.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest

from chaos.__main__ import parser, plans_of
from chaos.planning.kept_seeds import KEPT
from chaos.result import Result, told
from chaos.runner import run
from chaos.setup import images
from chaos.setup.options import Options
from tests.chaos import outside_lists
from tests.support.faults import ability
from tests.support.project import source
from tests.support.telling import Tell
from tests.support.waiting import eventually
from tidelock.testing import commands

#: The bounds of a machine that many tests share.
SHARED: Final = Options(stall_max_s=60.0, converge_s=240.0)


@pytest.fixture(autouse=True)
def networks() -> None:
    """Networks and disks of a cluster's own need root."""
    ability.require(commands.lack())


def result_of(folder: Path, tell: Tell, *words: str, options: Options = SHARED) -> Result:
    """Run a command line of the runner in a folder, and show what it has come to."""
    [plan] = plans_of(parser().parse_args([*words]))
    result = run(plan, folder / "run", options)
    tell(told(result, str(folder / "run")))
    return result


def require_passed(result: Result) -> None:
    """Require that no promise was broken, and that enough has happened to say so."""
    assert result.violations == []
    assert result.unproven == []
    assert result.commits > 0
    assert result.reads > 0


def require_lists_valid_outside(folder: Path, tell: Tell) -> None:
    """Require that a program of others finds nothing in the lists of a run either, if it had any."""
    ordered = folder / "run" / "histories" / "list_append.ordered.jsonl"
    if not ordered.exists():
        return
    if ability.is_lacking(lack := outside_lists.lack()):
        tell(f"the lists were judged by nobody else: {lack}")
        return
    outside_lists.require_valid(ordered)


@pytest.mark.timeout(400)
@pytest.mark.scenario("S68", "S69")
def test_a_short_run_breaks_no_promise(tmp_path: Path, tell: Tell) -> None:
    """Three replicas, two workloads, and faults that heal quickly; the report tells of them."""
    kinds = "clock wrong,pair cut,cut from peers,ZooKeeper follower frozen,session expired"
    words = ("--seed", "11", "--minutes", "0.25", "--sessions", "0", "--workloads", "list_append,bank")
    result = result_of(tmp_path, tell, *words, "--only", kinds)
    require_passed(result)
    assert result.faults
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert all(kind in report for kind in result.faults)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.scenario("S61", "S62", "S65", "S68", "S69", "S70", "S71", "S72")
def test_a_fresh_seed_breaks_no_promise(tmp_path: Path, tell: Tell, fresh_seed: int) -> None:
    """All workloads and all faults, with a seed that nobody has tried, on three or four replicas."""
    replicas = str(3 + fresh_seed % 2)
    words = ("--seed", str(fresh_seed), "--minutes", "3", "--replicas", replicas)
    require_passed(result_of(tmp_path, tell, *words))
    require_lists_valid_outside(tmp_path, tell)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", KEPT, ids=" ".join)
def test_a_seed_that_found_something_finds_it_no_more(
    words: tuple[str, ...], tmp_path: Path, tell: Tell
) -> None:
    """The fault that it found was mended, or the judge was."""
    require_passed(result_of(tmp_path, tell, *words))
    require_lists_valid_outside(tmp_path, tell)


def lines_of(folder: Path, what: str) -> list[dict[str, Any]]:
    """Return the lines of a kind in the journal of a run."""
    path = folder / "run" / "journal.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in whole if line["what"] == what]


class _Stories(HTMLParser):
    """Reads the words of each story, as a person does who has nothing but the report."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a story with its section."""
        if tag == "section":
            self._inside = ("class", "story") in attrs
            if self._inside:
                self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        """End it."""
        if tag == "section":
            self._inside = False

    def handle_data(self, data: str) -> None:
        """Add words."""
        if self._inside:
            self.found[-1] += data


def stories_of(folder: Path) -> list[str]:
    """Return the stories in the report of a run."""
    reader = _Stories()
    reader.feed((folder / "run" / "report.html").read_text(encoding="utf-8"))
    return reader.found


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(1800)
@pytest.mark.scenario("S68", "S69")
def test_a_run_in_containers_breaks_no_promise(tmp_path: Path, tell: Tell) -> None:
    """The images, under the faults that containers can have: two minutes of all of them, without Spark."""
    words = ("--seed", "12", "--minutes", "2", "--containers", "--sessions", "0")
    options = replace(SHARED, image_tag=images.build(spark=False))
    require_passed(result_of(tmp_path, tell, *words, options=options))
    require_lists_valid_outside(tmp_path, tell)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_planted_loss_is_told_with_its_fault_and_its_transaction(tmp_path: Path, tell: Tell) -> None:
    """A home that loses commits after a start is told with them, and with the fault that stopped it."""
    words = ("--seed", "3", "--minutes", "1.5", "--sessions", "0", "--workloads", "list_append,bank")
    result = result_of(tmp_path, tell, *words, "--only", "killed,stopped", "--plant", "lose-a-commit")
    assert not result.passed
    begun = {line["fault"]: line for line in lines_of(tmp_path, "begin")}
    told_of = [line for line in lines_of(tmp_path, "violation") if line.get("tid") and line.get("fault")]
    assert told_of
    assert all({*line["fault"]} <= begun.keys() and line["claim"] for line in told_of)
    lost = [line for line in told_of if line["claim"].startswith("I4")]
    assert lost
    stories = stories_of(tmp_path)
    for line in lost:
        named = (f"Broken invariant: {line['claim']}.", f"Transaction: {', '.join(line['tid'])}.")
        faults = [f"{fault} ({begun[fault]['kind']}) of " for fault in line["fault"]]
        assert any(
            all(words in story for words in named)
            and any(fault in story.partition("Nearest faults: ")[2] for fault in faults)
            for story in stories
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_planted_torn_snapshot_is_told_with_its_invariant(tmp_path: Path, tell: Tell) -> None:
    """Replicas that show half of a commit are found by what clients read, and by no other means."""
    words = ("--seed", "4", "--minutes", "0.3", "--sessions", "0", "--workloads", "list_append,bank")
    result = result_of(tmp_path, tell, *words, "--only", "clock wrong", "--plant", "torn-snapshot")
    found = [one for one in result.violations if one.check in {"list_append", "bank"}]
    assert found
    assert "--plant torn-snapshot" in result.command
    assert any("EXT" in one.claim or "total" in one.story for one in found)
    stories = stories_of(tmp_path)
    for one in found:
        assert any(f"Broken invariant: {one.claim}." in story and one.story in story for story in stories)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_interrupted_run_heals_and_writes_its_report(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a fault: the node runs again, the report is there, and nothing was judged."""
    words = ["--seed", "5", "--minutes", "10", "--sessions", "0", "--workloads", "bank", "--only", "frozen"]
    folder = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-m", "chaos", *words, "--folder", str(folder)], cwd=source.ROOT
    )
    try:
        eventually(lambda: lines_of(tmp_path, "acting"), what="a fault that acts", timeout_s=300.0)
        child.send_signal(signal.SIGINT)
        assert child.wait(300.0) == 1
    finally:
        child.kill()
        child.wait()
    assert [line["fault"] for line in lines_of(tmp_path, "end")]
    assert lines_of(tmp_path, "converged")
    assert lines_of(tmp_path, "judged") == []
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (result["interrupted"], result["passed"]) == (True, False)
    assert (folder / "report.html").exists()
