"""Tables as files: Parquet files of others become parts as they are, and a snapshot becomes a folder."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.support.clusters.agreeing import agreeing, all_follow, session
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    DuplicateKeyError,
    SchemaMismatchError,
    TidelockError,
    UnknownTableError,
)

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string()), ("city", pa.string())])

HOME = "r1"
POINTS = [f"partfs.{step}.{side}" for step in ("fsync", "rename") for side in ("before", "after")]
#: Further ones that a file which is sent passes at the home, and at a peer that gets its copy.
SENT = [*POINTS, "partfs.write.before", "agent.catalog.before", "agent.catalog.after"]
PEER, COPIED = (
    "r2",
    [f"replication.{step}.{side}" for step in ("accept", "fetch") for side in ("before", "after")],
)


@pytest.fixture(scope="module")
def import_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose files agents link: it is on the file system of their data directories."""
    return tmp_path_factory.mktemp("linked")


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates at which the home is killed while it makes a link or gets a file, and a peer with its copy."""
    faults = {HOME: dict.fromkeys(SENT, "crash"), PEER: dict.fromkeys(COPIED, "crash")}
    return Gates(tmp_path_factory.mktemp("gates"), faults)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, import_dir: Path, gates: Gates) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    limits = {"inline_part_bytes_max": 4096, "clean_interval_s": 1}
    settings = QUICK | limits | {"import_dir": str(import_dir)}
    environment_of = {replica: gates.environment(replica) for replica in (HOME, PEER)}
    yield from agreeing(module_cluster(replicas=3, settings=settings, environment_of=environment_of))


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A session at r1, without a table at the end."""
    yield from session(local)


def rows(*numbers: int, city: str = "Bern") -> pa.Table:
    """Return rows of one city."""
    return pa.table(
        {"k": numbers, "v": [f"v{number}" for number in numbers], "city": [city] * len(numbers)}, SCHEMA
    )


def hive(folder: Path) -> Path:
    """Write a folder as others do: partitions, several files, a mark, a file that was never finished."""
    for city, numbers in (("Bern", (1, 2)), ("Zürich%2F1", (3,)), ("__HIVE_DEFAULT_PARTITION__", (4, 5))):
        place = folder / f"city={city}"
        place.mkdir(parents=True)
        for number in numbers:
            pq.write_table(
                rows(number).drop_columns(["city"]), place / f"{number}.parquet", compression="zstd"
            )
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "half.parquet").write_bytes(b"PAR1")
    return folder


def seen(db: Database, **more: Any) -> list[tuple[Any, ...]]:
    """Return the rows of the table `t`."""
    return sorted(tuple(row.values()) for row in db.read("t", **more).to_pylist())


def bytes_of(folder: Path) -> list[str]:
    """Return hashes of all Parquet files below a folder."""
    return sorted(
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.parquet")
        if "_temporary" not in path.parts
    )


def test_a_hive_folder_is_imported_as_it_is_and_comes_out_again(
    local: LocalCluster, db: Database, tmp_path: Path
) -> None:
    """Byte for byte, with its partitions, on every replica; other programs read what comes out."""
    source = hive(tmp_path / "source")
    db.create_table("t", SCHEMA, partition_by=["city"], properties={"compaction": "off"})
    done = db.import_files("t", source, wait="all", label="load 1")
    assert done.rows_inserted == 5
    expected = [(1, "v1", "Bern"), (2, "v2", "Bern"), (3, "v3", "Zürich/1"), (4, "v4", None), (5, "v5", None)]
    for replica in local.replicas:
        with local.connect(replica) as other:
            assert seen(other) == expected
            out = tmp_path / replica
            told = other.export("t", out)
            assert (told.files, told.rows) == (5, 5)
            assert told.bytes == sum(path.stat().st_size for path in out.rglob("*.parquet"))
            assert bytes_of(out) == bytes_of(source)
            assert (out / "_SUCCESS").exists()
    found = ds.dataset(tmp_path / "r2", partitioning="hive").to_table()
    assert sorted(found["k"].to_pylist()) == [1, 2, 3, 4, 5]
    sql = f"select k, v, city from read_parquet('{tmp_path / 'r3'}/**/*.parquet', hive_partitioning = true)"
    assert sorted(duckdb.execute(sql).fetchall()) == sorted(expected)
    known = db.statistics("t")
    assert (known.rows, [(one.name, one.min, one.max, one.nulls) for one in known.columns]) == (
        5,
        [("k", "1", "5", 0), ("v", "v1", "v5", 0), ("city", "Bern", "Zürich/1", 2)],
    )


def test_a_file_is_linked_where_its_folder_may_be(
    local: LocalCluster, db: Database, import_dir: Path, tmp_path: Path
) -> None:
    """Its home has no second copy, the others have one each, and all keep it when the source is gone."""
    db.create_table("t", SCHEMA.remove(2), properties={"compaction": "off"})
    linked, sent = import_dir / "linked.parquet", tmp_path / "sent.parquet"
    pq.write_table(rows(1, 2).drop_columns(["city"]), linked)
    pq.write_table(rows(3).drop_columns(["city"]), sent)
    (tmp_path / "by_a_name.parquet").symlink_to(linked)
    (import_dir / "leads_outside.parquet").symlink_to(sent)
    for path in (linked, tmp_path / "by_a_name.parquet", sent, import_dir / "leads_outside.parquet"):
        db.import_files("t", path, wait="all")
    inodes = [
        path.stat().st_ino
        for replica in local.replicas
        for path in local.data_dir(replica).rglob("*.parquet")
    ]
    assert (inodes.count(linked.stat().st_ino), linked.stat().st_nlink) == (2, 3)
    assert (inodes.count(sent.stat().st_ino), sent.stat().st_nlink) == (0, 1)
    for path in (linked, sent):
        path.unlink()
    local.kill("r1")
    local.start("r1")
    expected = sorted([(1, "v1"), (2, "v2"), (3, "v3")] * 2)
    for replica in local.replicas:
        with local.connect(replica) as other:
            assert seen(other, csn=db.seen_csn) == expected
    several = import_dir / "several"
    several.mkdir()
    for number in range(4):
        pq.write_table(rows(*range(200)).drop_columns(["city"]), several / f"{number}.parquet")
    assert db.import_files("t", several, wait="all").rows_inserted == 800
    assert [path.stat().st_nlink for path in several.iterdir()] == [2] * 4
    tx = db.begin()
    pq.write_table(rows(4).drop_columns(["city"]), linked)
    tx.import_files("t", linked)
    assert linked.stat().st_nlink == 2
    tx.rollback()
    eventually(lambda: linked.stat().st_nlink == 1, what="the end of the link")


def dies_in_an_import(local: LocalCluster, db: Database, gates: Gates, point: str, path: Path) -> None:
    """Have the home die at a point of an import that a transaction makes, and start it again."""
    tx = db.begin()
    assert tx.tid.split("-")[1] == HOME
    with gates.open(HOME, point), pytest.raises(TidelockError):
        tx.import_files("t", path)
    local.kill(HOME)
    local.start(HOME)


@pytest.mark.scenario("S53")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.few(2)
def test_a_home_that_dies_while_it_links_leaves_nothing(
    local: LocalCluster, db: Database, import_dir: Path, gates: Gates, point: str
) -> None:
    """The file loses its second name, no row is there, and the import can be called again."""
    db.create_table("t", SCHEMA.remove(2))
    path = import_dir / f"{point}.parquet"
    pq.write_table(rows(1).drop_columns(["city"]), path)
    dies_in_an_import(local, db, gates, point, path)
    eventually(lambda: path.stat().st_nlink == 1, what="the end of the link")
    with local.connect(HOME) as again:
        assert seen(again, csn=db.seen_csn) == []
        again.import_files("t", path, wait="all")
        assert path.stat().st_nlink == 2
        assert seen(again) == [(1, "v1")]


@pytest.mark.scenario("S53")
@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=pytest.mark.slow if point in POINTS else ()) for point in SENT]
)
@pytest.mark.few(1)
def test_a_home_that_dies_while_files_are_sent_leaves_nothing(
    local: LocalCluster, db: Database, tmp_path: Path, gates: Gates, point: str
) -> None:
    """One of several files is under way: no row of any is there, and the import can be called again."""
    db.create_table("t", SCHEMA.remove(2))
    before = db.seen_csn
    for number in range(3):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(rows(*range(1000 * number, 1000 * number + 1000)).drop_columns(["city"]), path)
    dies_in_an_import(local, db, gates, point, tmp_path)
    for replica in local.replicas:
        with local.connect(replica) as other:
            assert seen(other, csn=before) == []
    with local.connect(HOME) as again:
        assert again.import_files("t", tmp_path, wait="all").rows_inserted == 3000
        assert [row[0] for row in seen(again)] == [*range(3000)]


@pytest.mark.scenario("S53")
@pytest.mark.parametrize("point", COPIED)
@pytest.mark.few(2)
def test_a_peer_that_dies_with_its_copy_of_an_import(
    local: LocalCluster, db: Database, tmp_path: Path, gates: Gates, point: str
) -> None:
    """The other peer has a copy, so the import commits; the one that died gets the files afterwards."""
    db.create_table("t", SCHEMA.remove(2))
    all_follow(local)
    path = tmp_path / "rows.parquet"
    pq.write_table(rows(*range(1000)).drop_columns(["city"]), path)
    with gates.open(PEER, point):
        # The peers take turns to be sent the first copy of a file; the other one fetches its copy.
        csn = [db.import_files("t", path).csn for _ in range(2)][-1]
        gates.await_hit(PEER, point)
    local.kill(PEER)
    local.start(PEER)
    for replica in local.replicas:
        with local.connect(replica) as other:
            assert len(seen(other, csn=csn)) == 2000


def test_an_import_is_a_statement_of_a_transaction(db: Database, tmp_path: Path) -> None:
    """Rows of two imports and an insert become visible together, or not at all; the past is exported, too."""
    db.create_table("t", SCHEMA, partition_by=["city"])
    before = db.insert("t", rows(1)).csn
    for number in (2, 3):
        place = tmp_path / f"city=Oslo/{number}.parquet"
        place.parent.mkdir(exist_ok=True)
        pq.write_table(rows(number).drop_columns(["city"]), place)
    with db.begin() as tx:
        assert tx.import_files("t", tmp_path / "city=Oslo" / "2.parquet").rows == 1
        tx.insert("t", rows(4))
        assert tx.import_files("t", [tmp_path / "city=Oslo"]).rows == 2
        assert sorted(tx.read("t", ["k"])["k"].to_pylist()) == [1, 2, 2, 3, 4]
        assert seen(db) == [(1, "v1", "Bern")]
    assert [row[0] for row in seen(db)] == [1, 2, 2, 3, 4]
    with db.begin() as tx:
        tx.import_files("t", tmp_path / "city=Oslo")
        tx.rollback()
    assert len(seen(db)) == 5
    assert db.export("t", tmp_path / "then", csn=before).rows == 1
    db.alter_table("t", add="w bigint default 7", rename={"v": "x"})
    assert db.export("t", tmp_path / "now").rows == 5
    found = ds.dataset(tmp_path / "now", partitioning="hive").to_table(columns=["k", "w", "x"])
    assert set(found["w"].to_pylist()) == {7}


#: Types as programs have them in memory, each with the one that a file stores, and a value.
HINTED = {
    "large": (pa.large_string(), pa.string(), "a"),
    "view": (pa.string_view(), pa.string(), ""),
    "bytes": (pa.binary_view(), pa.binary(), b"\x00"),
    "category": (pa.dictionary(pa.int8(), pa.string()), pa.string(), "red"),
    "zone": (
        pa.timestamp("us", "Europe/Zurich"),
        pa.timestamp("us", "UTC"),
        dt.datetime(2026, 7, 1, tzinfo=dt.UTC),
    ),
    "views": (pa.large_list(pa.string_view()), pa.list_(pa.string()), ["x", None]),
    "fixed": (pa.list_(pa.int64(), 2), pa.list_(pa.int64()), [1, 2]),
    "pairs": (pa.map_(pa.large_string(), pa.int64()), pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    "inside": (
        pa.struct([("z", pa.list_(pa.dictionary(pa.int32(), pa.large_string())))]),
        pa.struct([("z", pa.list_(pa.string()))]),
        {"z": ["q"]},
    ),
}


def test_notes_about_memory_in_a_file_change_nothing(db: Database, tmp_path: Path) -> None:
    """Files of polars, pandas and delta-rs say which types in memory their values had; every reader copes."""
    stored = pa.schema([("n", pa.int64()), *((name, kind) for name, (_, kind, _) in HINTED.items())])
    for number in range(3):
        columns = {
            name: pa.array([value if number else None], kind) for name, (kind, _, value) in HINTED.items()
        }
        columns = {"n": pa.array([number]), **columns}
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
    db.create_table("t", stored)
    db.import_files("t", tmp_path, wait="all")
    one = {name: value for name, (_, _, value) in HINTED.items()}
    expected = [{"n": 0, **dict.fromkeys(HINTED)}, {"n": 1, **one}, {"n": 2, **one}]

    def shown() -> list[dict[str, Any]]:
        return sorted(db.read("t").to_pylist(), key=lambda row: row["n"])

    assert shown() == expected
    assert db.read("t").schema.equals(stored)
    names = ", ".join(f'"{name}"' for name in stored.names)
    assert db.sql(f"select {names} from t order by n").to_pylist() == expected
    assert db.optimize("t").parts_after == 1
    assert shown() == expected
    db.update("t", {"large": "view || 'b'"}, where="n = 2")
    assert [row["large"] for row in shown()] == [None, "a", "b"]
    assert db.export("t", tmp_path / "out").rows == 3
    assert ds.dataset(tmp_path / "out").to_table().schema.remove_metadata().names == stored.names


def test_files_that_do_not_fit_are_refused_and_leave_nothing(db: Database, tmp_path: Path) -> None:
    """With the reason and the file; the table has no row of the others."""
    db.create_table("t", SCHEMA, partition_by=["city"])
    db.create_table("flat", SCHEMA, properties={"unique_key": "k"})
    good = tmp_path / "city=Bern" / "good.parquet"
    good.parent.mkdir()
    pq.write_table(rows(1).drop_columns(["city"]), good)
    narrow = tmp_path / "city=Bern" / "narrow.parquet"
    wrong = {
        "column k .* int32": pa.table({"k": pa.array([1], pa.int32()), "v": ["a"]}),
        "column v .* is missing": pa.table({"k": [1]}),
        "partitionBy": rows(1),
        "is required": pa.table({"k": pa.array([None], pa.int64()), "v": ["a"]}),
    }
    for words, table in wrong.items():
        pq.write_table(table, narrow)
        with pytest.raises(SchemaMismatchError, match=words):
            db.import_files("t", tmp_path / "city=Bern")
    narrow.write_bytes(b"PAR1 and no footer")
    with pytest.raises(SchemaMismatchError, match="cannot be read as Parquet"):
        db.import_files("t", tmp_path / "city=Bern")
    narrow.unlink()
    flat = tmp_path / "flat.parquet"
    pq.write_table(rows(1), flat)
    with pytest.raises(SchemaMismatchError, match="no partition"):
        db.import_files("t", flat)
    pq.write_table(pa.concat_tables([rows(1), rows(1)]), flat)
    with pytest.raises(DuplicateKeyError):
        db.import_files("flat", flat)
    with pytest.raises(BadRequestError, match=r"cannot read .*missing"), db.begin() as tx:
        tx.import_files("t", [good, tmp_path / "missing.parquet"])
    with pytest.raises(UnknownTableError):
        db.import_files("no.such", good)
    with db.begin() as tx:  # a file that cannot be read costs the transaction nothing
        with pytest.raises(BadRequestError, match="cannot read"):
            tx.import_files("t", [good, tmp_path / "missing.parquet"])
        tx.import_files("t", good)
    assert seen(db) == [(1, "v1", "Bern")]
    with pytest.raises(BadRequestError, match="is not empty"):
        db.export("t", tmp_path)
    with pytest.raises(BadRequestError, match="cannot write"):
        db.export("t", flat)
    with pytest.raises(UnknownTableError):
        db.export("no.such", tmp_path / "new")


def test_an_export_goes_on_at_another_replica(local: LocalCluster, db: Database, tmp_path: Path) -> None:
    """The replica that holds the snapshot is killed before the files are fetched."""
    db.create_table("t", SCHEMA)
    csn = [db.insert("t", rows(number), wait="all").csn for number in range(8)][-1]
    with local.connect() as other, other.snapshot(min_csn=csn) as snapshot:
        gone = snapshot.holder
        local.kill(gone)
        told = snapshot.export("t", tmp_path / "out")
    assert told.rows == 8
    assert sorted(ds.dataset(tmp_path / "out").to_table()["k"].to_pylist()) == [*range(8)]
    local.start(gone)


def test_the_command_line_moves_files(local: LocalCluster, db: Database, tmp_path: Path) -> None:
    """Out of one table and into another, with numbers for programs."""
    db.create_table("t", SCHEMA, partition_by=["city"])
    db.create_table("copy", SCHEMA, partition_by=["city"])
    csn = db.insert("t", rows(1, 2), wait="all").csn

    def run(*words: str) -> Any:
        done = CliRunner().invoke(cli.app, [*words, "--json", "--url", local.url("r1")])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    told = run("export", "t", str(tmp_path / "out"), "--csn", str(csn))
    assert (told["files"], told["rows"]) == (1, 2)
    done = run("import", "copy", str(tmp_path / "out"), "--label", "once", "--wait", "all")
    assert done["rows"] == 2
    assert sorted(db.read("copy", csn=done["csn"])["k"].to_pylist()) == [1, 2]
