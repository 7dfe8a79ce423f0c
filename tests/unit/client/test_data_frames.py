"""Rows as data frames of pandas and polars: every value as in the table."""

from __future__ import annotations

import datetime as dt
import importlib.util
import math
import sys
from decimal import Decimal

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tidelock.client import Database
from tidelock.errors import ConfigError

MOMENT = dt.datetime(2026, 11, 22, 10, 0, 0, 123456, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int32()),
        ("yes", pa.bool_()),
        ("x", pa.float64()),
        ("price", pa.decimal128(38, 2)),
        ("moment", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("name", pa.string()),
    ]
)
#: A number that no float holds, and a null beside it; NaN is a value, and null is none.
ROWS = pa.table(
    {
        "n": [2**62 + 1, None, -(2**63)],
        "small": [1, None, 3],
        "yes": [True, None, False],
        "x": [math.nan, None, -0.0],
        "price": [Decimal("999999999999999999999999999999999999.99"), None, Decimal("0.10")],
        "moment": [MOMENT, None, dt.datetime(1, 1, 1, tzinfo=dt.UTC)],
        "day": [dt.date(9999, 12, 31), None, dt.date(1, 1, 1)],
        "name": ["", None, "ä"],
    },
    schema=SCHEMA,
)


@pytest.fixture(autouse=True)
def rows(fake_cluster: FakeCluster) -> None:
    """A table with values of every kind, one without rows, and one with a large range of numbers."""
    fake_cluster.add_table("u", ROWS)
    fake_cluster.add_table("empty", ROWS.slice(0, 0))
    fake_cluster.add_table("wide", pa.table({"n": pa.array([i * 10**9 + 1 for i in range(-1000, 1000)])}))


def text(table: pa.Table) -> str:
    """Return the values of a table in a form that is equal for NaN, too."""
    return str(table.cast(SCHEMA).to_pylist())


def test_a_pandas_frame_has_every_value_of_the_table(fake_db: Database) -> None:
    """Integers beside a null stay integers, NaN is no null, and times and decimals lose no digit."""
    frame = fake_db.scan("u").to_pandas()
    assert text(pa.Table.from_pandas(frame, preserve_index=False)) == text(ROWS)
    assert list(frame.dtypes) == [pd.ArrowDtype(kind) for kind in fake_db.read("u").schema.types]
    assert frame["n"][0] == 2**62 + 1
    assert frame["n"][1] is pd.NA
    assert math.isnan(frame["x"][0])
    assert frame["x"][1] is pd.NA


def test_a_frame_without_rows_keeps_its_types(fake_db: Database) -> None:
    """A program that finds no rows today works as it does tomorrow."""
    frame = fake_db.scan("u", where="n = 7").to_pandas()
    assert len(frame) == len(fake_db.scan("empty").to_pandas()) == 0
    assert list(frame.dtypes) == list(fake_db.scan("u").to_pandas().dtypes)


def test_numbers_over_a_range_of_billions_are_exact(fake_db: Database) -> None:
    """Sums and comparisons are those of whole numbers."""
    numbers = fake_db.scan("wide").to_pandas()["n"]
    assert numbers.sum() == sum(i * 10**9 + 1 for i in range(-1000, 1000))
    assert (numbers.max() - numbers.min()) == 1999 * 10**9


def test_a_transaction_and_a_snapshot_give_frames_too(fake_db: Database) -> None:
    """A scan is the same wherever it comes from; the result can be inserted again."""
    with fake_db.snapshot() as snap:
        frame = snap.scan("u", ["n", "price"], where="n is null or n > ?", params=[0]).to_pandas()
    assert frame["n"].tolist() == [2**62 + 1, pd.NA]
    with fake_db.begin() as tx:
        assert len(tx.scan("u").to_pandas()) == 3
        tx.insert("t", fake_db.scan("u").to_pandas())
    assert text(fake_db.read("t")) == text(ROWS)


def test_a_polars_frame_has_every_value_of_the_table(fake_db: Database) -> None:
    """Integers beside a null stay integers, and NaN is no null."""
    frame = fake_db.scan("u").to_polars()
    assert isinstance(frame, pl.DataFrame)
    assert frame["n"].to_list() == ROWS["n"].to_pylist()
    assert frame["price"].to_list() == ROWS["price"].to_pylist()
    assert (math.isnan(frame["x"][0]), frame["x"][1]) == (True, None)
    assert fake_db.scan("empty").to_polars().schema == frame.schema


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_library_is_named_with_its_extra(
    fake_db: Database, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """The message says what to install; the rows are not fetched before."""
    if importlib.util.find_spec(library) is not None:
        monkeypatch.setitem(sys.modules, library, None)  # an import of it fails from here on
    with pytest.raises(ConfigError, match=rf"package {library}.*install the extra 'tidelock\[{library}\]'"):
        getattr(fake_db.scan("nowhere"), f"to_{library}")()
