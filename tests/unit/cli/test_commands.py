"""The command line: exit codes, output for programs and for people, errors."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from tests.support.project import source
from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock import errors
from tidelock.cli import app as cli
from tidelock.cli import output
from tidelock.cli.remarks import held_back, remarks
from tidelock.cli.writing import parse_column
from tidelock.cluster import LocalCluster
from tidelock.cluster_layout import FOLDER_DEFAULT, ClusterLayout, ReplicaPorts
from tidelock.column_types import NAMES, to_arrow
from tidelock.exits import Exit, exit_of, table

ROWS = pa.table({"k": [1, 2, 3]})
Tidelock = Callable[..., Result]


@pytest.fixture
def tidelock(fake_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tidelock:
    """Run a command in an empty folder against the replica `r1`; return its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDELOCK_URL", fake_cluster["r1"].url)
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *arguments: CliRunner().invoke(cli.app, [str(item) for item in arguments])


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A Parquet file with three rows."""
    path = tmp_path / "rows.parquet"
    pq.write_table(ROWS, path)
    return path


def told(result: Result) -> Any:
    """Return the JSON that a successful command has printed."""
    assert result.exit_code == Exit.OK, result.stderr
    return json.loads(result.stdout)


def complaint(result: Result, code: Exit) -> str:
    """Return the one error line of a command that failed with this exit code."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("tidelock: ")
    return lines[0]


# -- exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnknownTableError("x"), Exit.REFUSED),
        (errors.NotEnoughReplicasError("x"), Exit.REFUSED),
        (errors.BadRequestError("x"), Exit.USAGE),
        (errors.ClusterMismatchError("x"), Exit.USAGE),
        (errors.StandbyError("x"), Exit.UNAVAILABLE),
        (errors.CommitUnknownError("x"), Exit.UNKNOWN),
        (errors.CorruptError("x"), Exit.CORRUPT),
        (errors.TidelockError("x"), Exit.INTERNAL),
        (KeyError("x"), Exit.INTERNAL),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
)
def test_exit_code_of_an_error(error: BaseException, code: Exit) -> None:
    """Each class of errors has its exit code."""
    assert exit_of(error) is code


def test_every_error_has_an_exit_code() -> None:
    """Every error that Tidelock raises on purpose has a code of its own, except the root class."""
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and kind is not errors.TidelockError:
            assert exit_of(kind("x")) is not Exit.INTERNAL, name


def test_exit_codes_are_documented() -> None:
    """docs/command-line.md has the table of the code."""
    page = (source.ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for code in Exit:
        assert f"| {code.value} | {code.meaning} |" in page
    assert len(table().splitlines()) == len(Exit)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NoSuchCsnError("no CSN 7"), Exit.REFUSED),
        (errors.SnapshotTooOldError("below the horizon"), Exit.REFUSED),
        (errors.BadRequestError("lease"), Exit.USAGE),
        (errors.CorruptError("checksum"), Exit.CORRUPT),
        (errors.TidelockError("internal error"), Exit.INTERNAL),
    ],
)
def test_error_of_an_agent_is_one_line(
    fake_cluster: FakeCluster, tidelock: Tidelock, error: errors.TidelockError, code: Exit
) -> None:
    """An agent's error is printed as one line on standard error, with its exit code."""
    fake_cluster["r1"].plan("POST /snapshots", error)
    assert error.message in complaint(tidelock("sql", "select 1"), code)


def test_an_unreachable_agent_is_exit_code_3(tidelock: Tidelock) -> None:
    """An address without an agent gives exit code 3 and the next step."""
    said = complaint(tidelock("tables", "--url", "http://127.0.0.1:1"), Exit.UNAVAILABLE)
    assert "is it running" in said


def test_an_unknown_outcome_has_its_own_exit_code(
    fake_cluster: FakeCluster, tidelock: Tidelock, rows: Path
) -> None:
    """A commit of unknown outcome has its own exit code, and the line names the transaction."""
    for agent in fake_cluster.agents.values():
        agent.plan("(POST|GET) /(transactions/.*/commit|outcomes/.*)", *[Fault.LOST_REQUEST] * 10_000)
    said = complaint(tidelock("insert", "t", rows, "--timeout", 0.3), Exit.UNKNOWN)
    assert re.search(r"outcome of \d+-r1-1-1 is not known", said)


def test_fault_of_the_program_itself(tidelock: Tidelock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the command line is one line with exit code 70; --debug shows the traceback."""
    nothing: dict[str, object] = {}
    monkeypatch.setattr("tidelock.client.Database.tables", lambda *_, **__: nothing["missing"])
    assert "KeyError: 'missing'" in complaint(tidelock("tables"), Exit.INTERNAL)
    assert isinstance(tidelock("--debug", "tables").exception, KeyError)


@pytest.mark.parametrize("made", ["a file", "a folder without rights"])
def test_a_path_that_cannot_be_used_is_wrong_usage(tidelock: Tidelock, tmp_path: Path, made: str) -> None:
    """The operating system's word, the path and what to do; it is no fault to be reported."""
    folder = tmp_path / "there"
    if made == "a file":
        folder.touch()
    else:
        folder.mkdir(mode=0o500)
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write everywhere")
    told = complaint(tidelock("up", "--data-dir", folder / "x"), Exit.USAGE)
    assert str(folder) in told
    assert "name another path" in told


def test_an_interrupt_ends_with_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with exit code 130."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidelock.cli.inspecting.ClusterOptions.connect", interrupted)
    monkeypatch.setattr(sys, "argv", ["tidelock", "tables", "--url", "http://127.0.0.1:1"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == Exit.INTERRUPTED


# -- which cluster


def test_no_cluster_is_named(tidelock: Tidelock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address the default folder is used; the error explains its absence."""
    monkeypatch.delenv("TIDELOCK_URL")
    for command in ("status", "tables", "down"):
        said = complaint(tidelock(command), Exit.USAGE)
        assert str(FOLDER_DEFAULT) in said
        assert "--url" in said


def test_a_cluster_that_is_down_is_not_looked_for_at_its_ports(
    fake_cluster: FakeCluster, tidelock: Tidelock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster has the port of a cluster that is down: it must not get the rows of that one."""
    monkeypatch.delenv("TIDELOCK_URL")
    port = int(fake_cluster["r1"].url.rpartition(":")[2])
    (tmp_path / "down").mkdir()
    ClusterLayout(replicas=(ReplicaPorts("r1", port, 1),), copies=1).save(tmp_path / "down")
    said = complaint(tidelock("tables", "--data-dir", tmp_path / "down"), Exit.UNAVAILABLE)
    assert "no connection to the cluster" in said
    assert "tidelock up --data-dir" in said
    assert fake_cluster["r1"].requests == []


def test_two_clusters_are_named(tidelock: Tidelock, tmp_path: Path) -> None:
    """Two addresses at once are refused."""
    assert "one of" in complaint(tidelock("tables", "--data-dir", tmp_path), Exit.USAGE)


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["tables", "--nonsense"], ["sql"], ["up", "--replicas", "0"]]
)
def test_a_wrong_command_line_is_wrong_usage(tidelock: Tidelock, arguments: list[str]) -> None:
    """A command line that typer refuses has the exit code of wrong usage too."""
    assert tidelock(*arguments).exit_code == Exit.USAGE


# -- what is printed


def test_status_as_json_lists_the_replicas(fake_cluster: FakeCluster, tidelock: Tidelock) -> None:
    """`status --json` lists the replicas with id, url, state and snapshot CSN."""
    replicas = told(tidelock("status", "--json"))["replicas"]
    assert replicas[0] == {
        "id": "r1",
        "url": fake_cluster["r1"].url,
        "data": "r1.test:9870",
        "state": "serving",
        "snapshot_csn": fake_cluster.csn,
        "pid": None,
    }
    assert "serving" in tidelock("status").stdout


def test_status_says_who_holds_back_records() -> None:
    """One line for a replica that stands still or is silent; none for one that follows, or is struck."""
    bounds = {"timeout_s": 3600.0, "records": 100_000, "bytes": 128 << 20}
    row: dict[str, Any] = {
        "id": "r3",
        "alive": True,
        "held_records": 1234,
        "held_bytes": 1 << 20,
        "held_s": 75.4,
    }
    others: list[dict[str, Any]] = [{"held_s": 1.0}, {"held_records": 0}]
    [line] = held_back({"strike": bounds, "replicas": [row, *(row | other for other in others)]})
    assert line == (
        "r3 holds back 1,234 records (1.0 MiB) in ZooKeeper: it applies nothing for 75 s; it is struck after "
        "3,600 s, or with more than 100,000 records or 128.0 MiB"
    )
    [line] = held_back({"strike": bounds, "replicas": [row | {"alive": False}]})
    assert "it is silent for 75 s" in line
    assert held_back({"replicas": [row]}) == []  # an agent of before does not tell


def test_status_says_what_is_not_as_configured() -> None:
    """Why a replica does not serve, how far its clone is, its clock, and what an operator has switched."""
    quiet: dict[str, Any] = {
        "id": "r3",
        "state": "serving",
        "reason": "",
        "clone": None,
        "clock": {"off": False, "offset_s": 0.1, "ahead_s": {}},
        "switches": [{"name": "compaction", "value": "on", "configured": "on"}],
    }
    assert remarks(quiet) == []
    assert remarks({"id": "r3", "state": "serving"}) == []  # an agent of before tells less
    clone = {"percent": 37.4, "bytes": 3 << 20, "of_bytes": 8 << 20, "parts": 1200, "of_parts": 3000}
    loud = quiet | {
        "state": "cloning",
        "reason": "it was struck",
        "clone": clone,
        "clock": {"off": True, "offset_s": -86400.0, "ahead_s": {}},
        "switches": [
            *quiet["switches"],
            {"name": "collection", "value": "off", "configured": "on"},
            {"name": "lock_wait_s", "value": "2.5", "configured": "0"},
        ],
    }
    assert remarks(loud) == [
        "r3 is cloning: it was struck",
        "r3 clones: 37 % has arrived, 3.0 MiB of 8.0 MiB in 1,200 of 3,000 parts",
        "the clock of r3 is 86,400.0 s behind: set it right; its commits get the time of the others",
        "collection is off at r3; a restart restores on",
        "lock_wait_s is 2.5 at r3; a restart restores 0",
    ]


def test_a_status_without_a_replica_that_serves_has_an_exit_code_of_its_own(
    tidelock: Tidelock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script can ask whether the cluster of a folder works: nothing of it runs here."""
    monkeypatch.delenv("TIDELOCK_URL")
    LocalCluster.create(tmp_path / "one", replicas=1)
    for option in ((), ("--json",)):
        result = tidelock("status", "--data-dir", tmp_path / "one", *option)
        assert "down" in result.stdout
        assert result.exit_code == Exit.UNAVAILABLE


def test_a_free_label_has_an_exit_code_of_its_own(tidelock: Tidelock, rows: Path) -> None:
    """A script can ask whether a piece of work is done."""
    assert tidelock("label", "load").exit_code == Exit.ABSENT
    assert tidelock("label", "load", "--json").stdout.strip() == "null"
    assert told(tidelock("insert", "t", rows, "--label", "load", "--json"))["csn"]
    assert tidelock("label", "load").exit_code == Exit.OK


def test_insert_into_one_table(fake_cluster: FakeCluster, tidelock: Tidelock, rows: Path) -> None:
    """TABLE FILE... inserts all files in one transaction."""
    result = told(tidelock("insert", "t", rows, rows, "--label", "load", "--json"))
    assert result["csn"] == fake_cluster.csn
    assert result["rows"] == {"t": 6}
    assert fake_cluster["r1"].transactions[result["tid"]].label == "load"


def test_insert_into_several_tables(fake_cluster: FakeCluster, tidelock: Tidelock, rows: Path) -> None:
    """TABLE=FILE pairs insert into several tables in one transaction."""
    fake_cluster.add_table("u")
    assert told(tidelock("insert", f"t={rows}", f"u={rows}", f"t={rows}", "--json"))["rows"] == {
        "t": 6,
        "u": 3,
    }
    assert len(fake_cluster["r1"].transactions) == 1
    assert (
        "6 rows into t, 3 rows into u at CSN"
        in tidelock("insert", f"t={rows}", f"u={rows}", f"t={rows}").stdout
    )


def test_insert_of_wrong_arguments(fake_cluster: FakeCluster, tidelock: Tidelock, rows: Path) -> None:
    """Missing files, missing tables and mixed forms change nothing."""
    assert "there is no file" in complaint(tidelock("insert", "t", "missing.parquet"), Exit.USAGE)
    assert "no table" in complaint(tidelock("insert", "nowhere", rows), Exit.REFUSED)
    assert tidelock("insert", "t").exit_code == Exit.USAGE
    assert tidelock("insert", f"t={rows}", rows).exit_code == Exit.USAGE
    assert tidelock("insert", "t", rows, "--wait", "never").exit_code == Exit.USAGE
    assert fake_cluster.csn == 2


def test_files_land_outside_of_transactions(
    fake_cluster: FakeCluster, tidelock: Tidelock, rows: Path
) -> None:
    """The rows are written, and no transaction of the client is there."""
    assert told(tidelock("land", "t", rows, rows, "--json"))["rows"] == 6
    assert "3 rows written to t" in tidelock("land", "t", rows).stdout
    assert not fake_cluster["r1"].transactions
    assert tidelock("land", "t").exit_code == Exit.USAGE
    assert "there is no file" in complaint(tidelock("land", "t", "missing.parquet"), Exit.USAGE)


def test_sql_prints_objects_or_a_table_with_its_csn(
    fake_cluster: FakeCluster, tidelock: Tidelock, rows: Path
) -> None:
    """Rows are printed as a list of objects, or as a table with the CSN beside it."""
    tidelock("insert", "t", rows)
    query = ("sql", "select k, 'x' as name from t where k > ? order by k", "--param", 1)
    assert told(tidelock(*query, "--json")) == [{"k": 2, "name": "x"}, {"k": 3, "name": "x"}]
    result = tidelock(*query, "--rows", 1)
    assert "│ 2 │ x" in result.stdout
    assert f"2 rows at CSN {fake_cluster.csn}, 1 more" in result.stderr
    assert told(tidelock("sql", "select count(*) as n from t", "--csn", 2, "--json")) == [{"n": 0}]
    assert "nowhere" in complaint(tidelock("sql", "select * from nowhere"), Exit.USAGE)


def test_values_that_json_does_not_know_are_standard_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes were printed as Python shows them, and times without the T of ISO 8601."""
    moment = dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)
    output.print_json([b"a\xff", moment, moment.date(), moment.time(), decimal.Decimal("1.50")])
    assert json.loads(capsys.readouterr().out) == [
        *("Yf8=", "2013-01-01T10:00:00+00:00", "2013-01-01", "10:00:00", "1.50")
    ]


def test_tables_are_listed_with_rows_and_parts(tidelock: Tidelock) -> None:
    """Tables are listed with rows and parts."""
    assert told(tidelock("tables", "--json"))[0]["name"] == "default.t"
    assert "default.t" in tidelock("tables").stdout


def test_create_table_takes_columns_or_a_file(
    fake_cluster: FakeCluster, tidelock: Tidelock, rows: Path
) -> None:
    """A table is created from columns, or like a file."""
    columns = ("k:bigint", "price:decimal(12,2):null", "at:timestamp:null")
    made = told(
        tidelock(
            "create-table", "new", *columns, "--partition-by", "k", "--property", "compaction=off", "--json"
        )
    )
    assert made["name"] == "default.new"
    sent = fake_cluster["r1"].requests[-1].json
    assert (sent["partition_by"], sent["properties"]) == (["k"], {"compaction": "off"})
    assert "derived_from" not in sent
    derived = ("--derived-from", "new", "--derived-sql", "from inserted", "--property", "unique_key=k,at")
    assert tidelock("create-table", "follower", *columns, *derived).exit_code == 0
    sent = fake_cluster["r1"].requests[-1].json
    assert (sent["derived_from"], sent["derived_sql"]) == ("new", "from inserted")
    assert sent["properties"] == {"unique_key": "k,at"}
    assert f"created at CSN {fake_cluster.csn + 1}" in tidelock("create-table", "copy", "--like", rows).stdout
    assert "there is a table" in complaint(tidelock("create-table", "copy", "--like", rows), Exit.REFUSED)


def test_a_table_is_renamed_altered_and_dropped(fake_cluster: FakeCluster, tidelock: Tidelock) -> None:
    """Each is a commit, and says at which CSN."""
    assert tidelock("create-table", "new", "k:bigint", "--property", "retention_s=9").exit_code == 0
    renamed = tidelock("alter-table", "new", "--rename-to", "sales.old").stdout
    assert renamed == f"table sales.old changed at CSN {fake_cluster.csn}\n"
    changes = ("--property", "comment=a = b", "--unset", "retention_s", "--json")
    made = told(tidelock("alter-table", "sales.old", *changes))
    assert (made["name"], made["properties"]) == ("sales.old", {"comment": "a = b"})
    sent = fake_cluster["r1"].requests[-1]
    properties = {"retention_s": None, "comment": "a = b"}
    assert (sent.method, sent.path, sent.json["properties"]) == ("PATCH", "/tables/sales.old", properties)
    assert "there is no table" in complaint(tidelock("drop-table", "new"), Exit.REFUSED)
    assert tidelock("drop-table", "new", "--if-exists").stdout == "there is no table new\n"
    dropped = told(tidelock("drop-table", "sales.old", "--json"))
    assert dropped == {"name": "sales.old", "csn": fake_cluster.csn}


@pytest.mark.parametrize(
    "arguments", [[], ["--rename-to", "b", "--unset", "comment"], ["--property", "comment="]]
)
def test_alter_table_with_wrong_options(tidelock: Tidelock, arguments: list[str]) -> None:
    """A name or properties, and not both: they are two commits."""
    assert tidelock("alter-table", "a", *arguments).exit_code == Exit.USAGE


@pytest.mark.parametrize(
    "arguments",
    [[], ["k"], ["k:money"], ["k:int:maybe"], [":int"], ["k:int", "--property", "x"], ["k:decimal(99,2)"]],
)
def test_create_table_with_wrong_columns(tidelock: Tidelock, arguments: list[str]) -> None:
    """Columns of another form are refused before anything is sent."""
    assert tidelock("create-table", "new", *arguments).exit_code == Exit.USAGE


def test_column_types_of_the_closed_list_can_be_written() -> None:
    """Columns are required unless they say `null`; every type of the closed list can be written."""
    assert parse_column("k:BIGINT") == pa.field("k", pa.int64(), nullable=False)
    assert parse_column("d:decimal(12,2):null") == pa.field("d", pa.decimal128(12, 2))
    assert parse_column("a b:array<struct<x:int>>:null") == pa.field("a b", to_arrow("array<struct<x:int>>"))
    assert parse_column("`a:b`:int") == pa.field("a:b", pa.int32(), nullable=False)
    protocol = (source.ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert " ".join(NAMES) in " ".join(protocol.split())


def test_a_transaction_is_listed_and_asked_for_by_id(tidelock: Tidelock, rows: Path) -> None:
    """A transaction can be asked for by its id, and is listed."""
    tid = told(tidelock("insert", "t", rows, "--json"))["tid"]
    assert told(tidelock("outcome", tid, "--json")) == {
        "tid": tid,
        "outcome": "committed",
        "csn": 3,
        "time": "2023-11-14T22:13:20.000Z",
    }
    assert "committed at CSN 3" in tidelock("outcome", tid).stdout
    assert told(tidelock("txns", "--json"))[0]["tid"] == tid
    assert tid in tidelock("txns").stdout
    assert "expected a tid" in complaint(tidelock("outcome", "nonsense"), Exit.USAGE)


def test_the_last_records_are_shown_while_the_log_is_cut(
    tidelock: Tidelock, fake_cluster: FakeCluster, rows: Path
) -> None:
    """The log may be cut between the look at its ends and the answer; what is left of it is shown then."""
    for _ in range(3):
        tidelock("insert", "t", rows)
    fake_cluster["r1"].plan("GET /log", errors.SnapshotTooOldError("the log begins at CSN 5", min_csn=5))
    assert told(tidelock("log", "--limit", 1, "--json")) == told(
        tidelock("log", "--from", 0, "--limit", 1, "--json")
    )
    assert fake_cluster["r1"].count("GET /log") == 3


def test_the_log_and_a_transactions_story_are_shown(tidelock: Tidelock, rows: Path) -> None:
    """The log shows the last records; a transaction's story shows its parts."""
    tid = told(tidelock("insert", "t", rows, "--json"))["tid"]
    assert [one["tid"] for one in told(tidelock("log", "--json"))[0]["tids"]] == [tid]
    assert tid in tidelock("log", "--from", 0, "--limit", 5).stdout
    assert told(tidelock("explain", tid, "--json"))["outcome"] == "committed"
    assert "r1-1-1" in tidelock("explain", tid).stdout


def test_create_leaves_a_pin_and_show_none(fake_cluster: FakeCluster, tidelock: Tidelock) -> None:
    """`create` leaves a pin that ends with its lease; `show` leaves none."""
    snap = told(tidelock("snapshot", "create", "--lease", "2h", "--json"))
    path = f"webhdfs://r1.test:9870/snapshots/{fake_cluster.csn}/default/t"
    assert snap == {"csn": 2, "lease_s": 7200, "tables": [{"table": "default.t", "rows": 0, "path": path}]}
    assert len(fake_cluster["r1"].pins) == 1
    assert fake_cluster["r1"].requests[-2].json["ttl_s"] == 7200
    assert path in tidelock("snapshot", "show", 2).stdout
    assert len(fake_cluster["r1"].pins) == 1


def test_the_version_is_that_of_the_distribution(tidelock: Tidelock) -> None:
    """The version is that of the distribution."""
    assert re.fullmatch(r"\d+\.\d+\.\d+.*\n", tidelock("version").stdout)


def test_agent_hands_its_flags_on(tidelock: Tidelock, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tidelock agent` becomes the agent's process, with every flag unchanged."""
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: called.append(command))
    tidelock("agent", "--replica", "r1", "--config", "agent.toml", "--help")
    main = [sys.executable, "-m", "tidelock.replica_agent.main"]
    assert called == [[*main, "--replica", "r1", "--config", "agent.toml", "--help"]]
