"""The columns of a table, and which rows fit them. Pure.

Agents and clients share this module: a client keeps small rows only if the home of their transaction will
take them, and the home alone refuses rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelock import casts
from tidelock.column_defaults import scalar_of
from tidelock.column_types import to_arrow
from tidelock.errors import SchemaMismatchError

#: About as many bytes of columns that were not sent are made at once.
_MADE_BYTES: Final = 4 << 20
#: Bytes of a value in memory, at most, besides those of its text.
_VALUE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class FormerColumn:
    """The name and the type of a column in the parts that were created below a CSN.

    Without a name these parts lack it: it was dropped, and came back by a restore.
    """

    until: int
    name: str | None
    type: str


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: Its name.
        type: Its type by its Spark name (docs/protocol.md#bytes).
        nullable: Whether it may hold nulls.
        id: Its number, which no other column of the table gets, not even after it was dropped.
        since: The CSN from which parts have it; 0: all parts have it.
        was: Its former names and types, the oldest first.
        default: The value of a row that comes without the column, as text (:mod:`.column_defaults`); None:
            no row comes without it.
        initial: The value that it has in parts of before `since`: hexadecimal digits of the bytes that
            Parquet stores for it (PLAIN); None: they have nulls.
        comment: What it means, for people.
        generated: SQL over other columns of the row, which makes its value; None: rows bring it.
        reads: The ids of these columns, ascending.
    """

    name: str
    type: str
    nullable: bool = True
    id: int = 0
    since: int = 0
    was: tuple[FormerColumn, ...] = ()
    default: str | None = None
    initial: str | None = None
    comment: str | None = None
    generated: str | None = None
    reads: tuple[int, ...] = ()

    @property
    def optional(self) -> bool:
        """Return whether rows may come without it: they get its default, or what its SQL makes."""
        return self.default is not None or self.generated is not None

    @property
    def arrow(self) -> pa.Field:
        """Return the column as an Arrow field."""
        return pa.field(self.name, to_arrow(self.type), self.nullable)


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table.

    Attributes:
        table: Full name of the table.
        columns: All columns in their order, including those of the partitions.
    """

    table: str
    columns: tuple[Column, ...]

    @cached_property
    def arrow(self) -> pa.Schema:
        """Return the columns as an Arrow schema."""
        return pa.schema([column.arrow for column in self.columns])

    def check(self, found: pa.Schema) -> None:
        """Raise SchemaMismatchError unless rows with the schema ``found`` can be rows of this table.

        The message and ``details`` (``missing``, ``extra``, ``doubled``, ``wrong``) name every column that
        does not fit. Columns with a default, and generated ones, may be missing. Order does not matter, and a
        type may be another one if its values have equals in that of the column (:func:`casts.may_fit`);
        :meth:`conform` checks the values.
        """
        if found.equals(self.arrow):
            return
        expected = {column.name: column for column in self.columns}
        names = Counter(found.names)
        missing = [one.name for one in self.columns if one.name not in names and not one.optional]
        extra = [name for name in names if name not in expected]
        doubled = [name for name, count in names.items() if count > 1]
        wrong = [
            {"column": f.name, "expected": expected[f.name].type, "found": str(f.type)}
            for f in found
            if f.name in expected and not casts.may_fit(expected[f.name].arrow.type, f.type)
        ]
        if not (missing or extra or doubled or wrong):
            return
        problems = [f"column {name} ({expected[name].type}) is missing" for name in missing]
        problems += [f"column {name} is not in the table" for name in extra]
        problems += [f"column {name} comes more than once" for name in doubled]
        problems += [
            f"column {w['column']} is {w['found']}, expected {w['expected']} ({to_arrow(w['expected'])})"
            for w in wrong
        ]
        raise SchemaMismatchError(
            f"the rows do not fit table {self.table}: {'; '.join(problems)}; no row was kept, insert "
            "them with the table's columns",
            table=self.table,
            missing=missing,
            extra=extra,
            doubled=doubled,
            wrong=wrong,
        )

    def conform(self, batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        """Return the batch with the table's columns, order and types; its schema has passed :meth:`check`.

        Args:
            batch: Rows.
            first_row: Number of the first row in the whole insert, for the message.

        Raises:
            SchemaMismatchError: A value does not fit its column, or a required column holds a null.
        """
        if not batch.schema.equals(self.arrow):
            arrays = [self._values(column, batch, first_row) for column in self.columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.arrow)
        for index in self._nested:
            if (found := casts.repeated_key(batch.column(index))) is not None:
                name, row = self.columns[index].name, first_row + found
                raise SchemaMismatchError(
                    f"column {name} of table {self.table} holds in row {row} (from 0) a map that has a key "
                    "twice, or a null as a key; keep one value for each key, or leave the row out",
                    table=self.table,
                    column=name,
                    row=row,
                )
        for index in self._required:
            values = batch.column(index)
            if values.null_count:
                name, row = self.columns[index].name, first_row + pc.index(values.is_null(), True).as_py()
                raise SchemaMismatchError(
                    f"column {name} of table {self.table} is required, but row {row} (from 0) holds a null; "
                    "give it a value, or leave the row out",
                    table=self.table,
                    column=name,
                    row=row,
                )
        return batch

    def rows_at_once(self, found: pa.Schema) -> int:
        """Return how many rows with the schema ``found`` to conform at once.

        Columns that are missing, or that hold nulls alone, have no bytes in what was sent, so a few bytes may
        stand for any number of rows.
        """
        sent = {field.name for field in found if not pa.types.is_null(field.type)}
        made = [column for column in self.columns if column.name not in sent]
        return max(1, _MADE_BYTES // max(1, sum(_VALUE_BYTES + len(one.default or "") for one in made)))

    @cached_property
    def _nested(self) -> tuple[int, ...]:
        return tuple(index for index, column in enumerate(self.columns) if "map<" in column.type)

    @cached_property
    def _required(self) -> tuple[int, ...]:
        return tuple(index for index, column in enumerate(self.columns) if not column.nullable)

    def _values(self, column: Column, batch: pa.RecordBatch, first_row: int) -> pa.Array:
        if column.name not in batch.schema.names:
            return pa.repeat(scalar_of(column.type, column.default), batch.num_rows)
        values = batch.column(column.name)
        try:
            return casts.cast(values, column.arrow.type)
        except casts.LossyCastError as error:
            row = first_row + error.index
            raise SchemaMismatchError(
                f"column {column.name} of table {self.table} is {column.type}, and has no value equal to "
                f"{error.text} ({values.type}) in row {row} (from 0); change it, or leave the row out",
                table=self.table,
                column=column.name,
                row=row,
            ) from None
