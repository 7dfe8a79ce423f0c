"""A record that stops all agents, on real agents: the word of the operator, and what replicas do with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.faults.lab import Gates
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tests.support.zookeeper.store_suite import done, node
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.csnlog.core.model import LabelState, Record, RecordKind, RemovePart, TidRecord
from tidelock.csnlog.core.store import Create, SetData
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import DeclaredLostError, LabelExistsError, UnavailableError
from tidelock.exits import Exit

REPLICAS: Final = ("r1", "r2", "r3")
ROWS: Final = pa.table({"k": [1, 2, 3]})
SETTINGS: Final = {**QUICK, "log_keep_records": 1, "horizon_interval_s": 0.2}
#: A transaction of a home with a newer version, which was told "committed".
TID: Final = "2-r1-1-77"
#: Seconds for one run of the command.
TIMEOUT_S: Final = 120.0
SLOW: Final = pytest.mark.slow


def newer() -> bytes:
    """Return the bytes of a record of a kind that is to come."""
    return json.dumps(
        {"v": 1, "k": "merge", "h": "r1", "w": 7, "t": [{"i": TID, "l": "job"}]}, separators=(",", ":")
    ).encode()


def contradicting() -> bytes:
    """Return the bytes of a record that is whole, and removes a part that does not exist."""
    entry = RemovePart(TableId("default.t"), PartId("r1-1-999"))
    tid = TidRecord(TID, (entry,), holders=(ReplicaId("r1"), ReplicaId("r2")))
    return codec.encode_record(Record(RecordKind.COMMIT, ReplicaId("r1"), 7, (tid,), witnesses=()))


def poison(local: LocalCluster, data: bytes) -> int:
    """Commit a record as a home does, with its label; return its CSN."""

    async def write() -> int:
        store = ZkStore(local.zk, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
        await store.open()
        try:
            path, *_ = await done(
                store,
                Create(tree.record_prefix(0), data, sequential=True),
                SetData(tree.HEAD),
                Create(tree.label("job"), codec.encode_label(LabelState(TID))),
            )
            return tree.csn_of(str(path))
        finally:
            await store.close()

    return asyncio.run(write())


def command(
    local: LocalCluster,
    csn: int,
    *more: object,
    code: int = 0,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the command; return what it prints."""
    run = subprocess.run(
        [sys.executable, "-m", "tidelock.cli", "admin", "skip-record", str(csn), "--zk", local.zk]
        + [str(one) for one in more],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert run.returncode == code, run.stdout + run.stderr
    return run.stdout + run.stderr


def looked_at(local: LocalCluster, csn: int, *more: object) -> dict[str, Any]:
    """Look at the record, as an operator does first."""
    found: dict[str, Any] = json.loads(command(local, csn, "--json", *more))
    return found


def confirmed(local: LocalCluster, csn: int, *more: object) -> list[object]:
    """Return the arguments that carry the command out."""
    digest = looked_at(local, csn)["digest"]
    return ["--confirm", digest, "--by", "ann", "--why", "the newer version is gone", *more]


def all_stopped(local: LocalCluster, *replicas: str) -> None:
    """Wait until these agents have ended by themselves."""
    for replica in replicas or REPLICAS:
        eventually(lambda one=replica: local.pid(one) is None, what=f"the end of {replica}")  # type: ignore[misc]


def started(local: LocalCluster, *replicas: str) -> None:
    """Start agents and wait until they serve."""
    for replica in replicas or REPLICAS:
        local.start(replica, timeout_s=READY_TIMEOUT_S)


def require_whole(local: LocalCluster, csn: int, rows: int) -> None:
    """Check that all replicas serve the same rows, take commits, and say who has had the record skipped."""
    with local.connect("r2") as db:
        last = db.insert("t", ROWS, wait="all").csn
    for replica in local.replicas:
        with local.connect(replica) as db:
            with db.snapshot(min_csn=last) as snap:
                assert snap.read("t").num_rows == rows + 3
            assert [(one["csn"], one["by"], one["tids"]) for one in db.status()["skipped"]] == [
                (csn, "ann", [TID])
            ]
            with pytest.raises(DeclaredLostError, match=f"record of CSN {csn}, which ann has had skipped"):
                db.outcome(TID)
    with local.connect() as db:
        report = db.audit()
        assert {finding.fault for finding in report.findings} == {"record_skipped"}, report
        found = {replica for finding in report.findings for replica in finding.replicas}
        assert found == set(local.replicas)


def once(db: Database) -> None:
    """Run the job whose label the skipped record has used."""
    with db.begin(label="job") as tx:
        tx.insert("t", ROWS)
        tx.commit()


@pytest.fixture
def local(cluster: ClusterFactory) -> LocalCluster:
    """Three replicas with a table of three rows."""
    local = cluster(settings=QUICK)
    fill(local)
    return local


def fill(local: LocalCluster) -> None:
    """Make a table with three rows on all replicas."""
    with local.connect("r1") as db:
        db.create_table("t", ROWS.schema)
        db.insert("t", ROWS, wait="all")


@SLOW
@pytest.mark.scenario("S50")
def test_a_record_of_a_newer_kind_is_skipped(local: LocalCluster) -> None:
    """All agents stop and name the command; it shows the record first; then all go on, with all rows."""
    csn = poison(local, newer())
    all_stopped(local)
    for replica in REPLICAS:
        assert f"tidelock admin skip-record {csn}" in local.log(replica).read_text()
        with pytest.raises(UnavailableError):  # a start does not help
            local.start(replica, timeout_s=READY_TIMEOUT_S)
    told = command(local, csn)
    for word in (TID, "merge", "upgrade this replica", "Nothing was changed", "r3 (serving)", "--confirm"):
        assert word in told, told
    found = looked_at(local, csn)
    assert (found["skipped"], found["why_not"], found["tids"], found["labels"]) == (
        False, "", [TID], [tree.label("job")]
    )  # fmt: skip
    command(local, csn, "--confirm", "ab", "--why", "w", code=Exit.REFUSED)
    command(local, csn, "--confirm", found["digest"], code=Exit.USAGE)
    assert "skipped by ann: the newer version is gone" in command(local, csn, *confirmed(local, csn))
    assert "it is skipped already: ann" in command(local, csn, *confirmed(local, csn), code=Exit.REFUSED)
    started(local)
    require_whole(local, csn, 3)
    with local.connect("r3") as db:
        [logged] = [record for record in db.log(limit=50) if "skipped" in record]
        assert (logged["csn"], logged["tids"], logged["skipped"]["by"]) == (csn, [], "ann")
        once(db)  # its label is free again
        with pytest.raises(LabelExistsError):
            once(db)
    for asked in (["admin", "why-blocked"], ["log"]):
        shown = subprocess.run(
            [sys.executable, "-m", "tidelock.cli", *asked, "--url", local.url("r1")],
            capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert "skipped by ann" in shown.stdout, shown.stderr


@SLOW
def test_replicas_that_were_down_or_clone_pass_over_it(cluster: ClusterFactory) -> None:
    """One was down all the time; one loses its disk, and gets the word with the catalog of a peer."""
    local = cluster(settings=SETTINGS)
    fill(local)
    local.kill("r3")
    csn = poison(local, newer())
    all_stopped(local, "r1", "r2")
    command(local, csn, *confirmed(local, csn))
    started(local)
    require_whole(local, csn, 3)
    eventually(lambda: tail(local) > csn, what="the end of the record in the log")
    lose_disk(local, "r2")
    started(local, "r2")
    require_whole(local, csn, 6)
    for replica in REPLICAS:  # a start remembers it without the record
        local.kill(replica)
        started(local, replica)
    require_whole(local, csn, 9)


@pytest.mark.slow
def test_a_transaction_in_damaged_bytes_is_not_said_to_be_aborted(local: LocalCluster) -> None:
    """Its home may have answered that it is committed; one of a boot after the word is told as ever."""
    hidden = newer().partition(b'"i"')[0] + b"\xff" * 40
    csn = poison(local, hidden)
    all_stopped(local)
    command(local, csn, *confirmed(local, csn))
    started(local)
    for replica in REPLICAS:
        with local.connect(replica) as db:
            with pytest.raises(DeclaredLostError, match=f"may be in the damaged one of CSN {csn}, which ann"):
                db.outcome(TID)
            tx = db.begin(fresh=True)
            tx.rollback()
            assert db.outcome(tx.tid).decision == "aborted"


def tail(local: LocalCluster) -> int:
    """Return the CSN at which the kept log begins."""
    with local.connect("r1") as db:
        return int(db.status()["tail"])


@SLOW
def test_a_replica_that_has_applied_it_does_not_start(local: LocalCluster) -> None:
    """Its catalog says nothing of a record that was passed over; with an empty disk it clones."""
    csn = poison(local, newer())
    all_stopped(local)
    command(local, csn, *confirmed(local, csn))
    started(local)
    require_whole(local, csn, 3)
    local.kill("r3")
    with closing(sqlite3.connect(local.data_dir("r3") / "catalog.db", isolation_level=None)) as db:
        db.execute("DELETE FROM skipped_records")
    with pytest.raises(UnavailableError):
        local.start("r3", timeout_s=READY_TIMEOUT_S)
    log = local.log("r3").read_text()
    assert f"it has applied the record of CSN {csn}, which ann has had skipped" in log
    assert "start it with an empty one and --replace-disk: it clones" in log
    lose_disk(local, "r3")
    started(local, "r3")
    require_whole(local, csn, 6)


@SLOW
def test_a_good_record_that_contradicts_what_is_applied(local: LocalCluster) -> None:
    """It was acknowledged, so a second word is needed; a record that was applied is never skipped."""
    with local.connect("r1") as db:
        good = db.insert("t", ROWS, wait="all").csn or 0
    refused = command(local, good, *confirmed(local, good, "--decodable"), code=Exit.REFUSED)
    assert f"expected that no replica has applied CSN {good}, found r1 at CSN" in refused
    csn = poison(local, contradicting())
    all_stopped(local)
    assert f"tidelock admin skip-record {csn}" in local.log("r2").read_text()
    assert "add --decodable" in looked_at(local, csn)["why_not"]
    assert "add --decodable" in command(local, csn, *confirmed(local, csn), code=Exit.REFUSED)
    command(local, csn, *confirmed(local, csn, "--decodable"))
    started(local)
    require_whole(local, csn, 6)


@pytest.mark.slow
def test_living_agents_are_fenced_and_go_on_by_themselves(local: LocalCluster) -> None:
    """The word meets agents that have not read the record yet: no boot goes on that does not know of it."""
    for replica in ("r1", "r2"):
        os.kill(local.pid(replica) or 0, signal.SIGSTOP)
    local.kill("r3")
    csn = poison(local, newer())
    command(local, csn, *confirmed(local, csn))
    for replica in ("r1", "r2"):
        os.kill(local.pid(replica) or 0, signal.SIGCONT)
    started(local, "r3")
    for replica in ("r1", "r2"):
        # It may have read the record before it learned of the fence: then it has stopped.
        eventually(lambda one=replica: restarted(local, one), what=f"the next boot of {replica}")  # type: ignore[misc]
        started(local, replica)
    require_whole(local, csn, 3)


def restarted(local: LocalCluster, replica: str) -> bool:
    """Return whether an agent has ended, or has begun a boot after the first one that it was fenced in."""
    if local.pid(replica) is None:
        return True
    try:
        with local.connect(replica) as db:
            return int(db.status()["boot"]) >= 3
    except UnavailableError:
        return False


POINTS: Final = tuple(
    f"{step}.{side}"
    for step in ("csnlog.begin", "replication.apply", "agent.catalog")
    for side in ("before", "after")
)


@SLOW
def test_agents_and_the_command_die_around_the_word(
    cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SIGKILL before and behind the multi of the word, and at each point of a start that learns of it."""
    faults = {replica: dict.fromkeys(POINTS, "crash") for replica in REPLICAS}
    gates = Gates(tmp_path_factory.mktemp("gates"), faults)
    local = cluster(
        settings=SETTINGS, environment_of={replica: gates.environment(replica) for replica in REPLICAS}
    )
    fill(local)
    csn = poison(local, newer())
    all_stopped(local)
    given = confirmed(local, csn)
    command(
        local, csn, *given, code=-signal.SIGKILL, environment={"TIDELOCK_FAULTS": "csnlog.skip.before=crash"}
    )
    assert not looked_at(local, csn)["skipped"]
    command(
        local, csn, *given, code=-signal.SIGKILL, environment={"TIDELOCK_FAULTS": "csnlog.skip.after=crash"}
    )
    assert looked_at(local, csn)["skipped"]
    for number, point in enumerate(POINTS):
        replica = REPLICAS[number % len(REPLICAS)]
        with gates.open(replica, point), pytest.raises(UnavailableError):
            local.start(replica, timeout_s=READY_TIMEOUT_S)
        assert gates.hits(replica, point) == 1
        all_stopped(local, replica)
    started(local)
    require_whole(local, csn, 3)


@SLOW
def test_a_tree_that_is_made_again_has_the_word(cluster: ClusterFactory) -> None:
    """Catalogs remember what they have passed over, and the new tree says it to late replicas."""
    local = cluster(own_zookeeper=True, settings=SETTINGS)
    fill(local)
    csn = poison(local, newer())
    all_stopped(local)
    command(local, csn, *confirmed(local, csn))
    started(local)
    require_whole(local, csn, 3)
    for replica in REPLICAS:
        local.kill(replica)
    sources = [text for replica in REPLICAS for text in ("--from", str(local.data_dir(replica)))]
    base = [sys.executable, "-m", "tidelock.cli", "admin", "rebuild-zookeeper", *sources, "--zk", local.zk]
    report = json.loads(subprocess.run([*base, "--json"], capture_output=True, check=True, text=True).stdout)
    subprocess.run([*base, "--confirm", report["cluster_id"]], capture_output=True, check=True)

    async def word() -> Any:
        store = ZkStore(local.zk, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
        await store.open()
        try:
            return codec.decode_skipped((await node(store, tree.skipped_record(Csn(csn)))).data)
        finally:
            await store.close()

    assert asyncio.run(word()).tids == (TID,)
    started(local)
    require_whole(local, csn, 6)
