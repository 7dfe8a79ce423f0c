"""A part that no replica holds any more: what goes on, who is asked, and the operator's word."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.faults.lab import Gates
from tests.support.faults.refusals import Addresses, http
from tests.support.waiting import eventually
from tidelock.client import Database, connect
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import SkipPart, SkipState
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import DeclaredLostError, RefusedError, TidelockError, UnavailableError
from tidelock.wire.cluster import LostPart

SETTINGS: Final = QUICK | {"blocked_after_s": 1, "wait_bound_s": 2}
#: Entries go into manifests, parts into files of their own.
LISTED: Final = SETTINGS | {"inline_entries_bytes_max": 100, "inline_part_bytes_max": 1000}
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


def lose(
    local: LocalCluster,
    gates: Gates,
    db: Database,
    holders: tuple[str, ...] = ("r1", "r2"),
    dead: str | None = None,
) -> Lost:
    """Commit a row that r3 does not get, and delete its bytes at these holders; then one replica dies."""
    with gates.open(BLOCKED, *_NO_PARTS):
        csn = inserted(local, db)
        lost = [delete_bytes(local, replica, csn) for replica in holders]
        eventually(lambda: status(local, BLOCKED)["waiting_for"], what="the replica that waits")
        if dead is not None:
            local.kill(dead)
    return lost[0]


def inserted(local: LocalCluster, db: Database, count: int = 1) -> int:
    """Commit rows, have r1 and r2 apply them, and return their CSN."""
    csn = db.insert("t", pa.table({"k": range(2, 2 + count)}, schema=SCHEMA)).csn or 0
    for replica in ("r1", "r2"):
        with local.connect(replica) as there, there.snapshot(min_csn=csn) as snap:
            assert snap.read("t").num_rows == 1 + count
    return csn


def delete_bytes(local: LocalCluster, replica: str, csn: int) -> Lost:
    """Delete the file of the part that a CSN added, on one replica."""
    lost, file = part_file(local, replica, csn)
    file.unlink()
    return lost


def delete_all_bytes(local: LocalCluster, csn: int) -> Lost:
    """Delete the file of the part that a CSN added, on r1 and r2."""
    delete_bytes(local, "r1", csn)
    return delete_bytes(local, "r2", csn)


def part_file(local: LocalCluster, replica: str, csn: int) -> tuple[Lost, Path]:
    """Return the part that a CSN added, and its file on one replica."""
    folder = local.data_dir(replica)
    with closing(sqlite3.connect(f"file:{folder}/catalog.db?mode=ro", uri=True)) as catalog:
        sql = "SELECT part, creation_tid, file FROM parts WHERE creation_csn = ? AND kind = 'part'"
        [(part, tid, file)] = catalog.execute(sql, (csn,)).fetchall()
    return Lost(part, tid, csn), folder / file


def status(local: LocalCluster, replica: str) -> dict[str, Any]:
    """Return the status of a replica."""
    found: dict[str, Any] = http("GET", f"{Addresses.of(local, replica).api}/status").json
    return found


def rows(local: LocalCluster, replica: str, csn: int, table: str = "t") -> list[int]:
    """Return the rows of a table at a CSN on a replica."""
    with connect(local.urls, replica=replica, timeout_s=10.0) as there, there.snapshot(csn=csn) as snap:
        return sorted(snap.read(table)["k"].to_pylist())


@pytest.mark.scenario("S42")
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_silent_replica_is_named_or_the_part_is_not_lost(
    local: LocalCluster, gates: Gates, db: Database
) -> None:
    """r2 is down and has the part. When it comes back it shows what the others show."""
    lost = lose(local, gates, db, holders=("r1",), dead="r2")
    eventually(lambda: not alive(local, "r2"), what="the end of its ZooKeeper session")
    with pytest.raises(RefusedError, match="r2 does not answer and may hold it"):
        db.resolve_lost(lost.part, confirm=True, by="ann", why="r2 is gone")
    told = db.resolve_lost(lost.part, confirm=True, without=["r2"], by="ann", why="r2 is gone")
    assert told["declared"]
    local.start("r2")
    csn = db.insert("t", one(4), wait="all", timeout_s=60).csn or 0
    for replica in local.replicas:
        assert rows(local, replica, lost.csn) == [1]
        assert rows(local, replica, csn) == [1, 4]


@pytest.mark.scenario("S42")
def test_a_part_that_somebody_holds_is_not_lost(local: LocalCluster, gates: Gates, db: Database) -> None:
    """The operator is told who holds it; soon the others have it from there."""
    lost = lose(local, gates, db, holders=("r1",))
    with pytest.raises(RefusedError, match="r2 holds it"):
        db.resolve_lost(lost.part, confirm=True, by="ann", why="no patience")
    csn = db.insert("other", one(3), wait="all").csn or 0
    for replica in local.replicas:
        assert rows(local, replica, csn) == [1, 2]


def alive(local: LocalCluster, of: str) -> bool:
    """Return whether a replica shows a sign of life, as r1 sees it."""
    return next(bool(row["alive"]) for row in status(local, "r1")["replicas"] if row["id"] == of)


def phase(local: LocalCluster, of: str) -> str:
    """Return the phase of a replica as r1 shows it."""
    return next(str(row["phase"]) for row in status(local, "r1")["replicas"] if row["id"] == of)


@pytest.mark.slow
def test_a_replica_that_reads_for_long_is_not_silent(local: LocalCluster, gates: Gates, db: Database) -> None:
    """A file that never answers stands for a slow disk: r2 may have the last copy, so all wait for it."""
    with gates.open(BLOCKED, *_NO_PARTS):
        csn = inserted(local, db)
        lost = delete_bytes(local, "r1", csn)
        _, file = part_file(local, "r2", csn)
        file.unlink()
        os.mkfifo(file)
        eventually(lambda: status(local, BLOCKED)["waiting_for"], what="the replica that waits")
        with pytest.raises(RefusedError, match="r2 still reads it"):
            db.resolve_lost(lost.part, confirm=True, without=["r2"], by="ann", why="no answer")
    told = db.resolve_lost(lost.part)
    assert {word["replica"]: word["word"] for word in told["replicas"]}["r2"] == "reads"


@pytest.mark.slow
def test_a_part_that_a_manifest_names_is_given_up(cluster: ClusterFactory) -> None:
    """Its record names the manifest alone; r1 and r2 have applied it, and r3 has not."""
    local = cluster(settings=LISTED | {"catch_up_wait_s": 1})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.insert("t", one(1), wait="all")
        local.kill("r3")
        csn = inserted(local, db, 5000)
        lost = delete_all_bytes(local, csn)
        local.start("r3")
        eventually(lambda: waits_for(local, "r3", lost.part), what="r3 has read the manifest")
        for replica in local.replicas:
            with local.connect(replica) as there:
                told = there.resolve_lost(lost.part)
            assert (told["kind"], told["table"], told["rows"]) == ("part", "default.t", 5000)
            assert (told["csn"], told["tid"]) == (csn, lost.tid)
        db.resolve_lost(lost.part, confirm=True, by="ann", why="both disks burnt")
        after = db.insert("t", one(4), wait="all").csn or 0
    for replica in local.replicas:
        assert rows(local, replica, csn) == [1]
        assert rows(local, replica, after) == [1, 4]


@pytest.mark.parametrize("way", ["declared", pytest.param("truncated", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_part_that_is_lost_after_its_record_stops_no_clone(cluster: ClusterFactory, way: str) -> None:
    """No log names it any more. A new disk waits for it until it is declared lost, or its table is empty."""
    collecting = {"horizon_interval_s": 0.2, "log_keep_records": 1, "inline_part_bytes_max": 1000}
    local = cluster(settings=SETTINGS | collecting)
    with local.connect("r1") as db, ThreadPoolExecutor(1) as pool:
        for table in ("t", "other"):
            db.create_table(table, SCHEMA)
        db.insert("t", one(1))
        csn = inserted(local, db, 5000)
        db.insert("other", one(1), wait="all")
        eventually(lambda: min(record["csn"] for record in db.log()) > csn, what="the log is cut")
        lose_disk(local, "r3")
        lost = delete_all_bytes(local, csn)
        starting = pool.submit(local.start, "r3")
        eventually(lambda: missing(local, "r3") == {lost.part}, what="r3 waits for that part alone")
        assert db.resolve_lost(lost.part)["rows"] == 5000
        if way == "declared":
            db.resolve_lost(lost.part, confirm=True, by="ann", why="all disks burnt")
        else:
            db.truncate("t")
        starting.result()
        after = db.insert("t", one(4), wait="all").csn or 0
    assert rows(local, "r3", after) == ([1, 4] if way == "declared" else [4])


@pytest.mark.slow
def test_a_lost_manifest_that_was_applied_makes_its_replica_clone(
    cluster: ClusterFactory, tmp_path: Path
) -> None:
    """An operator has gone on without r2, which alone had applied the transaction."""
    gates = Gates(
        tmp_path / "gates",
        {"r1": {"replication.apply.before": "pause"}, BLOCKED: dict.fromkeys(_NO_PARTS, "always")},
    )
    variables = {replica: gates.environment(replica) for replica in ("r1", BLOCKED)}
    local = cluster(settings=LISTED, environment_of=variables)
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        after = db.insert("t", one(1), wait="all").csn or 0
    with (
        gates.open("r1", "replication.apply.before"),
        gates.open(BLOCKED, *_NO_PARTS),
        ThreadPoolExecutor(1) as pool,
    ):
        inserting = pool.submit(insert_without_answer, local)
        found = eventually(lambda: last_applied(local, "r2", after), what="r2 has applied it")
        assert found is not None
        csn, manifest, tid = found
        local.kill("r2")
        local.kill("r1")
        inserting.result()
        asyncio.run(declare(local.zk, manifest, csn, tid))
    local.start("r1")
    assert [rows(local, replica, csn) for replica in ("r1", BLOCKED)] == [[1], [1]]
    assert "clone" not in local.log("r1").read_text(encoding="utf-8")
    local.start("r2")
    assert rows(local, "r2", csn) == [1]
    with local.connect("r2") as db:
        csn = db.insert("t", one(4), wait="all").csn or 0
    assert [rows(local, replica, csn) for replica in local.replicas] == [[1, 4]] * 3


def last_applied(local: LocalCluster, replica: str, after: int) -> tuple[int, PartId, str] | None:
    """Return CSN, manifest and tid of a transaction above a CSN that a replica has applied, or None."""
    path = local.data_dir(replica) / "catalog.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as catalog:
        sql = (
            "SELECT creation_csn, part, creation_tid FROM parts WHERE kind = 'manifest' AND creation_csn > ?"
        )
        found: tuple[int, PartId, str] | None = catalog.execute(sql, (after,)).fetchone()
    return found


def insert_without_answer(local: LocalCluster) -> None:
    """Commit a row at r1, which dies before it can say so."""
    with (
        contextlib.suppress(TidelockError),
        connect(local.urls, replica="r1", timeout_s=5.0) as db,
        db.begin(fresh=True) as tx,
    ):
        tx.insert("t", one(2))


def test_the_word_of_several_operators_is_one(local: LocalCluster, gates: Gates, db: Database) -> None:
    """They say it at once, each at another replica: each is told that the part is declared lost."""
    lost = lose(local, gates, db)

    def declared_at(replica: str) -> LostPart:
        with connect(local.urls, replica=replica, timeout_s=30.0) as there:
            return there.resolve_lost(lost.part, confirm=True, by=replica, why="both disks burnt")

    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(declared_at, local.replicas))
    assert all(one["declared"] for one in told)
    assert len({one["by"] for one in told}) == 1
    csn = db.insert("t", one(4), wait="all").csn or 0
    assert [rows(local, replica, csn) for replica in local.replicas] == [[1, 4]] * 3


async def declare(connect: str, manifest: PartId, csn: int, tid: str) -> None:
    """Write the word that a manifest is lost."""
    store = ZkStore(connect, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
    await store.open()
    word = SkipPart(TableId(""), manifest, 0, Csn(csn), tid, "ann", "burnt", 7000)
    try:
        ops = (Create(tree.SKIPS), Create(tree.skip(manifest), codec.encode_skip(SkipState(word))))
        assert isinstance(await store.multi(ops), Ok)
    finally:
        await store.close()


def waits_for(local: LocalCluster, replica: str, part: str) -> bool:
    """Return whether a part is what holds a replica back."""
    return part in str(status(local, replica).get("waiting_for"))


def missing(local: LocalCluster, replica: str) -> set[str]:
    """Return the visible parts that a replica lacks once it has a catalog with parts; before that none."""
    path = local.data_dir(replica) / "catalog.db"
    if not path.exists():
        return set()
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as catalog:
            sql = "SELECT part FROM parts WHERE state <> 'held' AND creation_csn IS NOT NULL"
            return {part for (part,) in catalog.execute(sql)}
    except sqlite3.Error:
        return set()
