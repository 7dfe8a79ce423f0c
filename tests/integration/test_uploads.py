"""Where the bytes of a job are while it runs: copied early, bounded, and gone when they are not needed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tests.support.cluster import QUICK, ClusterFactory
from tests.support.evidence import nothing_left, require_clean_audit
from tests.support.hdfs_client import Folder, HalfWritten, parquet
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import UnsealedWriteError

SCHEMA = pa.schema([("id", pa.int64()), ("filling", pa.binary())])
NUMBERS = itertools.count(1)
FILES_MAX, BYTES_MAX = 12, 12 << 20
#: Beyond `inline_part_bytes_max`.
LARGE = 2 << 20


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas, two of them needed for a commit."""
    bounds = {"staged_files_max": FILES_MAX, "staged_bytes_max": BYTES_MAX}
    return module_cluster(settings={**QUICK, **bounds, "reader_workers": 1, "secret": "a shared secret"})


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


def rows(number: int, size: int = 10) -> bytes:
    """A file of one row and about so many bytes."""
    return parquet(pa.table({"id": [number], "filling": [os.urandom(size)]}, SCHEMA))


def ids(reader: Database | Transaction, table: str) -> list[int]:
    """What is in the table."""
    return sorted(reader.read(table, ["id"])["id"].to_pylist())


def early(local: LocalCluster, replica: str, tid: object) -> int:
    """How many parts of a transaction that is not decided a replica holds, durable and verified."""
    db = sqlite3.connect(f"file:{local.data_dir(replica) / 'catalog.db'}?mode=ro", uri=True)
    with contextlib.closing(db):
        sql = "SELECT count(*) FROM parts WHERE creation_tid = ? AND creation_csn IS NULL AND state = 'held'"
        return int(db.execute(sql, (str(tid),)).fetchone()[0])


def require_early(local: LocalCluster, tx: Transaction, expected: int) -> None:
    """Wait until each replica holds so many files of a transaction; more than that it never gets."""
    for replica in local.replicas:
        eventually(lambda replica=replica: early(local, replica, tx.tid) >= expected, what=replica)  # type: ignore[misc]
        assert early(local, replica, tx.tid) == expected


def clean(local: LocalCluster) -> None:
    """No replica holds anything that no commit needs."""
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


# -- copies while the job runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_peers_hold_the_bytes_before_the_commit(
    local: LocalCluster, db: Database, table: str, size: int
) -> None:
    """What committed tasks have written; not what an attempt has that never commits. Nobody sees it yet."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    for task in range(2):
        folder.commit_task(folder.write_task({"": rows(task, size)}, task), task)
    folder.write_task({"": rows(7, size)}, task=2)
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
    """By the client."""
    tx.rollback()


def end_the_lease(_: LocalCluster, db: Database, tx: Transaction) -> None:
    """The driver has died."""
    db._connection.leases.remove(tx)


def refuse(_: LocalCluster, __: Database, tx: Transaction) -> None:
    """The commit of a job that has not ended."""
    with pytest.raises(UnsealedWriteError):
        tx.commit()


def kill_the_home(local: LocalCluster, _: Database, __: Transaction) -> None:
    """Its next life knows nothing of the transaction."""
    local.kill("r1", signal.SIGKILL)
    local.start("r1")


@pytest.mark.parametrize("end", [roll_back, end_the_lease, refuse, kill_the_home])
def test_nothing_is_left_of_early_copies(
    local: LocalCluster, db: Database, table: str, end: Callable[[LocalCluster, Database, Transaction], None]
) -> None:
    """However the transaction ends."""
    tx = db.begin(lease="2s")
    folder = Folder(tx.path(table))
    folder.setup()
    folder.commit_task(folder.write_task({"": rows(1, LARGE)}))
    folder.write_task({"": rows(2)}, task=1)
    require_early(local, tx, 1)
    end(local, db, tx)
    clean(local)
    require_clean_audit(local)


def test_a_task_that_is_done_over(local: LocalCluster, db: Database, table: str) -> None:
    """Its second attempt takes the place of the first, of which nothing is left while the job goes on."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    folder.commit_task(folder.write_task({"": rows(1, LARGE)}))
    require_early(local, tx, 1)
    again = folder.write_task({"": rows(2, LARGE)}, attempt=1)
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


def test_too_many_files(local: LocalCluster, db: Database, table: str) -> None:
    """The file is refused by the name of the setting; when others have gone, there is room again."""
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        folder.setup()
        for task in range(FILES_MAX):
            folder.write_task({"": rows(task)}, task)
        place = (
            f"_temporary/0/_temporary/attempt_1_m_000099_0/part-00099-{'0' * 8}-0000-4000-8000-{'0' * 11}1"
        )
        answer = folder.create(f"{place}-c000.snappy.parquet", rows(99))
        assert (answer.status, answer.exception) == (403, "AccessControlException")
        assert f"staged_files_max={FILES_MAX}" in str(answer.json())
        assert folder.done(
            "DELETE", "DELETE", "_temporary/0/_temporary/attempt_1_m_000003_0", recursive="true"
        )
        folder.commit_task(folder.write_task({"": rows(99)}, 99), 99)
        assert folder.commit_job().status == 201
    assert ids(db, table) == [99]
    clean(local)


def test_too_many_bytes(local: LocalCluster, db: Database, table: str) -> None:
    """Also while they come in; what is refused leaves nothing, and the transaction can go on."""
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        folder.setup()
        folder.commit_task(folder.write_task({"": rows(1, BYTES_MAX * 2 // 3)}))
        upload = HalfWritten(folder, 1)
        for _ in range(5):
            with contextlib.suppress(OSError):
                upload.send(b"x" * (BYTES_MAX // 10))
        assert upload.end() in {0, 403}
        told = folder.ask("GET", "GETFILESTATUS", upload.attempt)
        assert folder.names(upload.attempt) == [], told
        folder.commit_task(folder.write_task({"": rows(2)}, task=2), task=2)
        assert folder.commit_job().status == 201
    assert ids(db, table) == [1, 2]
    clean(local)
