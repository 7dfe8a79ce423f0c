"""Landing tables on real agents: acknowledged rows come once, also when agents die; modes are not mixed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.support.clusters.agreeing import all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory, restored, serving_boot
from tests.support.faults.lab import Gates
from tests.support.faults.proxy import Proxy
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    SchemaMismatchError,
    TableModeError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnknownTableError,
)
from tidelock.exits import Exit
from workloads.agents import ask

HOME, PEER, THIRD = "r1", "r2", "r3"
BEFORE, AFTER, HELD = "agent.landed.before", "agent.landed.after", "agent.landed.before"
SETTINGS = {
    **QUICK,
    "session_timeout_s": 3,
    "fence_timeout_s": 1,
    "clean_interval_s": 0.2,
    "undecided_check_s": 0.3,
    "landing_ahead_max": 2,
}
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("p", pa.string())])
LANDS = {"landing": "on"}
KEYED = {**LANDS, "unique_key": "k", "on_duplicate": "replace"}


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates at which a home can be killed or held, between the answer to rows and their commit."""
    faults = {HOME: {BEFORE: "crash", AFTER: "crash"}, PEER: {HELD: "pause"}, THIRD: {BEFORE: "once"}}
    return Gates(tmp_path_factory.mktemp("gates"), faults)


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """One cluster for the module, with landing tables and one other."""
    made = module_cluster(
        settings=SETTINGS,
        environment_of={replica: gates.environment(replica) for replica in (HOME, PEER, THIRD)},
    )
    with made.connect() as db:
        db.create_table("lands", SCHEMA, properties=LANDS)
        db.create_table("parted", SCHEMA, partition_by=["p"], properties=LANDS)
        db.create_table("keyed", SCHEMA, properties=KEYED)
        db.create_table("plain", SCHEMA)
    return made


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with all replicas up, and nothing left over after the test."""
    with restored(shared):
        yield shared


def rows(*numbers: int, v: int = 0, p: str = "a") -> pa.Table:
    """Return one row for each number."""
    return pa.table({"k": numbers, "v": [v] * len(numbers), "p": [p] * len(numbers)}, schema=SCHEMA)


_numbers = iter(range(1, 1_000_000))


def fresh(count: int) -> list[int]:
    """Return numbers that no test has used."""
    return [next(_numbers) for _ in range(count)]


def found(db: Database, table: str, numbers: list[int]) -> Counter[int]:
    """Return how often each of these numbers is in a table, at the newest CSN."""
    asked = set(numbers)
    with db.begin(fresh=True) as tx:
        return Counter(k for k in tx.scan(table).to_table()["k"].to_pylist() if k in asked)


def all_there(db: Database, table: str, numbers: list[int]) -> bool:
    """Return whether each of these numbers is in a table at least once."""
    return not set(numbers) - found(db, table, numbers).keys()


def sealed(local: LocalCluster, home: str) -> list[dict[str, Any]]:
    """Return the transactions of a home whose commits are under way."""
    return [one for one in ask(local, home, "/transactions") if one["state"] == "sealed"]


def is_down(local: LocalCluster, replica: str) -> bool:
    """Return whether no agent of a replica runs."""
    return local.pid(replica) is None


def until_there(local: LocalCluster, table: str, numbers: list[int]) -> None:
    """Wait until every replica that runs shows these rows, each once."""
    for replica in local.replicas:
        if local.pid(replica) is not None:
            with local.connect(replica) as db:
                eventually(partial(all_there, db, table, numbers), what=f"all rows at {replica}")
                assert found(db, table, numbers) == Counter(numbers)


def test_rows_of_many_clients_share_a_transaction(local: LocalCluster) -> None:
    """Each row comes once, at every replica; transactions have rows of several clients."""
    numbers = fresh(160)

    def write(own: list[int]) -> None:
        with local.connect(HOME) as db:
            for number in own:
                assert db.land("parted", rows(number, p="ab"[number % 2])).rows == 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, [numbers[at::8] for at in range(8)]))
    until_there(local, "parted", numbers)
    shown = [one["rows"] for one in ask(local, HOME, "/transactions") if one["state"] == "committed"]
    assert max(shown) > 1
    with local.connect(HOME) as db:
        assert db.read("parted", where="p = 'a'").num_rows >= sum(number % 2 == 0 for number in numbers)


def test_files_land_from_a_shell(local: LocalCluster, tmp_path: Path) -> None:
    """All rows come once; another table refuses them, with exit code and next step."""
    numbers = fresh(20)
    pq.write_table(rows(*numbers), tmp_path / "rows.parquet")
    arguments = [str(tmp_path / "rows.parquet"), "--url", local.url(HOME)]
    said = CliRunner().invoke(cli.app, ["land", "lands", *arguments])
    assert (said.exit_code, said.stdout) == (0, "20 rows written to lands\n"), said.stderr
    until_there(local, "lands", numbers)
    refused = CliRunner().invoke(cli.app, ["land", "plain", *arguments])
    assert (refused.exit_code, "landing" in refused.stderr) == (Exit.REFUSED, True), refused.stderr


def test_large_data_comes_in_pieces(local: LocalCluster) -> None:
    """Rows of more than one request, from a reader with small and large batches, all come once."""
    numbers = fresh(60_000)
    table = rows(*numbers)
    batches = [
        *table.slice(0, 10).to_batches(),
        *table.slice(10, 3).to_batches(),
        *table.slice(13).to_batches(),
    ]
    with local.connect(PEER) as db:
        done = db.land("lands", pa.RecordBatchReader.from_batches(SCHEMA, batches))
        assert (done.rows, done.csn) == (len(numbers), None)
        assert db.land("lands", SCHEMA.empty_table()).rows == 0
    until_there(local, "lands", numbers)


def test_the_answer_does_not_wait_for_the_log(local: LocalCluster, gates: Gates) -> None:
    """Rows are acknowledged while their commit is held, and visible when it goes on; so many are held."""
    numbers = fresh(3)
    with connect(local.url(PEER), replica=PEER) as db, ThreadPoolExecutor(1) as threads:
        with gates.open(PEER, HELD):
            assert db.land("lands", rows(numbers[0])).csn is None
            gates.await_hit(PEER, HELD)
            assert db.land("lands", rows(numbers[1])).rows == 1
            [held, *_] = sealed(local, PEER)
            with pytest.raises(TransactionClosedError, match="landed"):
                db.kill(held["tid"])
            assert found(db, "lands", numbers) == Counter()
            third = threads.submit(db.land, "lands", rows(numbers[2]))
            with pytest.raises(TimeoutError):
                third.result(timeout=0.5)
        assert third.result().rows == 1
    until_there(local, "lands", numbers)


def test_departures_that_wait_are_bounded(local: LocalCluster, gates: Gates) -> None:
    """Behind `landing_ahead_max` departures that are not committed, rows are not taken."""
    numbers = fresh(2)
    with connect(local.url(PEER), replica=PEER) as db, gates.open(PEER, HELD):
        for number in numbers:
            db.land("lands", rows(number))
        with pytest.raises(TidelockError, match=r"landing_ahead_max") as refused:
            db.land("lands", rows(*fresh(1)), timeout_s=0.5)
        assert not isinstance(refused.value, CommitUnknownError)
    until_there(local, "lands", numbers)


@pytest.mark.parametrize("point", [BEFORE, AFTER])
def test_a_home_that_dies_around_the_commit(local: LocalCluster, gates: Gates, point: str) -> None:
    """The home ends before it has sent the answer, or after the commit, and stays down; rows come once."""
    numbers = fresh(40)
    with connect(local.url(HOME), replica=HOME) as db, gates.open(HOME, point):
        with contextlib.suppress(CommitUnknownError):
            assert db.land("parted", rows(*numbers)).rows == len(numbers)
        eventually(lambda: local.pid(HOME) is None)
    until_there(local, "parted", numbers)
    local.up()
    until_there(local, "parted", numbers)


def test_a_home_that_dies_after_the_answer(local: LocalCluster, gates: Gates) -> None:
    """The home ends between its answer and the commit, and stays down; the others bring the rows, once."""
    numbers = fresh(40)
    with connect(local.url(PEER), replica=PEER) as db, gates.open(PEER, HELD):
        assert db.land("parted", rows(*numbers)).rows == len(numbers)
        gates.await_hit(PEER, HELD)
        local.kill(PEER)
        eventually(lambda: local.pid(PEER) is None)
    until_there(local, "parted", numbers)
    local.up()
    until_there(local, "parted", numbers)


def test_all_die_after_the_answer(local: LocalCluster, gates: Gates) -> None:
    """All agents are killed while acknowledged rows are not committed; after the start they come, once."""
    numbers = fresh(40)
    with connect(local.url(PEER), replica=PEER) as db:
        with gates.open(PEER, HELD):
            assert db.land("lands", rows(*numbers)).rows == len(numbers)
            gates.await_hit(PEER, HELD)
            for replica in local.replicas:
                local.kill(replica)
            for replica in local.replicas:
                eventually(partial(is_down, local, replica))
        local.up()
    until_there(local, "lands", numbers)


@pytest.mark.slow
def test_a_frozen_home_and_its_rescue(local: LocalCluster, gates: Gates) -> None:
    """A home is frozen with acknowledged rows; others bring them, and it does not when it wakes."""
    numbers = fresh(20)
    with connect(local.url(PEER), replica=PEER) as db:
        with gates.open(PEER, HELD):
            assert db.land("lands", rows(*numbers)).rows == len(numbers)
            gates.await_hit(PEER, HELD)
            boot = serving_boot(local, PEER)
            local.kill(PEER, signal.SIGSTOP)
        with local.connect(THIRD) as other:
            eventually(lambda: found(other, "lands", numbers) == Counter(numbers), what="the rescue")
    local.kill(PEER, signal.SIGCONT)  # it was fenced, and starts again
    eventually(lambda: serving_boot(local, PEER) > boot, what="the home to serve again in its next boot")
    until_there(local, "lands", numbers)


@pytest.mark.parametrize("ended", ["", "killed"], ids=["its home commits it", "another one commits it"])
def test_columns_change_between_answer_and_commit(local: LocalCluster, gates: Gates, ended: str) -> None:
    """Rows that have landed are shown with the columns of now, as those that were committed before."""
    table = f"changed_{ended}"
    with connect(local.url(PEER), replica=PEER) as db, local.connect(THIRD) as other:
        db.create_table(table, SCHEMA, properties=LANDS)
        db.land(table, rows(1, v=10))
        eventually(lambda: all_there(other, table, [1]))
        with gates.open(PEER, HELD):
            assert db.land(table, rows(2, v=20)).rows == 1
            gates.await_hit(PEER, HELD)
            other.alter_table(table, add={"w": "string"}, rename={"v": "n"}, drop=["p"])
            if ended:
                local.kill(PEER)
                eventually(lambda: local.pid(PEER) is None)
        shown = {"k": [1, 2], "n": [10, 20], "w": [None, None]}
        eventually(lambda: other.read(table).sort_by("k").to_pydict() == shown, what="the rows")
    local.up()
    changed = pa.table({"k": [3], "n": [30], "w": ["x"]}, schema=other_schema())
    for replica in local.replicas:
        with local.connect(replica) as each:
            eventually(lambda each=each: each.read(table).sort_by("k").to_pydict() == shown)  # type: ignore[misc]
            assert each.sql(f"select sum(n) as n from {table}").to_pydict() == {"n": [30]}
    with local.connect() as db:
        assert db.land(table, changed).rows == 1
        with pytest.raises(SchemaMismatchError, match="p"):
            db.land(table, rows(4))
        eventually(lambda: all_there(db, table, [3]))


def other_schema() -> pa.Schema:
    """Return the columns after the change of the test above."""
    return pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64()), ("w", pa.string())])


def test_rows_that_wait_go_with_their_table(local: LocalCluster, gates: Gates) -> None:
    """Its table is dropped between answer and commit: they are in no table that is brought back."""
    with connect(local.url(PEER), replica=PEER) as db, local.connect(THIRD) as other:
        db.create_table("gone", SCHEMA, properties=LANDS)
        db.land("gone", rows(1))
        eventually(lambda: all_there(other, "gone", [1]))
        with gates.open(PEER, HELD):
            assert db.land("gone", rows(2)).rows == 1
            gates.await_hit(PEER, HELD)
            other.drop_table("gone")
        eventually(lambda: not sealed(local, PEER), what="the end of the landing")
        other.undrop_table("gone")
        assert found(other, "gone", [1, 2]) == Counter([1])


def test_an_error_between_answer_and_commit(local: LocalCluster, gates: Gates) -> None:
    """The home tries again; nothing is lost or doubled."""
    numbers = fresh(5)
    with connect(local.url(THIRD), replica=THIRD) as db, gates.open(THIRD, BEFORE):
        assert db.land("lands", rows(*numbers)).rows == len(numbers)
    until_there(local, "lands", numbers)


def test_a_stop_brings_what_it_has_acknowledged(local: LocalCluster) -> None:
    """Homes are stopped in turn amid landings; every acknowledged row comes once."""
    written: list[int] = []
    over = threading.Event()

    def write() -> None:
        with local.connect() as db:
            while not over.is_set():
                [number] = fresh(1)
                with contextlib.suppress(TidelockError):
                    db.land("lands", rows(number))
                    written.append(number)

    with ThreadPoolExecutor(4) as threads:
        ends = [threads.submit(write) for _ in range(4)]
        for replica in local.replicas:
            local.kill(replica, signal.SIGTERM)
            eventually(partial(is_down, local, replica))
            local.up()
        over.set()
        for end in ends:
            end.result()
    assert written
    until_there(local, "lands", written)


def test_rows_whose_answer_is_lost(local: LocalCluster) -> None:
    """The client says that nobody knows; with "at least once" the rows come, once or twice."""
    numbers = fresh(2)
    with (
        Proxy(local.url(HOME).removeprefix("http://")) as proxy,
        connect(f"http://{proxy.address}", replica=HOME) as db,
    ):
        for _ in range(2):
            db.land("lands", rows(*fresh(1)))  # a channel is open then
        proxy.lose_reply()
        with pytest.raises(CommitUnknownError, match="not known") as unknown:
            db.land("lands", rows(numbers[0]))
        assert unknown.value.details["rows_written"] == 0
        db.land("lands", rows(*fresh(1)))
        proxy.lose_reply()
        assert db.land("lands", rows(numbers[1]), at_least_once=True).rows == 1
        assert proxy.counters.lost_replies == 2
    with local.connect() as db:
        eventually(lambda: set(found(db, "lands", numbers)) == set(numbers))
        assert found(db, "lands", numbers)[numbers[0]] == 1


@pytest.mark.slow
def test_the_last_row_of_a_key_wins(local: LocalCluster) -> None:
    """Clients write keys in turn at all homes; of each key the row that was acknowledged last is there."""
    keys = fresh(6)

    def write(key: int) -> None:
        for v in range(8):
            replica = local.replicas[(key + v) % 3]
            with local.connect(replica) as db:
                done = db.land("keyed", rows(key, v=v), at_least_once=True)
                assert done.csn is not None
                with db.snapshot(done.csn) as seen:
                    assert seen.sql("select v from keyed where k = ?", [key])["v"].to_pylist() == [v]

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(write, keys))
    all_follow(local)
    with local.connect() as db:
        kept = {row["k"]: row["v"] for row in db.read("keyed").to_pylist()}
        assert {key: kept[key] for key in keys} == dict.fromkeys(keys, 7)
        assert len(kept) == db.read("keyed").num_rows


def test_the_last_of_equal_keys_in_one_call(local: LocalCluster) -> None:
    """Rows of one call replace earlier ones of the same call."""
    key, other = fresh(2)
    table = pa.concat_tables([rows(key, v=1), rows(other, v=5), rows(key, v=2), rows(key, v=3)])
    with local.connect() as db:
        assert db.land("keyed", table).rows == 4
        kept = {row["k"]: row["v"] for row in db.read("keyed").to_pylist()}
        assert (kept[key], kept[other]) == (3, 5)


def test_modes_are_not_mixed(local: LocalCluster) -> None:
    """Every statement that adds rows to a landing table is refused in a transaction, and land() elsewhere."""
    added: dict[str, Any] = {
        "insert": lambda tx: tx.insert("lands", rows(1)),
        "large insert": lambda tx: tx.insert("lands", rows(*range(100_000))),
        "update": lambda tx: tx.update("lands", {"v": 1}),
        "upsert": lambda tx: tx.upsert("lands", rows(1), on=["k"]),
        "merge": lambda tx: tx.merge("lands", rows(1), on=["k"]),
        "select": lambda tx: tx.sql("insert into lands select * from plain"),
        "replace": lambda tx: tx.replace_partition("parted", {"p": "a"}, rows(1)),
        "keyed": lambda tx: tx.insert("keyed", rows(1)),
    }
    with local.connect() as db:
        db.insert("plain", rows(1, 2))
        before = db.read("lands").num_rows, db.read("keyed").num_rows
        for name, statement in added.items():
            with pytest.raises(TableModeError, match="land\\(\\)") as refused, db.begin() as tx:
                statement(tx)
            assert refused.value.details["table"].startswith("default."), name
        with pytest.raises(TableModeError, match="land\\(\\)"):
            db.write({"plain": rows(3), "lands": rows(3)})
        with pytest.raises(TableModeError, match="landing=on"):
            db.land("plain", rows(4))
        assert (db.read("lands").num_rows, db.read("keyed").num_rows) == before
        assert sorted(db.read("plain")["k"].to_pylist()) == [1, 2]


def test_rows_move_on_in_transactions(local: LocalCluster) -> None:
    """A transaction may read and remove what has landed: it moves rows into another table, all or nothing."""
    numbers = fresh(10)
    with local.connect() as db:
        db.create_table("target", SCHEMA, partition_by=["p"])
        db.land("parted", rows(*numbers, p="m"))
        until_there(local, "parted", numbers)
        with db.begin() as tx:
            tx.insert("target", tx.sql("select * from parted where p = 'm'"))
            tx.drop_partition("parted", {"p": "m"})
        assert found(db, "target", numbers) == Counter(numbers)
        assert found(db, "parted", numbers) == Counter()
        db.land("parted", rows(*numbers, p="m"))
        until_there(local, "parted", numbers)
        db.delete("parted", "k = ?", [numbers[0]])
        with pytest.raises(TableModeError):
            db.move_partition("target", {"p": "m"}, "parted")
        db.move_partition("parted", {"p": "m"}, "target")
        assert sum(found(db, "target", numbers).values()) == 2 * len(numbers) - 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"properties": {"landing": "yes"}}, "landing"),
        ({"properties": {**LANDS, "unique_key": "k"}}, "on_duplicate=replace"),
        ({"derived_from": "plain", "derived_sql": "select * from inserted", "properties": LANDS}, "derived"),
        ({"derived_from": "lands", "derived_sql": "select * from inserted"}, "landing table"),
    ],
)
def test_tables_that_cannot_be_landing_tables(
    local: LocalCluster, options: dict[str, Any], word: str
) -> None:
    """Properties that contradict each other are refused."""
    with local.connect() as db, pytest.raises(BadRequestError, match=word):
        db.create_table("refused", SCHEMA, **options)


def test_bad_rows_are_refused_alone(local: LocalCluster) -> None:
    """Rows that do not fit are refused, and those that others send at the same time are written."""
    numbers = fresh(4)
    with local.connect(HOME) as db, ThreadPoolExecutor(4) as threads:
        good = [
            threads.submit(db.land, table, rows(number)) for table in ("lands", "keyed") for number in numbers
        ]
        for table in ("lands", "keyed"):
            with pytest.raises(SchemaMismatchError):
                db.land(table, pa.table({"other": [1]}))
        with pytest.raises(UnknownTableError):
            db.land("nowhere", rows(1))
        with pytest.raises(BadRequestError, match="landing/"):
            db.write({"plain": rows(1)}, label="landing/mine")
        assert [one.result().rows for one in good] == [1] * 8
    until_there(local, "lands", numbers)


def test_a_body_that_is_too_large(local: LocalCluster) -> None:
    """One request has a bound, which the refusal names; the client sends pieces."""
    wide = pa.table({"k": range(200_000), "v": range(200_000), "p": ["x"] * 200_000}, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(wide)
    with local.connect(HOME) as db:
        transport = db._connection.transport
        with pytest.raises(TooLargeError, match="write_bytes_max"):
            transport.write(
                local.url(HOME).removeprefix("http://"),
                "/landings/lands",
                sink.getvalue().to_pybytes(),
                answer=dict,
                timeout_s=30,
            )
