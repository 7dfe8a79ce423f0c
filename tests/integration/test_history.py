"""History moves on: promised snapshots stay readable on every replica, others end with a clear error."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import time
from typing import Final

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import http
from tests.support.histories.evidence import data_address, horizons, nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    LabelExistsError,
    SnapshotTooOldError,
    TidelockError,
    UnknownTransactionError,
)
from workloads.agents import ask

SCHEMA: Final = pa.schema([pa.field("y", pa.int32()), pa.field("n", pa.int64(), nullable=False)])
REPLICAS: Final = ("r1", "r2", "r3")
NUMBERS = itertools.count(1)
#: A history so short that a test can see it end.
SHORT: Final = {
    **QUICK,
    "history_retention_s": 0.5,
    "horizon_interval_s": 0.2,
    "unpinned_ttl_s": 8,
    "log_keep_records": 5,
    "collect_batch_parts": 3,
    "outcome_retention_s": 3600,
    "clean_interval_s": 0.5,
}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=SHORT)


def rows(*numbers: int, year: int = 1) -> pa.Table:
    """Return rows of one partition."""
    return pa.table({"y": [year] * len(numbers), "n": numbers}, SCHEMA)


@pytest.fixture
def table(db: Database) -> str:
    """A new table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["y"])
    return name


def replaced(db: Database, table: str) -> int:
    """Let row 4 replace rows 1, 2, 3 and return a CSN at which these are there."""
    db.insert(table, rows(1, 2, 3))
    before = db.insert(table, rows(0, year=2)).csn
    db.truncate(table)
    db.insert(table, rows(4))
    assert before is not None
    return before


def listed(local: LocalCluster, replica: str, csn: int, table: str) -> str:
    """Return WebHDFS's answer to a listing of partition 1: the number of files, or the exception."""
    url = (
        f"http://{data_address(local, replica)}/webhdfs/v1/snapshots/{csn}/default/{table}/y=1?op=LISTSTATUS"
    )
    answer = http("GET", url).json
    if "RemoteException" in answer:
        return str(answer["RemoteException"]["exception"])
    return str(len(answer["FileStatuses"]["FileStatus"]))


def everywhere(local: LocalCluster, csn: int, table: str) -> set[str]:
    """Return the answers of all replicas to :func:`listed`."""
    return {listed(local, replica, csn, table) for replica in REPLICAS}


def passes(local: LocalCluster, db: Database, csn: int) -> None:
    """Wait until every replica has noted a horizon above a CSN; inserts move the log's time on."""
    other = f"t{next(NUMBERS)}"
    db.create_table(other, SCHEMA, partition_by=["y"])

    def passed() -> bool:
        db.insert(other, rows(1))
        return min(horizons(local)) > csn

    eventually(passed, what=f"a horizon above {csn}")


def removed(local: LocalCluster, replica: str, table: str) -> int:
    """Return the parts of a table that a replica's catalog records as removed."""
    with sqlite3.connect(f"file:{local.data_dir(replica) / 'catalog.db'}?mode=ro", uri=True) as db:
        sql = "SELECT count(*) FROM parts WHERE table_name = ? AND removal_csn IS NOT NULL"
        return int(db.execute(sql, (f"default.{table}",)).fetchone()[0])


@pytest.mark.scenario("S66")
def test_what_is_pinned_stays_on_every_replica_and_goes_with_its_pin(
    local: LocalCluster, db: Database, table: str
) -> None:
    """A pin keeps its files; after it each read gets a clear error: no fewer rows, no "not found"."""
    db.insert(table, rows(1, 2, 3))
    with db.snapshot() as snap:
        csn = snap.csn
        db.truncate(table)
        assert snap.read(table).column("n").to_pylist() == [1, 2, 3]
        other = f"t{next(NUMBERS)}"
        db.create_table(other, SCHEMA)
        for number in range(5):
            db.insert(other, rows(number))
        eventually(lambda: min(horizons(local)) == csn, what="the horizon at the pin")
        assert everywhere(local, csn, table) == {"1"}
        assert all(removed(local, replica, table) for replica in REPLICAS)
        assert ask(local, "r2", "/status")["holding_back"]["csn"] <= csn
    passes(local, db, csn)
    eventually(lambda: not any(removed(local, replica, table) for replica in REPLICAS), what="the parts go")
    assert everywhere(local, csn, table) == {"AccessControlException"}
    for replica in REPLICAS:
        nothing_left(local.data_dir(replica))
        too_old = pytest.raises(SnapshotTooOldError, match="below the horizon")
        with local.connect(replica) as there, too_old:
            there.snapshot(csn=csn)
        with pytest.raises(SnapshotTooOldError):
            ask(local, replica, f"/parts?table={table}&csn={csn}")


@pytest.mark.slow
def test_an_audit_of_what_was_collected_finds_nothing(local: LocalCluster, db: Database, table: str) -> None:
    """The audit does not miss parts that garbage collection took from the catalog, the disk and the log."""
    passes(local, db, replaced(db, table))
    eventually(lambda: not any(removed(local, replica, table) for replica in REPLICAS))
    report = db.audit(deep=True)
    assert report.clean, report


@pytest.mark.scenario("S66")
@pytest.mark.slow
def test_a_pin_that_nobody_renews_ends(local: LocalCluster, db: Database, table: str) -> None:
    """A pin without renewals ends, through whichever replica it was taken; the next renewal says so."""
    db.insert(table, rows(1))
    url = f"{local.url('r3')}/api/v1/snapshots"
    pin = http("POST", url, {"ttl_s": 0.5}).json
    db.truncate(table)
    passes(local, db, pin["csn"])
    assert everywhere(local, pin["csn"], table) == {"AccessControlException"}
    answer = http("POST", f"{url}/{pin['id']}/renew")
    assert answer.json["error"] == UnknownTransactionError.__name__


@pytest.mark.slow
def test_an_open_transaction_keeps_what_it_reads(local: LocalCluster, db: Database, table: str) -> None:
    """A replica publishes the oldest CSN in use; the other replicas keep their history for it too."""
    present = db.insert(table, rows(1, 2, 3)).csn
    with local.connect("r2") as other:
        tx = other.begin(min_csn=present)
        csn = tx.snapshot_csn
        db.truncate(table)
        for number in range(4):
            db.insert(table, rows(number, year=3))
        eventually(lambda: min(horizons(local)) == csn, what="the horizon at the transaction")
        held = {"csn": csn, "kind": "oldest", "name": "r2"}  # r1 reads the progress of r2 again now and then
        eventually(lambda: ask(local, "r1", "/status")["holding_back"] == held, what=f"r1 names {held}")
        assert sorted(tx.read(table).column("n").to_pylist()) == [1, 2, 3]
        tx.rollback()
    passes(local, db, csn)


def test_a_table_may_keep_a_longer_history(local: LocalCluster, db: Database, table: str) -> None:
    """Below the horizon only this table can be read, by path and by query; other tables are too old."""
    kept = f"t{next(NUMBERS)}"
    db.create_table(kept, SCHEMA, partition_by=["y"], properties={"retention_s": "3600"})
    replaced(db, table)
    csn = replaced(db, kept)
    passes(local, db, csn)
    assert everywhere(local, csn, kept) == {"1"}
    assert everywhere(local, csn, table) == {"AccessControlException"}
    query = f"{local.url('r2')}/api/v1/query"
    found = http("POST", query, {"csn": csn, "table": kept})
    assert pa.ipc.open_stream(found.data).read_all().num_rows == 4
    for body in ({"csn": csn, "table": table}, {"csn": csn, "sql": f"SELECT * FROM {table}"}):
        refused = http("POST", query, body).json
        assert refused["error"] == SnapshotTooOldError.__name__
        assert table in refused["message"]
        assert kept in refused["message"]
    with pytest.raises(SnapshotTooOldError, match=f"longer retention.*{kept}"):
        db.snapshot(csn=csn)


def test_a_table_with_a_longer_history_is_read_below_the_horizon(
    local: LocalCluster, db: Database, table: str
) -> None:
    """By the calls that read at a CSN; a refusal names tables by the names that they have there."""
    id_of_old = f"t{next(NUMBERS)}"
    kept = f"renamed_{id_of_old}"
    db.create_table(id_of_old, SCHEMA, partition_by=["y"], properties={"retention_s": "3600"})
    db.rename_table(id_of_old, kept)
    replaced(db, table)
    csn = replaced(db, kept)
    passes(local, db, csn)
    assert sorted(db.read(kept, csn=csn)["n"].to_pylist()) == [0, 1, 2, 3]
    assert db.scan(kept, ["n"], csn=csn).to_table().num_rows == 4
    assert db.sql(f"select count(*) as n from {kept}", csn=csn).to_pylist() == [{"n": 4}]
    words = rf"{table} at CSN.*longer retention.*{kept}"
    with pytest.raises(SnapshotTooOldError, match=words):
        db.read(table, csn=csn)
    with pytest.raises(SnapshotTooOldError, match=words):
        db.sql(f"select * from {table}", csn=csn)


@pytest.mark.parametrize("text", ["0.1", "-5", "long", "1e3", ""])
def test_a_retention_that_is_none(db: Database, text: str) -> None:
    """A retention that is no number of seconds, or less than the cluster's, is refused."""
    with pytest.raises(BadRequestError, match="retention_s"):
        db.create_table(f"t{next(NUMBERS)}", SCHEMA, properties={"retention_s": text})


@pytest.mark.slow
def test_the_horizon_by_order(local: LocalCluster, db: Database, table: str) -> None:
    """An operator's raise of the horizon ends pins if it is told to, and never the reads of a transaction."""
    db.insert(table, rows(1))
    with local.connect("r2") as other, other.begin() as tx:
        snap = db.snapshot()
        for number in range(3):
            db.insert(table, rows(number))
        moved = db.raise_horizon()
        assert moved["horizon"] <= snap.csn
        eventually(lambda: db.raise_horizon(drop_pins=True)["holding_back"]["kind"] == "oldest")
        assert db.raise_horizon(drop_pins=True)["horizon"] <= tx.snapshot_csn
    eventually(lambda: db.raise_horizon(drop_pins=True)["horizon"] > snap.csn)
    passes(local, db, snap.csn)  # before that a replica may still serve the snapshot, while it has the parts
    with pytest.raises((SnapshotTooOldError, UnknownTransactionError)):
        snap.read(table)


@pytest.mark.slow
def test_the_log_begins_at_the_tail(local: LocalCluster, db: Database, table: str) -> None:
    """Outcomes outlive the records; a request for deleted records gets the start of the log."""
    first = db.insert(table, rows(1))
    for number in range(8):
        db.insert(table, rows(number))

    def begins() -> int:
        if records := ask(local, "r2", "/log?from_csn=0"):
            return int(records[0]["csn"])
        return int(ask(local, "r2", "/status")["tail"])  # what is not kept any more was all of it

    eventually(lambda: begins() > (first.csn or 0), what="the tail behind the first insert")
    with pytest.raises(SnapshotTooOldError, match="the log begins at"):
        db.log(from_csn=first.csn)
    for replica in REPLICAS:
        with local.connect(replica) as there:
            assert there.outcome(first.tid).csn == first.csn
    tail = begins()
    local.kill("r3")
    local.start("r3")
    eventually(lambda: ask(local, "r3", "/status")["state"] == "serving", what="r3 serves")
    assert ask(local, "r3", "/status")["tail"] >= tail


@pytest.mark.slow
def test_a_path_that_is_read_without_a_pin_stays_for_its_time(
    local: LocalCluster, db: Database, table: str
) -> None:
    """Every replica keeps the path for its time, past the retention; later reads get a clear error."""
    csn = db.insert(table, rows(1, 2, 3)).csn
    assert csn is not None
    assert listed(local, "r2", csn, table) == "1"
    eventually(lambda: ask(local, "r1", "/status")["pins"] > 0, what="the pin of the read")
    db.truncate(table)
    until = time.monotonic() + 4 * SHORT["history_retention_s"]
    while time.monotonic() < until:
        db.insert(table, rows(1, year=2))
        assert everywhere(local, csn, table) == {"1"}
        assert max(horizons(local)) <= csn
    passes(local, db, csn)
    assert everywhere(local, csn, table) == {"AccessControlException"}


@pytest.mark.scenario("S44", "S77")
@pytest.mark.slow
def test_a_replica_that_lags_holds_history_back(local: LocalCluster, db: Database, table: str) -> None:
    """History waits for a replica that is down: it has removals to apply, and parts to fetch."""
    db.insert(table, rows(1))
    local.kill("r3")
    before = db.insert(table, rows(2, 3)).csn
    assert before is not None
    db.truncate(table)
    for number in range(20):
        db.insert(table, rows(number, year=2))
    held = ask(local, "r1", "/status")["holding_back"]
    eventually(lambda: ask(local, "r1", "/status")["horizon"] == held["csn"])
    assert (held["kind"], held["name"]) == ("oldest", "r3")
    assert held["csn"] < before
    assert removed(local, "r1", table)
    local.start("r3")
    passes(local, db, before)
    with local.connect("r3") as there:
        assert there.read(table).num_rows == 20


@pytest.mark.scenario("S74")
@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["agent.collect.before=crash", "agent.collect.after=crash@2", "partfs.fsync.before=crash@30"]
)
def test_a_death_in_the_middle_of_a_collection(cluster: ClusterFactory, point: str) -> None:
    """The next boot ends the collection: no file is left, no row lacks its file, half of a snapshot fails."""
    local = cluster(settings=SHORT, faults={"r2": point})
    with local.connect("r1") as db:
        name = f"t{next(NUMBERS)}"
        db.create_table(name, SCHEMA, partition_by=["y"])
        csn = None
        for number in range(6):
            csn = db.insert(name, rows(number)).csn
        assert csn is not None
        db.truncate(name)

        def died() -> bool:
            with contextlib.suppress(TidelockError):
                db.insert(name, rows(1, year=2))
            return local.pid("r2") is None

        eventually(died, what="the death of r2")
        local.environment_of["r2"].pop("TIDELOCK_FAULTS")
        local.start("r2")
        passes(local, db, csn)
        eventually(lambda: not any(removed(local, replica, name) for replica in REPLICAS))
        assert everywhere(local, csn, name) == {"AccessControlException"}
        for replica in REPLICAS:
            nothing_left(local.data_dir(replica))
    require_clean_audit(local)


@pytest.mark.slow
def test_a_label_is_free_again_when_its_outcome_is_forgotten(cluster: ClusterFactory) -> None:
    """Before that a repeated run is refused with the CSN of the first; after it the run is new work."""
    local = cluster(settings=SHORT | {"label_retention_s": 2.0, "outcome_retention_s": 2.0})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)

        def run() -> int | None:
            with db.begin(label="daily") as tx:
                tx.insert("t", rows(1))
            return tx.csn

        first = run()
        with pytest.raises(LabelExistsError) as refused:
            run()
        assert refused.value.details["csn"] == first

        def again() -> int | None:
            db.insert("t", rows(2))  # otherwise no outcome is older than the last one
            try:
                return run()
            except LabelExistsError:
                return None

        assert (eventually(again, what="the label is free") or 0) > (first or 0)


@pytest.mark.scenario("S52")
@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_truncated_log(cluster: ClusterFactory) -> None:
    """ClickHouse #111823: markers of commits that were not durable, a log that was truncated, a restart.

    ClickHouse took "no CSN found" for "never committed", and deleted acknowledged rows. Here a replica that
    dies before its catalog has a record keeps the tail at that record, and finds it when it comes back.
    """
    local = cluster(
        settings=SHORT | {"log_keep_records": 1},
        faults={"r2": "replication.apply.before=crash@4", "r3": "agent.catalog.after=crash@25"},
    )
    done: list[int] = []
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)

        def dies(replica: str) -> bool:
            number = len(done)
            with contextlib.suppress(TidelockError):
                db.insert("t", rows(number))
                done.append(number)
            return local.pid(replica) is None

        eventually(lambda: dies("r2"), what="the death of r2")
        with sqlite3.connect(f"file:{local.data_dir('r2') / 'catalog.db'}?mode=ro", uri=True) as found:
            applied = int(found.execute("SELECT value FROM meta WHERE key = 'snapshot_csn'").fetchone()[0])
        eventually(lambda: dies("r3"), what="the death of r3")
        assert ask(local, "r1", "/log?from_csn=0")[0]["csn"] <= applied + 1
    local.kill("r1")
    for replica in REPLICAS:
        if replica in local.environment_of:
            local.environment_of[replica].pop("TIDELOCK_FAULTS", None)
        local.start(replica)
    for replica in REPLICAS:
        with local.connect(replica) as db:
            there = db.read("t").column("n").to_pylist()
            assert len(set(there)) == len(there)
            assert set(done) <= set(there)
    with local.connect("r1") as db:
        passes(local, db, applied)
        eventually(lambda: ask(local, "r2", "/log?from_csn=0")[0]["csn"] > applied, what="the tail")
        assert db.audit().clean


@pytest.mark.slow
def test_the_command_line_tells_what_holds_the_horizon(local: LocalCluster, db: Database, table: str) -> None:
    """`tidelock admin horizon`, for people and for programs."""

    def run(*options: str) -> str:
        result = CliRunner().invoke(cli.app, ["admin", "horizon", "--url", local.url("r2"), *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    db.insert(table, rows(1))
    with db.begin() as tx:
        db.insert(table, rows(2))
        moved = json.loads(run("--json"))
        assert moved["horizon"] <= tx.snapshot_csn
        assert moved["holding_back"]["kind"] == "oldest"
        assert "the horizon is at CSN" in run()
