"""The definitions of tables as a client knows them, and which rows their tables take for certain.

A definition that is kept here may be old, so nothing is refused by it. Rows that it takes may wait for the
commit of their transaction; all other rows go to the home of their transaction, which decides.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tidelock.client.arguments import full_name
from tidelock.client.connection import Connection
from tidelock.client.transport import segment
from tidelock.errors import TidelockError
from tidelock.partition_paths import split
from tidelock.table_columns import Column, TableColumns
from tidelock.wire.tables import TableDefinition

#: Definitions that a client keeps; beyond it the oldest one is forgotten.
DEFINITIONS_MAX: Final = 1000


class Definitions:
    """The definitions that a client has read; any number of threads may use them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, TableDefinition] = {}

    def rows_taken(self, table: str, stream: bytes) -> int | None:
        """Return the number of rows of an Arrow IPC stream if the table takes them, whatever it holds.

        None: it may refuse them. They do not fit the definition that is known, which is forgotten then; or
        the answer depends on other rows, as that of a table with a unique key or with derived tables; or no
        replica tells the definition.
        """
        name = full_name(table)
        definition = self._known.get(name) or self._read(name)
        if definition is None or definition.dependents or "unique_key" in definition.properties:
            return None
        rows = fitting(definition, stream)
        if rows is None:
            self._known.pop(name, None)
        return rows

    def _read(self, name: str) -> TableDefinition | None:
        try:
            found = self._connection.ask("GET", f"/tables/{segment(name)}", answer=TableDefinition)
        except TidelockError:  # the home of the transaction says what is wrong, if anything is
            return None
        for oldest in list(self._known)[: max(0, len(self._known) + 1 - DEFINITIONS_MAX)]:
            self._known.pop(oldest, None)
        self._known[name] = found
        return found


def fitting(definition: TableDefinition, stream: bytes) -> int | None:
    """Return the number of rows of an Arrow IPC stream if they fit a definition, else None."""
    columns = tuple(Column(one.name, one.type, one.nullable) for one in definition.columns)
    taken = TableColumns(definition.name, columns)
    count = 0
    try:
        reader = pa.ipc.open_stream(stream)
        taken.check(reader.schema)
        for batch in reader:
            batch.validate(full=True)
            conformed = taken.conform(batch, count)
            count += batch.num_rows
            for _ in split(conformed, definition.partition_by):
                pass  # a value of a partition may have no path
    except (TidelockError, pa.ArrowException, UnicodeDecodeError):
        return None
    return count
