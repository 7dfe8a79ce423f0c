"""A replica without a usable catalog gets a peer's catalog and fetches the parts (rule clone, F8)."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.faults.lab import Gates, points
from tests.support.faults.refusals import http
from tests.support.histories.evidence import horizons, nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.model import STRUCK
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import SetData
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import UnavailableError
from workloads.agents import ask

SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
#: Agents that collect at once what the horizon has passed.
COLLECTING: Final = QUICK | {"horizon_interval_s": 0.2, "log_keep_records": 1}


def rows(begin: int, count: int = 10) -> pa.Table:
    """Return rows with the numbers from `begin` on."""
    return pa.table({"n": range(begin, begin + count)}, SCHEMA)


def numbers(local: LocalCluster, replica: str) -> list[int]:
    """Return the numbers in the table `t`, as one replica shows them."""
    with local.connect(replica) as db:
        return sorted(db.read("t").column("n").to_pylist())


def with_collected_history(db: Database, local: LocalCluster) -> None:
    """Fill a table, replace its rows, and give up the history of that: 10 rows from 100 on are left."""
    db.create_table("t", SCHEMA)
    db.insert("t", rows(0))
    db.truncate("t")
    db.insert("t", rows(100))

    def collected() -> bool:
        db.raise_horizon()
        return not removed(local, "r1")

    eventually(collected, what="the removed parts are deleted")


def removed(local: LocalCluster, replica: str) -> int:
    """Return how many removed parts a replica keeps."""
    with sqlite3.connect(f"file:{local.data_dir(replica) / 'catalog.db'}?mode=ro", uri=True) as db:
        return int(db.execute("SELECT count(*) FROM parts WHERE removal_csn IS NOT NULL").fetchone()[0])


@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_lost_disk_comes_back_although_history_was_collected(
    cluster: ClusterFactory, replicas: int
) -> None:
    """The parts that the log adds and removes again are nowhere any more; the replica serves without them."""
    local = cluster(replicas=replicas, copies=2, settings=COLLECTING)
    with local.connect("r1") as db:
        with_collected_history(db, local)
        lose_disk(local, "r2")
        local.start("r2")
        assert numbers(local, "r2") == list(range(100, 110))
        db.insert("t", rows(200), wait="all")  # r2 is to remove these rows, too
    with local.connect("r2") as db:
        db.truncate("t")
        db.insert("t", rows(300), wait="all")
    assert numbers(local, "r1") == list(range(300, 310))
    before = min(horizons(local))
    with local.connect("r1") as db:
        eventually(lambda: db.raise_horizon()["horizon"] > before, what="the horizon moves again")
    require_clean_audit(local)
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


async def _struck(connect: str, replica: str) -> None:
    """Strike a replica, as another one does that it holds back."""
    store = ZkStore(connect, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
    await store.open()
    try:
        path = tree.session(ReplicaId(replica))
        node = await store.get(path)
        assert isinstance(node, Ok)
        found = codec.decode_session(node.value.data)
        struck = msgspec.structs.replace(found, boot=found.boot + 1, nonce="a test", state=STRUCK)
        assert isinstance(
            await store.multi((SetData(path, codec.encode_session(struck), node.value.version),)), Ok
        )
    finally:
        await store.close()


def state(local: LocalCluster, replica: str) -> str:
    """Return the state of an agent; "" while it does not answer."""
    try:
        with local.connect(replica) as db:
            return str(db.status()["state"])
    except UnavailableError:
        return ""


def files(local: LocalCluster, replica: str) -> set[str]:
    """Return the names of the part files of a replica."""
    return {path.name for path in (local.data_dir(replica) / "parts").rglob("*.parquet")}


def test_a_struck_replica_clones_and_keeps_its_parts(cluster: ClusterFactory) -> None:
    """It has missed removals and inserts, the log begins behind it, and it fetches only what it lacks."""
    local = cluster(replicas=3, copies=2, settings=COLLECTING | {"inline_part_bytes_max": 1000})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.create_table("u", SCHEMA)
        kept = db.insert("u", rows(0, 5000)).csn
        db.insert("t", rows(0, 5000))
        assert kept is not None
        eventually(lambda: len(files(local, "r2")) == 2, what="both parts at r2")
        before = files(local, "r2")
        local.kill("r2")
        asyncio.run(_struck(local.zk, "r2"))
        db.truncate("t")
        db.insert("t", rows(100, 3000))

        def collected() -> bool:
            db.raise_horizon()
            return not removed(local, "r1")

        eventually(collected, what="the removed part is deleted")
        eventually(lambda: min(record["csn"] for record in db.log()) > kept, what="the log is cut")
    local.start("r2")
    assert numbers(local, "r2") == list(range(100, 3100))
    log = local.log("r2").read_text(encoding="utf-8")
    assert '"reason": "it was struck"' in log
    eventually(lambda: files(local, "r2") == files(local, "r1"), what="the same files")
    assert len(before & files(local, "r2")) == 1
    require_clean_audit(local, deep=True)


@pytest.mark.slow
def test_a_replica_that_is_struck_while_it_runs_clones_by_itself(cluster: ClusterFactory) -> None:
    """Its fence is raised: it starts again, and gets what it needs from its peers."""
    local = cluster(replicas=3, copies=2, settings=COLLECTING)
    with local.connect("r1") as db:
        with_collected_history(db, local)
        asyncio.run(_struck(local.zk, "r3"))
        eventually(lambda: "clone_installed" in local.log("r3").read_text(encoding="utf-8"), what="a clone")
        eventually(lambda: state(local, "r3") == "serving", what="r3 serves")
        db.insert("t", rows(200), wait="all")
    assert numbers(local, "r3") == [*range(100, 110), *range(200, 210)]
    require_clean_audit(local)


#: Points at which the replica that clones dies, and its peer. The second ones are those of the disk.
OWN_POINTS: Final = points(
    ["agent.clone_receive", "agent.clone_install", "agent.catalog", "replication.fetch"]
)
DISK_POINTS: Final = points(["agent.pack", "partfs.write", "partfs.fsync", "partfs.rename"])
SOURCE_POINTS: Final = points(["agent.clone_manifest"])


def fewer(found: list[str]) -> list[Any]:
    """Return the points as parameters: those before a step, or of the disk, run with the long tests."""
    return [
        pytest.param(
            point, marks=[pytest.mark.slow] if point.endswith(".before") or point in DISK_POINTS else []
        )
        for point in found
    ]


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """The faults of all replicas: each kills its agent while its gate is open."""
    folder = tmp_path_factory.mktemp("gates")
    armed = dict.fromkeys((*OWN_POINTS, *DISK_POINTS, *SOURCE_POINTS), "crash")
    return Gates(folder, dict.fromkeys(("r1", "r2"), armed))


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """Two replicas with history that is collected; r2 loses its disk in each test."""
    environment = {replica: gates.environment(replica) for replica in ("r1", "r2")}
    settings = COLLECTING | {"inline_part_bytes_max": 2000}
    made = module_cluster(replicas=2, copies=2, settings=settings, environment_of=environment)
    with made.connect("r1") as db:
        with_collected_history(db, made)
        # One part of each kind: this one is a file of its own.
        db.create_table("u", SCHEMA)
        db.insert("u", rows(0, 3000), wait="all")
    assert len(files(made, "r1")) == 1
    return made


@pytest.mark.scenario("S76")
@pytest.mark.parametrize("point", fewer([*OWN_POINTS, *DISK_POINTS]))
@pytest.mark.few(1)
def test_a_clone_that_dies_goes_on_at_the_next_start(local: LocalCluster, gates: Gates, point: str) -> None:
    """SIGKILL of the replica that clones, at every step: nothing wrong is shown, and nothing is left over."""
    lose_disk(local, "r2")
    with gates.open("r2", point), pytest.raises(UnavailableError):
        local.start("r2")
    eventually(lambda: local.pid("r2") is None, what="the death of r2")
    local.start("r2")
    assert numbers(local, "r2") == numbers(local, "r1") == list(range(100, 110))
    require_clean_audit(local)
    nothing_left(local.data_dir("r2"))


@pytest.mark.slow
def test_a_clone_says_how_much_has_arrived(cluster: ClusterFactory, tmp_path: Path) -> None:
    """Percent, bytes and parts, while it fetches; the metric falls to 0."""
    count, stop = 8, 5
    gates = Gates(tmp_path / "gates", {"r2": {"replication.fetch.before": f"pause@{stop}"}})
    local = cluster(
        replicas=2,
        copies=2,
        settings=COLLECTING | {"inline_part_bytes_max": 1000, "compaction": "false"},
        environment_of={"r2": gates.environment("r2")},
    )
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        for number in range(count):
            db.insert("t", rows(number * 5000, 5000), wait="all")
    lose_disk(local, "r2")
    metrics = f"{local.url('r2')}/metrics"

    def missing_bytes() -> float:
        lines = http("GET", metrics).data.decode().splitlines()
        [value] = [line.split()[1] for line in lines if line.startswith("tidelock_missing_bytes")]
        return float(value)

    def arrived() -> dict[str, Any] | None:
        status = ask(local, "r2", "/status")
        clone: dict[str, Any] | None = status["clone"]
        return clone if clone is not None and clone["parts"] >= stop - 1 else None

    with ThreadPoolExecutor(1) as threads:
        with gates.open("r2", "replication.fetch.before"):
            starting = threads.submit(local.start, "r2")
            gates.await_hit("r2", "replication.fetch.before")
            clone = eventually(arrived, what="the parts before the pause are counted")
            assert clone is not None
            assert (clone["parts"], clone["of_parts"]) == (stop - 1, count)
            assert 0 < clone["bytes"] < clone["of_bytes"]
            assert clone["percent"] == pytest.approx(100 * clone["bytes"] / clone["of_bytes"], abs=1)
            assert missing_bytes() == clone["of_bytes"] - clone["bytes"]
            assert not starting.done()
        starting.result()
    assert missing_bytes() == 0
    assert ask(local, "r2", "/status")["clone"] is None
    assert numbers(local, "r2") == list(range(count * 5000))


@pytest.mark.scenario("S39")
@pytest.mark.parametrize("point", fewer(SOURCE_POINTS))
def test_a_clone_whose_source_dies_asks_again(local: LocalCluster, gates: Gates, point: str) -> None:
    """SIGKILL of the only peer while it writes its catalog: the clone waits until it is back."""
    lose_disk(local, "r2")
    with ThreadPoolExecutor(1) as threads:
        with gates.open("r1", point):
            starting = threads.submit(local.start, "r2")
            eventually(lambda: local.pid("r1") is None, what="the death of r1")
        local.start("r1")
        starting.result()
    assert numbers(local, "r2") == numbers(local, "r1") == list(range(100, 110))
    require_clean_audit(local)
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
