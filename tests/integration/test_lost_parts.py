"""A part that no replica holds any more: what goes on, who is asked, and the operator's word."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.faults.refusals import Addresses, http
from tests.support.waiting import eventually
from tidelock.client import Database, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import DeclaredLostError, RefusedError, UnavailableError

SETTINGS: Final = QUICK | {"blocked_after_s": 1, "wait_bound_s": 2}
SCHEMA: Final = pa.schema([("k", pa.int64())])
#: The replica that never gets the part.
BLOCKED: Final = "r3"
_NO_PARTS: Final = ("replication.accept.before", "replication.fetch.before")


class Lost(NamedTuple):
    """A part whose bytes are gone."""

    part: str
    tid: str
    csn: int


@pytest.fixture
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """r3 gets no parts while the gates are open."""
    return Gates(tmp_path_factory.mktemp("gates"), {BLOCKED: dict.fromkeys(_NO_PARTS, "always")})


@pytest.fixture
def local(cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """Three replicas with two tables, of one row each."""
    local = cluster(settings=SETTINGS, environment_of={BLOCKED: gates.environment(BLOCKED)})
    with local.connect("r1") as db:
        for table in ("t", "other"):
            db.create_table(table, SCHEMA)
            db.insert(table, one(1), wait="all")
    return local


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A client of r1."""
    with connect(local.urls, replica="r1", timeout_s=10.0) as db:
        yield db


def one(k: int) -> pa.Table:
    """Return one row."""
    return pa.table({"k": [k]}, schema=SCHEMA)


def lose(local: LocalCluster, gates: Gates, db: Database, holders: tuple[str, ...] = ("r1", "r2")) -> Lost:
    """Commit a row that r3 does not get, and delete its bytes at these holders."""
    with gates.open(BLOCKED, *_NO_PARTS):
        csn = db.insert("t", one(2)).csn or 0
        for replica in ("r1", "r2"):
            with local.connect(replica) as there, there.snapshot(min_csn=csn) as snap:
                assert snap.read("t").num_rows == 2
        lost = [delete_bytes(local, replica, csn) for replica in holders]
        eventually(lambda: status(local, BLOCKED)["waiting_for"], what="the replica that waits")
    return lost[0]


def delete_bytes(local: LocalCluster, replica: str, csn: int) -> Lost:
    """Delete the file of the part that a CSN added, on one replica."""
    folder = local.data_dir(replica)
    with closing(sqlite3.connect(f"file:{folder}/catalog.db?mode=ro", uri=True)) as catalog:
        sql = "SELECT part, creation_tid, file FROM parts WHERE creation_csn = ?"
        [(part, tid, file)] = catalog.execute(sql, (csn,)).fetchall()
    (folder / file).unlink()
    return Lost(part, tid, csn)


def status(local: LocalCluster, replica: str) -> dict[str, Any]:
    """Return the status of a replica."""
    found: dict[str, Any] = http("GET", f"{Addresses.of(local, replica).api}/status").json
    return found


def rows(local: LocalCluster, replica: str, csn: int, table: str = "t") -> list[int]:
    """Return the rows of a table at a CSN on a replica."""
    with connect(local.urls, replica=replica, timeout_s=10.0) as there, there.snapshot(csn=csn) as snap:
        return sorted(snap.read(table)["k"].to_pylist())


def test_a_lost_part_holds_back_only_what_it_must(local: LocalCluster, gates: Gates, db: Database) -> None:
    """Until the operator speaks: CSNs below are read everywhere, other tables and commits go on."""
    lost = lose(local, gates, db)
    eventually(lambda: phase(local, BLOCKED) == "blocked", what="the phase")
    assert rows(local, BLOCKED, lost.csn - 1) == [1]
    csn = max(db.insert("other", one(3)).csn or 0 for _ in range(5))
    assert rows(local, "r2", csn, "other") == [1, *[3] * 5]
    with pytest.raises(UnavailableError):  # never the table without the rows
        rows(local, "r2", lost.csn)
    told = db.resolve_lost(lost.part)
    assert (told["table"], told["rows"], told["csn"], told["tid"]) == ("default.t", 1, lost.csn, lost.tid)
    assert {word["replica"]: word["word"] for word in told["replicas"]} == dict.fromkeys(
        local.replicas, "lacks"
    )
    assert not told.get("declared")
    with pytest.raises(UnavailableError):
        rows(local, "r2", lost.csn)


def test_declared_lost_everywhere_alike(local: LocalCluster, gates: Gates, db: Database) -> None:
    """All replicas read on without the rows, the transaction has an outcome of its own, and all is told."""
    lost = lose(local, gates, db)
    told = db.resolve_lost(lost.part, confirm=True, by="ann", why="both disks burnt")
    assert told["declared"]
    csn = db.insert("t", one(4), wait="all").csn or 0
    for replica in local.replicas:
        assert rows(local, replica, lost.csn) == [1]
        assert rows(local, replica, csn) == [1, 4]
        assert [found["part"] for found in status(local, replica)["lost"]] == [lost.part]
        with connect(local.urls, replica=replica) as there, pytest.raises(DeclaredLostError) as caught:
            there.outcome(lost.tid)
        assert caught.value.details["why"] == "both disks burnt"
        audit = http("GET", f"{Addresses.of(local, replica).api}/audit?deep=1").json
        assert [found["fault"] for found in audit["findings"]] == ["part_declared_lost"]
    entries = [entry for record in db.log(limit=50) for tid in record["tids"] for entry in tid["entries"]]
    [skip] = [entry for entry in entries if entry["action"] == "SkipPart"]
    assert (skip["by"], skip["why"], skip["part"]) == ("ann", "both disks burnt", lost.part)
    again = db.resolve_lost(lost.part)
    assert (again["declared"], again["by"]) == (True, "ann")
    with db.begin() as tx:
        tx.truncate("t")
    assert rows(local, BLOCKED, db.insert("t", one(5), wait="all").csn or 0) == [5]


def test_a_silent_replica_is_named_or_the_part_is_not_lost(
    local: LocalCluster, gates: Gates, db: Database
) -> None:
    """r2 is down and has the part. When it comes back it shows what the others show."""
    lost = lose(local, gates, db, holders=("r1",))
    local.kill("r2")
    with pytest.raises(RefusedError, match="r2 does not answer and may hold it"):
        db.resolve_lost(lost.part, confirm=True, by="ann", why="r2 is gone")
    told = db.resolve_lost(lost.part, confirm=True, without=["r2"], by="ann", why="r2 is gone")
    assert told["declared"]
    local.start("r2")
    csn = db.insert("t", one(4), wait="all", timeout_s=60).csn or 0
    for replica in local.replicas:
        assert rows(local, replica, lost.csn) == [1]
        assert rows(local, replica, csn) == [1, 4]


def test_a_part_that_somebody_holds_is_not_lost(local: LocalCluster, gates: Gates, db: Database) -> None:
    """The operator is told who holds it; soon the others have it from there."""
    lost = lose(local, gates, db, holders=("r1",))
    with pytest.raises(RefusedError, match="r2 holds it"):
        db.resolve_lost(lost.part, confirm=True, by="ann", why="no patience")
    csn = db.insert("other", one(3), wait="all").csn or 0
    for replica in local.replicas:
        assert rows(local, replica, csn) == [1, 2]


def phase(local: LocalCluster, of: str) -> str:
    """Return the phase of a replica as r1 shows it."""
    return next(str(row["phase"]) for row in status(local, "r1")["replicas"] if row["id"] == of)
