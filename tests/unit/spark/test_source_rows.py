"""Rows of parts as tasks read them: damage of one replica, wide rows, replicas without an address."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as spark

from tidelock.errors import CorruptError, SnapshotTooOldError, TidelockError, UnavailableError
from tidelock.spark.source import rows
from tidelock.spark.source.files import SnapshotFiles
from tidelock.spark.source.options import read_options
from tidelock.spark.source.pieces import Piece
from tidelock.spark.source.reading import TidelockReader
from tidelock.spark.source.rows import Columns, columns_of, rows_of

COUNT = 4000
ARROW = pa.schema([("id", pa.int64()), ("p", pa.string()), ("text", pa.string())])
DEFINITION: dict[str, Any] = {
    "name": "default.t",
    "arrow_schema": base64.b64encode(ARROW.serialize()).decode(),
    "columns": [
        {"name": "id", "type": "bigint", "nullable": True},
        {"name": "p", "type": "string", "nullable": True},
        {"name": "text", "type": "string", "nullable": True},
    ],
    "partition_by": ["p"],
    "sort_by": [],
}
SCHEMA = spark.StructType(
    [
        spark.StructField("id", spark.LongType()),
        spark.StructField("p", spark.StringType()),
        spark.StructField("text", spark.StringType()),
    ]
)


class Replicas(SnapshotFiles):
    """Replicas that return these bytes as their only file, or raise an error."""

    def __init__(self, **answers: bytes | TidelockError) -> None:
        super().__init__(7, list(answers), connect_s=1.0, read_s=1.0)
        self._answers = answers

    def _ask(self, address: str, _file: str, start: int, end: int) -> bytes:
        answer = self._answers[address]
        if isinstance(answer, TidelockError):
            raise answer
        return answer[start:end]


def part(width: int = 1) -> bytes:
    """Return a part of four row groups; its texts have a length of 16 characters times `width`."""
    chance = np.random.default_rng(7)
    texts = [chance.bytes(8 * width).hex() for _ in range(COUNT)]
    file = io.BytesIO()
    pq.write_table(
        pa.table({"id": range(COUNT), "text": texts}),
        file,
        row_group_size=COUNT // 4,
        write_page_checksum=True,
        compression="zstd",
    )
    return file.getvalue()


def piece(data: bytes) -> Piece:
    """Return a whole part as a piece."""
    return Piece("r1-1-1", "default/t/p=a/r1-1-1.parquet", "p=a", COUNT, len(data), 0, len(data))


def damaged(data: bytes, *, at: float) -> bytes:
    """Return the bytes with a flipped bit, at a fraction of their length."""
    position = int(len(data) * at)
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def columns() -> Columns:
    """Return all columns of the table."""
    return columns_of(DEFINITION, SCHEMA)


def ids(found: Iterator[pa.RecordBatch]) -> list[int]:
    """Return the ids of the rows, in their order."""
    return [value for batch in found for value in batch.column("id").to_pylist()]


@pytest.fixture(params=[1 << 20, 0], ids=["whole", "ranges"])
def _request_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are read by one request, or by ranges."""
    monkeypatch.setattr(rows, "WHOLE_BYTES", request.param)
    monkeypatch.setattr(rows, "BATCH_ROWS", 300)


@pytest.mark.usefixtures("_request_kind")
@pytest.mark.parametrize("at", [0.01, 0.4, 0.7, 0.99999])
def test_damage_of_one_replica(at: float) -> None:
    """The next replica continues where the first one is damaged: each row is read once, in order."""
    data = part()
    files = Replicas(r1=damaged(data, at=at), r2=data)
    assert ids(rows_of(files, piece(data), columns())) == list(range(COUNT))
    assert ids(rows_of(files, piece(data), columns())) == list(range(COUNT))


@pytest.mark.usefixtures("_request_kind")
@pytest.mark.parametrize("at", [0.01, 0.7, 0.99999])
def test_damage_of_all_replicas(at: float) -> None:
    """The error names part and file, and no row is read from damaged bytes."""
    data = part()
    bad = damaged(data, at=at)
    found: list[int] = []
    with pytest.raises(CorruptError, match=r"part r1-1-1 .*default/t/p=a/r1-1-1\.parquet") as caught:
        found.extend(
            value
            for batch in rows_of(Replicas(r1=bad, r2=bad), piece(data), columns())
            for value in batch.column("id").to_pylist()
        )
    assert caught.value.details["part"] == "r1-1-1"
    assert found == list(range(len(found)))


@pytest.mark.usefixtures("_request_kind")
def test_another_file_than_the_part() -> None:
    """A file with another number of rows than the catalog says is an error."""
    data = part()
    with pytest.raises(CorruptError, match="the catalog says 3999"):
        ids(rows_of(Replicas(r1=data), replace(piece(data), rows=3999), columns()))


@pytest.mark.usefixtures("_request_kind")
def test_what_is_said_of_the_snapshot_is_no_damage() -> None:
    """A refusal of the snapshot ends the read with its own error, also from the middle of Arrow's reader."""
    data = part()
    with pytest.raises(SnapshotTooOldError):
        ids(rows_of(Replicas(r1=SnapshotTooOldError("gone"), r2=data), piece(data), columns()))


def test_wide_rows_come_in_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is bounded by its bytes; a batch without columns of the file by its rows."""
    monkeypatch.setattr(rows, "BATCH_BYTES", 1 << 16)
    data = part(width=16)
    found = list(rows_of(Replicas(r1=data), piece(data), columns()))
    assert max(batch.num_rows for batch in found) < COUNT // 8
    assert ids(iter(found)) == list(range(COUNT))
    only = columns_of(DEFINITION, spark.StructType([SCHEMA["p"]]))
    assert sum(batch.num_rows for batch in rows_of(Replicas(r1=data), piece(data), only)) == COUNT


def test_a_replica_that_has_no_api_address_yet() -> None:
    """Without failover no other replica may be asked: the error says so, and the read may be repeated."""
    options = read_options(
        {"table": "t", "url": "http://h:1", "replica": "r1", "failover": "false", "where": "id > 1"}, {}
    )
    status = {
        "replicas": [
            {"id": name, "api": api, "data": f"{name}:2", "state": "serving", "alive": True}
            for name, api in (("r1", ""), ("r2", "r2:1"))
        ]
    }
    reader = object.__new__(TidelockReader)
    reader._columns = columns()
    with pytest.raises(UnavailableError, match="r1 has not published the address of its API"):
        reader._condition(options, status, 7)
