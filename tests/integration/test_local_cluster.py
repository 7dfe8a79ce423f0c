"""A cluster on one machine, started and ended by the command line and by Python, with real agents."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from tests.support.clusters.agreeing import all_follow
from tests.support.clusters.base_ports import free_base_port
from tests.support.clusters.cluster import ClusterFactory
from tidelock import zookeeper
from tidelock.cli import app as cli
from tidelock.client import Decision, TransactionState, connect
from tidelock.cluster import LocalCluster, process_groups
from tidelock.cluster_layout import DATA_OFFSET, FOLDER_DEFAULT
from tidelock.errors import ConfigError, NoConnectionError, RefusedError, UnavailableError
from tidelock.exits import Exit

DEADLINE_S = 60.0
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("name", pa.string())])
ROWS = pa.table({"k": [1, 2, 3], "name": ["a", None, "ü"]}, schema=SCHEMA)


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return bool(psutil.pid_exists(pid)) and str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE


def run(*arguments: object, code: Exit) -> Result | subprocess.CompletedProcess[str]:
    """Run a command; one that starts or ends processes in a session of its own, like a terminal of a user."""
    if arguments[0] not in {"up", "down"}:
        found = CliRunner().invoke(cli.app, [*map(str, arguments)], env={"NO_COLOR": "1"})
        assert found.exit_code == code, found.output
        return found
    done = subprocess.run(
        [sys.executable, "-m", "tidelock.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def tidelock(*arguments: object, code: Exit = Exit.OK) -> str:
    """Run a command; return its output, or its error."""
    done = run(*arguments, code=code)
    return done.stdout if code is Exit.OK else done.stderr


def told(*arguments: object, code: Exit = Exit.OK) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(run(*arguments, "--json", code=code).stdout)


@contextmanager
def ended(folder: Path) -> Iterator[Path]:
    """Kill the processes of the cluster in a folder at the end."""
    try:
        yield folder
    finally:
        if (folder / "cluster.json").exists():
            cluster = LocalCluster.open(folder)
            for replica in cluster.replicas:
                cluster.kill(replica)
            if servers := cluster.zookeeper:
                servers.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a cluster, whose processes are killed at the end."""
    with ended(tmp_path / "cluster of mine") as folder:
        yield folder


def test_life_of_a_cluster_by_the_command_line(folder: Path, tmp_path: Path) -> None:
    """up, use, down, up again: the cluster survives its terminal, keeps its data, and ends with down."""
    rows = tmp_path / "rows.parquet"
    pq.write_table(ROWS, rows)
    where = ("--data-dir", folder)
    status = told("up", *where, "--replicas", 2, "--base-port", 0)  # other tests take ports while it is down
    assert [row["state"] for row in status["replicas"]] == ["serving", "serving"]
    assert status["zookeeper"]["state"] == "standalone"
    pids = [row["pid"] for row in status["replicas"]] + [status["zookeeper"]["pid"]]
    assert all(runs(pid) for pid in pids)

    assert [row["pid"] for row in told("up", *where)["replicas"]] == pids[:2]  # these are left alone
    tidelock("create-table", *where, "orders", "k:bigint", "name:string:null")
    tidelock("create-table", *where, "copy", "--like", rows)
    all_follow(LocalCluster.open(folder))
    inserted = told("insert", *where, f"orders={rows}", f"copy={rows}", "--wait", "all")
    count = ("sql", *where, "select count(*) as n from orders", "--replica", "r2")
    assert told(*count) == [{"n": 3}]
    assert told("outcome", *where, inserted["tid"])["csn"] == inserted["csn"]
    assert told("log", *where)[-1]["csn"] == inserted["csn"]
    assert inserted["tid"] in tidelock("log", *where)
    assert inserted["tid"] in tidelock("explain", *where, inserted["tid"])
    assert {table["name"] for table in told("tables", *where)} == {"default.orders", "default.copy"}
    assert told("snapshot", "create", *where)["csn"] == inserted["csn"]
    assert "serving" in tidelock("status", *where)

    tidelock("down", *where)
    assert not any(runs(pid) for pid in pids)
    status = told("status", *where, code=Exit.UNAVAILABLE)
    assert [(row["state"], row["pid"]) for row in status["replicas"]] == [("down", None)] * 2
    assert status["zookeeper"]["state"] == "down"
    assert "no connection" in tidelock("tables", *where, code=Exit.UNAVAILABLE)

    tidelock("up", *where)
    assert told(*count) == [{"n": 3}]
    for _ in range(2):  # the second one finds it there
        grown = told("up", *where, "--join", "r3")
        assert [(row["id"], row["state"]) for row in grown["replicas"]] == [
            (replica, "serving") for replica in ("r1", "r2", "r3")
        ]
    assert told(*count[:-1], "r3") == [{"n": 3}]


@pytest.mark.slow
def test_a_cluster_is_found_without_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tidelock up` and `connect()` agree on a folder; no server is taken for a cluster that is down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDELOCK_URL", raising=False)
    base = free_base_port(1)
    with ended(tmp_path / FOLDER_DEFAULT):
        [row] = told("up", "--replicas", 1, "--base-port", base)["replicas"]
        assert row["url"] == f"http://127.0.0.1:{base}"
        assert row["data"] == f"127.0.0.1:{base + DATA_OFFSET}"
        with connect() as db:
            db.create_table("orders", SCHEMA, partition_by=["k"])
            csn = db.insert("orders", ROWS, label="load").csn
        with connect(str(FOLDER_DEFAULT)) as db:
            assert db.read("orders").num_rows == 3

        found = told("table", "orders")
        assert (found["csn"], found["rows"], found["parts"]) == (csn, 3, 3)
        assert [one["path"] for one in found["partitions"]] == ["k=1", "k=2", "k=3"]
        assert told("table", "orders", "--csn", found["csn"] - 1)["rows"] == 0
        listed = told("parts", "orders")["parts"]
        assert sum(one["length"] for one in listed) == found["bytes"]
        defined, load = told("history")
        assert (defined["table"], defined["action"]) == ("default.orders", "create")
        assert (load["csn"], load["label"]) == (csn, "load")
        assert (load["action"], load["rows_added"]) == ("insert", 3)

        tidelock("down")
        with socket.create_server(("127.0.0.1", base)):
            with pytest.raises(NoConnectionError, match="tidelock up"):
                connect()
            said = tidelock("up", code=Exit.UNAVAILABLE)
            assert f"expected port {base} to be free for r1" in " ".join(said.split())


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_zookeeper_in_the_foreground(tmp_path: Path, signum: signal.Signals) -> None:
    """`tidelock zookeeper` prints its address and serves until a signal ends it; then nothing is left."""
    command = [sys.executable, "-m", "tidelock.cli", "zookeeper", "--data-dir", str(tmp_path / "zk")]
    # Background jobs of a shell ignore SIGINT, and their children inherit that: undo it, as in a terminal.
    command = ["env", "--default-signal=INT", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            servers = zookeeper.load(tmp_path / "zk")
            assert servers is not None
            assert (servers.connect_string, servers.servers[0].mode()) == (address, "standalone")
        finally:
            process.send_signal(signum)
        assert process.wait(DEADLINE_S) == Exit.OK
    assert not servers.servers[0].alive


@pytest.mark.slow
def test_zookeeper_that_ends_by_itself(tmp_path: Path) -> None:
    """The foreground process ends with its ZooKeeper, and says that no signal had ended it."""
    command = [sys.executable, "-m", "tidelock.cli", "zookeeper", "--data-dir", str(tmp_path / "zk")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        servers = zookeeper.load(tmp_path / "zk")
        assert servers is not None
        servers.kill()
        _, complaint = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == Exit.UNAVAILABLE
    assert "has ended by itself" in complaint


def test_dead_and_frozen_agents(cluster: ClusterFactory) -> None:
    """Status distinguishes a dead agent from a silent one; `up` starts only the dead one again."""
    local = cluster()
    pids = [local.pid(replica) for replica in local.replicas]
    local.kill("r2")
    local.kill("r3", signal.SIGSTOP)
    states = {row["id"]: row["state"] for row in local.status()["replicas"]}
    assert states == {"r1": "serving", "r2": "down", "r3": "silent"}
    local.kill("r3", signal.SIGCONT)
    local.up()
    assert [row["state"] for row in local.status()["replicas"]] == ["serving"] * 3
    assert local.pid("r1") == pids[0]
    assert local.pid("r2") != pids[1]
    assert local.pid("r3") == pids[2]


def test_agent_that_ends_while_its_start_is_awaited_is_started(cluster: ClusterFactory) -> None:
    """A start finds the process of an agent that is about to end; it does not take its end for a failure."""
    local = cluster(replicas=1)
    before = local.pid("r1")
    local.kill("r1", signal.SIGSTOP)
    with ThreadPoolExecutor(1) as executor:
        start = executor.submit(local.start, "r1")
        time.sleep(0.5)  # it finds the frozen process, and waits for it
        local.kill("r1")
        start.result()
    assert local.pid("r1") not in {None, before}


def test_killed_agent_leaves_no_worker(cluster: ClusterFactory) -> None:
    """SIGKILL ends an agent with all the processes that it has started."""
    local = cluster(replicas=1)
    process = local.process("r1")
    assert process is not None
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    local.kill("r1")
    assert not any(runs(worker.pid) for worker in workers)
    assert list(process_groups._members(process)) == []
    local.start("r1")
    assert local.status()["replicas"][0]["state"] == "serving"


def test_agent_that_cannot_start_says_why(cluster: ClusterFactory) -> None:
    """`up` fails with the agent's own last error and the place of its log; a port that is taken is named."""
    local = cluster(replicas=1, start=False)
    port = local.layout.replicas[0].api
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(UnavailableError, match=f"expected port {port} to be free"),
    ):
        local.up()
    local.environment["TIDELOCK_SESSION_TIMEOUT_S"] = "soon"
    with pytest.raises(UnavailableError, match="session_timeout_s") as caught:
        local.up()
    assert str(local.log("r1")) in caught.value.message
    del local.environment["TIDELOCK_SESSION_TIMEOUT_S"]
    local.up()


def test_wrong_setting_of_an_agent(cluster: ClusterFactory) -> None:
    """`up` names a setting that an agent refuses."""
    local = cluster(replicas=1, start=False, settings={"wait_bound_s": "soon"})
    with pytest.raises(UnavailableError, match="wait_bound_s"):
        local.up()


def test_client_on_real_agents(cluster: ClusterFactory) -> None:
    """Transactions over two tables, own reads, refusals, snapshots and outcomes, through all replicas."""
    local = cluster()
    with local.connect() as db, local.connect("r3") as third:
        db.create_table("orders", SCHEMA)
        db.create_table("sales.lines", SCHEMA, sort_by=["k"])
        with db.begin(meta={"job": 1}, lease="20s") as tx:
            assert tx.insert("orders", ROWS).rows == 3
            tx.insert("sales.lines", ROWS.to_pandas())
            assert tx.read("orders", columns=["name"], where="k >= ?", params=[2]).column(
                "name"
            ).to_pylist() == [
                None,
                "ü",
            ]
            assert tx.scan("sales.lines").count() == 3
            tx.heartbeat()
        assert tx.csn is not None
        with third.snapshot(min_csn=tx.csn) as snap:
            assert snap.csn >= tx.csn
            joined = snap.sql(
                "select o.k from orders o join sales.lines l using (k) where k > ? order by k", [1]
            )
            assert joined.to_pydict() == {"k": [2, 3]}
            assert sorted(table["name"] for table in snap.tables()) == ["default.orders", "sales.lines"]
        with pytest.raises(RefusedError), db.begin() as refused:
            refused.insert("orders", ROWS.drop_columns(["name"]))
        assert refused.state is TransactionState.ROLLED_BACK
        assert db.outcome(tx.tid).csn == tx.csn
        assert third.outcome(refused.tid).decision is Decision.ABORTED
        assert db.insert("orders", ROWS).csn == db.seen_csn
        assert db.read("orders").num_rows == 6


def test_client_outlives_its_replica(cluster: ClusterFactory) -> None:
    """An open snapshot and new transactions go on when the client's replica is killed."""
    local = cluster()
    with connect([local.url("r1")], timeout_s=20.0) as db:
        db.create_table("t", SCHEMA)
        db.insert("t", ROWS)
        with db.snapshot() as snap:
            local.kill("r1")
            assert snap.read("t").sort_by("k").to_pydict() == ROWS.to_pydict()
            assert db.insert("t", ROWS).tid.split("-")[1] != "r1"
            assert snap.scan("t").count() == 3
        assert db.read("t").num_rows == 6


def test_agents_are_found_through_zookeeper(cluster: ClusterFactory) -> None:
    """A zk:// address leads to a running agent; a root without a cluster and a missing ZooKeeper differ."""
    local = cluster(settings={"session_timeout_s": 2})
    local.kill("r1")
    wait_for(lambda: sum(row["alive"] for row in local.connect("r2").status()["replicas"]) == 2)
    with connect(f"zk://{local.zk}") as db:
        assert db.begin().holder in {"r2", "r3"}
    with pytest.raises(ConfigError, match=r"there is no cluster in ZooKeeper at .*-other"):
        connect(f"zk://{local.zk}-other")
    with pytest.raises(UnavailableError, match="ZooKeeper"):
        connect("zk://127.0.0.1:1/root", timeout_s=1.0)
    with pytest.raises(ConfigError):
        connect(f"zk://{local.zk.partition('/')[0]}")
