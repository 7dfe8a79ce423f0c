"""The query that compares orders with line items: what it must find, and what it must let pass."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import duckdb
import pytest

from demo.checks import every_order_is_whole
from workloads.compare import Row
from workloads.tpch import queries
from workloads.tpch.orders import TpchScale, new_batch

LAST_LOADED = 100
#: Order keys: five that count as loaded, five new ones.
FIRST = 96


@pytest.fixture
def tables() -> duckdb.DuckDBPyConnection:
    """Ten orders with at least two line items each, half of them above the last loaded key."""
    random = Random(3)
    while min((batch := new_batch(random, TpchScale.of(0.01), FIRST, 10)).lines) < 2:
        pass
    connection = duckdb.connect()
    for name, rows in (("orders", batch.orders), ("lineitem", batch.lineitem)):
        connection.register("arrow", rows)
        connection.execute(f"create table {name} as select * from arrow")
        connection.unregister("arrow")
    return connection


def asked(tables: duckdb.DuckDBPyConnection) -> list[Row]:
    """The rows of the query."""
    return tables.execute(queries.orders_and_lines(LAST_LOADED).for_duckdb).fetchall()


def test_whole_orders_pass_the_check(tables: duckdb.DuckDBPyConnection) -> None:
    """Loaded orders share a row with their totals, each new one has its own."""
    rows = asked(tables)
    assert [row[0] for row in rows] == [0, 101, 102, 103, 104, 105]
    assert [row[1] for row in rows] == [5, 1, 1, 1, 1, 1]
    [(lines,)] = tables.execute("select count(*) from lineitem").fetchall()
    assert sum(row[2] for row in rows) == lines
    assert every_order_is_whole(rows) is None


DAMAGES: dict[str, str] = {
    "a line item is missing": "delete from lineitem where l_orderkey = {key} and l_linenumber = 2",
    "the last line item is missing": (
        "delete from lineitem where l_orderkey = {key} and l_linenumber = "
        "(select max(l_linenumber) from lineitem where l_orderkey = {key})"
    ),
    "all line items are missing": "delete from lineitem where l_orderkey = {key}",
    "the order is missing": "delete from orders where o_orderkey = {key}",
    "the order is there twice": "insert into orders select * from orders where o_orderkey = {key}",
    "a line item is there twice": (
        "insert into lineitem select * from lineitem where l_orderkey = {key} and l_linenumber = 1"
    ),
    "two line items have one number": (
        "update lineitem set l_linenumber = 1 where l_orderkey = {key} and l_linenumber = 2"
    ),
    "the price is a cent too high": (
        "update orders set o_totalprice = o_totalprice + 0.01 where o_orderkey = {key}"
    ),
    "the order is in another year": "update orders set o_year = o_year + 1 where o_orderkey = {key}",
    "a line item is in another year": (
        "update lineitem set l_year = l_year + 1 where l_orderkey = {key} and l_linenumber = 1"
    ),
    "all of it is in the wrong year": (
        "update orders set o_year = o_year + 1 where o_orderkey = {key}; "
        "update lineitem set l_year = l_year + 1 where l_orderkey = {key}"
    ),
}


@pytest.mark.parametrize("key", [97, 103], ids=["loaded", "new"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_names_its_order(
    tables: duckdb.DuckDBPyConnection, damage: str, key: int
) -> None:
    """Whatever is wrong with one order, loaded or new, the finding names that order."""
    tables.execute(DAMAGES[damage].format(key=key))
    finding = every_order_is_whole(asked(tables))
    assert finding is not None
    assert f"the first is {key}:" in finding


@pytest.mark.parametrize("render", [lambda q: q.for_spark, lambda q: q.for_duckdb], ids=["spark", "duckdb"])
def test_each_engine_divides_in_its_own_words(render: Callable[[queries.TpchQuery], str]) -> None:
    """Spark writes the division of integers as `div`, DuckDB as `//`."""
    text = render(queries.orders_and_lines(1))
    assert ("//" in text) != (" div " in text)
