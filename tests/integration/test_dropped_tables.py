"""Dropped tables: replicas that were away, and the way back for as long as the rows are kept."""

from __future__ import annotations

import itertools
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import http
from tests.support.histories.evidence import horizons, nothing_left
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import SnapshotTooOldError, TidelockError

NUMBERS: Final = itertools.count(1)
#: The rows of a part with a file of its own.
LARGE: Final = 6000
SETTINGS: Final = {
    **QUICK,
    "clean_interval_s": 0.5,
    "compaction": False,
    "history_retention_s": 0.5,
    "horizon_interval_s": 0.2,
    "inline_part_bytes_max": 16 * 1024,
    "unpinned_ttl_s": 2,
}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas with a short history, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=3, settings=SETTINGS))


def rows(*numbers: int) -> pa.Table:
    """Return rows."""
    return pa.table({"n": pa.array(numbers, pa.int64())})


def numbers(db: Database, table: str) -> list[int]:
    """Return the rows of a table."""
    return sorted(db.read(table)["n"].to_pylist())


def passes(local: LocalCluster, db: Database, csn: int) -> None:
    """Write until the horizon of every replica is above a CSN."""
    other = f"other_{next(NUMBERS)}"
    db.create_table(other, "n bigint")

    def passed() -> bool:
        db.insert(other, rows(1))
        return min(horizons(local)) > csn

    eventually(passed, what=f"a horizon above {csn}")


def parts_of(local: LocalCluster, replica: str, table: str) -> int:
    """Return the number of parts of a table, by its first name, that the catalog of a replica has."""
    path = local.data_dir(replica) / "catalog.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        found = db.execute("SELECT count(*) FROM parts WHERE table_name = ?", (f"default.{table}",))
        return int(found.fetchone()[0])


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("then", ["nothing", "a new table", "back"])
@pytest.mark.few(2)
def test_a_replica_that_was_away_converges_after_a_drop(
    local: LocalCluster, dbs: list[Database], end: signal.Signals, then: str
) -> None:
    """It was stopped before the drop, with rows in an open transaction; later it has what the others have."""
    db, late = dbs[0], local.replicas[2]
    table = f"t{next(NUMBERS)}"
    db.create_table(table, "n bigint not null")
    db.insert(table, rows(*range(LARGE)))
    db.insert(table, rows(-1))
    all_follow(local)
    tx = dbs[2].begin()
    tx.insert(table, rows(*range(LARGE)))
    if end is signal.SIGTERM:
        local.stop(late, grace_s=0)
    else:
        local.kill(late)
    dropped = db.drop_table(table) or 0
    if then == "a new table":
        db.create_table(table, "m string")
        db.insert(table, pa.table({"m": ["new"]}))
    elif then == "back":
        db.undrop_table(table)
    db.create_table(f"more_{table}", "n bigint")
    db.insert(f"more_{table}", rows(1))
    local.start(late)
    with pytest.raises(TidelockError):
        tx.commit()
    all_follow(local)
    for one in dbs:
        names = {row.name for row in one.tables()}
        assert (f"default.{table}" in names) == (then != "nothing")
        if then == "a new table":
            assert one.read(table).to_pylist() == [{"m": "new"}]
        elif then == "back":
            assert numbers(one, table) == [-1, *range(LARGE)]
    passes(local, db, dropped)
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
        if then != "back":
            own = 1 if then == "a new table" else 0
            eventually(lambda replica=replica, own=own: parts_of(local, replica, table) <= own)  # type: ignore[misc]


def test_a_dropped_table_comes_back_within_its_own_retention(
    local: LocalCluster, dbs: list[Database]
) -> None:
    """The common history is gone; with a replica that was away over the drop and the way back."""
    db, late = dbs[0], local.replicas[2]
    kept, short = f"kept_{next(NUMBERS)}", f"short_{next(NUMBERS)}"
    db.create_table(kept, "n bigint not null", properties={"retention_s": "3600"})
    db.create_table(short, "n bigint not null")
    for table in (kept, short):
        db.insert(table, rows(*range(LARGE)))
    before = db.insert(kept, rows(-1), wait="all").csn
    db.delete(kept, "n = 7")
    db.rename_table(short, f"{short}_later")
    dropped = [db.drop_table(name) or 0 for name in (kept, f"{short}_later")]
    passes(local, db, max(dropped))
    expected = sorted({-1, *range(LARGE)} - {7})
    with pytest.raises(
        SnapshotTooOldError,
        match=rf"table default\.{short}_later was dropped at CSN {dropped[1]}, .* not kept any more",
    ):
        db.undrop_table(f"{short}_later")
    local.stop(late, grace_s=0)
    back = db.undrop_table(kept)
    assert back.rows == len(expected)
    local.start(late)
    all_follow(local)
    for one in dbs:
        assert numbers(one, kept) == expected
    passes(local, db, back.csn)
    for one in dbs:
        assert numbers(one, kept) == expected
    for replica in local.replicas:  # below the common horizon, where a table is asked for alone
        query = f"{local.url(replica)}/api/v1/query"
        found = pa.ipc.open_stream(http("POST", query, {"csn": before, "table": kept}).data).read_all()
        assert sorted(found["n"].to_pylist()) == [-1, *range(LARGE)]
        between = http("POST", query, {"csn": dropped[0], "table": kept}).json
        assert between["error"] == SnapshotTooOldError.__name__  # no table has the name there
        nothing_left(local.data_dir(replica))


def test_a_dropped_table_is_gone_after_its_own_retention(local: LocalCluster, dbs: list[Database]) -> None:
    """The refusal names the table and the reason, at each replica, and nothing of it is left."""
    db = dbs[0]
    table = f"t{next(NUMBERS)}"
    db.create_table(table, "n bigint not null", properties={"retention_s": "2"})
    db.insert(table, rows(*range(LARGE)))
    dropped = db.drop_table(table) or 0
    other = f"other_{next(NUMBERS)}"
    db.create_table(other, "n bigint")

    def gone() -> bool:
        db.insert(other, rows(1))
        return not any(parts_of(local, replica, table) for replica in local.replicas)

    eventually(gone, what="the collection of the table")
    for one in dbs:
        with pytest.raises(
            SnapshotTooOldError, match=rf"table default\.{table} was dropped at CSN {dropped}"
        ):
            one.undrop_table(table)
        assert f"default.{table}" not in {row.name for row in one.tables()}
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
