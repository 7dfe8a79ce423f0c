"""The JSON of commands is the JSON of the agents, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.replicas.fake_agent import FakeCluster
from tidelock.cli import app as cli
from tidelock.cli import output
from tidelock.client import Database
from tidelock.wire.cluster import LostPart, SkippedRecordInfo, StatusAnswer


def answered(db: Database, path: str) -> Any:
    """Return what an agent answers, as plain JSON."""
    return db._connection.ask("GET", path, answer=Any, first="r1")


@pytest.fixture
def tid(fake_cluster: FakeCluster, fake_db: Database, monkeypatch: pytest.MonkeyPatch) -> str:
    """A transaction that has ended; commands go to its home."""
    monkeypatch.setenv("TIDELOCK_URL", fake_cluster["r1"].url)
    with fake_db.begin(label="a label") as tx:
        tx.insert("t", pa.table({"k": [1, 2, 3]}))
    return tx.tid


def printed(*arguments: str) -> str:
    """Return what a command prints for programs."""
    result = CliRunner().invoke(cli.app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_of_commands_is_that_of_the_agents(fake_db: Database, tid: str) -> None:
    """A script that reads the command line does not see that results are typed inside."""
    tables = answered(fake_db, "/tables")
    for table in tables:
        del table["arrow_schema"]
    assert printed("tables") == json.dumps(tables, indent=2) + "\n"
    log = answered(fake_db, "/log?from_csn=0&limit=20")
    assert printed("log", "--from", "0") == json.dumps(log, indent=2) + "\n"
    explained = answered(fake_db, f"/explain/{tid}")
    assert printed("explain", tid) == json.dumps(explained, indent=2) + "\n"
    shown = [{**row, "home": "r1"} for row in answered(fake_db, "/transactions")]
    assert printed("txns") == json.dumps(shown, indent=2) + "\n"


def test_json_of_a_change_of_members_is_that_of_the_agent(tid: str) -> None:
    """The fields stay in their order, and nothing is added."""
    assert printed("admin", "copies", "3") == (
        json.dumps(
            {
                "changed": True,
                "copies": 3,
                "racks": False,
                "draining": [],
                "states": dict.fromkeys(("r1", "r2", "r3"), "serving"),
            },
            indent=2,
        )
        + "\n"
    )


def test_rows_within_rows_are_printed_as_objects(capsys: pytest.CaptureFixture[str]) -> None:
    """Fields that the agent leaves out stay left out, at every depth."""
    lost = LostPart(part="p", kind="part", csn=8, tid="t", replicas=[], rows=0)
    skipped = SkippedRecordInfo(8, ["t"], "ann", "burnt", 1)
    status = StatusAnswer(
        id="r1", cluster_id="c", snapshot_csn=8, replicas=[], lost=[lost], skipped=[skipped]
    )
    output.print_json({"a": [status], "b": lost})
    expected = msgspec.json.decode(msgspec.json.encode({"a": [status], "b": lost}))
    assert capsys.readouterr().out == json.dumps(expected, indent=2) + "\n"
