"""Writes through the file system of agents, by plain HTTP: requests of Spark's committer, and of zombies.

The cluster has a shared secret. These requests do not carry it, only the token in the path.
"""

from __future__ import annotations

import datetime as dt
import http.client
import itertools
import re
import signal
import uuid
from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.histories.evidence import api_address, nothing_left
from tests.support.spark.hdfs_client import JOB, Folder, HalfWritten, file_name, parquet
from tests.support.waiting import TIMEOUT_S, eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    SchemaMismatchError,
    SerializationConflictError,
    TransactionClosedError,
    UnsealedWriteError,
)

SECRET = "a shared secret"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
STORED = pa.schema([field for field in SCHEMA if field.name != "city"])
NUMBERS = itertools.count(1)
#: The fault point before the files of a job become parts.
SEAL = "agent.stage.before"
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates at which seals wait while a test closes them."""
    return Gates(tmp_path_factory.mktemp("gates"), {"r1": {SEAL: "pause"}})


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    return module_cluster(
        replicas=2,
        settings={**QUICK, "secret": SECRET},
        environment_of={"r1": gates.environment("r1")},
    )


@pytest.fixture
def table(db: Database) -> str:
    """An empty table, partitioned by city."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["city"])
    return name


@pytest.fixture
def tx(db: Database) -> Iterator[Transaction]:
    """A transaction that is rolled back if the test has not ended it."""
    found = db.begin()
    yield found
    if found.state in {"open", "failed"}:
        found.rollback()


def stored(*ids: int | None, schema: pa.Schema = STORED) -> pa.Table:
    """Return rows without the partition column, as in a file of one partition."""
    rows = {"id": ids, "price": [Decimal("1.50")] * len(ids), "at": [AT] * len(ids)}
    return pa.table(rows, schema=pa.schema([field.with_nullable(True) for field in schema]))


def ids(reader: Database | Transaction, table: str) -> list[int]:
    """Return the ids in a table."""
    return sorted(reader.read(table, ["id"])["id"].to_pylist())


def clean(local: LocalCluster) -> None:
    """Require that no replica holds anything that no commit needs."""
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


# -- jobs ----------------------------------------------------------------------------------------------------


def test_a_job_of_two_tasks(local: LocalCluster, db: Database, table: str, tx: Transaction) -> None:
    """The transaction sees the rows after the seal, all clients on all replicas after the commit."""
    folder = Folder(tx.path(table))
    folder.setup()
    attempts = [folder.write_task({"city=Zürich": parquet(stored(1, 2)), "city=a%2Fb": parquet(stored(3))})]
    attempts.append(folder.write_task({"city=Zürich": parquet(stored(4))}, task=1))
    for task, attempt in enumerate(attempts):
        folder.commit_task(attempt, task)
    assert ids(tx, table) == []
    assert folder.commit_job().status == 201
    assert ids(tx, table) == [1, 2, 3, 4]
    assert ids(db, table) == []
    csn = tx.commit(wait="all").csn
    assert csn is not None
    for replica in local.replicas:
        with local.connect(replica) as reader, reader.snapshot(csn) as snap:
            found = snap.sql(f"SELECT city, sum(id), sum(price) FROM {table} GROUP BY 1 ORDER BY 2 DESC")
            assert [list(row.values()) for row in found.to_pylist()] == [
                ["Zürich", 7, Decimal("4.50")],
                ["a/b", 3, Decimal("1.50")],
            ]
    clean(local)


def test_an_aborted_attempt_and_a_speculative_one(local: LocalCluster, db: Database, table: str) -> None:
    """Files of uncommitted attempts add no rows, and are deleted."""
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        folder.setup()
        failed = folder.write_task({"city=a": parquet(stored(1))})
        assert folder.done("DELETE", "DELETE", failed, recursive="true")
        folder.write_task({"city=a": parquet(stored(2))}, attempt=1)
        aborted = HalfWritten(folder)
        assert folder.done("DELETE", "DELETE", aborted.attempt, recursive="true")
        assert aborted.end() == 403
        folder.commit_task(folder.write_task({"city=a": parquet(stored(3))}, attempt=2))
        assert folder.commit_job().status == 201
    assert ids(db, table) == [3]
    clean(local)


def test_a_job_without_rows(local: LocalCluster, db: Database, table: str) -> None:
    """Spark writes a file without rows for an empty DataFrame; it becomes no part."""
    with db.begin() as tx:
        assert Folder(tx.path(table)).write({"city=a": parquet(stored())}).status == 201
    assert tx.csn is None
    clean(local)


def test_a_job_without_the_mark_is_sealed_by_the_client(db: Database, table: str) -> None:
    """A job whose committer leaves no _SUCCESS is sealed by the client; a second seal adds nothing."""
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        folder.setup()
        with pytest.raises(UnsealedWriteError):
            tx.seal(table)
        tx.rollback()
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        folder.setup()
        folder.commit_task(folder.write_task({"city=a": parquet(stored(1, 2))}))
        assert folder.rename("_temporary/0/task_1_m_000000/city=a", "city=a").status == 200
        assert folder.done("DELETE", "DELETE", "_temporary", recursive="true")
        assert (tx.seal(table).rows, tx.seal(table).rows) == (2, 0)
    assert ids(db, table) == [1, 2]


def test_a_mark_whose_answer_comes_too_late(
    local: LocalCluster, gates: Gates, db: Database, table: str
) -> None:
    """Spark gives up and runs a failed job again, so this one must not count: its rows would come twice."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    folder.commit_task(folder.write_task({"city=a": parquet(stored(1))}))
    folder.close_job()
    at = urlsplit(folder.redirect("_SUCCESS", overwrite=True).headers["Location"])
    with gates.open("r1", SEAL):
        spark = http.client.HTTPConnection(at.netloc, timeout=TIMEOUT_S)
        spark.request("PUT", f"{at.path}?{at.query}")
        gates.await_hit("r1", SEAL)
        spark.close()

    def state() -> str:
        return str(next(found["state"] for found in db.transactions() if found["tid"] == tx.tid))

    eventually(lambda: state() == "failed", what="the end of the seal")
    with pytest.raises(TransactionClosedError, match="given up waiting"):
        tx.commit()
    tx.rollback()
    assert ids(db, table) == []
    clean(local)


def test_version_2_is_refused_by_name(table: str, tx: Transaction) -> None:
    """Version 2 of the committer is refused at its first rename, before a file is in place."""
    folder = Folder(tx.path(table))
    folder.setup()
    attempt = folder.write_task({"city=a": parquet(stored(1))})
    answer = folder.rename(f"{attempt}/city=a", "city=a")
    assert (answer.status, answer.exception) == (403, "AccessControlException")
    assert "mapreduce.fileoutputcommitter.algorithm.version=1" in answer.json()["RemoteException"]["message"]
    with pytest.raises(UnsealedWriteError):
        tx.commit()


def test_the_folder_is_not_for_reading(table: str, tx: Transaction) -> None:
    """Reads of the folder fail in every mode of Spark, so that it is not taken for the table."""
    folder = Folder(tx.path(table))
    assert folder.write({"city=a": parquet(stored(1))}).status == 201
    for op in ("LISTSTATUS", "OPEN", "GETCONTENTSUMMARY"):
        answer = folder.ask("GET", op)
        assert (answer.status, answer.exception) == (403, "AccessControlException")
        assert "Content-Type" not in answer.headers


# -- jobs that do not end well -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["running", "in place", "overwrite"])
def test_a_job_that_has_not_ended(local: LocalCluster, db: Database, table: str, how: str) -> None:
    """The commit of a running job is refused; its rows are invisible, and no file is left."""
    db.insert(table, pa.table({"id": [9], "city": ["a"], "price": [None], "at": [None]}, SCHEMA))
    tx = db.begin()
    folder = Folder(tx.path(table))
    if how == "overwrite":
        assert folder.done("DELETE", "DELETE", recursive="true")
    else:
        folder.setup()
        folder.commit_task(folder.write_task({"city=a": parquet(stored(1))}))
        if how == "in place":
            assert folder.rename("_temporary/0/task_1_m_000000/city=a", "city=a").status == 200
            assert folder.done("DELETE", "DELETE", "_temporary", recursive="true")
    with pytest.raises(UnsealedWriteError) as refused:
        tx.commit()
    assert refused.value.details["table"] == f"default.{table}"
    assert ids(db, table) == [9]
    clean(local)


#: Wrong files; tests/unit/replica_agent/uploads/test_parquet_files.py has those with a wrong footer.
WRONG: dict[str, tuple[bytes, str, str]] = {
    "a null": (parquet(stored(1, None)), "city=a", "column id .* is required"),
    "no partition": (parquet(stored(1)), "", r'partitionBy\("city"\)'),
    "no Parquet": (b"PAR1 and nothing else", "city=a", "cannot be read as Parquet"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_fails_its_job_by_column(
    local: LocalCluster, db: Database, table: str, kind: str
) -> None:
    """The seal of the job fails and names the column; the transaction takes a rollback only."""
    data, partition, message = WRONG[kind]
    tx = db.begin()
    answer = Folder(tx.path(table)).write({partition: data})
    assert (answer.status, answer.exception) == (403, "AccessControlException")
    text = answer.json()["RemoteException"]["message"]
    assert re.search(message, text), text
    with pytest.raises((SchemaMismatchError, TransactionClosedError)):
        tx.commit()
    tx.rollback()
    clean(local)


def test_another_order_of_columns(local: LocalCluster, db: Database, table: str) -> None:
    """Every reader finds columns and statistics by name."""
    with db.begin() as tx:
        Folder(tx.path(table)).write({"city=a": parquet(stored(5, 6).select(["at", "id", "price"]))})
    assert db.read(table, where="id > 5 AND price = 1.5")["id"].to_pylist() == [6]
    assert db.read(table, where="id > 6").num_rows == 0


# -- replacing -----------------------------------------------------------------------------------------------


def row(city: str, number: int) -> pa.Table:
    """One row for an insert."""
    return pa.table({"id": [number], "city": [city], "price": [None], "at": [None]}, SCHEMA)


def test_an_overwrite_replaces_all_rows_of_the_table(local: LocalCluster, db: Database, table: str) -> None:
    """The rows of the job replace the table's and the transaction's own rows."""
    db.insert(table, row("a", 1))
    with db.begin() as tx:
        tx.insert(table, row("b", 2))
        folder = Folder(tx.path(table))
        assert folder.write({"city=b": parquet(stored(3))}).status == 201
        assert folder.done("DELETE", "DELETE", recursive="true")
        assert folder.write({"city=a": parquet(stored(4))}, job=str(uuid.uuid4())).status == 201
        assert ids(tx, table) == [4]
        assert ids(db, table) == [1]
    assert ids(db, table) == [4]
    clean(local)


def test_of_two_who_overwrite_the_second_is_refused_early(db: Database, table: str) -> None:
    """The second overwrite fails at once, before its job has written a file."""
    db.insert(table, row("a", 1))
    with db.begin() as one, db.begin() as two:
        assert Folder(one.path(table)).done("DELETE", "DELETE", recursive="true")
        answer = Folder(two.path(table)).ask("DELETE", "DELETE", recursive="true")
        assert str(one.tid) in str(answer.json())
        with pytest.raises((SerializationConflictError, TransactionClosedError)):
            two.commit()
        two.rollback()
        one.rollback()


def test_partitions_are_replaced_where_the_job_writes(local: LocalCluster, db: Database, table: str) -> None:
    """A job in Spark's dynamic mode replaces only the partitions that it writes."""
    for number, city in enumerate("abc"):
        db.insert(table, row(city, number))
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        inner = Folder(f"{folder.url}/.spark-staging-{JOB}")
        assert inner.write({"city=a": parquet(stored(10)), "city=b": parquet(stored(11))}).status == 201
        for city in "ab":
            assert folder.done("DELETE", "DELETE", f"city={city}", recursive="true")
            moved = folder.rename(f".spark-staging-{JOB}/city={city}", f"city={city}")
            assert moved.json() == {"boolean": True}
        assert folder.done("DELETE", "DELETE", f".spark-staging-{JOB}", recursive="true")
    assert ids(db, table) == [2, 10, 11]
    clean(local)


def test_partitions_of_two_columns_are_replaced(local: LocalCluster, db: Database) -> None:
    """Spark makes the folder above a partition only if a delete answered that it did not exist."""
    name = f"t{next(NUMBERS)}"
    schema = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.int32())])
    db.create_table(name, schema, partition_by=["a", "b"])
    for b in (1, 2):
        db.insert(name, pa.table({"id": [b], "a": [1], "b": [b]}, schema))
    places = ("a=1/b=2", "a=3/b=3")
    with db.begin() as tx:
        folder = Folder(tx.path(name))
        inner = Folder(f"{folder.url}/.spark-staging-{JOB}")
        rows = {place: parquet(pa.table({"id": [10 + n]})) for n, place in enumerate(places)}
        assert inner.write(rows).status == 201
        for place in places:
            if not folder.done("DELETE", "DELETE", place, recursive="true"):
                folder.done("PUT", "MKDIRS", place.partition("/")[0])
            assert folder.rename(f".spark-staging-{JOB}/{place}", place).json() == {"boolean": True}
        assert folder.done("DELETE", "DELETE", f".spark-staging-{JOB}", recursive="true")
    assert ids(db, name) == [1, 10, 11]
    clean(local)


def test_a_failed_overwrite_is_not_forgiven(local: LocalCluster, db: Database, table: str) -> None:
    """After a failed overwrite an append would be committed alone, so only another overwrite may follow."""
    db.insert(table, row("a", 1))
    for again in (False, True):
        tx = db.begin()
        folder = Folder(tx.path(table))
        assert folder.done("DELETE", "DELETE", recursive="true")
        folder.setup()
        folder.write_task({"city=a": parquet(stored(2))})
        for place in ("_temporary", f".spark-staging-{JOB}"):
            folder.done("DELETE", "DELETE", place, recursive="true")
        assert "has removed rows of this table" in folder.refusal()
        if again:
            assert folder.done("DELETE", "DELETE", recursive="true")
            assert folder.write({"city=a": parquet(stored(3))}, job=str(uuid.uuid4())).status == 201
            tx.commit()
        else:
            with pytest.raises(UnsealedWriteError):
                tx.commit()
            assert ids(db, table) == [1]
    assert ids(db, table) == [3]
    clean(local)


def test_two_jobs_at_once(local: LocalCluster, db: Database, table: str) -> None:
    """The second job is refused before it has files to clean up, and the first goes on."""
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        folder.setup()
        attempts = []
        for number in range(2):
            assert "write one after the other" in folder.refusal()
            assert "write one after the other" in folder.refusal("DELETE", "DELETE", "")
            attempts.append(folder.write_task({"city=a": parquet(stored(1))}, attempt=number))
        folder.commit_task(attempts[-1])
        assert folder.commit_job().status == 201
    assert ids(db, table) == [1]
    clean(local)


def test_a_place_without_end(table: str, tx: Transaction) -> None:
    """One request cannot make thousands of folders."""
    deep = "/".join(["a"] * 1000)
    for method, op, place in (
        ("PUT", "MKDIRS", f"_temporary/0/{deep}"),
        ("PUT", "CREATE", f"_temporary/0/_temporary/a/{deep}/{file_name()}"),
        ("DELETE", "DELETE", f"{deep}/city=a"),
    ):
        assert "at most 40 names" in Folder(tx.path(table)).refusal(method, op, place)


# -- zombies and deaths --------------------------------------------------------------------------------------


def test_an_attempt_that_outlives_its_transaction(local: LocalCluster, db: Database, table: str) -> None:
    """After rollback, commit or the end of the lease an attempt is refused, and leaves no file."""
    for end in ("rollback", "commit"):
        tx = db.begin()
        folder = Folder(tx.path(table))
        if end == "commit":
            folder.setup()
            folder.commit_task(folder.write_task({"city=a": parquet(stored(1))}))
            zombie = HalfWritten(folder, 1)
            assert folder.commit_job().status == 201
            tx.commit()
        else:
            zombie = HalfWritten(folder)
            tx.rollback()
        assert zombie.end() in {0, 403}
        assert folder.create(f"_temporary/0/_temporary/a/{file_name()}", b"late").status == 403
    assert ids(db, table) == [1]
    clean(local)


def test_an_upload_is_no_sign_of_life(local: LocalCluster, db: Database, table: str) -> None:
    """Executors may write on when the driver is dead: the lease ends, and staged files are deleted."""
    tx = db.begin(lease="3s")
    folder = Folder(tx.path(table))
    folder.setup()
    folder.write_task({"city=a": parquet(stored(1))})
    db._connection.leases.remove(tx)  # the driver has died
    eventually(lambda: not folder.exists())
    assert "no sign of life" in folder.refusal()
    with pytest.raises(TransactionClosedError):
        tx.commit()
    clean(local)


def test_a_home_that_dies_while_files_come_in(local: LocalCluster, db: Database, table: str) -> None:
    """The next boot of the home deletes staged files, and refuses tokens of the former boot as finished."""
    with local.connect("r2") as there:
        tx = there.begin(fresh=True)  # so that r2 knows the table, which was made at r1
        folder = Folder(tx.path(table))
        folder.setup()
        folder.write_task({"city=a": parquet(stored(1))})
        zombie = HalfWritten(folder, 1, to=api_address(local, "r2"))
        local.kill("r2", signal.SIGKILL)
        assert zombie.end() == 0
        local.start("r2")
        url = there.begin(fresh=True).path(table)
        there.close()
    token = folder.path.split("/")[2]
    assert "has ended" in Folder(url.replace(url.split("/")[4], token)).refusal()
    clean(local)
    with local.connect() as everywhere:
        assert everywhere.audit(timeout_s=TIMEOUT_S).findings == []
