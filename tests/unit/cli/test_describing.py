"""The commands that describe a table and list commits: `table`, `parts`, `history`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from tests.support.replicas.fake_agent import TIME_MS, FakeCluster
from tidelock.cli import app as cli
from tidelock.cli.describing import partitions_of
from tidelock.cli.history import commits_of
from tidelock.client import connect
from tidelock.exits import Exit
from tidelock.wire.log import AddedPart, LogEntry, LoggedTable, LoggedTransaction, ManifestInfo, RemovedPart

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


def logged(tid: str, **fields: Any) -> LoggedTransaction:
    """Return a transaction of the log that has changed rows, without entries."""
    nothing = {"entries": [], "manifest": None, "holders": ["r1"], "label": None, "data_change": True}
    return LoggedTransaction(tid, **{**nothing, "meta": None, "batch": None, **fields})


def added(table: str, rows: int, part: str = "r1-1-1") -> AddedPart:
    """Return the entry of a part that joins a table."""
    return AddedPart(table, part, "", rows, 100, "0" * 32)


def commits(*tids: LoggedTransaction) -> list[dict[str, Any]]:
    """Return the commits of a record with these transactions."""
    return commits_of(LogEntry(7, "commit", "r1", TIME_MS, [*tids]))


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


def test_the_last_commits_are_listed(fake_cluster: FakeCluster, tidelock: Tidelock) -> None:
    """When, which transaction, its label, and how many rows it has added to which table."""
    tids = [*insert(fake_cluster), *insert(fake_cluster, label="load")]
    assert told(tidelock("history", "--json")) == [
        {
            "csn": csn,
            "time": WHEN,
            "tid": tid,
            "home": "r1",
            "label": label,
            "batch": None,
            "meta": None,
            "tables": {"default.t": {"rows_added": 3, "parts_removed": 0, "version": None}},
            "manifest_entries": None,
        }
        for csn, tid, label in zip((3, 4), tids, (None, "load"), strict=True)
    ]
    [line] = [line for line in tidelock("history").stdout.splitlines() if tids[1] in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        *(WHEN, "4", tids[1], "load", "default.t", "3", "0")
    ]


def test_history_goes_back_over_records_without_a_commit(
    fake_cluster: FakeCluster, tidelock: Tidelock
) -> None:
    """An idle cluster writes records that only carry the time; the last commits are found behind them."""
    tids = insert(fake_cluster, times=3)
    fake_cluster.csn += 500
    assert [one["tid"] for one in told(tidelock("history", "--limit", 2, "--json"))] == tids[1:]
    assert [one["tid"] for one in told(tidelock("history", "--json"))] == tids
    assert [one["csn"] for one in told(tidelock("history", "--from", 4, "--limit", 1, "--json"))] == [4]
    assert told(tidelock("history", "--from", 6, "--json")) == []


def test_a_cluster_without_commits_has_an_empty_history(tidelock: Tidelock) -> None:
    """The search for commits ends where the log begins."""
    assert told(tidelock("history", "--json")) == []


def test_a_commit_tells_what_it_did_to_each_table() -> None:
    """Rows that were added, parts that were removed, and a definition, table by table."""
    entries = [
        LoggedTable("default.u", 0, {}),
        added("default.t", 2),
        added("default.t", 3, "r1-1-2"),
        RemovedPart("default.t", "r1-1-0"),
    ]
    [commit] = commits(logged("1-r1-1-1", entries=entries))
    assert commit["tables"] == {
        "default.u": {"rows_added": 0, "parts_removed": 0, "version": 0},
        "default.t": {"rows_added": 5, "parts_removed": 1, "version": None},
    }


def test_merges_are_no_commits_of_users() -> None:
    """Compaction changes no row, so that history leaves it out."""
    assert commits(logged("1-r1-1-1", entries=[added("default.t", 2)], data_change=False)) == []


def test_rows_of_a_carrier_are_counted_for_its_riders_only() -> None:
    """Small transactions share parts; the home's own transaction with these parts is not shown."""
    carrier = logged("1-r1-1-9", entries=[added("default.t", 5)])
    riders = [
        logged(f"1-r1-1-{number}", carrier=carrier.tid, rows={"default.t": rows})
        for number, rows in ((1, 2), (2, 3))
    ]
    found = commits(carrier, *riders)
    assert [(one["tid"], one["tables"]["default.t"]["rows_added"]) for one in found] == [
        ("1-r1-1-1", 2),
        ("1-r1-1-2", 3),
    ]


def test_a_large_transaction_is_shown_by_its_number_of_entries(
    fake_cluster: FakeCluster, tidelock: Tidelock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names only the manifest, so that tables and rows are unknown, and said to be."""
    large = logged("1-r1-1-1", manifest=ManifestInfo("r1-1-2", 9, "0" * 32, 1234), label="q", batch=7)
    assert commits(large)[0]["tables"] is None
    assert commits(large)[0]["manifest_entries"] == 1234
    fake_cluster.outcomes[large.tid] = fake_cluster.csn
    monkeypatch.setattr(fake_cluster["r1"], "_logged", lambda *_: large)
    shown = tidelock("history").stdout
    assert "1,234 entries in a manifest" in shown
    assert "q, batch 7" in shown


def test_rows_of_a_file_are_in_the_history_of_the_command_line(
    fake_cluster: FakeCluster, tidelock: Tidelock, tmp_path: Path
) -> None:
    """A load by the command line is found again by its label."""
    fake_cluster.add_table("u")
    path = tmp_path / "rows.parquet"
    pq.write_table(ROWS, path)
    assert tidelock("insert", f"t={path}", f"u={path}", "--label", "load").exit_code == Exit.OK
    [commit] = told(tidelock("history", "--json"))
    assert commit["label"] == "load"
    assert {table: done["rows_added"] for table, done in commit["tables"].items()} == {
        "default.t": 3,
        "default.u": 3,
    }
