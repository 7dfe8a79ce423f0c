"""Tables of Delta Lake and Iceberg become tables of ours by their files, byte for byte, at their versions."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.typedef import Record
from pyiceberg.types import StringType
from typer.testing import CliRunner

from tests.support.clusters.agreeing import agreeing, all_follow, session
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, LabelExistsError, SchemaMismatchError

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("city", pa.string()),
        ("day", pa.date32()),
    ]
)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Two replicas, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=2, settings=QUICK))


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A session at r1, without a table at the end."""
    yield from session(local)


def rows(*numbers: int) -> pa.Table:
    """Return rows; some values are null, and partitions have signs that folders cannot have."""
    cities = ["Bern", "a b=c/d", None]
    return pa.Table.from_pylist(
        [
            {
                "n": number,
                "price": decimal.Decimal(number) / 4,
                "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=number),
                "tags": None if number % 2 else ["x", None],
                "city": cities[number % 3],
                "day": dt.date(2026, 1, 1 + number % 2),
            }
            for number in numbers
        ],
        SCHEMA,
    )


def shown(db: Database, **more: Any) -> list[dict[str, Any]]:
    """Return the rows of the table `t`."""
    return sorted(db.read("t", **more).to_pylist(), key=lambda row: row["n"])


@pytest.mark.parametrize("partition_by", [[], ["city"], ["day", "city"]], ids=str)
def test_a_delta_table_comes_in_at_each_of_its_versions(
    local: LocalCluster, db: Database, tmp_path: Path, partition_by: list[str]
) -> None:
    """With its partitions, on every replica, and without the rows that it has deleted."""
    for numbers in (range(6), range(6, 8)):
        write_deltalake(tmp_path, rows(*numbers), partition_by=partition_by, mode="append")
    DeltaTable(tmp_path).delete("n % 4 = 1")
    db.create_table("t", DeltaTable(tmp_path).schema(), partition_by=partition_by[::-1])
    label = f"version 0 by {partition_by}"
    first = db.import_files("t", DeltaTable(tmp_path, version=0), label=label)
    assert shown(db) == rows(*range(6)).to_pylist()
    with pytest.raises(LabelExistsError):
        db.import_files("t", DeltaTable(tmp_path, version=0), label=label)
    with db.begin() as tx:
        tx.truncate("t")
        tx.import_files("t", DeltaTable(tmp_path))
        done = tx.commit(wait="all")
    for replica in local.replicas:
        with local.connect(replica) as other:
            assert shown(other) == rows(0, 2, 3, 4, 6, 7).to_pylist()
            assert shown(other, csn=first.csn) == rows(*range(6)).to_pylist()
            assert len(other.parts("t", csn=done.csn)) == len(DeltaTable(tmp_path).file_uris())


def test_an_iceberg_table_comes_in_at_a_snapshot(db: Database, tmp_path: Path) -> None:
    """Its partitions are no folders; its files hold all columns."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", SCHEMA)
    table.append(rows(1, 2, 3))
    before = table.current_snapshot()
    assert before is not None
    table.append(rows(4))
    db.create_table("t", SCHEMA)
    done = db.import_files("t", table.scan(snapshot_id=before.snapshot_id))
    assert shown(db) == rows(1, 2, 3).to_pylist()
    with db.begin() as tx:
        tx.truncate("t")
        assert tx.import_files("t", table).rows == 4
    assert shown(db) == rows(1, 2, 3, 4).to_pylist()
    assert shown(db, csn=done.csn) == rows(1, 2, 3).to_pylist()
    for scan in (table.scan(row_filter="n > 1"), table.scan(limit=1), table.scan(selected_fields=("n",))):
        with pytest.raises(BadRequestError, match=r"n\.t cannot become parts as they are"):
            db.import_files("t", scan)
    db.create_table("p", SCHEMA, partition_by=["city"])
    with pytest.raises(BadRequestError, match="import into a table without partitions"):
        db.import_files("p", table)
    with pytest.raises(BadRequestError, match="is a table of Iceberg"):
        db.import_files("t", tmp_path / "n" / "t")
    assert len(shown(db)) == 4


def test_columns_of_iceberg_that_were_changed_are_not_mixed_up(db: Database, tmp_path: Path) -> None:
    """Iceberg knows a column by its id: one that is dropped and added again has no value of before."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    columns = pa.schema([("a", pa.string()), ("b", pa.string())])
    table = catalog.create_table("n.t", columns)
    table.append(pa.table({"a": ["old a"], "b": ["b"]}, columns))
    db.create_table("t", columns)
    db.import_files("t", table)
    with table.update_schema() as change:
        change.delete_column("a")
    with table.update_schema() as change:
        change.add_column("a", StringType())
    assert table.scan().to_arrow()["a"].to_pylist() == [None]
    with pytest.raises(BadRequestError, match="is older than a change of its columns"):
        db.import_files("t", table)
    assert db.read("t").num_rows == 1


def test_values_of_partitions_of_iceberg_are_names_of_folders(db: Database, tmp_path: Path) -> None:
    """Its paths have signs that a URI would have as escapes."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/ü x")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", SCHEMA)
    with table.update_spec() as change:
        change.add_identity("city")
    table.append(rows(1, 2, 3))
    db.create_table("t", SCHEMA)
    db.import_files("t", table)
    assert shown(db) == rows(1, 2, 3).to_pylist()


def test_rows_that_would_come_back_or_get_lost_are_refused(db: Database, tmp_path: Path) -> None:
    """Deleted rows, other names of columns, other partitions, other types: nothing of the table comes in."""
    write_deltalake(tmp_path / "plain", rows(1, 2, 3))
    write_deltalake(tmp_path / "by_city", rows(1, 2, 3), partition_by=["city"])
    db.create_table("t", SCHEMA)
    with pytest.raises(BadRequestError, match=r"partitioned by \['city'\], and the table .* by nothing"):
        db.import_files("t", DeltaTable(tmp_path / "by_city"))
    with pytest.raises(BadRequestError, match="is a table of Delta Lake, and files that it has removed"):
        db.import_files("t", tmp_path / "plain")
    for below in (tmp_path, tmp_path / "by_city" / "city=Bern"):
        with pytest.raises(BadRequestError, match="is a table of Delta Lake, and files that it has removed"):
            db.insert("t", below)
    mapped = tmp_path / "mapped"
    write_deltalake(mapped, rows(1))
    log = mapped / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    log.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with pytest.raises(BadRequestError, match="column mapping"):
        db.import_files("t", DeltaTable(mapped))
    far = rows(1).set_column(5, "day", pa.array([2_932_897], pa.date32()))  # of the year 10000
    write_deltalake(tmp_path / "far", far)
    db.import_files("t", DeltaTable(tmp_path / "far"))
    assert db.sql("select cast(day as string) as day from t").to_pylist() == [{"day": "10000-01-01"}]
    db.truncate("t")
    write_deltalake(tmp_path / "typed", rows(1).set_column(0, "n", pa.array([1], pa.int32())))
    with pytest.raises(SchemaMismatchError):
        db.import_files("t", DeltaTable(tmp_path / "typed"))
    assert shown(db) == []


def mark_a_row_as_deleted(folder: Path, position: int) -> None:
    """Add a version to a Delta table in which a file has a deletion vector, as Spark and others write it."""
    [add] = [
        line["add"]
        for line in map(json.loads, (folder / "_delta_log" / f"{0:020}.json").read_text("utf-8").splitlines())
        if "add" in line
    ]
    # An array of one bitmap of 32 bits, with one container of one value, in the portable form of Roaring.
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, position)
    vector = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    file = folder / "deletion_vector_1.bin"
    file.write_bytes(
        b"\x01" + struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    )
    told = {
        "storageType": "p",
        "pathOrInlineDv": file.as_uri(),
        "offset": 1,
        "sizeInBytes": len(vector),
        "cardinality": 1,
    }
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    lines: list[dict[str, Any]] = [
        {"protocol": {**protocol, "readerFeatures": features, "writerFeatures": features}},
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "deletionVector": told}},
    ]
    log = folder / "_delta_log" / f"{1:020}.json"
    log.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


def test_a_delta_table_with_deletion_vectors_is_refused(
    local: LocalCluster, db: Database, tmp_path: Path
) -> None:
    """A row that is only marked as deleted would come back; versions of before are taken."""
    write_deltalake(tmp_path, rows(1, 2, 3))
    mark_a_row_as_deleted(tmp_path, 1)
    table = DeltaTable(tmp_path)
    [vector] = table.deletion_vectors()
    assert vector["selection_vector"].to_pylist() == [[True, False, True]]
    db.create_table("t", SCHEMA)
    with pytest.raises(BadRequestError, match=r"only marked as deleted .*; rewrite its files"):
        db.import_files("t", table)
    with db.begin() as tx:
        with pytest.raises(BadRequestError, match="deletion vectors"):
            tx.import_files("t", table)
        tx.rollback()
    done = CliRunner().invoke(cli.app, ["import", "t", str(tmp_path), "--url", local.url("r1")])
    assert done.exit_code != 0
    assert "deletion vectors" in done.output
    assert shown(db) == []
    db.import_files("t", DeltaTable(tmp_path, version=0))
    assert shown(db) == rows(1, 2, 3).to_pylist()


@pytest.mark.parametrize("kind", [DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES])
def test_an_iceberg_table_with_files_of_deletes_is_refused(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: DataFileContent
) -> None:
    """Deleted rows would come back, whichever kind of deletes; a snapshot of before is taken."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", SCHEMA)
    table.append(rows(1, 2, 3))
    before = table.current_snapshot()
    assert before is not None
    [task] = table.scan().plan_files()
    path = tmp_path / "deletes.parquet"
    if kind is DataFileContent.POSITION_DELETES:
        pq.write_table(pa.table({"file_path": [task.file.file_path], "pos": [1]}), path)
    else:
        pq.write_table(pa.table({"n": [2]}), path)
    deletes = DataFile.from_args(
        content=kind,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if kind is DataFileContent.EQUALITY_DELETES else None,
    )
    deletes.spec_id = table.spec().spec_id
    with monkeypatch.context() as patched:  # the library writes manifests of data alone
        patched.setattr(ManifestWriterV2, "content", lambda _: ManifestContent.DELETES)
        with table.transaction() as changing, changing.update_snapshot().fast_append() as update:
            update.append_data_file(deletes)
    if kind is DataFileContent.POSITION_DELETES:  # the library cannot read the other kind
        assert table.scan().to_arrow()["n"].to_pylist() == [1, 3]
    db.create_table("t", SCHEMA)
    with pytest.raises(BadRequestError, match=r"n\.t cannot become parts as they are: .*(?i:delete)"):
        db.import_files("t", table)
    assert shown(db) == []
    db.import_files("t", table.scan(snapshot_id=before.snapshot_id))
    assert shown(db) == rows(1, 2, 3).to_pylist()


def test_the_command_line_opens_both(local: LocalCluster, db: Database, tmp_path: Path) -> None:
    """A folder with the log of Delta Lake, and the metadata of Iceberg."""
    write_deltalake(tmp_path / "delta", rows(1, 2))
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/iceberg")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", SCHEMA)
    table.append(rows(3))
    db.create_table("t", SCHEMA)
    metadata = table.metadata_location.removeprefix("file://")
    for path in (tmp_path / "delta", metadata):
        done = CliRunner().invoke(cli.app, ["import", "t", str(path), "--url", local.url("r1")])
        assert done.exit_code == 0, done.output
    all_follow(local)
    assert [row["n"] for row in shown(db)] == [1, 2, 3]
