"""Definitions whose answer is lost: the caller hears that it is not known, and a repetition counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.proxy import Proxy
from tidelock.client import Database, Transaction, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    LabelExistsError,
    RefusedError,
    TableExistsError,
    UnknownTableError,
)
from workloads.agents import ask

HOME: Final = "r1"
COLUMNS: Final = "n bigint not null"


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=3, settings={**QUICK, "compaction": False}))


@pytest.fixture
def lossy(local: LocalCluster, dbs: list[Database]) -> Iterator[tuple[Database, Proxy]]:
    """A client of the home behind a proxy, which can lose an answer; tables `t`, with a row, and `gone`."""
    dbs[0].create_table("t", COLUMNS)
    dbs[0].insert("t", pa.table({"n": [1]}))
    dbs[0].create_table("gone", COLUMNS)
    dbs[0].insert("gone", pa.table({"n": [2]}))
    dbs[0].drop_table("gone")
    all_follow(local)
    with (
        Proxy(local.url(HOME).removeprefix("http://")) as proxy,
        connect(f"http://{proxy.address}", replica=HOME) as db,
    ):
        db.status()
        yield db, proxy


def defined(local: LocalCluster, after: int) -> list[dict[str, Any]]:
    """Return the definitions that the records of the log after a CSN hold."""
    return [
        entry["definition"]
        for record in ask(local, "r2", f"/log?from_csn={after + 1}")
        for transaction in record["tids"]
        for entry in transaction["entries"]
        if entry["action"] == "DefineTable"
    ]


#: Calls that send a definition as one request; what each of them leaves of the tables and their columns; and
#: the error of a second call, which meets the first one, or None if there is no difference.
ALONE: Final[
    dict[str, tuple[Callable[[Database], object], dict[str, list[str]], type[RefusedError] | None]]
] = {
    "create": (
        lambda db: db.create_table("made", COLUMNS),
        {"default.made": ["n"], "default.t": ["n"]},
        TableExistsError,
    ),
    "drop": (lambda db: db.drop_table("t"), {}, UnknownTableError),
    "rename": (lambda db: db.rename_table("t", "u"), {"default.u": ["n"]}, UnknownTableError),
    "add a column": (
        lambda db: db.alter_table("t", add="late string default 'x'"),
        {"default.t": ["n", "late"]},
        BadRequestError,
    ),
    "comment": (lambda db: db.alter_table("t", {"comment": "y"}), {"default.t": ["n"]}, BadRequestError),
    "replace": (
        lambda db: db.create_table("t", "m int", or_replace=True),
        {"default.t": ["m"]},
        None,
    ),
}


def shown(db: Database) -> dict[str, list[str]]:
    """Return the names of all tables, and of their columns."""
    return {table.name: [column.name for column in table.columns] for table in db.tables()}


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.few(2)
def test_a_definition_without_an_answer_is_told_as_unknown(
    local: LocalCluster, dbs: list[Database], lossy: tuple[Database, Proxy], kind: str
) -> None:
    """It is never repeated by the client, which would meet its own effect; it was made, once, everywhere."""
    call, expected, error = ALONE[kind]
    db, proxy = lossy
    before = int(db.status()["snapshot_csn"])
    proxy.lose_reply()
    with pytest.raises(CommitUnknownError, match=r"it is not known whether table .* check with table\("):
        call(db)
    assert proxy.counters.lost_replies == 1
    all_follow(local)
    assert [shown(one) for one in dbs] == [expected] * 3
    made = len(defined(local, before))
    assert made == (2 if kind == "replace" else 1)
    if error is None:
        return
    with pytest.raises(error):
        call(db)
    assert len(defined(local, before)) == made


#: Statements that define tables, and what their transaction leaves, besides a table that marks the end.
STATEMENTS: Final[dict[str, tuple[Callable[[Transaction], object], dict[str, list[str]]]]] = {
    "create": (lambda tx: tx.create_table("made", COLUMNS), {"default.made": ["n"], "default.t": ["n"]}),
    "create from a query": (
        lambda tx: tx.create_table("made", sql="select n + 1 as m from t"),
        {"default.made": ["m"], "default.t": ["n"]},
    ),
    "drop": (lambda tx: tx.drop_table("t"), {}),
    "rename": (lambda tx: tx.rename_table("t", "u"), {"default.u": ["n"]}),
    "add a column": (
        lambda tx: tx.alter_table("t", add="late string default 'x'"),
        {"default.t": ["n", "late"]},
    ),
    "clone": (lambda tx: tx.clone_table("t", "copy"), {"default.copy": ["n"], "default.t": ["n"]}),
    "undrop": (lambda tx: tx.undrop_table("gone"), {"default.gone": ["n"], "default.t": ["n"]}),
}


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("kind", STATEMENTS)
@pytest.mark.few(4)
def test_a_labelled_definition_whose_answer_is_lost_counts_once(
    local: LocalCluster, dbs: list[Database], lossy: tuple[Database, Proxy], kind: str, lost: str
) -> None:
    """The client asks for the outcome and tells the CSN; a program that runs again is told the same CSN."""
    statement, expected = STATEMENTS[kind]
    db, proxy = lossy
    label = f"{kind} {lost}"
    before = int(db.status()["snapshot_csn"])
    with db.begin(label=label) as tx:
        statement(tx)
        (proxy.lose_reply if lost == "reply" else proxy.lose_request)()
        csn = tx.commit().csn
    assert csn == before + 1
    assert proxy.counters.lost_replies + proxy.counters.lost_requests == 1
    assert len(defined(local, before)) == 1
    all_follow(local)
    for one in dbs:
        assert shown(one) == expected
        with pytest.raises(LabelExistsError) as caught, one.begin(label=label) as again:
            statement(again)
        assert caught.value.details["csn"] == csn
    assert len(defined(local, before)) == 1
