"""Tokens: the calls that each right allows, and the error of each wrong token, for calls and for paths.

The cluster has a shared secret. Clients that join or write by path do not have it: they show a token only.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.replicas.readers import send
from tests.support.spark.hdfs_client import Folder, file_name
from tests.support.waiting import eventually
from tidelock import join
from tidelock.client import Database, JoinedTransaction, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    TokenExpiredError,
    TokenFinishedError,
    TokenForeignError,
    TokenForgedError,
    TokenRightError,
    TransactionClosedError,
    UnknownTransactionError,
    UnsupportedInTransactionError,
)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
#: A lease that no slow step of a test outlasts, in seconds.
LEASE_S: Final = 6.0
ALL: Final = ("append", "replace", "read", "heartbeat", "commit")
NUMBERS = itertools.count(1)

#: The calls that need each right; any token may read the definition of a table.
CALLS: Final[dict[str, list[Callable[[JoinedTransaction, str], Any]]]] = {
    "append": [lambda tx, table: tx.insert(table, rows(1))],
    "read": [lambda tx, table: tx.read(table), lambda tx, table: tx.sql(f"SELECT * FROM {table}")],
    "heartbeat": [lambda tx, _: tx.heartbeat()],
    "commit": [lambda tx, _: tx.commit(), lambda tx, _: tx.rollback()],
}
EVERY_CALL: Final = [call for calls in CALLS.values() for call in calls] + [
    lambda tx, table: tx.definition(table)
]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    return module_cluster(replicas=2, settings={**QUICK, "secret": "a shared secret"})


@pytest.fixture
def table(db: Database) -> str:
    """An empty table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA)
    return name


@pytest.fixture
def tx(db: Database) -> Iterator[Transaction]:
    """A transaction that is rolled back if the test has not ended it."""
    found = db.begin()
    yield found
    with contextlib.suppress(TransactionClosedError):
        found.rollback()


def rows(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": ids}, SCHEMA)


def ids(reader: Database | Transaction | JoinedTransaction, table: str) -> list[int]:
    """Return the ids in a table."""
    return sorted(reader.read(table)["id"].to_pylist())


def refused(error: type[AccessDeniedError], joined: JoinedTransaction, table: str) -> None:
    """Require that every call ends with this error, and that its text does not show the token."""
    for call in EVERY_CALL:
        with pytest.raises(AccessDeniedError) as found:
            call(joined, table)
        assert type(found.value) is error
        assert "tl1." not in str(found.value.to_wire())


def test_another_process_adds_sees_and_commits_by_a_token(
    local: LocalCluster, db: Database, table: str, tx: Transaction
) -> None:
    """Another process adds rows, sees its own and the others', and commits; a repeated commit is answered."""
    tx.insert(table, rows(1))
    token = tx.token(rights=ALL)
    with join(tx.url, token) as joined:
        assert [column["name"] for column in joined.definition(table)["columns"]] == ["id"]
        assert joined.insert(table, rows(2, 3)).rows == 2
        assert ids(joined, table) == ids(tx, table) == [1, 2, 3]
        assert joined.scan(table, where="id > ?", params=[1]).count() == 2
        assert joined.sql(f"SELECT max(id) AS m FROM {table}").to_pydict() == {"m": [3]}
        assert joined.heartbeat() == tx.lease_s
        assert ids(db, table) == []
        done = joined.commit(wait="all")
        assert joined.commit() == done
    assert (done.tid, db.outcome(tx.tid).csn) == (tx.tid, done.csn)
    with local.connect("r2") as reader:
        assert ids(reader, table) == [1, 2, 3]
    with db.join(db.begin().token(rights=["commit"])) as other:
        other.rollback()
        assert db.outcome(other.tid).decision == "aborted"
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


@pytest.mark.parametrize("right", CALLS)
def test_each_right_is_needed(db: Database, table: str, tx: Transaction, right: str) -> None:
    """Each call is refused without its right: with all other rights, and with the default ones."""
    others, default = tx.token(rights=[name for name in ALL if name != right]), tx.token()
    for token in (others, default):
        with db.join(token) as joined:
            assert joined.definition(table)["name"] == f"default.{table}"
            if right == "append" and token is default:
                continue
            for call in CALLS[right]:
                with pytest.raises(TokenRightError) as found:
                    call(joined, table)
                assert found.value.details["right"] == right
    assert tx.state == "open"
    assert ids(tx, table) == []


def test_other_tables_are_hidden_from_a_token(db: Database, table: str, tx: Transaction) -> None:
    """A token for one table hides the others, also from SQL; the refusal does not fail the transaction."""
    db.create_table(f"{table}_x", SCHEMA)
    inside = db.begin()
    with db.join(inside.token(rights=ALL, tables=[table])) as joined:
        assert ids(joined, table) == []
        for call in (
            lambda: joined.read(f"{table}_x"),
            lambda: joined.insert(f"{table}_x", rows(1)),
            lambda: joined.definition(f"{table}_x"),
            lambda: joined.sql(f'SELECT * FROM "default".{table}_x'),
            lambda: joined.read(table, where=f"id IN (SELECT id FROM {table}_x)"),
        ):
            with pytest.raises(TokenRightError, match=rf"is for default\.{table}, but .*{table}_x"):
                call()
        with pytest.raises(UnsupportedInTransactionError):
            joined.sql(f"INSERT INTO {table} SELECT 1")
        with pytest.raises(BadRequestError):
            joined.sql("SELECT nonsense")
        joined.insert(table, rows(5))
    inside.commit()
    assert ids(db, table) == [5]


def test_each_token_that_is_not_good(local: LocalCluster, db: Database, table: str, tx: Transaction) -> None:
    """Tokens that are forged, of another home or transaction, expired or finished are refused everywhere."""
    good = tx.token(rights=ALL)
    claims, mac = good.split(".")[1:]
    forged = f"tl1.{claims}.{mac[:-4]}AAAA"
    refused(TokenForgedError, join(tx.url, forged), table)
    with local.connect("r2") as there, there.begin() as foreign:
        refused(TokenForeignError, join(tx.url, foreign.token(rights=ALL)), table)
    with db.begin() as other:
        joined = join(tx.url, other.token(rights=ALL))
        joined._tid = tx.tid
        refused(TokenForeignError, joined, table)
    short = join(tx.url, tx.token(rights=ALL, ttl_s=1))
    eventually(lambda: expired(short))
    refused(TokenExpiredError, short, table)
    for text in ("", "x", "tl1.e30.AA", "tl1.%.%", good[:20]):
        with pytest.raises(TokenForgedError):
            join(tx.url, text)
    tx.rollback()
    refused(TokenFinishedError, join(tx.url, good), table)


def expired(joined: JoinedTransaction) -> bool:
    """Return whether a token's own time is over."""
    try:
        joined.heartbeat()
    except TokenExpiredError:
        return True
    return False


def test_a_finished_transaction_takes_nothing_by_its_token(db: Database, table: str, tx: Transaction) -> None:
    """After the commit a token adds, reads and renews nothing; a failed transaction can be rolled back."""
    with db.join(tx.token(rights=ALL)) as joined:
        tx.insert(table, rows(1))
        tx.commit()
        for call in (joined.heartbeat, lambda: joined.insert(table, rows(2)), lambda: joined.read(table)):
            with pytest.raises(TokenFinishedError, match="is committed"):
                call()
        with pytest.raises(TransactionClosedError, match="cannot be rolled back"):
            joined.rollback()
    failed = db.begin()
    with db.join(failed.token(rights=ALL)) as joined:
        with pytest.raises(BadRequestError):
            failed.sql("SELECT nonsense")
        with pytest.raises(TokenFinishedError, match="is failed"):
            joined.insert(table, rows(2))
        joined.rollback()
    assert ids(db, table) == [1]


@pytest.mark.slow
def test_only_the_right_to_it_keeps_a_lease(db: Database, table: str) -> None:
    """Only a token with the right to it renews the lease; other calls do not, and the lease runs out."""
    kept, left = db.begin(lease=LEASE_S), db.begin(lease=LEASE_S)
    for tx in (kept, left):
        db._connection.leases.remove(tx)  # as if its program was dead
    with (
        db.join(kept.token(rights=["heartbeat"])) as beat,
        db.join(left.token(rights=["append", "read"])) as busy,
        db.join(left.token(rights=["heartbeat"])) as last,
    ):
        assert last.heartbeat() == LEASE_S
        over = threading.Event()

        def keep() -> None:
            while not over.wait(LEASE_S / 20):
                assert beat.heartbeat() == LEASE_S

        def adds_nothing() -> bool:
            ids(busy, table)
            return busy.insert(table, rows(1)).rows == 0

        with ThreadPoolExecutor(1) as executor:
            keeping = executor.submit(keep)  # in a thread, since a busy machine may take seconds for the rest
            try:
                with pytest.raises(TokenFinishedError):
                    eventually(adds_nothing)
            finally:
                over.set()
            keeping.result()
        assert beat.heartbeat() == LEASE_S
    kept.rollback()


def test_a_token_opens_nothing_else(db: Database, table: str, tx: Transaction) -> None:
    """A token opens neither other transactions nor the routes that need the secret."""
    token, address = tx.token(rights=ALL), tx.url.removeprefix("http://")
    with db.begin() as other:
        targets = [
            ("GET", "/api/v1/status"),
            ("GET", "/api/v1/transactions"),
            ("GET", f"/api/v1/transactions/{tx.tid}"),
            ("POST", f"/api/v1/transactions/{tx.tid}/token"),
            ("POST", f"/api/v1/transactions/{tx.tid}/kill"),
            ("POST", f"/api/v1/transactions/{tx.tid}/truncate/{table}"),
            ("POST", f"/api/v1/transactions/{other.tid}/commit"),
            ("POST", "/api/v1/query"),
            ("GET", f"/api/v1/outcomes/{tx.tid}"),
            ("GET", f"/api/v1/tables/{table}"),
            ("POST", "/peer/v1/forget"),
            ("GET", "/metrics"),
            ("GET", "/nowhere"),
        ]
        for method, target in targets:
            answer = send(address, method, target, headers={"Authorization": f"Bearer {token}"})
            assert answer.status == 403, target
            assert answer.json()["error"] in {"TokenRightError", "TokenForeignError"}
        other.rollback()


def test_resume_goes_on_in_another_process(db: Database, local: LocalCluster, table: str) -> None:
    """A program that has begun a transaction goes on with it in another process."""
    begun = db.begin()
    begun.insert(table, rows(1))
    with local.connect("r2") as later:
        tx = later.resume(begun.tid)
        assert (tx.tid, tx.snapshot_csn, tx.lease_s) == (begun.tid, begun.snapshot_csn, begun.lease_s)
        tx.insert(table, rows(2))
        tx.commit(wait="all")
        with pytest.raises(TransactionClosedError, match="cannot be resumed"):
            later.resume(begun.tid)
        with pytest.raises(UnknownTransactionError):
            later.resume("1-r1-1-9999")
    assert ids(db, table) == [1, 2]


def test_no_log_shows_a_token(local: LocalCluster, table: str, tx: Transaction) -> None:
    """The logs show no token, after accepted and refused calls."""
    token = tx.token(rights=ALL)
    with join(tx.url, token) as joined:
        joined.insert(table, rows(1))
        joined.commit()
        with pytest.raises(TokenFinishedError):
            joined.read(table)
    for replica in local.replicas:
        log = local.log(replica).read_text(encoding="utf-8")
        assert token.split(".")[2] not in log
        assert "tl1.ey" not in log


# -- tokens in paths -----------------------------------------------------------------------------------------


WRONG_REQUESTS: list[dict[str, Any]] = [{"rights": ["all"]}, {"rights": []}, {"ttl_s": 0.5}, {"ttl_s": 1e9}]


def test_each_path_that_is_not_good(local: LocalCluster, db: Database, table: str) -> None:
    """A path whose token is forged, foreign, expired, weak, finished, or another table's, says so."""
    tx = db.begin()
    path = tx.path(table)
    token = path.split("/")[4]

    def other(**asked: Any) -> str:
        return path.replace(token, tx.token(**asked))

    assert "no token" in Folder(path.replace(token, token[:-4] + "AAAA")).refusal()
    assert "no token" in Folder(path.replace(token, "tl1")).refusal()
    with local.connect("r2") as there, there.begin() as foreign:
        assert "of replica r2" in Folder(path.replace(token, foreign.path(table).split("/")[4])).refusal()
    short = other(ttl_s=1)
    eventually(lambda: "has expired" in str(Folder(short).ask("GET", "GETFILESTATUS").body))
    assert "has expired" in Folder(short).refusal()
    appends = other(rights=["append"])
    assert "allows append" in Folder(appends).refusal("DELETE", "DELETE", "")
    assert "allows append" in Folder(appends).refusal("DELETE", "DELETE", "city=a")
    assert "allows replace" in Folder(other(rights=["replace"])).refusal()
    assert "is for default.x" in Folder(other(tables=["x"])).refusal()
    for wrong in WRONG_REQUESTS:
        with db.begin() as asking:
            with pytest.raises(BadRequestError):
                asking.token(**wrong)
            asking.rollback()
    old = tx.path(table)
    tx.rollback()
    assert "rolled_back" in Folder(old).refusal()
    with db.begin() as tx:
        old = tx.path(table)
    assert "committed" in Folder(old).refusal()
    with pytest.raises(TransactionClosedError):
        tx.path(table)


def test_a_path_opens_nothing_else(db: Database, table: str, tx: Transaction) -> None:
    """A token in a path does not count as the secret, and a path that leads out of its folder is refused."""
    folder = Folder(tx.path(table))
    told = folder.ask("PUT", "CREATE", f"_temporary/0/_temporary/attempt_1_m_000000_0/{file_name()}")
    api = urlsplit(told.headers["Location"]).netloc
    token = folder.path.split("/")[2]
    for target in ("/api/v1/status", f"/api/v1/transactions/{tx.tid}", "/metrics"):
        assert send(api, "GET", target).status == 401
    assert send(api, "GET", f"/webhdfs/v1/transactions/{token}/../../../api/v1/status?op=OPEN").status == 403
    assert folder.rename("_temporary/0", "../x").status in {200, 403}
    answer = folder.ask("PUT", "RENAME", "_temporary", destination="/transactions/x/default/y/_temporary")
    assert answer.status == 403
    data = f"/webhdfs/v1{folder.path}/_temporary/0/_temporary/a/{file_name()}?op=CREATE&data=true"
    assert send(folder.address, "PUT", data, b"x").status == 403


def test_no_log_shows_the_token_of_a_path(local: LocalCluster, db: Database, table: str) -> None:
    """The logs show no token of a path, after accepted and refused requests."""
    tx = db.begin()
    folder = Folder(tx.path(table))
    token = folder.path.split("/")[2]
    folder.ask("GET", "NONSENSE")
    folder.ask("PUT", "RENAME", "x", destination="\0")
    folder.write({"": b"wrong"})
    folder.ask("GET", "GETFILESTATUS", "%zz")
    tx.rollback()
    folder.ask("GET", "GETFILESTATUS")
    for replica in local.replicas:
        log = local.log(replica).read_text(encoding="utf-8")
        assert token not in log
        assert token.split(".")[2] not in log
