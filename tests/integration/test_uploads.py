"""The files of a running job: replicated eagerly, bounded, and deleted when they are not needed."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import itertools
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.histories.evidence import api_address, nothing_left, require_clean_audit
from tests.support.replicas.readers import send
from tests.support.spark.hdfs_client import Folder, HalfWritten, commit_task, parquet, place
from tests.support.waiting import eventually
from tidelock.client import Database, Snapshot, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import TransactionClosedError, UnsealedWriteError

SCHEMA = pa.schema([("id", pa.int64()), ("filling", pa.binary())])
NUMBERS = itertools.count(1)
FILES_MAX, BYTES_MAX = 12, 12 << 20
#: Size of a large file, above `inline_part_bytes_max`.
LARGE = 2 << 20


#: Small files share packs where they are fetched.
SIZES = pytest.mark.parametrize(
    "size", [pytest.param(10, id="small", marks=pytest.mark.slow), pytest.param(LARGE, id="large")]
)
#: The faults of the replica that takes a file, and of the one that fetches it.
FAULTS = {
    "r1": {"replication.fetch.before": "pause"},
    "r2": {"agent.upload.before": "crash", "agent.upload.after": "crash"},
    "r3": {"replication.fetch.before": "pause"},
}


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates of the faults, which act while a test opens them."""
    return Gates(tmp_path_factory.mktemp("gates"), FAULTS)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """Three replicas, two of them needed for a commit."""
    bounds: dict[str, object] = {
        "upload_spread": True,
        "staged_files_max": FILES_MAX,
        "staged_bytes_max": BYTES_MAX,
        "commit_timeout_s": 3,
    }
    return module_cluster(
        settings={**QUICK, **bounds, "secret": "a shared secret"},
        environment_of={replica: gates.environment(replica) for replica in FAULTS},
    )


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A client at r1."""
    with local.connect("r1") as found:
        yield found


@pytest.fixture
def table(db: Database) -> str:
    """An empty table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA)
    return name


@pytest.fixture
def apis(local: LocalCluster) -> dict[str, str]:
    """The addresses that files are sent to."""
    return {replica: api_address(local, replica) for replica in local.replicas}


def rows(number: int, size: int = 10) -> bytes:
    """Return a file of one row and about this number of bytes."""
    return parquet(pa.table({"id": [number], "filling": [os.urandom(size)]}, SCHEMA))


def wrong_codec(data: bytes) -> bytes:
    """Flip one bit of a footer: the codec of its first column is none that exists."""
    codec = data.rindex(b"id\x15") + len(b"id\x15")
    return data[:codec] + bytes([data[codec] ^ 0x40]) + data[codec + 1 :]


def cut_short(data: bytes) -> bytes:
    """Leave the last byte of a file out."""
    return data[:-1]


def ids(reader: Database | Snapshot | Transaction, table: str) -> list[int]:
    """Return the ids in a table."""
    return sorted(reader.read(table, ["id"])["id"].to_pylist())


def early(local: LocalCluster, replica: str, tid: object) -> int:
    """Return how many parts of an undecided transaction a replica holds, durable and verified."""
    db = sqlite3.connect(f"file:{local.data_dir(replica) / 'catalog.db'}?mode=ro", uri=True)
    with contextlib.closing(db):
        sql = "SELECT count(*) FROM parts WHERE creation_tid = ? AND creation_csn IS NULL AND state = 'held'"
        return int(db.execute(sql, (str(tid),)).fetchone()[0])


def require_early(
    local: LocalCluster, tx: Transaction, expected: int, replicas: Sequence[str] | None = None
) -> None:
    """Wait until each replica holds this number of files of a transaction; it must never hold more."""
    for replica in replicas or local.replicas:
        eventually(lambda replica=replica: early(local, replica, tx.tid) >= expected, what=replica)  # type: ignore[misc]
        assert early(local, replica, tx.tid) == expected


def clean(local: LocalCluster) -> None:
    """Require that no replica holds anything that no commit needs."""
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


# -- copies while the job runs -------------------------------------------------------------------------------


@SIZES
def test_peers_hold_the_bytes_before_the_commit(
    local: LocalCluster, db: Database, table: str, size: int, apis: dict[str, str]
) -> None:
    """Before the commit peers hold the files of committed tasks, not of other attempts; no row is visible."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    at_home = dataclasses.replace(folder, to=apis["r1"])
    folder.setup()
    for task in range(2):
        folder.commit_task(at_home.write_task({"": rows(task, size)}, task), task)
    at_home.write_task({"": rows(7, size)}, task=2)
    require_early(local, tx, 2)
    assert ids(tx, table) == []
    assert folder.commit_job().status == 201
    assert ids(tx, table) == [0, 1]
    require_early(local, tx, 2)
    assert ids(db, table) == []
    csn = tx.commit(wait="all").csn
    for replica in local.replicas:
        with local.connect(replica) as reader, reader.snapshot(csn) as snap:
            assert snap.sql(f"SELECT sum(id), count(filling) FROM {table}").to_pylist()[0] == {
                "sum(id)": 1,
                "count(filling)": 2,
            }
    clean(local)
    require_clean_audit(local)


def roll_back(_: LocalCluster, __: Database, tx: Transaction) -> None:
    """Roll back by the client."""
    tx.rollback()


def end_the_lease(_: LocalCluster, db: Database, tx: Transaction) -> None:
    """Wait for the end of the lease, as after the death of the driver."""
    db._connection.leases.remove(tx)


def refuse(_: LocalCluster, __: Database, tx: Transaction) -> None:
    """Commit a job that has not ended, which is refused."""
    with pytest.raises(UnsealedWriteError):
        tx.commit()


def kill_the_home(local: LocalCluster, _: Database, __: Transaction) -> None:
    """Kill the home, whose next boot does not know the transaction."""
    local.kill("r1", signal.SIGKILL)
    local.start("r1")


@pytest.mark.parametrize(
    "end",
    [
        roll_back,
        refuse,
        pytest.param(end_the_lease, marks=pytest.mark.slow),
        pytest.param(kill_the_home, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_of_early_copies(
    local: LocalCluster,
    db: Database,
    table: str,
    apis: dict[str, str],
    end: Callable[[LocalCluster, Database, Transaction], None],
) -> None:
    """Nothing is left of early copies, in whichever way the transaction ends."""
    tx = db.begin(lease="2s")
    folder = Folder(tx.path(table))
    at_home = dataclasses.replace(folder, to=apis["r1"])
    folder.setup()
    folder.commit_task(at_home.write_task({"": rows(1, LARGE)}))
    at_home.write_task({"": rows(2)}, task=1)
    require_early(local, tx, 1)
    end(local, db, tx)
    clean(local)
    require_clean_audit(local)


def test_a_task_that_is_done_over(
    local: LocalCluster, db: Database, table: str, apis: dict[str, str]
) -> None:
    """The second attempt of a task replaces the first, whose files are deleted while the job goes on."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    at_home = dataclasses.replace(folder, to=apis["r1"])
    folder.setup()
    folder.commit_task(at_home.write_task({"": rows(1, LARGE)}))
    require_early(local, tx, 1)
    again = at_home.write_task({"": rows(2, LARGE)}, attempt=1)
    assert folder.done("DELETE", "DELETE", "_temporary/0/task_1_m_000000", recursive="true")
    for replica in local.replicas:
        eventually(lambda replica=replica: early(local, replica, tx.tid) == 0, what=replica)  # type: ignore[misc]
    folder.commit_task(again)
    require_early(local, tx, 1)
    assert folder.commit_job().status == 201
    tx.commit(wait="all")
    assert ids(db, table) == [2]
    clean(local)


# -- bounds --------------------------------------------------------------------------------------------------


def test_too_many_files_are_refused_by_the_setting(
    local: LocalCluster, db: Database, table: str, apis: dict[str, str]
) -> None:
    """The refusal names the setting; when other files are deleted, new ones are taken again."""
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        at_home = dataclasses.replace(folder, to=apis["r1"])
        folder.setup()
        for task in range(FILES_MAX):
            at_home.write_task({"": rows(task)}, task)
        place = (
            f"_temporary/0/_temporary/attempt_1_m_000099_0/part-00099-{'0' * 8}-0000-4000-8000-{'0' * 11}1"
        )
        answer = folder.create(f"{place}-c000.snappy.parquet", rows(99))
        assert (answer.status, answer.exception) == (403, "AccessControlException")
        assert f"staged_files_max={FILES_MAX}" in str(answer.json())
        assert folder.done(
            "DELETE", "DELETE", "_temporary/0/_temporary/attempt_1_m_000003_0", recursive="true"
        )
        folder.commit_task(at_home.write_task({"": rows(99)}, 99), 99)
        assert folder.commit_job().status == 201
    assert ids(db, table) == [99]
    clean(local)


def test_too_many_bytes_are_refused_while_they_come(
    local: LocalCluster, db: Database, table: str, apis: dict[str, str]
) -> None:
    """A file above the limit is refused while it comes in, leaves nothing, and the transaction goes on."""
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        at_home = dataclasses.replace(folder, to=apis["r1"])
        folder.setup()
        folder.commit_task(at_home.write_task({"": rows(1, BYTES_MAX * 2 // 3)}))
        upload = HalfWritten(at_home, 1)
        for _ in range(5):
            with contextlib.suppress(OSError):
                upload.send(b"x" * (BYTES_MAX // 10))
        assert upload.end() in {0, 403}
        told = folder.ask("GET", "GETFILESTATUS", upload.attempt)
        assert folder.names(upload.attempt) == [], told
        folder.commit_task(at_home.write_task({"": rows(2)}, task=2), task=2)
        assert folder.commit_job().status == 201
    assert ids(db, table) == [1, 2]
    clean(local)


@pytest.mark.parametrize("damage", [wrong_codec, cut_short], ids=["wrong codec", "cut short"])
def test_a_damaged_file_fails_its_job_and_not_the_home(
    local: LocalCluster, db: Database, table: str, apis: dict[str, str], damage: Callable[[bytes], bytes]
) -> None:
    """Pyarrow ends the process that reads a footer with an unknown codec: that is never the agent."""
    before = local.pid("r1")
    with contextlib.suppress(TransactionClosedError), db.begin() as tx:
        folder = Folder(tx.path(table))
        at_home = dataclasses.replace(folder, to=apis["r1"])
        folder.setup()
        folder.commit_task(at_home.write_task({"": rows(1)}))
        folder.commit_task(at_home.write_task({"": damage(rows(2))}, task=2), task=2)
        answer = folder.commit_job()
        assert answer.status >= 400
        assert "cannot be read as Parquet" in str(answer.json())
        with pytest.raises(TransactionClosedError, match="cannot be read as Parquet"):
            tx.commit()
        tx.rollback()
    assert local.pid("r1") == before
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        folder.setup()
        folder.commit_task(dataclasses.replace(folder, to=apis["r1"]).write_task({"": rows(3)}))
        assert folder.commit_job().status == 201
    assert ids(db, table) == [3]
    clean(local)


# -- uploads to other replicas -------------------------------------------------------------------------------


@SIZES
def test_files_go_to_all_replicas(
    local: LocalCluster, db: Database, table: str, apis: dict[str, str], size: int
) -> None:
    """Files go to all replicas in turn; the home has all of them at the commit, and the rows are right."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    sent = set()
    for task in range(3):
        told = folder.redirect(place(task))
        at = urlsplit(told.headers["Location"])
        sent.add(at.netloc)
        assert send(at.netloc, "PUT", f"{at.path}?{at.query}", rows(task, size)).status == 201
        assert folder.ask("GET", "GETFILESTATUS", place(task)).json()["FileStatus"]["length"] > size
        commit_task(folder, task)
    assert sent == set(apis.values())
    require_early(local, tx, 3)
    assert folder.commit_job().status == 201
    assert ids(tx, table) == [0, 1, 2]
    csn = tx.commit(wait="all").csn
    for replica in local.replicas:
        with local.connect(replica) as reader, reader.snapshot(csn) as snap:
            assert ids(snap, table) == [0, 1, 2]
            assert snap.read(table, where="id > 1")["id"].to_pylist() == [2]
    clean(local)
    require_clean_audit(local)


def test_a_pack_that_is_shared_with_an_aborted_attempt(
    local: LocalCluster, db: Database, gates: Gates, table: str, apis: dict[str, str]
) -> None:
    """Small files are fetched into one pack, which outlives the removal of one of them."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    with gates.open("r1", "replication.fetch.before"):
        for task in range(3):
            assert folder.create(place(task), rows(task), to=apis["r2"]).status == 201
    require_early(local, tx, 3, ["r1"])
    for task in range(2):
        commit_task(folder, task)
    assert folder.commit_job().status == 201
    tx.commit(wait="all")
    assert ids(db, table) == [0, 1]
    clean(local)
    require_clean_audit(local)


def abort_the_attempt(_: LocalCluster, __: Database, tx: Transaction, folder: Folder) -> None:
    """Commit the transaction, without the attempt's file."""
    assert folder.done("DELETE", "DELETE", "_temporary/0/_temporary/attempt_1_m_000001_0", recursive="true")
    assert folder.commit_job().status == 201
    tx.commit()


ENDS = {end.__name__: end for end in (roll_back, end_the_lease, refuse, kill_the_home)}


@pytest.mark.parametrize(
    "end",
    [
        "roll_back",
        "abort_the_attempt",
        pytest.param("refuse", marks=pytest.mark.slow),
        pytest.param("end_the_lease", marks=pytest.mark.slow),
        pytest.param("kill_the_home", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_at_who_took_a_file(
    local: LocalCluster, db: Database, table: str, apis: dict[str, str], end: str
) -> None:
    """Files of a committed task, of an attempt, and of a running upload are deleted; zombies are refused."""
    tx = db.begin(lease="3s")
    folder = Folder(tx.path(table))
    folder.setup()
    assert folder.create(place(0), rows(1, LARGE), to=apis["r2"]).status == 201
    commit_task(folder, 0)
    assert folder.create(place(1), rows(2), to=apis["r3"]).status == 201
    upload = HalfWritten(folder, 2, to=apis["r2"])
    late = urlsplit(folder.redirect(place(3), to=apis["r3"]).headers["Location"])
    if end in ENDS:
        ENDS[end](local, db, tx)
    else:
        abort_the_attempt(local, db, tx, folder)
    if end == "end_the_lease":
        eventually(lambda: not folder.exists())
    assert upload.end() in {0, 403}
    answer = send(late.netloc, "PUT", f"{late.path}?{late.query}", rows(4))
    assert (answer.status, answer.exception) == (403, "AccessControlException")
    clean(local)
    require_clean_audit(local)


def test_grants_that_are_not_good(
    local: LocalCluster, db: Database, table: str, apis: dict[str, str]
) -> None:
    """Grants that are forged, foreign or used are refused; a grant opens nothing else; no log shows it."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    path = urlsplit(folder.redirect(place(0), to=apis["r2"]).headers["Location"]).path
    grant, token = path.rpartition("/")[2], folder.path.split("/")[2]

    def refused(method: str, api: str, target: str) -> str:
        answer = send(api, method, f"{target}?op=CREATE&data=true", b"x")
        assert answer.status == 403, answer.body
        return str(answer.json()["RemoteException"]["message"])

    base = path.rpartition("/")[0]
    assert "no token" in refused("PUT", apis["r2"], f"{base}/{grant[:-4]}AAAA")
    assert "no token" in refused("PUT", apis["r2"], f"{base}/{token}")
    assert "no token" in refused("PUT", apis["r1"], f"/webhdfs/v1/transactions/{grant}/default/{table}/x")
    assert "granted to replica r2" in refused("PUT", apis["r3"], path)
    assert "not supported" in refused("GET", apis["r2"], path)
    assert send(apis["r2"], "GET", f"/api/v1/status?grant={grant}").status == 401
    assert send(apis["r2"], "PUT", f"{path}?op=CREATE&data=true", rows(1)).status == 201
    assert "exists already" in refused("PUT", apis["r2"], path)
    commit_task(folder, 0)
    assert folder.commit_job().status == 201
    tx.commit()
    assert ids(db, table) == [1]
    for replica in local.replicas:
        log = local.log(replica).read_text(encoding="utf-8")
        assert grant.split(".")[2] not in log
    clean(local)


@pytest.mark.slow
def test_a_replica_that_dies_with_a_file(
    local: LocalCluster, db: Database, table: str, apis: dict[str, str]
) -> None:
    """The attempt fails, and the next one goes elsewhere; files that were fetched before are not lost."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    assert folder.create(place(0), rows(1, LARGE), to=apis["r2"]).status == 201
    commit_task(folder, 0)
    require_early(local, tx, 1)
    upload = HalfWritten(folder, 1, to=apis["r2"])
    local.kill("r2", signal.SIGKILL)
    try:
        assert upload.end() == 0
        assert folder.done("DELETE", "DELETE", upload.attempt, recursive="true")
        eventually(lambda: sent_to(folder, 6) <= {apis["r1"], apis["r3"]}, what="r2 is named no more")
        assert folder.create(place(1, 8), rows(2), to=apis["r3"]).status == 201
        commit_task(folder, 1, 8)
        assert folder.commit_job().status == 201
        tx.commit()
    finally:
        local.start("r2")
    assert ids(db, table) == [1, 2]
    clean(local)
    require_clean_audit(local)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["agent.upload.before", "agent.upload.after"])
def test_a_replica_that_dies_when_a_file_is_durable(
    local: LocalCluster, db: Database, gates: Gates, table: str, apis: dict[str, str], point: str
) -> None:
    """The writer gets no answer, before or after the home has noted the file, so its task does not commit."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    with gates.open("r2", point), pytest.raises((OSError, http.client.HTTPException)):
        folder.create(place(0), rows(1, LARGE), to=apis["r2"])
    eventually(lambda: local.pid("r2") is None, what="the death of r2")
    local.start("r2")
    assert folder.done("DELETE", "DELETE", place(0).rpartition("/")[0], recursive="true")
    assert folder.create(place(0, 1), rows(2)).status == 201
    commit_task(folder, 0, 1)
    assert folder.commit_job().status == 201
    tx.commit(wait="all")
    assert ids(db, table) == [2]
    clean(local)
    require_clean_audit(local)


@pytest.mark.parametrize(
    "back",
    [
        pytest.param(True, id="and comes back"),
        pytest.param(False, id="and stays away", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_replica_that_dies_before_its_file_was_fetched(
    local: LocalCluster, db: Database, gates: Gates, table: str, apis: dict[str, str], back: bool
) -> None:
    """The seal waits for the dead replica; then the job fails, and no rows are committed without its file."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    try:
        with gates.open("r1", "replication.fetch.before"), gates.open("r3", "replication.fetch.before"):
            assert folder.create(place(0), rows(1, LARGE), to=apis["r2"]).status == 201
            commit_task(folder, 0)
            gates.await_hit("r3", "replication.fetch.before")
            local.kill("r2", signal.SIGKILL)
        if back:
            local.start("r2")
        answer = folder.commit_job()
        if back:
            assert answer.status == 201
            tx.commit()
        else:
            assert "cannot be fetched from there" in str(answer.json())
            with pytest.raises(TransactionClosedError):
                tx.commit()
            tx.rollback()
    finally:
        local.start("r2")
    assert ids(db, table) == ([1] if back else [])
    clean(local)
    require_clean_audit(local)


def sent_to(folder: Folder, count: int) -> set[str]:
    """Return the replicas that would get this number of files; no file is sent."""
    told = [folder.redirect(place(90 + number)).headers["Location"] for number in range(count)]
    return {urlsplit(location).netloc for location in told}
