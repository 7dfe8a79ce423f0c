"""The commands that describe a table: `table`, `parts`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tests.support.replicas.fake_agent import FakeCluster
from tidelock.cli import app as cli
from tidelock.cli.describing import partitions_of
from tidelock.client import connect
from tidelock.exits import Exit

ROWS = pa.table({"k": [1, 2, 3]})
WHEN = "2023-11-14T22:13:20.000Z"
Tidelock = Callable[..., Result]


@pytest.fixture
def tidelock(fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Tidelock:
    """Run a command against the replica `r1`; return its result."""
    monkeypatch.setenv("TIDELOCK_URL", fake_cluster["r1"].url)
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *arguments: CliRunner().invoke(cli.app, [str(item) for item in arguments])


def told(result: Result) -> Any:
    """Return the JSON that a successful command has printed."""
    assert result.exit_code == Exit.OK, result.stderr
    return json.loads(result.stdout)


def insert(cluster: FakeCluster, times: int = 1, label: str | None = None) -> list[str]:
    """Insert three rows into `t`, as often as asked, and return the tids."""
    tids = []
    with connect(cluster["r1"].url) as db:
        for _ in range(times):
            with db.begin(label) as tx:
                tx.insert("t", ROWS)
            tids.append(tx.tid)
    return tids


def test_a_table_is_shown_with_its_counts_at_a_csn(fake_cluster: FakeCluster, tidelock: Tidelock) -> None:
    """Definition, rows and parts belong to one CSN, the newest one or the one that is asked for."""
    insert(fake_cluster, times=2)
    found = told(tidelock("table", "t", "--json"))
    assert (found["name"], found["csn"], found["rows"], found["parts"]) == ("default.t", 4, 6, 2)
    assert found["columns"] == [{"name": "k", "type": "bigint", "nullable": True}]
    assert found["partitions"] == [{"path": "", "rows": 6, "bytes": 48, "parts": 2}]
    assert "arrow_schema" not in found
    earlier = told(tidelock("table", "t", "--csn", 3, "--json"))
    assert (earlier["csn"], earlier["rows"]) == (3, 3)
    shown = tidelock("table", "default.t").stdout
    assert "default.t at CSN 4: 6 rows, 48 B in 2 parts" in shown
    assert "│ k      │ bigint │ yes" in shown
    assert not fake_cluster["r1"].pins


def test_a_table_is_shown_with_its_properties_and_partitions(
    fake_cluster: FakeCluster, tidelock: Tidelock
) -> None:
    """Each part of a definition has its line, and each partition its row, up to --rows."""
    insert(fake_cluster)
    fake_cluster.definitions["default.t"] |= {
        "partition_by": ["k"],
        "properties": {"unique_key": "k", "landing": "on"},
        "dependents": ["default.u", "default.v"],
    }
    shown = tidelock("table", "t").stdout
    assert "partitioned by k\n" in shown
    assert "properties unique_key=k, landing=on\n" in shown
    assert "followed by default.u, default.v\n" in shown
    assert "┃ partition ┃ rows ┃ size ┃ parts ┃" in shown
    assert "3 │ 24 B │     1 │" in shown


def test_parts_are_listed_up_to_a_number_of_rows(fake_cluster: FakeCluster, tidelock: Tidelock) -> None:
    """People see the first rows and how many more there are; programs get all, with the CSN."""
    insert(fake_cluster, times=3)
    found = told(tidelock("parts", "t", "--json"))
    assert found["csn"] == 5
    assert [one["part"] for one in found["parts"]] == ["r1-1-3", "r1-1-4", "r1-1-5"]
    assert [one["part"] for one in told(tidelock("parts", "t", "--csn", 3, "--json"))["parts"]] == ["r1-1-3"]
    result = tidelock("parts", "t", "--rows", 2)
    assert "r1-1-4" in result.stdout
    assert "r1-1-5" not in result.stdout
    assert "1 more parts" in result.stderr


def test_a_time_and_a_csn_name_a_point_of_the_log(fake_cluster: FakeCluster, tidelock: Tidelock) -> None:
    """The time goes to the agent, which finds the CSN; a table that does not exist is refused."""
    for command in ("table", "parts"):
        told(tidelock(command, "t", "--at", "2026-11-22T10:00:00Z", "--json"))
        [opened] = [one for one in fake_cluster["r1"].requests if one.path == "/snapshots"][-1:]
        assert opened.json["at_ms"] == 1795341600000
        assert tidelock(command, "nowhere").exit_code == Exit.REFUSED
        assert tidelock(command, "t", "--csn", 99).exit_code == Exit.REFUSED
        assert tidelock(command, "t", "--at", "yesterday").exit_code == Exit.USAGE


def test_partitions_are_counted_in_the_order_of_their_paths() -> None:
    """The parts of a partition are together, wherever they are in the list."""
    listed = [
        {"path": path, "rows": rows, "length": 10 * rows}
        for path, rows in (("k=2", 5), ("k=1", 1), ("k=2", 2))
    ]
    assert partitions_of(listed) == [
        {"path": "k=1", "rows": 1, "bytes": 10, "parts": 1},
        {"path": "k=2", "rows": 7, "bytes": 70, "parts": 2},
    ]
