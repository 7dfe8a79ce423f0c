"""docker/zookeeper-entrypoint.sh: the variables of the official image become zoo.cfg and myid."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.clusters import compose
from tests.support.project.source import ROOT

SCRIPT = ROOT / "docker" / "zookeeper-entrypoint.sh"


def start(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a Java that prints its arguments."""
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    (folder / "data").mkdir(exist_ok=True)
    environ = {
        "PATH": "/bin:/usr/bin",
        "JAVA_HOME": str(folder / "java"),
        "ZOO_DATA_DIR": str(folder / "data"),
        "ZOO_CONF_DIR": str(folder),
    }
    return subprocess.run(
        ["/bin/bash", SCRIPT], env={**environ, **variables}, capture_output=True, text=True, check=False
    )


def config(folder: Path) -> list[str]:
    """The lines of zoo.cfg."""
    return (folder / "zoo.cfg").read_text().splitlines()


def test_a_server_alone_needs_no_variable(tmp_path: Path) -> None:
    """Its writes are forced to disk, and it listens where clients look for it."""
    done = start(tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"clientPort=2181", "forceSync=yes", f"dataDir={tmp_path}/data"} <= {*config(tmp_path)}
    assert not [line for line in config(tmp_path) if line.startswith("server.")]
    assert (tmp_path / "data" / "myid").read_text() == "1\n"
    assert done.stdout.splitlines()[0] == "-Xmx1536m"
    assert done.stdout.splitlines()[-1] == f"{tmp_path}/zoo.cfg"


def test_a_server_of_the_ensemble_of_compose(tmp_path: Path) -> None:
    """The variables of docker/compose.yaml make a server that knows its number and the others."""
    variables = dict(compose.services()["zookeeper2"].environment)
    del variables["ZOO_DATA_LOG_DIR"]
    done = start(tmp_path, **{**variables, "ZK_SERVER_HEAP": "512"})
    assert done.returncode == 0, done.stderr
    servers = [line for line in config(tmp_path) if line.startswith("server.")]
    assert servers == [f"server.{n}=zookeeper{n}:2888:3888;2181" for n in (1, 2, 3)]
    assert "clientPort=2181" not in config(tmp_path)
    assert {"standaloneEnabled=false", "4lw.commands.whitelist=ruok,srvr,mntr"} <= {*config(tmp_path)}
    assert (tmp_path / "data" / "myid").read_text() == "2\n"
    assert done.stdout.splitlines()[0] == "-Xmx512m"


def test_the_number_of_a_volume_stays(tmp_path: Path) -> None:
    """A restart writes the configuration again, and keeps the number, as the official image does."""
    start(tmp_path, ZOO_MY_ID="3", ZOO_CFG_EXTRA="a=1 b=2")
    assert {"a=1", "b=2"} <= {*config(tmp_path)}
    start(tmp_path, ZOO_MY_ID="1")
    assert (tmp_path / "data" / "myid").read_text() == "3\n"
    assert "a=1" not in config(tmp_path)


@pytest.mark.parametrize("number", ["one", "-1", "1 2"])
def test_a_number_that_is_none_is_refused(tmp_path: Path, number: str) -> None:
    """The error says what was expected, what was found, and what to do."""
    done = start(tmp_path, ZOO_MY_ID=number)
    assert done.returncode == 2
    assert f"expected a number in ZOO_MY_ID, found '{number}'; give each server one of its own" in done.stderr
