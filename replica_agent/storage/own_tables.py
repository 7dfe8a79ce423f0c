"""The tables of definitions that are not committed, as a catalog would show them."""

from __future__ import annotations

from collections.abc import Iterable

from tidelock.csnlog.core.ids import CSN_NONE
from tidelock.csnlog.core.model import DefineTable
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.tables.names import is_namespace
from tidelock.replica_agent.tables.schema import TableSchema


def after(rows: Iterable[TableRow], made: Iterable[DefineTable]) -> list[TableRow]:
    """Return the tables after definitions of a transaction that is not committed."""
    found = {row.id: row for row in rows}
    for one in made:
        found.pop(one.table, None)
        if not one.drops and not is_namespace(one.definition["name"]):
            found[one.table] = defined(one)
    return list(found.values())


def defined(made: DefineTable) -> TableRow:
    """Return the table of a definition that is not committed."""
    schema = TableSchema.from_definition(made.table, made.definition)
    forms = schema.arrow_bytes(), schema.common_metadata()
    return TableRow(made.table, schema.name, made.version, CSN_NONE, made.definition, *forms)
