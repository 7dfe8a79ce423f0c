"""`tidelock admin optimize` and `db.optimize`: the request, and the output for people and programs."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.replicas.fake_agent import FakeCluster
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.errors import UnknownTableError
from tidelock.exits import Exit


def run(cluster: FakeCluster, *arguments: str) -> Result:
    """Run the command at r1."""
    command = ["admin", "optimize", *arguments, "--url", cluster["r1"].url, "--replica", "r1"]
    return CliRunner().invoke(cli.app, command, env={"NO_COLOR": "1"})


def asked(cluster: FakeCluster) -> list[dict[str, Any]]:
    """Return the optimize requests that the agent received."""
    return [request.json for request in cluster["r1"].requests if request.path == "/admin/optimize"]


def test_people_are_told_what_was_done(fake_cluster: FakeCluster) -> None:
    """Numbers of parts before and after, merges and bytes, by the full name of the table."""
    told = run(fake_cluster, "t")
    assert told.exit_code == Exit.OK, told.output
    assert told.stdout == "default.t: 2,000 parts before, 7 after, 3 merges of 3.0 MiB\n"
    assert told.stderr == ""
    assert asked(fake_cluster)[0]["table"] == "t"


def test_people_are_told_that_the_time_was_over(fake_cluster: FakeCluster) -> None:
    """The finished work is reported as a result even if the time was over."""
    told = run(fake_cluster, "t", "--limit", "0.5")
    assert told.exit_code == Exit.OK
    assert "7 after" in told.stdout
    assert "the time limit ended" in told.stderr
    assert asked(fake_cluster)[0]["timeout_s"] == 0.5


def test_programs_get_a_partition_as_json(fake_cluster: FakeCluster) -> None:
    """A partition is named by all of its columns; the folder's word for null is null."""
    partition = [
        "--partition",
        "y=1994",
        "--partition",
        "c=__HIVE_DEFAULT_PARTITION__",
        "--partition",
        "s=a=b",
    ]
    told = run(fake_cluster, "t", *partition, "--json")
    assert told.exit_code == Exit.OK, told.output
    assert json.loads(told.stdout) == {
        "table": "default.t",
        "groups": 3,
        "parts_before": 2000,
        "parts_after": 7,
        "bytes": 3 << 20,
        "done": True,
    }
    assert asked(fake_cluster)[0]["partition"] == {"y": "1994", "c": None, "s": "a=b"}


def test_what_is_no_partition_is_refused(fake_cluster: FakeCluster) -> None:
    """A value that names no partition is refused before a request is sent."""
    told = run(fake_cluster, "t", "--partition", "1994")
    assert told.exit_code == Exit.USAGE
    assert "COL=VALUE" in told.stderr
    assert asked(fake_cluster) == []


def test_a_program_asks_with_values(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Dates and decimals are sent as texts; the request carries the newest CSN that the client has seen."""
    done = fake_db.optimize(
        "t", {"day": dt.date(1994, 1, 2), "price": Decimal("1.50"), "n": None}, timeout_s=5
    )
    assert (done["groups"], done.done, done.csn) == (3, True, fake_cluster["r1"].snapshot_csn)
    assert asked(fake_cluster)[0]["partition"] == {"day": "1994-01-02", "price": "1.50", "n": None}
    assert fake_db.seen_csn == fake_cluster["r1"].snapshot_csn


def test_errors_reach_the_program(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """An agent's error is raised to the program, as from any other call."""
    fake_cluster["r1"].plan("POST /admin/optimize", UnknownTableError("there is no table default.x"))
    with pytest.raises(UnknownTableError):
        fake_db.optimize("x")
