"""The demo as a user runs it, on a small scale: as processes of this machine, and in containers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from demo.containers import engine
from tests.support.project.source import ROOT
from tests.support.waiting import eventually
from tidelock.exits import Exit

DEMO = [sys.executable, "-m", "demo"]
IN_CONTAINERS = [sys.executable, "-m", "demo.containers"]
SMALL = ["--scale-factor", "0.01", "--seconds", "5", "--json"]


def require_all_shown(report: Mapping[str, Any]) -> None:
    """All checks have passed, and a kill and a freeze have both hit a running task."""
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


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    """All checks pass, a kill and a freeze both hit a running task, and nothing is left behind."""
    folder = tmp_path / "demo"
    done = subprocess.run(
        [*DEMO, *SMALL, "--data-dir", folder], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    require_all_shown(json.loads(done.stdout))
    assert not folder.exists()


def leftovers(pid: int) -> list[str]:
    """The containers, networks and volumes of a demo in containers, by their names."""
    found: list[str] = []
    for kind in (
        "ps --all --format {{.Names}}",
        "network ls --format {{.Name}}",
        "volume ls --format {{.Name}}",
    ):
        names = engine.run(["docker", *kind.split()]).split()
        found += [name for name in names if name.startswith(f"tidelock-demo-{pid}")]
    return found


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_the_demo_in_containers_shows_the_same() -> None:
    """The services of docker/compose.yaml pass the same checks, and are gone at the end."""
    with subprocess.Popen(
        [*IN_CONTAINERS, *SMALL], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        printed, told = demo.communicate()
    assert demo.returncode == 0, told
    require_all_shown(json.loads(printed))
    assert leftovers(demo.pid) == []


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_an_interrupted_demo_in_containers_leaves_nothing() -> None:
    """Ctrl-C while the services start ends and removes all of them."""
    with subprocess.Popen([*IN_CONTAINERS, *SMALL], cwd=ROOT, stderr=subprocess.DEVNULL) as demo:
        eventually(
            lambda: demo.poll() is not None or len(leftovers(demo.pid)) > 10,
            timeout_s=1800.0,
            what="the containers of the demo",
        )
        demo.send_signal(signal.SIGINT)
        assert demo.wait() == Exit.INTERRUPTED
    assert leftovers(demo.pid) == []


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """The demo removes its folder at the end, so it refuses a folder that has other files."""
    (tmp_path / "mine").touch()
    done = subprocess.run(
        [*DEMO, "--data-dir", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
