"""The page of the system tables is what their definitions say."""

from __future__ import annotations

import pytest

from tests.support.project import source
from tidelock.replica_agent.system_tables.definition import SystemTable
from tidelock.replica_agent.system_tables.documentation import page
from tidelock.replica_agent.system_tables.registry import SYSTEM_TABLES

PAGE = source.ROOT / "docs" / "system-tables.md"
TABLES = pytest.mark.parametrize("table", SYSTEM_TABLES.values(), ids=SYSTEM_TABLES)


def test_the_page_is_what_the_definitions_say() -> None:
    """`python -m tidelock.replica_agent.system_tables.documentation` writes the reference."""
    text = PAGE.read_text()
    assert page(text) == text


@TABLES
def test_every_column_has_a_name_of_its_own_and_a_meaning(table: SystemTable) -> None:
    """Names are words that need no quotes; a meaning is a sentence."""
    names = [column.name for column in table.columns]
    assert len({*names}) == len(names)
    assert all(column.name.isidentifier() and column.doc.endswith(".") for column in table.columns)


@TABLES
def test_every_table_has_rows_from_somewhere(table: SystemTable) -> None:
    """A definition has slices or live rows, and a column of SQL wherever its slices are SQL."""
    assert table.live is not None or {*table.arrow.names} >= {"namespace", "table_name"}
    assert table.doc.endswith(".")
    assert table.cost.endswith(".")
