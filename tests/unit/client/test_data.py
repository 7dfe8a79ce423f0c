"""Rows to insert: every accepted form becomes the same Arrow stream, piece by piece."""

from __future__ import annotations

import datetime as dt
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelock.client.values import data
from tidelock.client.values.arguments import milliseconds, seconds
from tidelock.column_types import to_text
from tidelock.errors import BadRequestError, SchemaMismatchError

pd = pytest.importorskip("pandas", reason="pandas comes with the extra `spark`")

TABLE = pa.table({"k": [1, 2, 3], "name": ["a", None, "c"]})


def sent(rows: Any) -> pa.Table:
    """Return the rows that an agent reads."""
    return pa.ipc.open_stream(b"".join(data.ipc_stream(data.open_rows(rows)))).read_all()


class Capsule:
    """An object of another library that speaks Arrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows by Arrow's C interface."""
        return TABLE.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "rows",
    [
        TABLE,
        TABLE.to_reader(),
        TABLE.to_batches()[0],
        pa.concat_tables([TABLE[:1], TABLE[1:]]),
        TABLE.to_pandas(),
        Capsule(),
        TABLE.replace_schema_metadata({"made by": "a program"}),
    ],
    ids=["table", "reader", "batch", "chunks", "pandas", "capsule", "metadata"],
)
def test_all_forms_of_rows_give_the_same_rows(rows: Any) -> None:
    """Tables, readers, batches, DataFrames and Arrow capsules give the same rows."""
    assert sent(rows) == TABLE
    assert sent(TABLE[:0]).schema == TABLE.schema


def test_schemas_that_are_nearly_alike_are_sent_as_they_are() -> None:
    """The form of a schema is kept, so that of another one must not be taken."""
    key = pa.field("k", pa.int64())
    names = pa.array(["a", None, "c"])
    given = [
        TABLE,
        pa.table([TABLE["k"], names.dictionary_encode()], names=["k", "name"]),
        TABLE.cast(pa.schema([key.with_nullable(False), TABLE.schema.field("name")])),
        TABLE.cast(pa.schema([key, pa.field("name", pa.large_string())])),
        TABLE.rename_columns(["k", "other"]),
        TABLE,
    ]
    for rows in given:
        back = sent(rows)
        assert back.schema == (TABLE.schema if pa.types.is_dictionary(rows.schema[1].type) else rows.schema)
        assert back.column(1).to_pylist() == ["a", None, "c"]


def test_pandas_index_is_no_column() -> None:
    """A DataFrame's index is not inserted; its times go as they are, and the agent casts them."""
    frame = pd.DataFrame({"at": pd.to_datetime(["2026-01-01", None])}, index=["x", "y"])
    rows = sent(frame)
    assert rows.column_names == ["at"]
    assert rows.schema.field("at").type == pa.timestamp("ns")
    assert rows.column("at").null_count == 1


def test_a_nan_of_pandas_is_null_and_one_of_arrow_stays() -> None:
    """As docs/transactions.md says: pandas writes NaN where a column of floats has no value."""
    assert sent(pd.DataFrame({"f": [1.5, float("nan"), None]})) == pa.table({"f": [1.5, None, None]})
    assert repr(sent(pa.table({"f": [float("nan")]}))["f"].to_pylist()) == "[nan]"


def test_pandas_values_that_do_not_fit() -> None:
    """A column of several types is refused."""
    with pytest.raises(SchemaMismatchError, match="several types"):
        sent(pd.DataFrame({"k": [1, "x"]}))


def test_dictionaries_are_decoded_to_their_values() -> None:
    """Dictionary-encoded columns, as pandas' categories are, arrive as their values."""
    rows = pa.table({"name": pa.array(["a", "b", "a"]).dictionary_encode()})
    assert sent(rows).column("name").to_pylist() == ["a", "b", "a"]
    assert sent(rows).schema.field("name").type == pa.string()


def test_large_batches_are_cut() -> None:
    """A batch of any size is sent in pieces of bounded size."""
    rows = pa.table({"k": range(3_000_000)})
    pieces = list(data.ipc_stream(data.open_rows(rows)))
    assert max(len(piece) for piece in pieces) < 2 * data.PIECE_BYTES
    assert pa.ipc.open_stream(b"".join(pieces)).read_all() == rows


def test_rows_are_read_as_they_are_sent() -> None:
    """A reader is asked for a batch only when the last one was sent."""
    asked: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            asked.append(number)
            yield TABLE.to_batches()[0]

    stream = data.ipc_stream(pa.RecordBatchReader.from_batches(TABLE.schema, batches()))
    next(stream)
    assert asked == []
    next(stream)
    assert asked == [0]


def test_parquet_files_and_folders_give_all_rows(tmp_path: Path) -> None:
    """A file, a folder and a list of both give the rows of all files, except Spark's hidden ones."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "_temporary").mkdir()
    for name in ("b.parquet", "sub/a.parquet", "_temporary/x.parquet", ".hidden.parquet"):
        pq.write_table(TABLE, tmp_path / name)
    (tmp_path / "_SUCCESS").touch()
    assert sent(tmp_path / "b.parquet") == TABLE
    assert sent(str(tmp_path)).num_rows == 6
    assert sent([tmp_path, tmp_path / "b.parquet"]).num_rows == 9


def test_links_are_followed_and_no_file_is_left_out(tmp_path: Path) -> None:
    """Rows behind links count; a link that leads back, and a folder that cannot be listed, are refused."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    (elsewhere / "day=1").mkdir(parents=True)
    (folder / "_day=2").mkdir(parents=True)
    (folder / "folder.parquet").mkdir()
    pq.write_table(TABLE, elsewhere / "day=1" / "a.parquet")
    pq.write_table(TABLE, folder / "_day=2" / "b.parquet")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "again").symlink_to(elsewhere)
    (folder / "c.parquet").symlink_to(elsewhere / "day=1" / "a.parquet")
    assert sent(folder).num_rows == 4 * TABLE.num_rows
    (folder / "day=3").symlink_to(folder)
    with pytest.raises(BadRequestError, match="a folder above it"):
        sent(folder)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would be missing without a word."""
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(BadRequestError, match=r"cannot list .*closed: Permission denied"):
        sent(tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing files, other files, folders without Parquet and empty lists are refused by name."""
    (tmp_path / "other.parquet").write_bytes(b"no parquet, but long enough")
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "missing.parquet", "there is no file"),
        (tmp_path / "other.parquet", "expected a Parquet file"),
        (tmp_path / "empty", "holds no file"),
        ([], "empty"),
    ):
        with pytest.raises(BadRequestError, match=message):
            data.open_rows(path)


def test_a_damaged_file_fails_with_its_name(tmp_path: Path) -> None:
    """A file with damaged pages fails while it is read, with its name, and never gives fewer rows."""
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"k": range(1000)}), path, compression="gzip", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(bytes(content))
    with pytest.raises(BadRequestError, match="cannot read"):
        sent(path)


def test_files_with_different_columns(tmp_path: Path) -> None:
    """Files of one insert must have the same columns."""
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(TABLE.select(["k"]), tmp_path / "b.parquet")
    with pytest.raises(SchemaMismatchError, match=r"b\.parquet has other columns"):
        data.open_rows(tmp_path)


@pytest.mark.parametrize("rows", [42, None, {"k": [1]}, [1, 2], [TABLE]])
def test_other_objects_are_refused_with_what_holds_rows(rows: Any) -> None:
    """An object without rows is refused with a list of objects that hold rows."""
    with pytest.raises(BadRequestError, match="expected a pyarrow Table"):
        data.open_rows(rows)


def test_readers_and_streams_are_not_repeatable() -> None:
    """Tables, DataFrames and files can be sent a second time; readers and streams cannot."""
    assert all(data.repeatable(rows) for rows in (TABLE, TABLE.to_pandas(), "a.parquet", [Path("a")]))
    assert not any(data.repeatable(rows) for rows in (TABLE.to_reader(), Capsule()))


def test_durations_are_texts_with_units_or_seconds() -> None:
    """Leases are given as text with a unit, or as seconds."""
    values: list[str | float | None] = ["500ms", "6600ms", "60s", "1.5m", "2h", 7, 0.5, None]
    assert [seconds(value) for value in values] == [0.5, 6.6, 60, 90, 7200, 7, 0.5, None]
    for text in ("", "60", "s", "60 s", "-1s"):
        with pytest.raises(BadRequestError):
            seconds(text)


def test_points_in_time_become_milliseconds_since_1970() -> None:
    """Times are given as datetime with zone, or as ms since 1970."""
    assert milliseconds(dt.datetime(1970, 1, 2, tzinfo=dt.UTC)) == 86_400_000
    assert milliseconds(5) == 5


def test_dictionaries_inside_of_columns_are_sent_as_values() -> None:
    """A stream has no dictionaries at any depth, so it can be cut anywhere."""
    kind = pa.dictionary(pa.int8(), pa.string())
    rows = pa.table(
        {
            "l": pa.array([["a"], None, []], pa.list_(kind)),
            "s": pa.array([{"x": ["b"]}, {"x": None}, None], pa.struct([("x", pa.large_list(kind))])),
            "m": pa.array([[("k", "c")], [], None], pa.map_(pa.string(), kind)),
        }
    )
    sent = pa.ipc.open_stream(b"".join(data.ipc_stream(data.open_rows(rows)))).read_all()
    assert sent.to_pylist() == rows.to_pylist()
    assert "dictionary" not in str(sent.schema)


def test_rows_come_as_a_list_of_dicts() -> None:
    """A key that a dict lacks is a null; values of one column have one type."""
    rows = data.open_rows([{"k": 1, "tags": ["a"]}, {"k": 2, "place": {"x": 0.5}}]).read_all()
    assert rows.to_pylist() == [
        {"k": 1, "tags": ["a"], "place": None},
        {"k": 2, "tags": None, "place": {"x": 0.5}},
    ]
    with pytest.raises(SchemaMismatchError, match="values of several types"):
        data.open_rows([{"k": 1}, {"k": "x"}])


def test_rows_of_polars_come_as_they_are() -> None:
    """Categories, lists, structs and enumerations of polars have column types."""
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {"c": ["a", "b"], "l": [["x"], None], "s": [{"n": 1}, {"n": None}], "e": ["x", "y"]},
        schema_overrides={"c": pl.Categorical, "l": pl.List(pl.Categorical), "e": pl.Enum(["x", "y"])},
    )
    rows = data.open_rows(frame)
    names = [to_text(field.name, field.type) for field in rows.schema]
    assert names == ["string", "array<string>", "struct<n:bigint>", "string"]
    sent = pa.ipc.open_stream(b"".join(data.ipc_stream(rows))).read_all()
    assert sent.to_pylist() == frame.to_dicts()
