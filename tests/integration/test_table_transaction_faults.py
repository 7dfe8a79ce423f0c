"""Transactions of definitions and rows while replicas die: all of each is there, or nothing, as a model says.

Drawn transactions run at all homes, and replicas are killed and started again. At drawn CSNs each replica
shows the tables, columns, rows and comments of the model, by the client, by SQL and by the Parquet files in
the folders of a snapshot. A home is also killed at the steps of such a commit, of which the record in the log
alone decides what becomes of it, and inside of the statements that make or share files. A peer is killed at
its own steps, which changes nothing: the commit has other copies.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.shown_tables import TYPES, of_files, of_table, tables_of_folders
from tests.support.faults.lab import Gates, points
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    CommitUnknownError,
    FencedError,
    NotCommittedError,
    RefusedError,
    SerializationConflictError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)

HOME, PEER = "r1", "r2"
COLUMNS = {"k": "bigint not null"}
#: Steps of a commit at its home, in their order.
STEPS: Final = ("agent.seal", "agent.pack", "replication.push", "csnlog.commit", "replication.apply")
#: Steps inside of statements at their home.
INSIDE: Final = ("agent.catalog", "replication.lock")
#: Steps of such a commit at a peer.
PEER_STEPS: Final = ("replication.accept", "agent.pack", "agent.catalog", "replication.apply")
IN_THE_LOG: Final = {"csnlog.commit.after", *points(["replication.apply"])}
#: Points that run with every change.
FAST: Final = {"agent.seal.after", "csnlog.commit.before", "csnlog.commit.after", "replication.apply.after"}
PEER_FAST: Final = {"replication.accept.after", "replication.apply.before"}
NAMES: Final = ("default.a", "default.b", "sales.a", "sales.b")


class Column(msgspec.Struct, frozen=True):
    """A column of the model."""

    name: str
    type: str
    nullable: bool = True
    default: str | None = None


KEY: Final = Column("k", "bigint", nullable=False)
#: The same column in a table that a query has made.
NULLABLE: Final = Column("k", "bigint")


class Table(msgspec.Struct, frozen=True):
    """A table of the model: its rows have the values of the columns in their order."""

    rows: tuple[tuple[Any, ...], ...] = ()
    comment: str = ""
    columns: tuple[Column, ...] = (KEY,)


def plain(*numbers: int, comment: str = "") -> Table:
    """Return a table of keys alone."""
    return Table(tuple((number,) for number in numbers), comment)


Shown = dict[str, Table]


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """The points at which the home can die."""
    armed = {HOME: [*STEPS, *INSIDE], PEER: PEER_STEPS}
    faults = {replica: dict.fromkeys(points(steps), "crash") for replica, steps in armed.items()}
    return Gates(tmp_path_factory.mktemp("gates"), faults)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    armed = {replica: gates.environment(replica) for replica in (HOME, PEER)}
    made = module_cluster(replicas=3, settings=QUICK, environment_of=armed)
    yield made
    for replica in made.replicas:
        made.start(replica)
    require_clean_audit(made)
    for replica in made.replicas:
        nothing_left(made.data_dir(replica))


@pytest.fixture
def dbs(local: LocalCluster) -> Iterator[dict[str, Database]]:
    """A client pinned to each replica; no table is left."""
    with contextlib.ExitStack() as closing:
        made = {replica: closing.enter_context(local.connect(replica)) for replica in local.replicas}
        yield made
        with made["r2"].begin(fresh=True) as tx:
            for name in shown(made["r2"], tx.snapshot_csn):
                tx.drop_table(name)


def rows(*numbers: int) -> pa.Table:
    """Return rows."""
    return pa.table({"k": pa.array(numbers, pa.int64())})


def quoted(name: str) -> str:
    """Return the name of a table for SQL."""
    return ".".join(f'"{word}"' for word in name.split("."))


def shown(db: Database, csn: int) -> Shown:
    """Return every table at a CSN, as a client, as SQL and as the files in the folders show it."""
    found: Shown = {}
    with db.snapshot(csn=csn) as snapshot:
        address = urlsplit(snapshot.root).netloc
        for table in snapshot.tables():
            columns = tuple(
                Column(one.name, one.type, nullable=one.nullable, default=one.default)
                for one in table.columns
            )
            names, read = of_table(snapshot.read(table.name))
            assert names == [column.name for column in columns]
            assert of_table(snapshot.sql(f"select * from {quoted(table.name)}")) == (names, read)
            assert sum(part["rows"] for part in snapshot.parts(table.name)) == len(read)
            assert rows_of_files(address, csn, table.name, columns) == read
            found[table.name] = Table(tuple(read), table.properties.get("comment", ""), columns)
        assert tables_of_folders(address, csn) == sorted(found)
    return found


def rows_of_files(address: str, csn: int, table: str, columns: tuple[Column, ...]) -> list[tuple[Any, ...]]:
    """Return the rows in the files of a table, which have its columns, in any order, and no others.

    The values of partition columns, which are texts, are in the names of the folders.
    """
    found: list[tuple[Any, ...]] = []
    for folder, file in of_files(address, csn, table):
        whole = file
        for pair in filter(None, folder.split("/")):
            name, _, value = pair.partition("=")
            whole = whole.append_column(name, pa.array([value] * file.num_rows, pa.string()))
        assert {field.name: field.type for field in whole.schema} == {
            column.name: TYPES[column.type] for column in columns
        }, f"{table}/{folder} at CSN {csn}"
        found += of_table(whole.select([column.name for column in columns]))[1]
    return sorted(found, key=repr)


#: Errors of a transaction whose replica, or a peer that it needs, is down.
_OF_A_DEAD_REPLICA: Final = (
    UnavailableError,
    CommitUnknownError,
    NotCommittedError,
    FencedError,
    TransactionClosedError,
    UnknownTransactionError,
)


def step(tx: Transaction, drawn: random.Random, number: int, now: Shown) -> Shown:
    """Run a drawn statement, which is refused if the model says so; return the tables after it."""
    name, other = drawn.choice(NAMES), drawn.choice(NAMES)
    there, table = name in now, now.get(name, Table())
    rest = {one: found for one, found in now.items() if one != name}
    run: Callable[[], object]
    what = drawn.choice(
        ("create", "replace", "drop", "rename", "comment", "query", "clone", "empty", *["insert"] * 4)
    )
    match what:
        case "create":
            works, after = not there, {**now, name: Table()}
            run = lambda: tx.create_table(name, COLUMNS)  # noqa: E731 - one line for each statement
        case "replace":
            works, after = True, {**rest, name: Table()}
            run = lambda: tx.create_table(name, COLUMNS, or_replace=True)  # noqa: E731
        case "query":
            works, after = there, {**now, name: Table(table.rows, columns=(NULLABLE,))}
            run = lambda: tx.create_table(name, sql=f"select k from {quoted(name)}", or_replace=True)  # noqa: E731
        case "drop":
            works, after = there, rest
            run = lambda: tx.drop_table(name)  # noqa: E731
        case "rename":
            works, after = there and other not in now, {**rest, other: table}
            run = lambda: tx.rename_table(name, other)  # noqa: E731
        case "comment":
            works, after = there, {**rest, name: replace(table, comment=f"comment {number}")}
            run = lambda: tx.alter_table(name, {"comment": f"comment {number}"})  # noqa: E731
        case "clone":
            works, after = there and other not in now, {**now, other: table}
            run = lambda: tx.clone_table(name, other)  # noqa: E731
        case _ if not there:  # a refused change of rows ends its transaction
            return now
        case "empty":
            works, after = True, {**rest, name: replace(table, rows=())}
            run = lambda: tx.truncate(name)  # noqa: E731
        case _:
            more = tuple(sorted((*table.rows, (number,)), key=repr))
            works, after = True, {**rest, name: replace(table, rows=more)}
            run = lambda: tx.insert(name, rows(number))  # noqa: E731
    if works:
        run()
        return after
    with pytest.raises(RefusedError):
        run()
    return now


def one_transaction(
    db: Database, asked: Database, drawn: random.Random, number: int, now: Shown, at: dict[int, Shown]
) -> Shown:
    """Run a drawn transaction, which may meet a dead replica; return the tables after it."""
    after = now
    try:
        with db.begin(fresh=True) as tx:
            for part in range(drawn.randint(1, 6)):
                after = step(tx, drawn, 10 * number + part, after)
            for name, table in after.items():
                assert of_table(tx.read(name))[1] == list(table.rows)
            if drawn.random() < 0.2:
                tx.rollback()
                return now
    except _OF_A_DEAD_REPLICA:  # any other refusal is of a statement that the model takes
        with asked.begin(fresh=True) as later:
            csn = later.snapshot_csn
        found = shown(asked, csn)
        assert found in (now, after), "a transaction is there as a whole, or not at all"
        at[csn] = found
        return found
    if tx.csn is not None:
        at[tx.csn] = after
    return after


def run_history(local: LocalCluster, dbs: dict[str, Database], drawn: random.Random, count: int) -> None:
    """Run transactions with kills until so many have committed; compare all replicas with the model."""
    now: Shown = {}
    at: dict[int, Shown] = {}
    down: str | None = None
    for number in itertools.count():
        if len(at) >= count:
            break
        assert number < 10 * count, "few transactions have come to an end"
        if number % 12 == 6:
            down = drawn.choice(local.replicas)
            local.kill(down, signal.SIGKILL)
        elif down is not None and number % 12 == 10:
            local.start(down)
            down = None
        alive = [db for replica, db in dbs.items() if replica != down]
        now = one_transaction(drawn.choice(alive), alive[0], drawn, number, now, at)
    if down is not None:
        local.start(down)
    for db in dbs.values():
        for csn in drawn.sample(sorted(at), min(8, len(at))):
            eventually(lambda db=db, csn=csn: shown(db, csn) == at[csn])  # type: ignore[misc]


@pytest.mark.scenario("S05")
def test_drawn_transactions_are_those_of_the_model(
    local: LocalCluster, dbs: dict[str, Database], fresh_seed: int
) -> None:
    """Many definitions and rows in each, over kills and restarts: each replica shows each CSN as it was."""
    run_history(local, dbs, random.Random(fresh_seed), 12)


@pytest.mark.slow
@pytest.mark.scenario("S05")
def test_many_drawn_transactions_are_those_of_the_model(
    local: LocalCluster, dbs: dict[str, Database], fresh_seed: int
) -> None:
    """The same for longer."""
    run_history(local, dbs, random.Random(fresh_seed), 100)


#: The columns that the table `default.wide` has before and after the killed transaction, and `default.thin`.
WIDE: Final = (KEY, Column("a", "string"), Column("b", "int", default="3"))
CHANGED: Final = (
    Column("c", "int", default="3"),
    KEY,
    Column("d", "string", nullable=False, default="new"),
    Column("e", "double", default="0.5"),
)
THIN: Final = (Column("k", "int", nullable=False), Column("v", "int", default="7"))
SPLIT: Final = (NULLABLE, Column("p", "string"))
THIN_LATER: Final = (THIN[0], Column("w", "string", default="w"))


def make_before(db: Database) -> tuple[Shown, int]:
    """Make the tables that a transaction finds; return them, and a CSN of before their last changes.

    At that CSN `default.old` had other columns, and `default.gone`, which is dropped, was there.
    """
    with db.begin(fresh=True) as tx:
        for name in ("default.a", "default.b", "sales.a", "default.gone"):
            tx.create_table(name, COLUMNS, or_replace=True)
            tx.insert(name, rows(1))
        tx.create_table("old", "k int not null, v int default 7", or_replace=True)
        tx.insert("old", pa.table({"k": pa.array([1, 2], pa.int32())}))
        tx.create_table("wide", "k bigint not null, a string, b int default 3", or_replace=True)
        tx.insert("wide", pa.table({"k": [1, 2], "a": ["x", None], "b": pa.array([3, 4], pa.int32())}))
        tx.create_table("split", "k bigint, p string", partition_by=["p"], or_replace=True)
        tx.insert("split", pa.table({"k": [1, 2, 3, 4], "p": ["a", "a", "b", "b"]}))
        tx.create_table("narrow", "k int not null", or_replace=True)
        tx.insert("narrow", pa.table({"k": pa.array([1], pa.int32())}))
    then = tx.csn or 0
    with db.begin(fresh=True) as tx:
        tx.alter_table("old", drop=["v"], add="w string default 'w'")
        tx.delete("old", "k = 1")
        tx.insert("old", pa.table({"k": pa.array([5], pa.int32())}))
        tx.delete("split", "k in (2, 3)")
        tx.insert("split", pa.table({"k": [5, 6], "p": ["a", "b"]}))
        tx.drop_table("gone")
    names = ("default.a", "default.b", "sales.a")
    more = {
        "default.old": Table(((2, "w"), (5, "w")), columns=THIN_LATER),
        "default.wide": Table(((1, "x", 3), (2, None, 4)), columns=WIDE),
        "default.narrow": Table(((1,),), columns=(Column("k", "int", nullable=False),)),
        "default.split": Table(((1, "a"), (4, "b"), (5, "a"), (6, "b")), columns=SPLIT),
    }
    return dict.fromkeys(names, plain(1)) | more, then


#: The tables that the killed transaction leaves, if it is committed.
AFTER: Final = {
    "default.a": plain(2),
    "sales.c": plain(1, 3, comment="kept"),
    "sales.n": plain(4, 9),
    "default.old": Table(((1, 7), (2, 7)), columns=THIN),
    "default.gone": plain(1),
    "default.wide": Table(((3, 1, "new", 0.5), (3, 3, "new", 0.5), (4, 2, "new", 0.5)), columns=CHANGED),
    "default.narrow": Table(((1,), (1 << 40,)), columns=(KEY,)),
    "default.split": Table(((1, "a"), (2, "a"), (4, "b"), (6, "b")), columns=SPLIT),
    "sales.copy": plain(1, 3, comment="kept"),
    "sales.made": Table(((1, 5, 4),), columns=(Column("z", "int", default="1"), Column("y", "bigint"), KEY)),
    "sales.query": Table(((4,), (9,)), columns=(NULLABLE,)),
}


def change_all(tx: Transaction, then: int, folder: Path) -> None:
    """Replace, rename, alter, drop, create, restore, import, bring back and clone in one transaction."""
    pq.write_table(rows(9), folder / "nine.parquet")
    tx.create_table("a", COLUMNS, or_replace=True)
    tx.insert("a", rows(2))
    tx.rename_table("b", "sales.c")
    tx.alter_table("sales.c", {"comment": "kept"})
    tx.insert("sales.c", rows(3))
    tx.alter_table("wide", drop=["a"], rename={"b": "c"}, add="d string not null default 'new'")
    tx.alter_table("wide", add="e double default 0.5", order=["c"])
    tx.insert("wide", rows(3))
    tx.alter_table("narrow", types={"k": "bigint"})
    tx.insert("narrow", rows(1 << 40))
    tx.drop_table("sales.a")
    tx.create_table("sales.n", COLUMNS)
    tx.insert("sales.n", rows(4))
    tx.import_files("sales.n", folder)
    tx.create_table("sales.made", "k bigint not null, x bigint")
    tx.alter_table("sales.made", rename={"x": "y"}, add="z int default 1", order=["z", "y"])
    tx.insert("sales.made", pa.table({"k": [4], "y": [5]}))
    tx.restore_table("old", then)
    tx.restore_table("split", then, partition={"p": "a"})
    tx.undrop_table("gone")
    tx.clone_table("sales.c", "sales.copy")
    tx.create_table("sales.query", sql="select k from sales.n")


def require_everywhere(dbs: dict[str, Database], csn: int | None, before: Shown) -> None:
    """Compare what each replica shows with the end of the killed transaction; None: it has none."""
    with dbs["r3"].begin(fresh=True) as later:
        newest = later.snapshot_csn
    for other in dbs.values():
        eventually(lambda other=other: shown(other, newest) == (before if csn is None else AFTER))  # type: ignore[misc]
        if csn is not None:
            assert shown(other, csn - 1) == before


@pytest.mark.scenario("S05")
@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=[] if point in FAST else [pytest.mark.slow]) for point in points(STEPS)],
)
@pytest.mark.few(1)
def test_a_home_that_dies_leaves_all_of_it_or_nothing(
    local: LocalCluster, dbs: dict[str, Database], gates: Gates, point: str, tmp_path: Path
) -> None:
    """Names, columns with their defaults and order, and rows of many tables in one commit."""
    before, then = make_before(dbs["r2"])
    with local.connect(HOME) as db, ThreadPoolExecutor(1) as threads:
        tx = db.begin(fresh=True)
        change_all(tx, then, tmp_path)
        with gates.open(HOME, point):
            told = threads.submit(committed, tx)
            eventually(lambda: local.pid(HOME) is None)
        local.start(HOME)
        csn = told.result()
    assert (csn is not None) == (point in IN_THE_LOG)
    require_everywhere(dbs, csn, before)


@pytest.mark.scenario("S38")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point in PEER_FAST else [pytest.mark.slow])
        for point in points(PEER_STEPS)
    ],
)
@pytest.mark.slow
def test_a_peer_that_dies_in_such_a_commit_has_all_of_it_later(
    local: LocalCluster, dbs: dict[str, Database], gates: Gates, point: str, tmp_path: Path
) -> None:
    """The commit has other copies; the peer shows each table with its columns when it is back."""
    before, then = make_before(dbs["r3"])
    with local.connect(HOME) as db, ThreadPoolExecutor(1) as threads:
        tx = db.begin(fresh=True)
        change_all(tx, then, tmp_path)
        with gates.open(PEER, point):
            told = threads.submit(committed, tx)
            eventually(lambda: local.pid(PEER) is None)
        csn = told.result()
        assert csn is not None
        for replica in (HOME, "r3"):
            assert shown(dbs[replica], csn) == AFTER
        local.start(PEER)
    require_everywhere(dbs, csn, before)


#: Statements that make or share files, by the points inside of them. Some run with every change.
INSIDE_OF: Final[dict[str, tuple[str, ...]]] = {
    "widen": ("replication.lock.before", "replication.lock.after", "agent.catalog.after"),
    "restore": tuple(points(INSIDE)),
    "restore one partition": tuple(points(INSIDE)),
    "undrop": ("agent.catalog.before", "agent.catalog.after"),
    "clone": ("agent.catalog.before", "agent.catalog.after"),
    "import": ("agent.catalog.before", "agent.catalog.after"),
}
FAST_INSIDE: Final = {("restore", "agent.catalog.after"), ("restore one partition", "replication.lock.after")}


@pytest.mark.scenario("S05")
@pytest.mark.parametrize(
    ("statement", "point"),
    [
        pytest.param(statement, point, marks=[] if (statement, point) in FAST_INSIDE else [pytest.mark.slow])
        for statement, inside in INSIDE_OF.items()
        for point in inside
    ],
)
@pytest.mark.few(1)
def test_a_home_that_dies_inside_of_a_statement_leaves_nothing(
    local: LocalCluster, dbs: dict[str, Database], gates: Gates, statement: str, point: str, tmp_path: Path
) -> None:
    """Whatever it had written, marked or shared; the fixture looks for what is left."""
    before, then = make_before(dbs["r2"])
    pq.write_table(rows(9), tmp_path / "nine.parquet")
    run: dict[str, Callable[[Transaction], object]] = {
        "widen": lambda tx: tx.alter_table("old", types={"k": "bigint"}),
        "restore": lambda tx: tx.restore_table("old", then),
        "restore one partition": lambda tx: tx.restore_table("split", then, partition={"p": "a"}),
        "undrop": lambda tx: tx.undrop_table("gone"),
        "clone": lambda tx: tx.clone_table("old", "made"),
        "import": lambda tx: tx.import_files("a", tmp_path),
    }
    with local.connect(HOME) as db, ThreadPoolExecutor(1) as threads:
        tx = db.begin(fresh=True)
        with gates.open(HOME, point):
            told = threads.submit(run[statement], tx)
            eventually(lambda: local.pid(HOME) is None)
        local.start(HOME)
        assert isinstance(told.exception(), _OF_A_DEAD_REPLICA)
        assert committed(tx) is None
    with dbs["r2"].begin(fresh=True) as later:
        newest = later.snapshot_csn
    for other in dbs.values():
        eventually(lambda other=other: shown(other, newest) == before)  # type: ignore[misc]

    def runs() -> bool:
        """Run the statement at another home; it may meet locks of the dead transaction for a while."""
        with contextlib.suppress(SerializationConflictError), dbs["r2"].begin(fresh=True) as tx:
            run[statement](tx)
        return tx.csn is not None

    eventually(runs)


def committed(tx: Transaction) -> int | None:
    """Commit; return the CSN, or None for a transaction that is certainly not committed."""
    while True:
        try:
            return tx.commit().csn
        except (CommitUnknownError, UnavailableError):
            continue
        except RefusedError:
            return None
