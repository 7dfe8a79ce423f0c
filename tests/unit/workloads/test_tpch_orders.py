"""New orders of the demo, and the price formula, which has to be that of the generator."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest

from workloads.tpch.data import TpchRows
from workloads.tpch.orders import (
    LAST_DATE,
    LINES_MAX,
    OrderBatch,
    TpchScale,
    charge_cents,
    new_batch,
    retail_price_cents,
)
from workloads.tpch.tables import LINEITEM, ORDERS, PART

SCALE = TpchScale.of(0.01)


def batches(count: int = 40) -> list[OrderBatch]:
    """Batches of ten orders, drawn one after the other."""
    random = Random("test")
    return [new_batch(random, SCALE, 1_000 + 10 * number, 10) for number in range(count)]


def cents(money: Decimal) -> int:
    """An amount in cents."""
    return int(money * 100)


def charges(lineitem: pa.Table) -> dict[int, int]:
    """Return the sum of the line items of each order, in cents."""
    totals: dict[int, int] = {}
    for line in lineitem.select(["l_orderkey", "l_extendedprice", "l_discount", "l_tax"]).to_pylist():
        charge = charge_cents(cents(line["l_extendedprice"]), cents(line["l_discount"]), cents(line["l_tax"]))
        totals[line["l_orderkey"]] = totals.get(line["l_orderkey"], 0) + charge
    return totals


def prices(orders: pa.Table) -> dict[int, int]:
    """The price of each order, in cents."""
    return {row["o_orderkey"]: cents(row["o_totalprice"]) for row in orders.to_pylist()}


def test_the_price_formula_is_that_of_the_generator(tpch_source: TpchRows) -> None:
    """o_totalprice of every generated order is exactly the sum of `charge_cents` over its line items."""
    found = prices(tpch_source.rows(ORDERS).read_all())
    assert len(found) == 15_000
    assert charges(tpch_source.rows(LINEITEM).read_all()) == found


def test_the_retail_price_is_that_of_the_generator(tpch_source: TpchRows) -> None:
    """p_retailprice of every generated part follows from its key."""
    parts = tpch_source.rows(PART).read_all().to_pylist()
    assert all(cents(part["p_retailprice"]) == retail_price_cents(part["p_partkey"]) for part in parts)


@pytest.mark.parametrize(
    ("extended", "discount", "tax", "charge"),
    [(100, 0, 0, 100), (199, 1, 0, 197), (101, 1, 1, 99), (10_494_950, 10, 8, 10_201_091)],
)
def test_each_factor_drops_what_is_less_than_a_cent(
    extended: int, discount: int, tax: int, charge: int
) -> None:
    """Discount first, then tax; both times downwards to a whole cent."""
    assert charge_cents(extended, discount, tax) == charge


def test_new_orders_cost_what_their_lines_add_up_to() -> None:
    """The price of a new order is the sum over its line items."""
    for batch in batches():
        assert charges(batch.lineitem) == prices(batch.orders)


def test_a_batch_is_of_one_year() -> None:
    """All orders and line items of a batch belong to one partition, that of the orders' dates."""
    for batch in batches():
        assert {row["o_orderdate"].year for row in batch.orders.to_pylist()} == {batch.year}
        assert set(batch.orders["o_year"].to_pylist()) == {batch.year}
        assert set(batch.lineitem["l_year"].to_pylist()) == {batch.year}


def test_keys_and_line_numbers_have_no_gaps() -> None:
    """Order keys follow each other, and the line items of each order are numbered from 1."""
    for batch in batches():
        keys = list(range(batch.first_key, batch.first_key + 10))
        assert batch.orders["o_orderkey"].to_pylist() == keys
        assert all(1 <= count <= LINES_MAX for count in batch.lines)
        expected = [
            (key, number)
            for key, count in zip(keys, batch.lines, strict=True)
            for number in range(1, count + 1)
        ]
        columns = batch.lineitem.select(["l_orderkey", "l_linenumber"]).to_pydict()
        assert list(zip(columns["l_orderkey"], columns["l_linenumber"], strict=True)) == expected


def test_batches_have_the_tables_columns() -> None:
    """A batch has exactly the columns that the tables were created with."""
    batch = batches(1)[0]
    assert batch.orders.schema == ORDERS.schema
    assert batch.lineitem.schema == LINEITEM.schema


def test_values_follow_the_specification() -> None:
    """Foreign keys name what exists, no third customer orders, dates and states fit together."""
    for batch in batches():
        states: dict[int, set[str]] = {}
        for line in batch.lineitem.to_pylist():
            assert 1 <= line["l_partkey"] <= SCALE.parts
            assert 1 <= line["l_suppkey"] <= SCALE.suppliers
            assert line["l_shipdate"] < line["l_receiptdate"]
            states.setdefault(line["l_orderkey"], set()).add(line["l_linestatus"])
        for order in batch.orders.to_pylist():
            assert order["o_custkey"] % 3 != 0
            assert dt.date(1992, 1, 1) <= order["o_orderdate"] <= LAST_DATE
            mixed = len(states[order["o_orderkey"]]) > 1
            assert order["o_orderstatus"] == ("P" if mixed else min(states[order["o_orderkey"]]))


def test_the_same_seed_draws_the_same_batch() -> None:
    """A batch depends on its random numbers only."""
    one, other = (new_batch(Random("a"), SCALE, 1, 10) for _ in range(2))
    assert one.orders.equals(other.orders)
    assert one.lineitem.equals(other.lineitem)


def test_a_tiny_scale_has_one_of_everything() -> None:
    """Nothing is drawn from an empty range."""
    assert TpchScale.of(0.000_001) == TpchScale(customers=1, parts=1, suppliers=1, clerks=1)
