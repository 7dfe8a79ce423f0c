"""The command judges a file, says what it found, and fails if a level is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checkers.__main__ import main
from tests.checkers.operations import Append, End, Read, Recorder

TESTDATA = Path(__file__).resolve().parents[2] / "testdata" / "histories"


@pytest.mark.parametrize(
    ("name", "level", "code"),
    [
        ("write-skew", "snapshot", 0),
        ("write-skew", "serializable", 1),
        ("stale-read", "serializable", 0),
        ("stale-read", "strict", 1),
        ("two-csns", "snapshot", 1),
    ],
)
def test_the_exit_code_tells_whether_the_level_is_kept(name: str, level: str, code: int) -> None:
    """A script can rely on the exit code."""
    assert main([str(TESTDATA / f"{name}.jsonl"), "--level", level]) == code


def test_the_report_names_checker_class_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    """A person sees which checker found what, and why each edge of the cycle is there."""
    main([str(TESTDATA / "read-skew.jsonl")])
    printed = capsys.readouterr().out
    assert printed.startswith("2 transactions, judged by black box and timestamps\n")
    assert "black box: G-single [" in printed
    assert "-rw-> 2: the first has read b/y without 1 of the second" in printed
    assert "timestamps: EXT [3, 2]: Read of b/y at CSN 1" in printed


def test_the_report_as_json_has_the_same_violations(capsys: pytest.CaptureFixture[str]) -> None:
    """A program gets the violations with the operations that prove them."""
    main([str(TESTDATA / "read-skew.jsonl"), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in report["black box"]] == ["G-single"]
    assert [one["operations"] for one in report["timestamps"]] == [[3, 2]]
    assert {step["kind"] for step in report["black box"][0]["cycle"]} == {"wr", "rw"}


def test_a_history_without_timestamps_is_judged_by_lists_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A history of another store says nothing about CSNs, which is no violation."""
    with Recorder(tmp_path / "history.jsonl") as recorder:
        recorder.invoke(0, [Read("a/1")])
        recorder.end(0, End.OK, [Read("a/1", ())])
    assert main([str(tmp_path / "history.jsonl")]) == 0
    assert capsys.readouterr().out == "1 transactions, judged by black box\n"


def test_appends_conflict_if_the_command_says_so(tmp_path: Path) -> None:
    """A store in which the first of two appends wins is judged by that rule."""
    path = tmp_path / "history.jsonl"
    with Recorder(path) as recorder:
        for process in range(2):
            recorder.invoke(process, [Append("a/1", process)])
        for process in range(2):
            recorder.end(process, End.OK, [Append("a/1", process)], snapshot=0, csn=process + 1)
    assert main([str(path)]) == 0
    assert main([str(path), "--appends-conflict"]) == 1
