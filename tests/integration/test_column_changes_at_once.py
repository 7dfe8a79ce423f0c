"""Columns of one table that several clients change at once: one order, and a clear word for the losers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, SerializationConflictError, TableChangedError, TidelockError

NUMBERS: Final = itertools.count(1)
TURNS: Final = 5
COLUMNS: Final = "k bigint not null, a int default 0, b int default 0"


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=3, settings=QUICK))


@pytest.fixture
def table(local: LocalCluster, dbs: list[Database]) -> str:
    """A table with two rows, which all replicas have."""
    name = f"t{next(NUMBERS)}"
    dbs[0].create_table(name, COLUMNS)
    dbs[0].insert(name, pa.table({"k": [1, 2], "a": pa.array([1, 2], pa.int32())}))
    all_follow(local)
    return name


def at_once(dbs: Sequence[Database], call: Callable[[int, Database], object]) -> list[object]:
    """Run a call for each client at once; return the answers, and the errors of those that are refused."""
    begin = threading.Barrier(len(dbs), timeout=60)

    def run(index: int) -> object:
        begin.wait()
        try:
            return call(index, dbs[index])
        except TidelockError as error:
            return error

    with ThreadPoolExecutor(len(dbs)) as threads:
        return list(threads.map(run, range(len(dbs))))


def names(db: Database, table: str) -> list[str]:
    """Return the columns of a table, at the newest CSN of all replicas."""
    with db.begin(fresh=True) as tx:
        return [column.name for column in tx.definition(table).columns]


#: The same change by all, with the index of the client; and the reason that the losers get.
SAME: Final[dict[str, tuple[Callable[[int], dict[str, Any]], str]]] = {
    "add": (lambda index: {"add": f"late int default {index}"}, "late"),
    "drop": (lambda _: {"drop": ["b"]}, "b"),
    "rename": (lambda index: {"rename": {"b": f"b{index}"}}, "b"),
}


@pytest.mark.parametrize("kind", SAME)
@pytest.mark.few(1)
def test_of_the_same_change_at_once_one_wins(local: LocalCluster, dbs: list[Database], kind: str) -> None:
    """The others are told that the column is there, or is not, and nothing of theirs is."""
    change, column = SAME[kind]
    for _ in range(TURNS):
        name = f"t{next(NUMBERS)}"
        dbs[0].create_table(name, COLUMNS)
        dbs[0].insert(name, pa.table({"k": [1]}))
        all_follow(local)
        ends = at_once(dbs, lambda index, db, name=name: db.alter_table(name, **change(index)))  # type: ignore[misc]
        lost = [end for end in ends if isinstance(end, TidelockError)]
        [winner] = [index for index, end in enumerate(ends) if not isinstance(end, TidelockError)]
        assert len(lost) == 2
        for error in lost:
            assert isinstance(error, BadRequestError)
            assert f"default.{name}" in error.message
            assert column in error.message
        all_follow(local)
        expected = {"add": ["k", "a", "b", "late"], "drop": ["k", "a"], "rename": ["k", "a", f"b{winner}"]}[
            kind
        ]
        for db in dbs:
            assert names(db, name) == expected
            assert db.table(name).version == 1
            if kind == "add":
                assert db.read(name)["late"].to_pylist() == [winner]


def test_different_changes_at_once_are_all_made(local: LocalCluster, dbs: list[Database], table: str) -> None:
    """Each single change is made again on top of the others; rows that come meanwhile have all columns."""
    for turn in range(TURNS):
        ends = at_once(
            dbs,
            lambda index, db, turn=turn: db.alter_table(table, add=f"c{turn}_{index} int default {index}"),  # type: ignore[misc]
        )
        assert [end for end in ends if isinstance(end, TidelockError)] == []
    all_follow(local)
    added = {f"c{turn}_{index}": index for turn in range(TURNS) for index in range(3)}
    for db in dbs:
        assert set(names(db, table)) == {"k", "a", "b", *added}
        assert db.table(table).version == len(added)
        for row in db.read(table).to_pylist():
            assert {name: row[name] for name in added} == added


CHANGES: Final[dict[str, Callable[[Transaction, str], object]]] = {
    "add": lambda tx, name: tx.alter_table(name, add="late int default 5"),
    "drop": lambda tx, name: tx.alter_table(name, drop=["b"]),
    "rename": lambda tx, name: tx.alter_table(name, rename={"b": "c"}),
    "widen": lambda tx, name: tx.alter_table(name, types={"a": "bigint"}),
    "generate": lambda tx, name: tx.alter_table(name, add="g bigint generated always as (k * 2)"),
    "check": lambda tx, name: tx.alter_table(name, checks={"some": "k > 0"}),
}

#: Changes that write the rows again, and so lock their parts.
REWRITING: Final = {"widen", "generate"}


@pytest.mark.parametrize("first", CHANGES)
@pytest.mark.parametrize("second", ["add", "widen"])
@pytest.mark.few(4)
def test_of_two_transactions_that_change_columns_one_commits(
    dbs: list[Database], table: str, first: str, second: str
) -> None:
    """The other one is told so at its commit, or at its statement if both write the rows again."""
    one, two = dbs[0].begin(fresh=True), dbs[1].begin(fresh=True)
    CHANGES[first](one, table)
    if {first, second} <= REWRITING:
        with pytest.raises(SerializationConflictError, match=rf"table default\.{table} is being changed"):
            CHANGES[second](two, table)
        one.commit()
    else:
        CHANGES[second](two, table)
        two.insert(table, pa.table({"k": [9]}))
        one.commit()
        with pytest.raises(TableChangedError, match=rf"table default\.{table} was changed"):
            two.commit()
    two.rollback()
    for db in dbs:
        with db.begin(fresh=True) as tx:
            found = tx.definition(table)
            assert found.version == 1
            assert sorted(tx.read(table)["k"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seen", ["in memory", "written out", "none"])
@pytest.mark.few(6)
def test_rows_of_the_columns_of_before_are_refused_after_any_change(
    dbs: list[Database], table: str, change: str, seen: str
) -> None:
    """Whether the open transaction has its rows in memory, on the disk, or brings them after the change."""
    late = dbs[1].begin(fresh=True)
    given = pa.table({"k": [7], "a": pa.array([7], pa.int32()), "b": pa.array([7], pa.int32())})
    if seen != "none":
        late.insert(table, given)
    else:
        assert late.read(table).num_rows == 2
    if seen == "written out":
        assert late.sql(f"select count(*) as n from {table}")["n"].to_pylist() == [3]
    with dbs[0].begin(fresh=True) as tx:
        CHANGES[change](tx, table)

    def ends() -> object:
        if seen == "none":
            late.insert(table, given)
        return late.commit()

    with pytest.raises(TableChangedError, match=rf"default\.{table}"):
        ends()
    late.rollback()
    for db in dbs:
        with db.begin(fresh=True) as tx:
            assert sorted(tx.read(table)["k"].to_pylist()) == [1, 2]
