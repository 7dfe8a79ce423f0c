"""System tables of the running agent: each row is what the agent says, and a secret is in none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidelock.csnlog.core.ids import NO_STAMP, Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import (
    AddPart,
    DefineTable,
    LogRecord,
    Manifest,
    PinState,
    Record,
    RecordKind,
    RemovePart,
    SkippedRecord,
    TidRecord,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.services.live_state import settings_shown
from tidelock.replica_agent.system_tables.live import SettingValue
from tidelock.replica_agent.system_tables.registry import live_rows, mentioned
from tidelock.replication.core.lock_rules import KeyRange, LockInfo, OnePart, OnePartition, Scope, WholeTable
from tidelock.wire.cluster import BlockedPart, ReplicaStatus
from tidelock.wire.ids import TableName
from tidelock.wire.transactions import TransactionInfo

R1, ORDERS = ReplicaId("r1"), TableId("default.orders")
TIME_MS = 1_700_000_000_000
TIME = dt.datetime.fromtimestamp(TIME_MS / 1000, dt.UTC)


class Agent:
    """A running agent of one of each."""

    def __init__(self, settings: Sequence[SettingValue] = ()) -> None:
        self._settings = settings
        self.asked: list[str] = []

    def names(self) -> Mapping[TableId, TableName]:
        """The table was renamed."""
        return {ORDERS: TableName("sales.orders")}

    async def replicas(self) -> Sequence[ReplicaStatus]:
        """A replica that is blocked, and another that nothing is known of."""
        self.asked.append("replicas")
        blocked = BlockedPart(7, "6-r2-1-1", "r2-1-1")
        known = ReplicaStatus(
            id="r1", api="h:1", state="serving", snapshot_csn=6, phase="blocked", phase_since_ms=TIME_MS,
            blocked_by=blocked,
        )  # fmt: skip
        return [known, ReplicaStatus(id="r2", alive=False)]

    async def log_records(self) -> Sequence[LogRecord]:
        """A tick, a commit, one with a manifest, and a record that was skipped."""
        self.asked.append("log")
        entries = (
            AddPart(ORDERS, PartId("r1-1-1"), "", 3, 10, "00"),
            AddPart(ORDERS, PartId("r1-1-2"), "", 4, 10, "00"),
            RemovePart(ORDERS, PartId("r1-1-0")),
            DefineTable(ORDERS, 1, {}),
        )
        commit = TidRecord("1-r1-1-1", entries, None, (R1, ReplicaId("r2")), "load", meta={"user": "ann"})
        manifest = TidRecord("1-r1-1-2", manifest=Manifest(PartId("r1-1-3"), 9, "00", 5), data_change=False)
        word = SkippedRecord(Csn(4), 1, "", "eve", "broken", TIME_MS)
        return [
            LogRecord(Csn(csn), Record(RecordKind.COMMIT, R1, TIME_MS, tids), NO_STAMP, "", skip)
            for csn, tids, skip in [(2, (), None), (3, (commit, manifest), None), (4, (), word)]
        ]

    async def locks(self) -> Sequence[LockInfo]:
        """One of each kind."""
        self.asked.append("locks")
        tid = Tid(Csn(5), R1, 1, 1)
        scopes: list[Scope] = [
            OnePart(PartId("r1-1-1"), "y=1"),
            OnePartition("y=1"),
            WholeTable(),
            KeyRange([1, "a"], None),
        ]
        return [LockInfo("/x", ORDERS, scope, tid, False) for scope in scopes]

    async def pins(self) -> Mapping[str, PinState]:
        """Two pins."""
        self.asked.append("pins")
        return {"r2-1-1": PinState(Csn(3), 30.0, ReplicaId("r2")), "r1-1-1": PinState(Csn(4), 60.0, R1)}

    async def open_transactions(self) -> Sequence[TransactionInfo]:
        """An open transaction, and another whose commit is known by now."""
        self.asked.append("transactions")
        one = TransactionInfo(
            tid="5-r1-1-9", state="open", snapshot_csn=5, statement_csn=5, isolation="snapshot", label="load",
            batch=None, tables=["default.orders"], rows=3, parts=1, removed_parts=0, csn=None, error=None,
            lease_left_s=10.0,
        )  # fmt: skip
        return [one, TransactionInfo(**{**one, "state": "committed", "csn": 6})]

    def settings(self) -> Sequence[SettingValue]:
        """The settings that were given."""
        self.asked.append("settings")
        return self._settings


async def rows_of(name: str, agent: Agent | None = None) -> list[dict[str, Any]]:
    """Return the live rows of a table, as they are sent to a SQL process."""
    sent = await live_rows(agent or Agent(), f"SELECT * FROM system.{name}")
    rows: list[dict[str, Any]] = pa.ipc.open_stream(sent[name]).read_all().to_pylist()
    return rows


def test_only_tables_that_a_statement_names_are_found() -> None:
    """Any way to write a name is found; a column, another table or namespace with such a name is none."""
    assert [table.name for table in mentioned('FROM "system".PINS, system . log')] == ["log", "pins"]
    assert mentioned("SELECT pins, my_system.pins, x.system.pins FROM pins JOIN system.pinsx") == []


async def test_nothing_is_asked_for_tables_that_are_not_named() -> None:
    """A query costs requests to ZooKeeper and peers for the tables that it names alone."""
    agent = Agent()
    assert await live_rows(agent, "SELECT * FROM system.parts, orders") == {}
    assert [*await live_rows(agent, "SELECT * FROM system.pins")] == ["pins"]
    assert agent.asked == ["pins"]


async def test_the_log_has_a_row_for_each_transaction() -> None:
    """A record without transactions has one row; what a manifest hides is null and not zero."""
    tick, commit, manifest, skipped = await rows_of("log")
    assert (tick["csn"], tick["kind"], tick["tid"], tick["time"]) == (2, "commit", None, TIME)
    assert commit == {
        "csn": 3, "kind": "commit", "home": "r1", "time": TIME, "tid": "1-r1-1-1", "label": "load",
        "batch": None, "data_change": True, "carrier": None, "holders": ["r1", "r2"],
        "tables": ["sales.orders"], "rows_added": 7, "parts_added": 2, "parts_removed": 1, "definitions": 1,
        "meta": '{"user": "ann"}', "skipped_by": None,
    }  # fmt: skip
    assert [manifest[name] for name in ("tables", "rows_added", "parts_added", "parts_removed")] == [None] * 4
    assert not manifest["data_change"]
    assert (skipped["csn"], skipped["skipped_by"]) == (4, "eve")


async def test_locks_say_what_they_lock() -> None:
    """Each kind of lock has the columns that it needs, and the name that the table has now."""
    found = await rows_of("locks")
    assert {(row["namespace"], row["table_name"], row["tid"], row["home"]) for row in found} == {
        ("sales", "orders", "5-r1-1-1", "r1")
    }
    columns = ("kind", "part", "partition", "low", "high")
    assert [tuple(row[name] for name in columns) for row in found] == [
        ("part", "r1-1-1", "y=1", None, None),
        ("partition", None, "y=1", None, None),
        ("table", None, None, None, None),
        ("keys", None, None, '[1,"a"]', None),
    ]


async def test_pins_come_in_the_order_of_their_names() -> None:
    """Pins of all replicas are shown with their replica."""
    assert [(row["pin"], row["csn"], row["replica"], row["ttl_s"]) for row in await rows_of("pins")] == [
        ("r1-1-1", 4, "r1", 60.0),
        ("r2-1-1", 3, "r2", 30.0),
    ]


async def test_a_replica_of_which_little_is_known_has_nulls() -> None:
    """A value that is not known is null."""
    known, other = await rows_of("replicas")
    assert (known["blocked_csn"], known["blocked_part"], known["phase_since"]) == (7, "r2-1-1", TIME)
    assert (other["replica"], other["alive"], other["snapshot_csn"], other["phase_since"]) == (
        "r2", False, None, None,
    )  # fmt: skip


async def test_open_transactions_are_those_without_a_commit() -> None:
    """A transaction whose commit is known is shown by the catalog, and not twice."""
    (row,) = await rows_of("transactions")
    assert (row["tid"], row["state"], row["home"], row["tables"], row["csn"]) == (
        "5-r1-1-9", "open", "r1", ["default.orders"], None,
    )  # fmt: skip


async def test_no_secret_is_in_the_settings(tmp_path: Path) -> None:
    """A secret shows that it is set, and neither its value nor that of its file."""
    file = tmp_path / "secret"
    file.write_text("hunter-2 is secret")
    shown = settings_shown(
        AgentSettings(replica="r1", data_dir=tmp_path, zk="z:1/t", secret_file=file, lease_s=7)
    )
    found = {row["name"]: row for row in await rows_of("settings", Agent(shown))}
    assert "hunter" not in str(found)
    assert (found["secret"]["value"], found["secret"]["is_secret"], found["secret"]["is_default"]) == (
        None, True, False,
    )  # fmt: skip
    assert (found["lease_s"]["value"], found["lease_s"]["default_value"], found["lease_s"]["is_default"]) == (
        "7.0", "60.0", False,
    )  # fmt: skip
    assert found["insecure"]["value"] == "false"
    assert {*found} == {*AgentSettings.model_fields}
