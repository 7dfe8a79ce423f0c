"""Whole runs of the chaos runner: a short one, a fresh seed, one in containers, and planted bugs.

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
from typing import Any

import pytest

from chaos.setup import images
from tests.chaos.runs import SHARED, require_lists_valid_outside, require_passed, result_of
from tests.support.faults import ability
from tests.support.project import source
from tests.support.telling import Tell
from tests.support.waiting import eventually
from tidelock.testing import commands


@pytest.fixture(autouse=True)
def networks() -> None:
    """Networks and disks of a cluster's own need root."""
    ability.require(commands.lack())


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
