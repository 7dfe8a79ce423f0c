"""The beginning and the end of the demo: its folder, its exit code, its leftovers."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from demo import command
from demo.failure import DemoError, Findings
from demo.report import Report
from tests.unit.demo.test_report import a_report
from tidelock.cluster import LocalCluster
from tidelock.errors import ConfigError

Play = Callable[[], Report]


@dataclass
class Calls:
    """The number of starts and ends of the cluster, and the scenario between them."""

    play: Play
    ups: int = 0
    downs: int = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A cluster that does not run, and a scenario that returns a report without violations."""
    calls = Calls(lambda: a_report(Findings()))

    class Played:
        def __init__(self, cluster: LocalCluster, *_args: object, **_options: object) -> None:
            (cluster.folder / "demo").mkdir()

        def run(self) -> Report:
            return calls.play()

    def up(_cluster: LocalCluster) -> None:
        calls.ups += 1

    def down(_cluster: LocalCluster) -> None:
        calls.downs += 1

    monkeypatch.setattr(command, "Scenario", Played)
    monkeypatch.setattr(LocalCluster, "up", up)
    monkeypatch.setattr(LocalCluster, "down", down)
    return calls


def fail(error: BaseException) -> Play:
    """A scenario that ends with an error."""

    def play() -> Report:
        raise error

    return play


def violated() -> Report:
    """A report with one failed check."""
    findings = Findings()
    findings.check("every order is whole", "order 7 is not")
    return a_report(findings)


def test_a_good_run_leaves_nothing(calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a good run the cluster is ended, the folder removed, and the table printed."""
    assert command.run(0.1, tmp_path / "demo") == 0
    assert (calls.ups, calls.downs) == (1, 1)
    assert not (tmp_path / "demo").exists()
    printed = capsys.readouterr()
    assert "0 of 0 checks" in printed.out
    assert "r1, r2, r3 run in" in printed.err


def test_json_is_the_only_result(calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json standard output has JSON only."""
    assert command.run(0.1, tmp_path / "demo", json_out=True) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == []


def test_a_kept_cluster_runs_on(calls: Calls, tmp_path: Path) -> None:
    """With --keep neither the cluster nor its folder is touched."""
    assert command.run(0.1, tmp_path / "demo", keep=True) == 0
    assert calls.downs == 0
    assert (tmp_path / "demo" / "cluster.json").exists()


def test_a_violation_is_an_exit_code_and_a_line(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failed check and its finding are the last lines, and the folder stays."""
    calls.play = violated
    assert command.run(0.1, tmp_path / "demo") == command.EXIT_VIOLATION
    assert calls.downs == 1
    assert "violation: every order is whole: order 7 is not" in capsys.readouterr().err
    assert (tmp_path / "demo").exists()


def test_an_error_ends_the_cluster_and_keeps_the_logs(calls: Calls, tmp_path: Path) -> None:
    """The error names the folder of the logs."""
    calls.play = fail(DemoError("three tries"))
    with pytest.raises(DemoError) as caught:
        command.run(0.1, tmp_path / "demo")
    assert calls.downs == 1
    assert any(str(tmp_path / "demo") in note for note in caught.value.__notes__)
    assert (tmp_path / "demo").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupted_run_leaves_nothing(calls: Calls, tmp_path: Path, error: BaseException) -> None:
    """An interrupted run takes its cluster down and deletes its folder."""
    calls.play = fail(error)
    with pytest.raises(type(error)):
        command.run(0.1, tmp_path / "demo")
    assert calls.downs == 1
    assert not (tmp_path / "demo").exists()


def test_a_missing_pyspark_is_told_before_anything_starts(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing PySpark is reported before a cluster is started."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="needs PySpark"):
        command.run(0.1, tmp_path / "demo")
    assert calls.ups == 0
    assert not (tmp_path / "demo").exists()


def test_a_folder_in_use_is_refused(calls: Calls, tmp_path: Path) -> None:
    """A folder in use is refused before a start, and stays unchanged."""
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        command.run(0.1, tmp_path)
    assert calls.ups == 0
    assert (tmp_path / "mine").exists()


def test_without_a_folder_a_temporary_one_is_used(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder is removed after the run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[Path] = []

    def play() -> Report:
        seen.extend(tmp_path.iterdir())
        return replace(a_report(Findings()), scale_factor=1.0)

    calls.play = play
    assert command.run(1.0) == 0
    assert len(seen) == 1
    assert not seen[0].exists()
