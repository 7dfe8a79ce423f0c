"""Compaction and back-pressure on three replicas: few parts, the same rows at every CSN, no blocked client.

The cluster compacts all the time. A merge that must happen at a chosen moment is requested by `optimize` at a
chosen replica, on a table that turns compaction off.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import math
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import urllib3
import xxhash
from typer.testing import CliRunner

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import SETTINGS, Gates
from tests.support.faults.refusals import http
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.cli.app import app
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.ids import ReplicaId, TableId
from tidelock.errors import TidelockError, TooManyPartsError, UnknownTableError
from tidelock.replica_agent.compaction.planner import planner_of
from workloads.agents import ask

REPLICAS: Final = ("r1", "r2", "r3")
#: The replica that is asked to `optimize`, and that dies in the slow tests.
WORKER: Final = "r2"
REFUSE: Final = 40
COMPACT: Final = "agent.compact.after"
SCHEMA: Final = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("price", pa.decimal128(15, 2)),
        ("ratio", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("raw", pa.binary()),
        ("y", pa.int32()),
    ]
)
ROWS: Final = 6
ROW_GROUP: Final = 50_000
_NUMBERS = itertools.count(1)


def rows(number: int) -> pa.Table:
    """Return unordered rows of two partitions, one of them null; every second row has nulls."""
    keys = [(number * 7919 + n * 104_729) % 1_000_003 for n in range(ROWS)]
    values: dict[str, list[Any]] = {
        "k": keys,
        "name": [f"ü{key}" for key in keys],
        "price": [Decimal(key).scaleb(-2) for key in keys],
        "ratio": [{0: -0.0, 5: math.nan}.get(n, key / 7) for n, key in enumerate(keys)],
        "day": keys,
        "at": [key * 1_000_003 for key in keys],
        "raw": [bytes([key % 256, 0, 255]) for key in keys],
        "y": [None if n % 3 == 0 else 1999 for n in range(ROWS)],
    }
    arrays = []
    for field in SCHEMA:
        items = [
            None if field.nullable and n % 4 == 2 and field.name != "y" else v
            for n, v in enumerate(values[field.name])
        ]
        plain = {"day": pa.int32(), "at": pa.int64()}.get(field.name, field.type)
        arrays.append(pa.array(items, plain).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def digest(found: pa.Table) -> str:
    """A hash of rows that does not depend on their order, and tells -0.0 from 0.0."""
    shown = repr(found.select(SCHEMA.names).sort_by("k").to_pylist())
    return xxhash.xxh3_128_hexdigest(shown.encode())


def create(db: Database, **properties: str) -> str:
    """A table of partitions by year, sorted by key, whose planner is the worker."""
    names = (f"default.t{number}" for number in _NUMBERS)
    members = [ReplicaId(replica) for replica in REPLICAS]
    name = next(name for name in names if planner_of(TableId(name), members) == WORKER)
    db.create_table(name, SCHEMA, partition_by=["y"], sort_by=["k"], properties=properties)
    return name


def fill(db: Database, table: str, inserts: int) -> dict[int, str]:
    """Insert again and again; return the hash of all rows at each CSN."""
    expected: dict[int, str] = {}
    whole = SCHEMA.empty_table()
    for number in range(inserts):
        whole = pa.concat_tables([whole, rows(number)])
        csn = db.insert(table, rows(number)).csn
        assert csn is not None
        expected[csn] = digest(whole)
    return expected


def parts_at(cluster: LocalCluster, replica: str, table: str, csn: int | None = None) -> list[dict[str, Any]]:
    """The parts of a table as a replica lists them."""
    at = ask(cluster, replica, "/status")["snapshot_csn"] if csn is None else csn
    found: list[dict[str, Any]] = ask(cluster, replica, f"/parts?csn={at}&table={table}")
    return found


def stored(cluster: LocalCluster, replica: str, part: dict[str, Any], csn: int) -> pa.Table:
    """The rows of a part as a replica serves its file, in their order, with the partition's value."""
    found = pq.read_table(stored_file(cluster, replica, part, csn))
    year = None if part["path"] == "y=__HIVE_DEFAULT_PARTITION__" else int(part["path"].removeprefix("y="))
    return found.append_column("y", pa.array([year] * found.num_rows, pa.int32()))


def stored_file(cluster: LocalCluster, replica: str, part: dict[str, Any], csn: int) -> io.BytesIO:
    """The file of a part as a replica serves it."""
    answer = http("GET", f"{served_by(cluster, replica)}/{csn}/{quote(part['file'])}")
    assert answer.status == 200, answer.data
    return io.BytesIO(answer.data)


@functools.cache
def served_by(cluster: LocalCluster, replica: str) -> str:
    """Where a replica serves snapshots."""
    address = next(row["data"] for row in cluster.status()["replicas"] if row["id"] == replica)
    return f"http://{address}/snapshots"


def require_same_rows(cluster: LocalCluster, table: str, expected: dict[int, str]) -> None:
    """Require that each CSN has its rows on every replica, and that their lists of parts agree."""
    end = ask(cluster, "r1", "/status")["end_csn"]
    csns = sorted(expected)
    newest = expected[csns[-1]]
    for replica in REPLICAS:
        for csn in (csns[0], csns[len(csns) // 2], end):
            parts = [stored(cluster, replica, part, csn) for part in parts_at(cluster, replica, table, csn)]
            assert digest(pa.concat_tables(parts)) == expected.get(csn, newest), (replica, csn)
    lists = [parts_at(cluster, replica, table, end) for replica in REPLICAS]
    assert lists[1:] == lists[:-1]


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """The worker can be held when its rows are staged."""
    return Gates(tmp_path_factory.mktemp("gates"), {WORKER: {COMPACT: "pause"}})


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """One cluster for the module; it merges soon."""
    quick = {
        "compaction_interval_s": 0.3,
        "compaction_parts_min": 4,
        "row_group_rows": ROW_GROUP,
        "insert_delay_max_s": 0.001,
        "parts_delay_insert": REFUSE // 2,
        "parts_refuse_insert": REFUSE,
        "sql_workers": 1,
        "clean_interval_s": 1,
    }
    return module_cluster(settings=QUICK | quick, environment_of={WORKER: gates.environment(WORKER)})


@pytest.fixture(scope="module")
def db(local: LocalCluster) -> Iterator[Database]:
    """A session at the worker."""
    with local.connect(WORKER) as session:
        yield session


def test_small_inserts_become_few_parts_and_no_row_changes(local: LocalCluster, db: Database) -> None:
    """Compaction in the background leaves few sorted parts; each older CSN has the same rows everywhere.

    A table that turns compaction off keeps its parts.
    """
    left_alone = create(db, compaction="off")
    fill(db, left_alone, 4)
    table = create(db)
    expected = fill(db, table, 10)
    eventually(lambda: len(parts_at(local, WORKER, table)) <= 8, what="few parts")
    assert len(parts_at(local, WORKER, left_alone)) == 8
    log = db.log(min(expected))
    merges = [tid for record in log for tid in record["tids"] if not tid["data_change"]]
    assert merges
    require_same_rows(local, table, expected)
    end = db.status()["snapshot_csn"]
    for part in parts_at(local, WORKER, table, end):
        keys = stored(local, WORKER, part, end)["k"].to_pylist()
        assert keys == sorted(keys)
        assert len(keys) == part["rows"]


def test_a_merge_of_large_parts_ends_although_nan_and_zero_come_late(
    local: LocalCluster, db: Database
) -> None:
    """Parts of several row groups become one, whose first row group has no float that needs special care."""
    table = create(db, compaction="off")
    keys = range(2 * ROW_GROUP)
    for half in (keys[::2], keys[1::2]):
        ratio = [1.5] * (len(half) - 2) + [0.0, math.nan]
        given = {"k": pa.array(half), "ratio": pa.array(ratio)}
        columns = [given.get(field.name, pa.nulls(len(half), field.type)) for field in SCHEMA]
        db.insert(table, pa.Table.from_arrays(columns, schema=SCHEMA))
    done = db.optimize(table, timeout_s=60)
    assert (done["groups"], done["parts_before"], done["parts_after"], done["done"]) == (1, 2, 1, True)
    (part,) = parts_at(local, WORKER, table)
    found = pq.read_metadata(stored_file(local, WORKER, part, db.status()["snapshot_csn"]))
    assert found.num_row_groups == 2


def test_optimize_on_request_merges_the_named_partition(local: LocalCluster, db: Database) -> None:
    """A program has one partition merged, and the command line another one."""
    table = create(db, compaction="off")
    expected = fill(db, table, 6)
    done = db.optimize(table, {"y": 1999})
    assert (done["groups"], done["parts_before"], done["parts_after"], done["done"]) == (1, 6, 1, True)
    assert done["bytes"] > 0
    name = table.removeprefix("default.")
    command = ["admin", "optimize", name, "--partition", "y=__HIVE_DEFAULT_PARTITION__", "--json"]
    told = CliRunner().invoke(app, [*command, "--url", local.url(WORKER), "--replica", WORKER])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["parts_after"] == 1
    again = db.optimize(table)
    assert (again["groups"], again["parts_before"], again["parts_after"], again["done"]) == (0, 2, 2, True)
    require_same_rows(local, table, expected)
    with pytest.raises(UnknownTableError):
        db.optimize("nowhere")


@pytest.mark.scenario("S78")
def test_a_removal_wins_over_a_compaction(local: LocalCluster, db: Database, gates: Gates) -> None:
    """Rows that a user removes while a merge is ready to commit stay removed; the merge leaves nothing."""
    table = create(db, compaction="off")
    expected = fill(db, table, 4)
    with ThreadPoolExecutor() as threads, local.connect("r1") as user:
        user.table(table, csn=max(expected))  # it removes the last insert too
        with gates.open(WORKER, COMPACT):
            merging = threads.submit(db.optimize, table, {"y": 1999})
            eventually(lambda: _staged(local, table), what="a merge that is ready")
            removed = user.drop_partition(table, {"y": 1999}, wait="all")
        assert merging.result()["parts_after"] == 0
        assert removed.csn is not None
        assert {part["path"] for part in parts_at(local, "r1", table)} == {"y=__HIVE_DEFAULT_PARTITION__"}
        assert len(parts_at(local, WORKER, table)) == 4
    for replica in REPLICAS:
        nothing_left(local.data_dir(replica))


def _staged(cluster: LocalCluster, table: str) -> bool:
    """Tell whether the worker has staged the result of a merge of this table."""
    return any(tx["tables"] == [table] and tx["parts"] for tx in ask(cluster, WORKER, "/transactions"))


def test_a_compaction_does_not_starve_a_long_transaction(local: LocalCluster, db: Database) -> None:
    """A transaction can remove rows that were merged after its begin, since the rows are the same."""
    table = create(db, compaction="off")
    fill(db, table, 3)
    with local.connect("r1") as user, user.begin(min_csn=db.seen_csn) as tx:
        assert db.optimize(table)["groups"] == 2
        eventually(lambda: len(parts_at(local, "r1", table)) == 2, what="the merge at r1")
        assert tx.drop_partition(table, {"y": 1999}).rows == 3 * ROWS * 2 // 3
    assert len(parts_at(local, "r1", table)) == 1


def test_inserts_are_held_back(db: Database) -> None:
    """With too many parts in a partition inserts wait, then fail; after a merge they are taken again."""
    name = f"default.t{next(_NUMBERS)}"
    schema = pa.schema([("k", pa.int64())])
    db.create_table(name, schema, properties={"compaction": "off"})
    one = pa.table({"k": [1]}, schema=schema)
    tx = db.begin(fresh=True)
    for _ in range(REFUSE):
        tx.insert(name, one)
    with pytest.raises(TooManyPartsError, match=f"parts_refuse_insert={REFUSE}") as refused:
        tx.insert(name, one)
    assert refused.value.details["found"] == REFUSE
    tx.rollback()
    with db.begin(fresh=True) as tx:
        for _ in range(REFUSE):
            tx.insert(name, one)
    with pytest.raises(TooManyPartsError, match="property compaction"):
        db.insert(name, one)
    assert db.optimize(name)["parts_after"] == 1
    db.insert(name, one)
    assert db.read(name).num_rows == REFUSE + 1


@pytest.mark.slow
def test_more_parts_than_a_record_names(cluster: ClusterFactory) -> None:
    """A merge of hundreds of parts has its entries in a manifest, and locks more than one request takes."""
    local = cluster(settings=QUICK | {"compaction": False, "compaction_parts_max": 1500})
    count, name = 1200, "default.many"
    with local.connect(WORKER) as db:
        db.create_table(name, SCHEMA, partition_by=["y"], sort_by=["k"])
        with db.begin(lease="600s") as tx:
            for number in range(count):
                tx.insert(name, rows(number).slice(1, 1))
        expected = {
            tx.csn or 0: digest(pa.concat_tables(rows(number).slice(1, 1) for number in range(count)))
        }
        done = db.optimize(name)
        assert (done["groups"], done["parts_before"], done["parts_after"]) == (1, count, 1)
        merge = db.log(tx.csn)[-1]["tids"][0]
        assert (merge["data_change"], merge["manifest"]["entries"]) == (False, count + 1)
        eventually(functools.partial(_applied, local, db.seen_csn), what="all replicas at the end")
        newest = {db.seen_csn: expected[tx.csn or 0]}
        require_same_rows(local, name, newest)


#: Points in a merge at which the worker dies, and whether its record is in the log by then.
POINTS: Final = {
    "agent.compact.before": False,
    "agent.compact.after": False,
    "agent.seal.before": False,
    "agent.pack.after": False,
    "replication.push.after": False,
    "csnlog.commit.before": False,
    "csnlog.commit.after": True,
    "replication.apply.before": True,
}


@pytest.mark.slow
def test_a_worker_that_dies_leaves_nothing(cluster: ClusterFactory, tmp_path: Path) -> None:
    """After a SIGKILL at each point the rows stay, nothing is left over, and another replica merges."""
    gates = Gates(tmp_path / "gates", {WORKER: dict.fromkeys(POINTS, "crash")})
    local = cluster(
        settings=QUICK | SETTINGS,
        environment_of={WORKER: gates.environment(WORKER)},
    )
    with local.connect("r1") as db:
        for point, committed in POINTS.items():
            table = create(db)
            expected = fill(db, table, 4)
            eventually(functools.partial(_applied, local, max(expected)), what="all replicas at the end")
            with gates.open(WORKER, point), ThreadPoolExecutor() as threads:
                asked = threads.submit(_optimize, local, table)
                eventually(lambda: local.pid(WORKER) is None, what=f"the death at {point}")
            asked.result()
            local.start(WORKER)
            eventually(functools.partial(_applied, local, max(expected)), what="all replicas at the end")
            for replica in REPLICAS:
                nothing_left(local.data_dir(replica))
            require_same_rows(local, table, expected)
            parts = {replica: len(parts_at(local, replica, table)) for replica in REPLICAS}
            assert parts == dict.fromkeys(REPLICAS, 5 if committed else 8), point
            assert db.optimize(table)["parts_after"] == 2
            require_same_rows(local, table, expected)
    require_clean_audit(local)


def _optimize(cluster: LocalCluster, table: str) -> None:
    """Ask the worker, which dies over it."""
    body = {"table": table, "partition": {"y": 1999}}
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        http("POST", f"{cluster.url(WORKER)}/api/v1/admin/optimize", body)


def _applied(cluster: LocalCluster, csn: int) -> bool:
    try:
        told = [ask(cluster, replica, "/status") for replica in REPLICAS]
    except TidelockError:
        return False
    return all(
        item["state"] == "serving" and item["snapshot_csn"] >= max(csn, item["end_csn"]) for item in told
    )


def test_quiet_merges_go_on_after_a_long_downtime(cluster: ClusterFactory) -> None:
    """The clock of what is forgotten makes up for a downtime as slowly; compaction goes by the log's time."""
    often = {"compaction_interval_s": 0.1, "compaction_quiet_s": 0.5, "compaction_parts_min": 8}
    settings = {**QUICK, **often, "clean_interval_s": 0.1}
    local = cluster(replicas=1, copies=1, settings=settings)
    with local.connect("r1") as db:
        db.create_table("quiet", SCHEMA)
        db.insert("quiet", rows(1))
    with closing(sqlite3.connect(local.data_dir("r1") / "catalog.db")) as catalog, catalog:
        kept = "SELECT count(*) FROM meta WHERE key = 'retention_ms'"
        eventually(lambda: catalog.execute(kept).fetchone() == (1,), what="a saved clock")
        local.stop("r1")
        behind = catalog.execute(
            "UPDATE meta SET value = value - 10 * 86400000 WHERE key = 'retention_ms'"  # ten days
        )
        assert behind.rowcount == 1
    local.start("r1")
    with local.connect("r1") as db:
        db.insert("quiet", rows(2))
        eventually(lambda: len(parts_at(local, "r1", "quiet")) == 1, what="one part")
