"""The generated data as rows of the tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidelock.errors import ConfigError
from workloads.tpch import data
from workloads.tpch.data import Loaded, TpchRows
from workloads.tpch.tables import LINEITEM, ORDERS, TABLES, TpchTable


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_rows_fit_the_table(tpch_source: TpchRows, table: TpchTable) -> None:
    """Every table's rows have its columns, no nulls, and come sorted by partition and key."""
    rows = tpch_source.rows(table).read_all()
    rows.validate(full=True)
    assert rows.schema == table.schema
    assert all(column.null_count == 0 for column in rows.columns)
    order = [(name, "ascending") for name in (*table.partition_by, *table.sort_by)]
    assert rows.equals(rows.sort_by(order))


def test_an_order_and_its_lines_lie_in_the_same_year(tpch_source: TpchRows) -> None:
    """o_year is the year of the order's date, and l_year that of the order, not of the line item."""
    orders = tpch_source.rows(ORDERS).read_all()
    assert pc.all(pc.equal(pc.year(orders["o_orderdate"]), orders["o_year"].cast(pa.int64()))).as_py()
    year_of = dict(zip(orders["o_orderkey"].to_pylist(), orders["o_year"].to_pylist(), strict=True))
    lines = tpch_source.rows(LINEITEM).read_all().select(["l_orderkey", "l_year"]).to_pydict()
    assert [year_of[key] for key in lines["l_orderkey"]] == lines["l_year"]


def test_loaded_counts_rows_and_knows_the_last_key(tpch_source: TpchRows) -> None:
    """The content of the tables after a load is computed from the source alone."""
    loaded = tpch_source.loaded()
    assert isinstance(loaded, Loaded)
    assert loaded.last_orderkey == 60_000
    assert list(loaded.rows) == [table.name for table in TABLES]
    assert loaded.rows["orders"] == 15_000
    assert loaded.rows["region"] == 5


def test_two_tables_can_be_read_at_once(tpch_source: TpchRows) -> None:
    """A reader that is not at its end is not disturbed by another one."""
    one, other = tpch_source.rows(ORDERS), tpch_source.rows(LINEITEM)
    assert one.read_next_batch().num_rows > 0
    assert other.read_next_batch().num_rows > 0


def test_a_missing_generator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tpchgen-cli the error says what to install."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="pip install tpchgen-cli"):
        data.generate(tmp_path, 0.01)


def test_a_failing_generator_is_quoted(tmp_path: Path) -> None:
    """The output of a failing generator is part of the error."""
    with pytest.raises(ConfigError, match="exit code"):
        data.generate(tmp_path, -1.0)
