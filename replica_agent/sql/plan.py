"""The plan of a mutation, and its target table as the session shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelock.csnlog.core.ids import TableName
from tidelock.replica_agent.sql import composition
from tidelock.replica_agent.sql.mutation import Affected
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.storage.catalog_reads import PartRow, TableRow
from tidelock.replica_agent.tables.schema import TableSchema


@dataclass(frozen=True, slots=True)
class RowStream:
    """A statement whose rows will be added.

    Attributes:
        sql: It selects the columns of the table, then perhaps ``#match`` and ``#misfit``.
        params: Its parameters.
        new: Whether its rows were in no part before.
    """

    sql: str
    params: Any = None
    new: bool = False


@dataclass(frozen=True, slots=True)
class MutationPlan:
    """The plan of a mutation.

    Attributes:
        affected: The report before the first row.
        streams: The sources of the rows, read one after the other.
        rewritten: Rows of the parts that the streams read; other affected parts are removed as a whole.
        dropped: Rows of the parts that are removed as a whole.
        keeps: Whether all rewritten rows must be in the output.
    """

    affected: Affected
    streams: Sequence[RowStream] = ()
    rewritten: int = 0
    dropped: int = 0
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class TargetTable:
    """The table that a mutation changes.

    Attributes:
        session: The session that shows it.
        row: Its definition.
        schema: The schema of that definition.
        parts: The parts that the request sees; empty if no row is removed.
    """

    session: SqlSession
    row: TableRow
    schema: TableSchema
    parts: Sequence[PartRow] = ()

    @property
    def name(self) -> TableName:
        """The full name of the table."""
        return self.row.name

    @property
    def alias(self) -> str:
        """The name of the table in expressions."""
        return self.row.name.rpartition(".")[2]

    def show(self) -> None:
        """Show the table as ``#target``, with the number of each row's part."""
        numbers = {part.part: number for number, part in enumerate(self.parts)}
        self.session.view(composition.TARGET, self.session.source(self.row, lambda: self.parts, numbers))

    def show_affected(self, parts: Sequence[PartRow]) -> None:
        """Show some parts of the table as ``#affected``."""
        others = frozenset({part.path for part in self.parts} - {part.path for part in parts})
        self.session.view(composition.AFFECTED, self.session.source(self.row, lambda: parts, others=others))

    def count(self, statement: str, params: Mapping[str, Any]) -> dict[PartRow, int]:
        """Run a statement that counts rows by part."""
        found = self.session.fetch(statement, params)
        return {self.parts[number]: count for number, count in sorted(found)}

    def affected(self, counts: Mapping[PartRow, int], **more: Any) -> Affected:
        """Return the report about parts with matching rows."""
        return Affected(self.name, tuple(part.part for part in counts), sum(counts.values()), **more)


def rows_of(parts: Sequence[PartRow] | Mapping[PartRow, int]) -> int:
    """Return the number of rows in some parts."""
    return sum(part.rows for part in parts)
