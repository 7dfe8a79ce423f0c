"""The definitions of tables as a client knows them, and which rows their tables take for certain.

A definition that is kept here may be old, so nothing is refused by it. Rows that it takes may wait for the
commit of their transaction; all other rows go to the home of their transaction, which decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.transport import segment
from tidelock.client.values.arguments import full_name
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
        self._known: dict[str, KnownTable] = {}

    def rows_taken(self, table: str, stream: bytes) -> int | None:
        """Return the number of rows of an Arrow IPC stream if the table takes them, whatever it holds.

        None: it may refuse them. They do not fit the definition that is known, which is forgotten then; or
        the answer depends on other rows, as that of a table with a unique key or with derived tables, or on
        checks; or no replica tells the definition.
        """
        name = full_name(table)
        known = self._known.get(name) or self._read(name)
        if known is None or not known.alone:
            return None
        rows = known.fitting(stream)
        if rows is None:
            self._known.pop(name, None)
        return rows

    def _read(self, name: str) -> KnownTable | None:
        try:
            found = self._connection.ask("GET", f"/tables/{segment(name)}", answer=TableDefinition)
        except TidelockError:  # the home of the transaction says what is wrong, if anything is
            return None
        for oldest in list(self._known)[: max(0, len(self._known) + 1 - DEFINITIONS_MAX)]:
            self._known.pop(oldest, None)
        known = self._known[name] = KnownTable.of(found)
        return known


@dataclass(frozen=True, slots=True, eq=False)
class KnownTable:
    """A table as its definition says.

    Attributes:
        columns: Its columns.
        partition_by: Its partition columns.
        alone: Whether it takes rows whatever it holds, and whatever their values are.
    """

    columns: TableColumns
    partition_by: Sequence[str]
    alone: bool

    @classmethod
    def of(cls, definition: TableDefinition) -> Self:
        """Return the table of a definition."""
        columns = tuple(
            Column(one.name, one.type, one.nullable, default=one.default, generated=one.generated)
            for one in definition.columns
        )
        judged = definition.checks or any(one.generated is not None for one in definition.columns)
        free = not (definition.dependents or judged)
        alone = free and "unique_key" not in definition.properties
        return cls(TableColumns(definition.name, columns), definition.partition_by, alone)

    def fitting(self, stream: bytes) -> int | None:
        """Return the number of rows of an Arrow IPC stream if they fit the columns, else None."""
        count = 0
        try:
            reader = pa.ipc.open_stream(stream)
            self.columns.check(reader.schema)
            for batch in reader:
                batch.validate(full=True)
                conformed = self.columns.conform(batch, count)
                count += batch.num_rows
                for _ in split(conformed, self.partition_by):
                    pass  # a value of a partition may have no path
        except (TidelockError, pa.ArrowException, UnicodeDecodeError):
            return None
        return count
