"""Agents that must not start: one line says why, the exit code is the documented one, and nothing changes."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults.refusals import ROWS, SCHEMA, Addresses, check_message, command, http, run
from tidelock.client import connect
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import AccessDeniedError, BadRequestError, ConfigError, UnavailableError
from tidelock.exits import Exit
from tidelock.replica_agent.storage.catalog_schema import FORMAT, MIGRATIONS

#: How long a start waits for a ZooKeeper that does not exist, in seconds.
CONNECT_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def two(module_cluster: ClusterFactory) -> LocalCluster:
    """A cluster of two replicas, of which r2 does not run; its log stays as it is, without ticks."""
    local = module_cluster(replicas=2, settings={"tick_interval_s": 86_400})
    with local.connect() as db:
        db.create_table("t", SCHEMA)
        db.insert("t", ROWS, wait="all")
    local.stop("r2")
    return local


@pytest.fixture
def copy(two: LocalCluster, tmp_path: Path) -> Path:
    """A copy of the data directory of r2, which a test may change."""
    return Path(shutil.copytree(two.data_dir("r2"), tmp_path / "data"))


@pytest.fixture
def intact(two: LocalCluster) -> Iterator[None]:
    """At the end of the test the cluster in ZooKeeper is as it was: same id, same end, same replicas."""
    with two.connect("r1") as db:
        before = db.status()
        yield
        after = db.status()
        assert (after["cluster_id"], after["end_csn"]) == (before["cluster_id"], before["end_csn"])
        assert [row["id"] for row in after["replicas"]] == ["r1", "r2"]


class Started:
    """An agent that was started with these flags, and has ended."""

    def __init__(self, cluster: LocalCluster, data: Path, **flags: str) -> None:
        flags = {
            "replica": "r2",
            "zk": cluster.zk,
            "bootstrap": "r1,r2",
            "connect-timeout-s": str(CONNECT_TIMEOUT_S),
            **flags,
        }
        arguments = [item for name, value in flags.items() if value for item in (f"--{name}", value)]
        done = run("tidelock.replica_agent.main", "--data-dir", data, *arguments)
        self.code = done.returncode
        self.lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]

    def check(self, code: Exit, error: str, *words: str) -> None:
        """Require that it ended with this code, and that its one error line has this class and words."""
        complaints = [event for event in map(_event, self.lines) if event.get("level") == "error"]
        assert len(complaints) == 1, self.lines
        assert complaints[0]["error"] == error
        for word in words:
            assert word in complaints[0]["reason"]
        assert self.code == code
        assert not any("Traceback" in line for line in self.lines)


def _event(line: str) -> dict[str, str]:
    event: dict[str, str] = json.loads(line)
    return event


def set_meta(data: Path, **meta: int) -> None:
    """Change what a catalog remembers."""
    catalog = sqlite3.connect(data / "catalog.db")
    with catalog:
        for key, value in meta.items():
            catalog.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
    catalog.close()


@pytest.mark.scenario("S49")
def test_data_directory_in_use(two: LocalCluster, intact: None) -> None:
    """Two agents never share a directory; the first one goes on."""
    started = Started(two, two.data_dir("r1"), replica="r1")
    started.check(Exit.USAGE, "DataDirInUseError", "another agent runs on", "stop it first")
    with two.connect("r1") as db:
        assert db.read("t").num_rows == ROWS.num_rows


@pytest.mark.slow
def test_data_directory_of_another_replica(two: LocalCluster, copy: Path, intact: None) -> None:
    """A directory belongs to the replica that made it."""
    started = Started(two, copy, replica="r1")
    started.check(Exit.USAGE, "ConfigError", "belongs to replica r2, not r1", "give the right data_dir")


@pytest.mark.slow
def test_data_directory_of_another_cluster(
    two: LocalCluster, copy: Path, cluster: ClusterFactory, intact: None
) -> None:
    """A directory of one cluster is not used in another cluster, and the other cluster does not change."""
    other = cluster(replicas=1)
    with other.connect() as db, two.connect("r1") as own:
        ids = (own.status()["cluster_id"], db.status()["cluster_id"])
        started = Started(two, copy, replica="r2", zk=other.zk)
        started.check(
            *(Exit.USAGE, "ClusterMismatchError"),
            *(f"belongs to cluster {ids[0]}, but ZooKeeper holds {ids[1]}", "check the connect string"),
        )
        assert [row["id"] for row in db.status()["replicas"]] == ["r1"]


@pytest.mark.scenario("S22")
@pytest.mark.slow
def test_zookeeper_that_was_emptied(two: LocalCluster, copy: Path, intact: None) -> None:
    """A replica whose cluster is gone makes no new cluster, although its flags would allow one."""
    for _ in range(2):  # the first try leaves nothing that the second could take for a cluster
        started = Started(two, copy, zk=f"{two.zk}-emptied")
        started.check(
            *(Exit.USAGE, "ClusterMismatchError", "it holds no cluster", "restored from a backup, emptied"),
            *("nothing was changed", "bring back ZooKeeper's newest state"),
        )
    with pytest.raises(ConfigError, match="there is no cluster"):
        connect(f"zk://{two.zk}-emptied")
    assert not asyncio.run(_exists(f"{two.zk}-emptied"))


async def _exists(root: str) -> bool:
    store = ZkStore(root, session_timeout_s=5.0, request_timeout_s=5.0, multi_bytes_max=4096, make_root=False)
    await store.open()
    try:
        found = await store.exists("")
        assert isinstance(found, Ok)
        return found.value is not None
    finally:
        await store.close()


@pytest.mark.slow
def test_zookeeper_that_knows_less(two: LocalCluster, copy: Path, intact: None) -> None:
    """The error names each fact that the catalog has recorded and ZooKeeper lacks (I15)."""
    set_meta(copy, boot=7, horizon=3, snapshot_csn=90)
    started = Started(two, copy)
    started.check(
        *(Exit.USAGE, "ClusterMismatchError", "ZooKeeper is older than what replica r2 has seen"),
        *("boot is 1 and was 7", "horizon is 0 and was 3", "the record of CSN 90 does not exist"),
    )


@pytest.mark.scenario("S21")
@pytest.mark.slow
def test_zookeeper_that_was_restored_from_a_backup(cluster: ClusterFactory, tmp_path: Path) -> None:
    """With a ZooKeeper from before a commit no agent serves; with the newest state no row is missing."""
    local = cluster(replicas=1, own_zookeeper=True)
    with local.connect() as db:
        db.create_table("t", SCHEMA)
    local.down()
    state, backup, newest = local.folder / "zookeeper", tmp_path / "backup", tmp_path / "newest"
    shutil.copytree(state, backup)
    local.up()
    with local.connect() as db:
        csn = db.insert("t", ROWS).csn
    local.down()
    shutil.copytree(state, newest)
    _replace(state, backup)
    with pytest.raises(UnavailableError, match="ZooKeeper is older than what replica r1 has seen"):
        local.up()
    local.down()
    _replace(state, newest)
    local.up()
    with local.connect() as db, db.snapshot(csn=csn) as snap:
        assert snap.read("t").num_rows == ROWS.num_rows
        assert db.insert("t", ROWS).csn == (csn or 0) + 1


def _replace(folder: Path, other: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


@pytest.mark.scenario("S50")
def test_catalog_of_a_newer_version(two: LocalCluster, copy: Path, intact: None) -> None:
    """A catalog that this version may misread is left alone."""
    set_meta(copy, format=FORMAT + 1)
    started = Started(two, copy)
    found = f"has catalog format {FORMAT + 1}, this version reads {min(MIGRATIONS)} to {FORMAT}"
    started.check(Exit.USAGE, "ConfigError", found, "start the version")
    catalog = sqlite3.connect(copy / "catalog.db")
    assert catalog.execute("SELECT value FROM meta WHERE key = 'boot'").fetchone() == (1,)
    catalog.close()


def test_catalog_that_is_damaged(two: LocalCluster, copy: Path, intact: None) -> None:
    """A file that is no catalog is neither served nor overwritten."""
    for file in copy.glob("catalog.db-*"):
        file.unlink()
    (copy / "catalog.db").write_bytes(b"no catalog" * 1000)
    started = Started(two, copy)
    started.check(Exit.CORRUPT, "CorruptError", "cannot be read as a catalog", "restore the data directory")
    assert (copy / "catalog.db").read_bytes() == b"no catalog" * 1000


@pytest.mark.slow
def test_replica_that_is_not_registered(two: LocalCluster, tmp_path: Path, intact: None) -> None:
    """Only a command adds a replica: an unknown id is refused; the error lists the known ones."""
    started = Started(two, tmp_path / "data", replica="r9", bootstrap="")
    started.check(Exit.USAGE, "ConfigError", "replica r9 is not registered", "which has r1, r2")
    started = Started(two, tmp_path / "data", replica="r9", bootstrap="r1,r2,r9")
    started.check(
        Exit.USAGE, "ConfigError", "expected to make a cluster of r1, r2, r9", "found one of r1, r2"
    )


@pytest.mark.slow
def test_root_without_a_cluster(two: LocalCluster, tmp_path: Path, intact: None) -> None:
    """An agent makes a cluster only when it is told to; a mistyped root stays empty."""
    started = Started(two, tmp_path / "data", zk=f"{two.zk}-mistyped", bootstrap="")
    started.check(Exit.USAGE, "ConfigError", "there is no cluster in ZooKeeper", "--bootstrap")


@pytest.mark.slow
def test_an_agent_without_zookeeper_ends_with_again_later(
    two: LocalCluster, copy: Path, intact: None
) -> None:
    """Without ZooKeeper an agent ends soon, with the code that says "again later"."""
    started = Started(two, copy, zk="127.0.0.1:1/nowhere")
    started.check(
        *(Exit.UNAVAILABLE, "UnavailableError", "no ZooKeeper server answered at 127.0.0.1:1 within 1 s"),
        "check that it runs",
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"secret": "ü"}, ["secret", "printable ASCII"]),
        ({"bind": "0.0.0.0"}, ["bind=0.0.0.0 is not a loopback address", "TIDELOCK_SECRET", "--insecure"]),
        ({"colour": "red"}, ["unrecognized arguments: --colour red"]),
        (
            {"replica": "R2", "commit-timeout-s": "-1"},
            ["replica id 'R2' is not of the form", "commit_timeout_s: Input should be greater than 0"],
        ),
    ],
    ids=["secret", "bind", "unknown", "values"],
)
@pytest.mark.few(2)
def test_settings_that_contradict_are_told_in_one_line(
    two: LocalCluster, tmp_path: Path, flags: dict[str, str], words: list[str]
) -> None:
    """Wrong settings are told in one line before anything is touched."""
    arguments = [item for name, value in {"replica": "r2", **flags}.items() for item in (f"--{name}", value)]
    done = command("agent", "--data-dir", tmp_path / "data", "--zk", two.zk, *arguments)
    assert done.returncode == Exit.USAGE
    (line,) = done.stderr.splitlines()
    assert line.startswith("tidelock agent: ")
    assert "`tidelock agent --help`" in line
    for word in words:
        assert word in line
    assert not (tmp_path / "data").exists()


def test_the_replica_starts_after_all_that(two: LocalCluster) -> None:
    """The failed starts have not touched the replica: it comes back with its rows and takes new ones."""
    two.start("r2")
    with two.connect("r2") as db:
        rows = db.read("t").num_rows
        csn = db.insert("t", ROWS, wait="all").csn or 0
    with two.connect("r1") as db, db.snapshot(csn=csn) as snap:
        assert snap.read("t").num_rows == rows + ROWS.num_rows
    two.stop("r2")


@pytest.mark.slow
def test_nothing_but_health_is_told_without_the_secret(cluster: ClusterFactory) -> None:
    """Without the secret an agent answers health checks only; with the secret all routes work, pushes too."""
    secret = "two words, and: signs"
    local = cluster(replicas=2, settings={"secret": secret})
    with local.connect() as db:
        db.create_table("t", SCHEMA)
        db.insert("t", ROWS, wait="all")
        for token in (None, "", "wrong", secret.upper(), secret[:-1]):
            with pytest.raises(AccessDeniedError) as caught:
                connect(local.urls, token=token)
            check_message(
                *(caught.value, AccessDeniedError),
                ["shared secret is missing or wrong", "token=", "TIDELOCK_SECRET"],
            )
        _check_routes(Addresses.of(local, "r1"), secret)
        assert db.read("t").num_rows == ROWS.num_rows
    for environment, code in (({}, Exit.REFUSED), ({"TIDELOCK_SECRET": secret}, Exit.OK)):
        done = command("tables", "--url", local.url("r2"), "--json", env=environment)
        assert done.returncode == code, done.stderr


def _check_routes(at: Addresses, secret: str) -> None:
    agent = at.api.removesuffix("/api/v1")
    right = {"Authorization": f"Bearer {secret}"}
    for method, url in (
        ("GET", f"{at.api}/status"),
        ("POST", f"{at.api}/transactions"),
        ("POST", f"{at.api}/tables"),
        ("GET", f"{at.api}/nowhere"),
        ("GET", f"{agent}/metrics"),
        ("GET", f"{agent}/peer/v1/status"),
        ("POST", f"{agent}/peer/v1/stage"),
        ("GET", f"{at.data}/parts/r1-1-1"),
    ):
        for headers in ({}, {"Authorization": secret}, {"Authorization": "Bearer \xff"}):
            answer = http(method, url, headers=headers)
            assert answer.status == 401, url
            check_message(answer.error, AccessDeniedError, ["secret"])
        assert http(method, url, headers=right).status != 401
    assert {http("GET", f"{agent}/{open_}").status for open_ in ("healthz", "readyz")} == {200}


@pytest.mark.parametrize("token", ["日本", "a\nX-Other: b", "ü"])
def test_token_that_no_header_can_carry(token: str) -> None:
    """A token that no header can carry is refused before a request is sent."""
    with pytest.raises(BadRequestError, match="printable ASCII"):
        connect("http://127.0.0.1:1", token=token)
