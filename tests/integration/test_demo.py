"""The demo as a user runs it, on a small scale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project.source import ROOT

DEMO = [sys.executable, "-m", "demo"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    """All checks pass, a kill and a freeze both hit a running task, and nothing is left behind."""
    folder = tmp_path / "demo"
    done = subprocess.run(
        [*DEMO, "--scale-factor", "0.01", "--seconds", "5", "--data-dir", folder, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["violations"] == []
    assert report["checks"] > 50
    assert report["commits"]["total"] >= 100
    assert report["commits"]["burst"] == 300
    assert report["commits"]["burst_per_csn"] >= 4
    csns = [item["csn"] for item in report["rounds"]]
    assert csns == sorted(set(csns))
    assert {item["kind"] for item in report["disturbances"]} == {"killed", "frozen"}
    for item in report["disturbances"]:
        assert item["bytes_from_victim"] > 0
        assert item["bytes_from_others"] > 0
    assert report["rows"]["orders"] == 15_000 + 10 * (report["commits"]["total"] + 300)
    assert not folder.exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """The demo removes its folder at the end, so it refuses a folder that has other files."""
    (tmp_path / "mine").touch()
    done = subprocess.run(
        [*DEMO, "--data-dir", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
