"""Rot that nobody reads is found: of bytes on a disk, and of a catalog that contradicts the others."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import require_clean_audit
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError
from workloads.agents import Agents, ask

SCHEMA: Final = pa.schema([("n", pa.int64()), ("p", pa.string())])
SETTINGS: Final = QUICK | {
    "scrub_bytes_per_s": 64 << 20,
    "scrub_interval_s": 0.5,
    "compare_interval_s": 1.0,
    "tick_interval_s": 0.4,
    "inline_part_bytes_max": 32 << 10,
}
ROTTEN: Final = "r3"


def rows(begin: int, count: int) -> pa.Table:
    """Return rows with the numbers from `begin` on."""
    return pa.table({"n": range(begin, begin + count), "p": ["a"] * count}, SCHEMA)


def filled(local: LocalCluster) -> int:
    """Make a table of a part in a pack and one in a file, everywhere; its newest CSN."""
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA, partition_by=["p"])
        db.insert("t", rows(0, 100), wait="all")
        csn = db.insert("t", rows(100, 40_000), wait="all").csn
    assert csn is not None
    return csn


def catalog(local: LocalCluster, replica: str) -> sqlite3.Connection:
    """Return the catalog of a replica, as something beside its agent may write to it."""
    return sqlite3.connect(local.data_dir(replica) / "catalog.db", timeout=10.0)


def places(local: LocalCluster, replica: str) -> list[tuple[Path, int, int]]:
    """Return the visible parts of a replica: file, offset and length of each."""
    sql = "SELECT file, offset, length FROM parts WHERE table_name = 'default.t' AND state = 'held'"
    with closing(catalog(local, replica)) as db:
        return [(local.data_dir(replica) / file, *place) for file, *place in db.execute(sql).fetchall()]


def contents(local: LocalCluster, replica: str) -> list[bytes]:
    """Return the bytes of its parts on the disk."""
    return sorted(
        file.read_bytes()[offset : offset + length] for file, offset, length in places(local, replica)
    )


def test_bytes_that_rot_unread_are_found_and_fetched_again(cluster: ClusterFactory) -> None:
    """In a pack and in a file of its own; no client has read the parts."""
    local = cluster(settings=SETTINGS)
    filled(local)
    right = contents(local, "r1")
    assert len(right) == 2
    for file, offset, length in places(local, ROTTEN):
        with file.open("r+b") as opened:
            opened.seek(offset + length // 2)
            (byte,) = opened.read(1)
            opened.seek(offset + length // 2)
            opened.write(bytes([byte ^ 0x10]))
    agents = Agents(local)
    eventually(lambda: agents.metrics(ROTTEN)["tidelock_corrupt_parts_total"] >= 2, what="both are found")
    eventually(lambda: contents(local, ROTTEN) == right, what="both are whole again")
    assert agents.metrics("r1")["tidelock_corrupt_parts_total"] == 0
    require_clean_audit(local, deep=True)


@pytest.mark.parametrize(
    "rot",
    [
        pytest.param(
            "UPDATE parts SET removal_csn = creation_csn, removal_tid = creation_tid WHERE rows = 100",
            marks=pytest.mark.slow,
            id="a part is not shown",
        ),
        pytest.param(
            "UPDATE parts SET path = 'p=b' WHERE rows = 100",
            marks=pytest.mark.slow,
            id="a part is in another partition",
        ),
        pytest.param("DELETE FROM parts WHERE rows = 40000", id="a row is lost"),
    ],
)
def test_a_catalog_that_contradicts_the_others_is_cloned_again(cluster: ClusterFactory, rot: str) -> None:
    """The replica stops, says why, comes back with the right state, and nobody else stops."""
    local = cluster(settings=SETTINGS)
    csn = filled(local)
    boots = {replica: ask(local, replica, "/status")["boot"] for replica in local.replicas}
    with closing(catalog(local, ROTTEN)) as db, db:
        assert db.execute(rot).rowcount == 1

    def is_right() -> bool:
        try:
            shown = ask(local, ROTTEN, f"/parts?csn={csn}&table=default.t")
            back = ask(local, ROTTEN, "/status")
        except TidelockError:
            return False
        found = {(part["path"], part["rows"]) for part in shown}
        return back["state"] == "serving" and found == {("p=a", 100), ("p=a", 40_000)}

    eventually(is_right, what="the replica shows what the others show")
    log = local.log(ROTTEN).read_text(encoding="utf-8")
    assert "the parts of default.t are not those that r1, r2 show" in log
    for replica in ("r1", "r2"):
        assert ask(local, replica, "/status")["boot"] == boots[replica]
    require_clean_audit(local)


def test_one_of_two_that_differ_is_not_blamed(cluster: ClusterFactory) -> None:
    """Either may be wrong: both serve, and both say that they differ."""
    local = cluster(replicas=2, copies=2, settings=SETTINGS)
    filled(local)
    with closing(catalog(local, "r2")) as db, db:
        db.execute("UPDATE parts SET path = 'p=b' WHERE rows = 100")
    agents = Agents(local)
    for replica in local.replicas:
        eventually(
            lambda replica=replica: agents.metrics(replica)["tidelock_disagreeing_replicas"] == 1,  # type: ignore[misc]
            what=f"{replica} says so",
        )
        assert ask(local, replica, "/status")["state"] == "serving"
