"""A model of a table whose columns change, and the comparison of all that shows a table with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.histories.evidence import data_address
from tests.support.replicas.readers import send
from tidelock.cluster import LocalCluster
from tidelock.partition_paths import texts_of

#: Rows as the model keeps them: the values by the ids of their columns.
Rows = list[dict[int, Any]]
TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(18,2)": pa.decimal128(18, 2),
    "decimal(25,4)": pa.decimal128(25, 4),
}
#: The types that a column of each type can be widened to.
WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
    "decimal(9,2)": ("decimal(18,2)", "decimal(25,4)"),
    "decimal(18,2)": ("decimal(25,4)",),
}


@dataclass(frozen=True)
class Model:
    """A table: ids, names and types of its columns in their order, and its rows."""

    columns: tuple[tuple[int, str, str], ...]
    rows: tuple[dict[int, Any], ...] = ()

    def shown(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of the columns, and the rows in order."""
        rows = [tuple(row.get(column) for column, *_ in self.columns) for row in self.rows]
        return [name for _, name, _ in self.columns], sorted(rows, key=repr)

    def widened(self, types: dict[int, str]) -> Model:
        """Return the table with wider types of some columns."""
        columns = tuple((column, name, types.get(column, kind)) for column, name, kind in self.columns)
        wide = {column: TYPES[kind] for column, kind in types.items()}
        rows = [
            {
                column: pa.scalar(value, wide[column]).as_py() if column in wide else value
                for column, value in row.items()
            }
            for row in self.rows
        ]
        return Model(columns, tuple(rows))

    def arrow(self, rows: Rows) -> pa.Table:
        """Return rows for an insert."""
        return pa.table(
            {
                name: pa.array([row.get(column) for row in rows], TYPES[kind])
                for column, name, kind in self.columns
            }
        )


def of_table(found: pa.Table) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the columns, and the rows in order."""
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True) if found.num_columns else []
    return found.column_names, sorted(rows, key=repr)


def of_files(address: str, csn: int | str, table: str) -> list[tuple[str, pa.Table]]:
    """Read every file of a table's folder with pyarrow alone, without a schema: its partition, its rows.

    Arguments as of :func:`files_of`.
    """
    found = files_of(address, csn, table)
    return [(folder, pq.read_table(pa.BufferReader(file))) for folder, file in found]


def files_of(address: str, csn: int | str, table: str, folder: str = "") -> list[tuple[str, bytes]]:
    """Fetch every file of a table's folder over HTTP: its partition, its bytes.

    Args:
        address: host:port of the snapshot file system of a replica.
        csn: The CSN.
        table: `name` or `namespace.name`.
        folder: The folder inside of the table's own.
    """
    namespace, _, name = table.rpartition(".")
    root = f"/snapshots/{csn}/{namespace or 'default'}/{name}"
    path = f"{root}/{folder}".rstrip("/")
    answer = send(address, "GET", f"/webhdfs/v1{quote(path)}?op=LISTSTATUS")
    assert answer.status == 200, answer
    found: list[tuple[str, bytes]] = []
    for status in answer.json()["FileStatuses"]["FileStatus"]:
        inner = f"{folder}/{status['pathSuffix']}".lstrip("/")
        if status["type"] == "DIRECTORY":
            found += files_of(address, csn, table, inner)
        elif not status["pathSuffix"].startswith("_"):
            file = send(address, "GET", quote(f"{root}/{inner}"))
            assert (file.status, len(file.body)) == (200, status["length"]), file.body[:300]
            found.append((folder, file.body))
    return found


def tables_of_folders(address: str, csn: int | str) -> list[str]:
    """Return the names of the tables that have a folder at a CSN."""

    def inside(path: str) -> list[str]:
        answer = send(address, "GET", f"/webhdfs/v1{path}?op=LISTSTATUS")
        assert answer.status == 200, answer
        listed = answer.json()["FileStatuses"]["FileStatus"]
        return [str(status["pathSuffix"]) for status in listed if status["type"] == "DIRECTORY"]

    root = f"/snapshots/{csn}"
    return sorted(f"{above}.{name}" for above in inside(root) for name in inside(f"{root}/{above}"))


def require_shown(local: LocalCluster, replica: str, csn: int | str, table: str, model: Model) -> None:
    """Compare what a client, SQL and plain readers of all files see with the model."""
    names, rows = model.shown()
    with local.connect(replica) as db, db.snapshot(csn=csn) as snap:
        assert of_table(snap.read(table)) == (names, rows)
        assert of_table(snap.sql(f"select * from {table}")) == (names, rows)
        columns = snap.table(table)["columns"]
        assert [(one["id"], one["name"], one["type"]) for one in columns] == [*model.columns]
        assert snap.table(table)["rows"] == len(rows)
        # The parts by themselves, which the listing shows as combined files.
        single = [
            (part["path"], part["file_length"], send(data_address(local, replica), "GET", quote(path)))
            for part in snap.parts(table)
            for path in [f"/snapshots/{csn}/{part['file']}"]
        ]
    assert all((one.status, len(one.body)) == (200, length) for _, length, one in single)
    for files in (
        of_files(data_address(local, replica), csn, table),
        [(path, pq.read_table(pa.BufferReader(one.body))) for path, _, one in single],
    ):
        read: list[tuple[Any, ...]] = []
        for folder, found in files:
            texts = texts_of(folder)
            assert sorted([*found.column_names, *texts]) == sorted(names)
            assert {name: found.schema.field(name).type for name in found.column_names} == {
                name: TYPES[kind] for _, name, kind in model.columns if name not in texts
            }
            values = {name: found[name].to_pylist() for name in found.column_names}
            values |= {name: [int(text or "0")] * found.num_rows for name, text in texts.items()}
            read += zip(*(values[name] for name in names), strict=True)
        assert sorted(read, key=repr) == rows


# -- drawn changes -------------------------------------------------------------------------------------------
