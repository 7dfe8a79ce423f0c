"""A mutation in a SQL process: first the parts that it affects, then the rows that replace theirs.

The first pass finds the row groups with matching rows; parts excluded by partitions and statistics are never
opened. The second pass reads these row groups only; the others of large parts are kept as they are. Both
passes see the same list of parts, whatever the
transaction does meanwhile.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from tidelock.column_names import by_same, same
from tidelock.column_types import FLOATING
from tidelock.errors import (
    CheckViolationError,
    CorruptError,
    SchemaMismatchError,
    SerializationConflictError,
)
from tidelock.parquet_leaves import leaf_paths
from tidelock.part_layout import NO_FLOATS, FloatColumns
from tidelock.replica_agent.sql import composition
from tidelock.replica_agent.sql.checking import check
from tidelock.replica_agent.sql.expressions import Expressions
from tidelock.replica_agent.sql.merging import compare_keys, insert, merge
from tidelock.replica_agent.sql.mutation import (
    CheckRows,
    CompactParts,
    CompareKeys,
    DeleteRows,
    DerivedRows,
    InsertRows,
    MergeRows,
    MutationRequest,
    MutationResult,
    RewriteRows,
    UpdateRows,
)
from tidelock.replica_agent.sql.nested_values import require_fields
from tidelock.replica_agent.sql.plan import MutationPlan, RowStream, TargetTable, all_rows
from tidelock.replica_agent.sql.reading import require_select, shown, without_end
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.sql.sorting import in_order
from tidelock.replica_agent.tables.schema import TableSchema

#: Ends the number of a column in a misfit, before the value.
_MARK: Final = re.compile("([:=])")
#: The view of :class:`DerivedRows`.
INSERTED = "inserted"


class MutationRun:
    """One mutation: created with its :attr:`plan`; then :meth:`batches` to its end, then :meth:`ended`.

    Raises:
        TidelockError: The error as :meth:`SqlSession.translate` returns it.
    """

    def __init__(self, session: SqlSession, request: MutationRequest) -> None:
        self._session = session
        row = session.table(request.table)
        self._schema = TableSchema.from_definition(row.id, row.definition)
        listed = not isinstance(request.action, InsertRows | DerivedRows | CheckRows)
        parts = session.parts(row.id) if listed else []
        if isinstance(request.action, CompareKeys):
            parts = [part for part in parts if part.part not in request.action.parts]
        self.plan = _plan(TargetTable(session, row, self._schema, parts), request)
        self._timed = [
            index
            for index, column in enumerate(self._schema.columns)
            if any(types.is_time(leaf) for _, leaf in leaf_paths([column.arrow]))
        ]
        self._old = self._updated = self._new = 0

    @property
    def schema(self) -> pa.Schema:
        """All columns of the table, each nullable: the writer of the rows checks nulls."""
        return pa.schema([column.with_nullable(True) for column in self._schema.arrow])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows to add.

        Raises:
            SchemaMismatchError: A new value does not have the type of its column.
            CorruptError: Rows were lost or doubled; no row may be kept.
        """
        schema = self.schema
        for stream in self.plan.streams:
            for batch in self._session.rows(stream.sql, stream.params):
                columns, extra = batch.columns[: len(schema)], batch.columns[len(schema) :]
                if extra:
                    self._judge(extra[1])
                if stream.new:
                    self._new += batch.num_rows
                else:
                    self._old += batch.num_rows
                    self._updated += (pc.sum(extra[0]).as_py() or 0) if extra else 0
                made = pa.RecordBatch.from_arrays(columns, schema=schema)
                self._require_times(made)
                yield made
        if self.plan.keeps and self._old != self.plan.rewritten:
            raise CorruptError(
                f"{self.plan.rewritten} rows of table {self._schema.name} became {self._old}; nothing of "
                "them was kept",
                table=self._schema.name,
            )

    def ended(self) -> MutationResult:
        """Return the report at the end."""
        return MutationResult(
            reads=self._session.reads(),
            rows_deleted=self.plan.dropped + self.plan.rewritten - self._old,
            rows_updated=self._updated,
            rows_inserted=self._new,
            checked=dict(self.plan.checked),
        )

    def _require_times(self, batch: pa.RecordBatch) -> None:
        """Refuse the end of a day as a time: DuckDB has 24:00:00, which Arrow and Spark do not have."""
        for index in self._timed:
            try:
                batch.column(index).validate(full=True)
            except pa.ArrowInvalid:
                column, table = self._schema.columns[index], self._schema.name
                raise SchemaMismatchError(
                    f"column {column.name} of table {table} is {column.type}, but a new value of it is "
                    "24:00:00; give 00:00:00 or 23:59:59.999999",
                    table=table,
                    column=column.name,
                    value="24:00:00",
                ) from None

    def _judge(self, misfits: pa.Array) -> None:
        if misfits.null_count == len(misfits):
            return
        number, mark, value = _MARK.split(misfits.drop_null()[0].as_py(), maxsplit=1)
        column, table = self._schema.columns[int(number)], self._schema.name
        if mark == "=":
            raise CheckViolationError(
                f"a row breaks generated column {column.name} of table {table}, which is {column.generated}: "
                f"it brings {column.name}={value}; leave the column out, or correct its value",
                table=table,
                check=column.name,
                row={column.name: value},
                value=value,
            )
        raise SchemaMismatchError(
            f"column {column.name} of table {table} is {column.type}, but a new value of it is {value}; "
            "cast it, or leave the row out",
            table=table,
            column=column.name,
            value=value,
        )


def _plan(target: TargetTable, request: MutationRequest) -> MutationPlan:
    match request.action:
        case DeleteRows() as action:
            target.session.show_named(action.where)
            return _delete(target, action)
        case UpdateRows() as action:
            texts = [value for value in action.set.values() if isinstance(value, str)]
            target.session.show_named(" ".join([*texts, action.where or ""]))
            return _update(target, action)
        case RewriteRows():
            return _rewrite(target)
        case MergeRows() as action:
            given = [values for values in (action.update, action.insert) if isinstance(values, dict)]
            texts = [value for values in given for value in values.values() if isinstance(value, str)]
            target.session.show_named(" ".join([*texts, action.delete or ""]))
            return merge(target, action)
        case InsertRows() as action:
            return insert(target, action)
        case CompareKeys() as action:
            return compare_keys(target, action)
        case CompactParts() as action:
            return _compact(target, action)
        case DerivedRows() as action:
            return _derive(target, action)
        case CheckRows() as action:
            return check(target, action)


def _delete(target: TargetTable, action: DeleteRows) -> MutationPlan:
    session = target.session
    user = Expressions(session.connection, action.params, session.table_names())
    where = user.parse(action.where, "where")
    user.end()
    session.doing = "in where"
    target.show()
    matched = target.count(composition.matching(target.alias, where), user.params(where))
    rewrite = target.rewrite(matched, drops=True)
    target.show_affected(rewrite)
    stream = RowStream(composition.remaining(target.schema, target.alias, where), user.params(where))
    streams = [stream] if rewrite.parts else []
    return MutationPlan(target.affected(matched, rewrite), streams, rewrite.rows, rewrite.dropped)


def _update(target: TargetTable, action: UpdateRows) -> MutationPlan:
    session = target.session
    user = Expressions(session.connection, action.params, session.table_names())
    values = user.new_values(target.schema, action.set, "set")
    where = None if action.where is None else user.parse(action.where, "where")
    user.end()
    session.doing = f"in where, or in the new value of {', '.join(values)}"
    target.show()
    new = list(values.values())
    rows = composition.target(target.alias)
    session.bind(composition.scalars(rows, new), user.params(*new))
    require_fields(session, target.schema, [*values], composition.values_of(rows, new), user.params(*new))
    if where is None:
        session.note_read(target.id)
        matched, rewrite = all_rows(target.parts)
    else:
        matched = target.count(composition.matching(target.alias, where), user.params(where))
        rewrite = target.rewrite(matched)
    target.show_affected(rewrite)
    used = user.params(*new, *([] if where is None else [where]))
    stream = RowStream(composition.updated(target.schema, target.alias, where, values, target.made()), used)
    streams = [stream] if matched else []
    return MutationPlan(target.affected(matched, rewrite), streams, rewrite.rows, keeps=True)


def _rewrite(target: TargetTable) -> MutationPlan:
    matched, rewrite = all_rows(target.parts)
    target.show_affected(rewrite)
    streams = [RowStream(composition.unchanged(target.schema, target.made()))] if matched else []
    return MutationPlan(target.affected(matched, rewrite), streams, rewrite.rows, keeps=True)


def _compact(target: TargetTable, action: CompactParts) -> MutationPlan:
    wanted = set(action.parts)
    parts = [part for part in target.parts if part.part in wanted]
    if missing := wanted - {part.part for part in parts}:
        raise SerializationConflictError(
            f"part {min(missing)} of table {target.name} does not exist any more",
            table=target.name,
            part=min(missing),
        )
    matched, rewrite = all_rows(parts)
    target.show_affected(rewrite)
    affected = target.affected(matched, rewrite, floats=_floats(target))
    return MutationPlan(affected, in_order(target, parts), rewrite.rows, keeps=True)


def _floats(target: TargetTable) -> FloatColumns:
    """Return the float columns of the rows that `#affected` shows.

    A file is begun by the columns of all its rows. Otherwise a NaN behind its first row group would begin
    another one: a merge would give as many parts as it took, and they would be merged again, forever.
    """
    names = [column.name for column in target.schema.columns if column.type in FLOATING]
    if not names:
        return NO_FLOATS
    (found,) = target.session.fetch(composition.floats(names))
    nan, zero = found[: len(names)], found[len(names) :]
    return FloatColumns(
        frozenset(name for name, has in zip(names, nan, strict=True) if has),
        frozenset(name for name, has in zip(names, zero, strict=True) if has),
    )


def _derive(target: TargetTable, action: DerivedRows) -> MutationPlan:
    session = target.session
    require_select(session.connection, action.sql)
    sql = shown(session, action.sql)
    if action.source is not None:
        parts = session.parts_named(action.parts)
        session.view(INSERTED, session.source(session.table(action.source), lambda: parts))
    rows = without_end(sql)
    found = session.bind(rows, action.params)
    known = by_same(target.schema.arrow.names)
    columns = tuple(
        known.get(same(name), name) for name in (found if action.columns is None else action.columns)
    )
    _check_columns(target.schema, columns, found, by_name=action.columns is None)
    require_fields(session, target.schema, columns, rows, action.params)
    stream = RowStream(
        composition.derived(target.schema, rows, columns, target.made()), action.params, new=True
    )
    return MutationPlan(target.affected(*all_rows(())), [stream])


def _check_columns(
    schema: TableSchema, columns: tuple[str, ...], found: tuple[str, ...], *, by_name: bool
) -> None:
    known = schema.arrow.names
    problems = [f"column {name} is not in the table" for name in columns if name not in known]
    problems += [
        f"column {name} comes more than once" for name, count in Counter(columns).items() if count > 1
    ]
    if by_name:
        missing = [one.name for one in schema.columns if one.name not in columns and not one.optional]
        problems += [f"column {name} is missing" for name in missing]
    elif len(found) != len(columns):
        problems.append(f"the query has {len(found)} columns for {len(columns)}: {', '.join(columns)}")
    if problems:
        raise SchemaMismatchError(
            f"the rows do not fit table {schema.name}: {'; '.join(problems)}", table=schema.name
        )
