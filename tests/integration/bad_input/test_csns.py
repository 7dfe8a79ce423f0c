"""CSNs that cannot be read: above the end of the log, below the horizon, or no CSN at all (rule readers).

A wrong CSN must fail loudly in every reader: many readers take "file not found" for an empty table.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults.refusals import ROWS, SCHEMA, Addresses, Ground, check_message, http
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Check, SetData
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import BadRequestError, NoSuchCsnError, SnapshotTooOldError, TidelockError

ACCESS_CONTROL = "org.apache.hadoop.security.AccessControlException"
FILE_NOT_FOUND = "java.io.FileNotFoundException"

Read = Callable[[Database, int], object]

READS: dict[str, Read] = {
    "snapshot": lambda db, csn: db.snapshot(csn=csn),
    "tables": lambda db, csn: db.tables(csn=csn),
    "table": lambda db, csn: db.table("t", csn=csn),
}


def beyond(db: Database) -> int:
    """A CSN that does not exist."""
    return int(db.status()["end_csn"]) + 1000


@pytest.mark.parametrize("read", READS.values(), ids=[*READS])
def test_a_csn_above_the_end_is_refused_at_once(ground: Ground, read: Read) -> None:
    """A CSN above the end of the log is refused at once; the error names the end of the log."""
    csn = beyond(ground.db)
    with ground.refuses(
        NoSuchCsnError, f"there is no CSN {csn}", "the log ends at", "read at that one"
    ) as caught:
        read(ground.db, csn)
    assert caught.value.details["end_csn"] < csn
    with pytest.raises(NoSuchCsnError):
        ground.db.snapshot(min_csn=beyond(ground.db))


def test_no_such_csn_for_other_readers(ground: Ground) -> None:
    """Hadoop gets AccessControlException, plain HTTP 403: no reader takes that for a table without rows."""
    csn = beyond(ground.db)
    for replica in ground.cluster.replicas:
        data = Addresses.of(ground.cluster, replica).data
        for path in ("", "/default", f"/default/{ground.table}", f"/default/{ground.table}/x.parquet"):
            for operation in ("LISTSTATUS", "GETFILESTATUS", "OPEN", "GETCONTENTSUMMARY"):
                answer = http("GET", f"{data}/webhdfs/v1/snapshots/{csn}{path}?op={operation}")
                assert (answer.status, answer.java_class) == (403, ACCESS_CONTROL)
                assert f"there is no CSN {csn}" in answer.json["RemoteException"]["message"]
            plain = http("GET", f"{data}/snapshots/{csn}{path}")
            assert plain.status == 403
            check_message(plain.error, NoSuchCsnError, [f"there is no CSN {csn}"])
    ground.check_intact()


@pytest.mark.parametrize("csn", [0, -1, -(1 << 40)])
def test_csn_before_the_first(ground: Ground, csn: int) -> None:
    """CSN 0 stands for "no commit": it is refused, and not read as an empty snapshot."""
    with ground.refuses(SnapshotTooOldError, f"CSN {csn} is below the horizon 1", "read at a newer CSN"):
        ground.db.snapshot(csn=csn)
    for read in READS.values():
        with pytest.raises(SnapshotTooOldError):
            read(ground.db, csn)


@pytest.mark.parametrize("csn", ["0", "-1", "latest", "007", "1e3", "9" * 30, "%31%00"])
def test_paths_that_name_no_csn(ground: Ground, csn: str) -> None:
    """A path with another word in place of a CSN is refused, and not answered as a missing file."""
    data = Addresses.of(ground.cluster, "r1").data
    answer = http("GET", f"{data}/webhdfs/v1/snapshots/{csn}/default/{ground.table}?op=LISTSTATUS")
    assert (answer.status, answer.java_class) == (403, ACCESS_CONTROL)
    assert http("GET", f"{data}/snapshots/{csn}/default/{ground.table}").status != 404


def test_names_that_do_not_exist_at_a_csn(ground: Ground) -> None:
    """The answer "not found" is given only for a name that does not exist at a CSN that is served."""
    csn, data = ground.db.seen_csn, Addresses.of(ground.cluster, "r1").data
    for path in ("/default/nowhere", "/nowhere", "/nowhere/t", f"/default/{ground.table}/k=1"):
        answer = http("GET", f"{data}/webhdfs/v1/snapshots/{csn}{path}?op=LISTSTATUS")
        assert (answer.status, answer.java_class) == (404, FILE_NOT_FOUND), path
        assert str(csn) in answer.json["RemoteException"]["message"]
    folder = f"{data}/webhdfs/v1/snapshots/{csn}/default/{ground.table}"
    for method, query in (
        ("GET", ""),
        ("GET", "?op=APPEND"),
        ("PUT", "?op=CREATE"),
        ("DELETE", "?op=DELETE"),
    ):
        answer = http(method, folder + query)
        assert (answer.status, answer.java_class) == (403, ACCESS_CONTROL)
        assert "snapshots are read only" in answer.json["RemoteException"]["message"]
    ground.check_intact()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"csn": 2, "at": 5}, BadRequestError, ["give csn or at, not both"]),
        ({"at": 5}, SnapshotTooOldError, ["is before the history that is kept", "give a later time"]),
        ({"lease": 0}, BadRequestError, ["ttl_s=0", "snapshot_ttl_max_s"]),
        ({"lease": "25h"}, BadRequestError, ["ttl_s=90000", "0..86400"]),
        ({"csn": "no/tag"}, BadRequestError, ["the name of a tag", "found 'no/tag'", "at="]),
        ({"csn": 1 << 70}, NoSuchCsnError, [f"there is no CSN {1 << 70}"]),
    ],
)
def test_a_snapshot_with_bad_arguments_pins_nothing(
    ground: Ground, arguments: dict[str, Any], error: type[TidelockError], words: list[str]
) -> None:
    """A snapshot with a bad argument is not opened, and pins nothing."""
    with ground.refuses(error, *words):
        ground.db.snapshot(**arguments)


async def _raise_horizon(zk: str, csn: int) -> None:
    """Move csn/horizon as the multi of the design does: checked against the pins."""
    store = ZkStore(zk, session_timeout_s=5.0, request_timeout_s=5.0, multi_bytes_max=4096)
    await store.open()
    try:
        pins = await store.get(tree.PINS)
        assert isinstance(pins, Ok)
        move = (Check(tree.PINS, pins.value.version), SetData(tree.HORIZON, codec.encode_csn(Csn(csn))))
        assert isinstance(await store.multi(move), Ok)
    finally:
        await store.close()


def raise_horizon(cluster: LocalCluster, replica: str, csn: int) -> None:
    """Raise the horizon as garbage collection does: in ZooKeeper, and durably in the replica's catalog."""
    cluster.stop(replica)
    asyncio.run(_raise_horizon(cluster.zk, csn))
    catalog = sqlite3.connect(cluster.data_dir(replica) / "catalog.db")
    with catalog:
        catalog.execute("UPDATE meta SET value = ? WHERE key = 'horizon'", (csn,))
    catalog.close()
    cluster.start(replica)


def test_csn_below_the_horizon(cluster: ClusterFactory) -> None:
    """Below the horizon every reader is refused and gets the oldest CSN; from that CSN on reads succeed."""
    local = cluster(replicas=1)
    with local.connect() as db:
        db.create_table("t", SCHEMA)
        csns = [db.insert("t", ROWS).csn or 0 for _ in range(4)]
        lost, kept = db.snapshot(csn=csns[1]), csns[2]  # as if its pin had run out
        raise_horizon(local, "r1", kept)
        for read in READS.values():
            with pytest.raises(SnapshotTooOldError) as caught:
                read(db, csns[1])
            check_message(
                *(caught.value, SnapshotTooOldError),
                [f"CSN {csns[1]} is below the horizon {kept}", "read at a newer CSN"],
            )
            assert caught.value.details["min_csn"] == kept
        _refused_to_other_readers(Addresses.of(local, "r1"), csns[1], kept)
        for read_again in (lambda: lost.read("t"), lambda: lost.sql("SELECT count(*) FROM t"), lost.tables):
            with pytest.raises(SnapshotTooOldError, match=f"CSN {lost.csn} is below the horizon {kept}"):
                read_again()
        lost.close()
        for rows, csn in enumerate(csns[2:], 3):
            with db.snapshot(csn=csn) as snap:
                assert snap.read("t").num_rows == rows * ROWS.num_rows
        assert db.insert("t", ROWS).csn == csns[-1] + 1
        assert db.read("t").num_rows == 5 * ROWS.num_rows


def _refused_to_other_readers(at: Addresses, old: int, kept: int) -> None:
    for operation in ("LISTSTATUS", "GETFILESTATUS"):
        answer = http("GET", f"{at.data}/webhdfs/v1/snapshots/{old}/default/t?op={operation}")
        assert (answer.status, answer.java_class) == (403, ACCESS_CONTROL)
        assert f"the oldest readable CSN is {kept}" in answer.json["RemoteException"]["message"]
    plain = http("GET", f"{at.data}/snapshots/{old}/default/t")
    assert plain.status == 410
    words = [f"below the horizon {kept}: the oldest readable CSN is {kept}"]
    check_message(plain.error, SnapshotTooOldError, words)
    query = http("POST", f"{at.api}/query", {"csn": old, "sql": "SELECT 1"})
    check_message(query.error, SnapshotTooOldError, [f"below the horizon {kept}"])
