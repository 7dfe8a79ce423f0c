"""The plan of a mutation, and its target table as the session shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tidelock.csnlog.core.ids import PartId, TableId
from tidelock.errors import BadRequestError
from tidelock.replica_agent.sql import composition
from tidelock.replica_agent.sql.expressions import Expressions, RowExpression
from tidelock.replica_agent.sql.mutation import Affected
from tidelock.replica_agent.sql.scan import row_group, rows_by_group
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.table_columns import Column
from tidelock.wire.ids import TableName


class RowStream(msgspec.Struct, frozen=True):
    """A statement whose rows will be added.

    Attributes:
        sql: It selects the columns of the table, then perhaps ``#match`` and ``#misfit``.
        params: Its parameters.
        new: Whether its rows were in no part before.
    """

    sql: str
    params: Any = None
    new: bool = False


class MutationPlan(msgspec.Struct, frozen=True):
    """The plan of a mutation.

    Attributes:
        affected: The report before the first row.
        streams: The sources of the rows, read one after the other.
        rewritten: Rows that the streams read of the affected parts.
        dropped: Rows of parts and row groups that are removed as a whole.
        keeps: Whether all rewritten rows must be in the output.
        checked: The columns that each condition reads, by the names of the conditions.
    """

    affected: Affected
    streams: Sequence[RowStream] = ()
    rewritten: int = 0
    dropped: int = 0
    keeps: bool = False
    checked: Mapping[str, tuple[str, ...]] = MappingProxyType({})


#: A part with more row groups is rewritten: their numbers are in the answer before the first row.
GROUPS_MAX: Final = 1024

#: Matching rows by part and row group.
Matched = Mapping[PartRow, Mapping[int, int]]


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of the parts with matching rows.

    Attributes:
        parts: The parts that have rows to read.
        groups: The row groups that are read of some of them; of the others, all are.
        kept: The row groups that stay as they are, by part.
        rows: Rows that are read.
        dropped: Rows of parts and row groups that are removed as a whole.
    """

    parts: Sequence[PartRow]
    groups: Mapping[PartId, Collection[int]] = msgspec.field(default_factory=dict)
    kept: Mapping[PartId, tuple[int, ...]] = msgspec.field(default_factory=dict)
    rows: int
    dropped: int = 0


class TargetTable(msgspec.Struct, frozen=True):
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
    def id(self) -> TableId:
        """The table."""
        return self.row.id

    @property
    def name(self) -> TableName:
        """The full name of the table."""
        return self.row.name

    @property
    def alias(self) -> str:
        """The name of the table in expressions."""
        return self.row.name.rpartition(".")[2]

    def made(self) -> Mapping[str, RowExpression]:
        """Return the expressions of the generated columns, by the names of the columns.

        Raises:
            BadRequestError: One is no expression over the other columns of one row.
        """
        return {column.name: self.expression(column) for column in self.schema.generated}

    def expression(self, column: Column) -> RowExpression:
        """Return the expression of a generated column; errors as :meth:`made`."""
        what = f"generated column {column.name} of table {self.name}"
        names = self.schema.arrow.names
        user = Expressions(self.session.connection, (), ())
        found = user.parse_of_row(column.generated or "", what, names, is_value=True)
        others = {one.name for one in self.schema.generated}
        if both := others.intersection(found.columns):
            raise BadRequestError(
                f"{what} is made of {min(both)}, which is generated too ({column.generated}); name the "
                "columns that rows bring",
                column=column.name,
            )
        return found

    def show(self) -> None:
        """Show the table as ``#target``, with the row group of each row."""
        numbers = {part.part: number for number, part in enumerate(self.parts)}
        self.session.view(composition.TARGET, self.session.source(self.row, lambda: self.parts, numbers))

    def show_affected(self, rewrite: Rewrite) -> None:
        """Show the row groups that are read again as ``#affected``."""
        others = frozenset({part.path for part in self.parts} - {part.path for part in rewrite.parts})
        source = self.session.source(self.row, lambda: rewrite.parts, groups=rewrite.groups, others=others)
        self.session.view(composition.AFFECTED, source)

    def count(self, statement: str, params: Mapping[str, Any]) -> Matched:
        """Run a statement that counts rows by row group."""
        found: dict[PartRow, dict[int, int]] = {}
        for number, count in sorted(self.session.fetch(statement, params)):
            part, group = row_group(number)
            found.setdefault(self.parts[part], {})[group] = count
        return found

    def rewrite(self, matched: Matched, *, drops: bool = False) -> Rewrite:
        """Decide the fate of the parts with matching rows.

        Args:
            matched: The rows that match.
            drops: They are deleted, so that nothing is read of what has only such rows.
        """
        parts: list[PartRow] = []
        groups: dict[PartId, Collection[int]] = {}
        kept: dict[PartId, tuple[int, ...]] = {}
        rows = dropped = 0
        for part, found in matched.items():
            if drops and sum(found.values()) == part.rows:
                dropped += part.rows
                continue
            sizes = self._sizes(part)
            if sizes is None:
                parts.append(part)
                rows += part.rows
                continue
            again = {group for group, count in found.items() if not (drops and count == sizes[group])}
            dropped += sum(sizes[group] for group in found.keys() - again)
            if again:
                parts.append(part)
                groups[part.part] = again
                rows += sum(sizes[group] for group in again)
            if stays := tuple(group for group in range(len(sizes)) if group not in found):
                kept[part.part] = stays
        return Rewrite(parts=parts, groups=groups, kept=kept, rows=rows, dropped=dropped)

    def _sizes(self, part: PartRow) -> tuple[int, ...] | None:
        """Return the rows of the row groups of a part that may be cut, otherwise None."""
        if part.length < self.session.config.cut_part_bytes_min:
            return None
        sizes = rows_by_group(self.session.data_dir, part, self.schema)
        return None if sizes is not None and len(sizes) > GROUPS_MAX else sizes

    def affected(self, matched: Matched, rewrite: Rewrite, **more: Any) -> Affected:
        """Return the report about parts with matching rows."""
        rows = sum(sum(found.values()) for found in matched.values())
        return Affected(self.id, tuple(part.part for part in matched), rows, kept=dict(rewrite.kept), **more)


def all_rows(parts: Sequence[PartRow]) -> tuple[Matched, Rewrite]:
    """Return what matches if all rows of some parts do, and are read again."""
    return {part: {0: part.rows} for part in parts}, Rewrite(parts=parts, rows=rows_of(parts))


def rows_of(parts: Sequence[PartRow]) -> int:
    """Return the number of rows in some parts."""
    return sum(part.rows for part in parts)
