"""Plans of merges: source rows are matched with the rows of a table by equal keys, or are all new.

The source is loaded into a table of the engine, which spills, so it may be many times the memory limit. The
keys of the table are read once: ``#hits`` stores which row of the source matches a row of which row group.
Joins build their hash tables from the source, whatever the optimizer guesses about the size of a table that
it cannot count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidelock.column_types import FLOATING, is_nested, why_no_key
from tidelock.errors import BadRequestError, DuplicateKeyError, SchemaMismatchError
from tidelock.replica_agent.sql import composition
from tidelock.replica_agent.sql.expressions import Expression, Expressions
from tidelock.replica_agent.sql.mutation import CompareKeys, InsertRows, MergeRows
from tidelock.replica_agent.sql.nested_values import require_fields
from tidelock.replica_agent.sql.plan import MutationPlan, RowStream, TargetTable, all_rows
from tidelock.replica_agent.sql.request import quote
from tidelock.replica_agent.sql.source import MergeSource
from tidelock.table_columns import Column

#: Number of values of a partition column up to which exactly these partitions are scanned.
_VALUES_MAX = 1000


def merge(target: TargetTable, action: MergeRows) -> MutationPlan:
    """Load the source and find the rows that it matches.

    Raises:
        BadRequestError: An expression or the source is wrong, or several of its rows match one row.
        SchemaMismatchError: The source does not fit the table.
    """
    if not (action.on and (action.update or action.delete or action.insert)):
        raise BadRequestError("a merge needs `on`, and what to do with rows that match or do not match")
    session = target.session
    for column in target.schema.columns:
        if column.name in action.on and is_nested(column.type):
            raise BadRequestError(
                f"rows of table {target.name} cannot be merged on {column.name} ({column.type}): "
                f"{why_no_key(column.type)}",
                column=column.name,
            )
    user = Expressions(session.connection, action.params, session.table_names())
    with closing(MergeSource(Path(action.source), target.schema, action.on, exact=action.upsert)) as source:
        names = source.schema.names[:-1]
        updates = _updates(target, action, user, names)
        delete = None if action.delete is None else user.parse(action.delete, "when_matched_delete")
        inserts = _inserts(target, action, user, names)
        user.end()
        session.doing = "in a condition or new value of the merge"
        target.show()
        _load(target, source)
    matched = [*updates.values(), *([] if delete is None else [delete])]
    session.bind(composition.scalars(composition.met(action.on), matched), user.params(*matched))
    added = user.params(*inserts.values())
    session.bind(composition.scalars(composition.source(), inserts.values()), added)
    for rows, values in ((composition.met(action.on), updates), (composition.source(), inserts)):
        given = list(values.values())
        statement = composition.values_of(rows, given)
        require_fields(session, target.schema, [*values], statement, user.params(*given))
    session.run(composition.repeated_keys(action.on))
    if action.unique == "replace":
        session.run(composition.keep_last(action.on))
    keys = _find(target, action, user, delete)
    if action.unique == "refuse":
        _refuse_duplicates(target, action)
    elif action.unique is None:
        _refuse_repeated(target, action, matching=bool(matched))
    hits = target.count(composition.hit_groups(only_deleting=not updates), {}) if matched else {}
    missed = session.fetch(composition.count_missed(), {})[0][0] if inserts else 0
    rewrite, made = target.rewrite(hits), target.made()
    target.show_affected(rewrite)
    streams = []
    if hits:
        merged = composition.merged(target.schema, action.on, updates, delete, made)
        streams.append(RowStream(merged, user.params(*matched)))
    if missed:
        streams.append(RowStream(composition.inserted(target.schema, inserts, made), added, new=True))
    affected = target.affected(hits, rewrite, rows_to_insert=missed, keys=keys)
    return MutationPlan(affected, streams, rewrite.rows, keeps=delete is None)


def insert(target: TargetTable, action: InsertRows) -> MutationPlan:
    """Load the source, whose rows are rows of the table but for its generated columns.

    Raises:
        BadRequestError: The source is no Arrow IPC stream.
        SchemaMismatchError: The source does not fit the table.
    """
    target.session.doing = f"in a generated column of table {target.name}"
    with closing(MergeSource(Path(action.source), target.schema, (), exact=True)) as source:
        values = {name: _of_source(name) for name in source.schema.names[:-1]}
        _load(target, source)
    statement = composition.all_inserted(target.schema, values, target.made())
    return MutationPlan(target.affected(*all_rows(())), [RowStream(statement, new=True)])


def compare_keys(target: TargetTable, action: CompareKeys) -> MutationPlan:
    """Look for rows of a table that have the keys of staged rows, and for keys that these have twice.

    Raises:
        DuplicateKeyError: Two of the rows have the same key; or a row of the table has it, and refuses them.
    """
    session = target.session
    session.doing = f"in the unique key of table {target.name}"
    shown = session.parts_named(action.parts)
    session.view(composition.STREAM, session.source(target.row, lambda: shown))
    session.run(composition.load_keys(action.on))
    target.show()
    session.run(composition.repeated_keys(action.on))
    if action.taken:
        before = session.parts_named(action.taken)
        session.view(composition.BEFORE, session.source(target.row, lambda: before))
        session.run(composition.drop_keys(action.on))
    user = Expressions(session.connection, (), ())
    delete = user.parse("TRUE", "a replaced row")
    keys = _find(target, MergeRows("", action.on), user, delete)
    if not action.replace:
        _refuse_duplicates(target, action)
    elif found := session.fetch(composition.a_repeated_key(action.on), {}):
        key, shown_key = _shown(action, found[0])
        raise DuplicateKeyError(_twice(target, shown_key), table=target.name, key=key)
    matched = target.count(composition.hit_groups(only_deleting=True), {})
    rewrite = target.rewrite(matched, drops=True)
    target.show_affected(rewrite)
    rows = composition.merged(target.schema, action.on, {}, delete, target.made())
    streams = [RowStream(rows, user.params(delete))] if rewrite.parts else []
    [(new,)] = session.fetch(composition.count_source())
    affected = target.affected(matched, rewrite, rows_to_insert=new, keys=keys)
    return MutationPlan(affected, streams, rewrite.rows, rewrite.dropped)


def _load(target: TargetTable, source: MergeSource) -> None:
    """Store the rows of a source in the engine, which spills."""
    target.session.stream(composition.STREAM, _noted(source, target.session.note))
    target.session.run(composition.load_source())


def _updates(
    target: TargetTable, action: MergeRows, user: Expressions, names: Sequence[str]
) -> dict[str, Expression]:
    if isinstance(action.update, dict):
        return user.new_values(target.schema, action.update, "when_matched_update")
    if not action.update:
        return {}
    # The value that is made in a row that matches may be another one than that of the key.
    key = set(action.on) - {column.name for column in target.schema.generated}
    own = [name for name in target.schema.arrow.names if name in names and name not in key]
    # A table of only keys: rows that match stay unchanged.
    return {name: _of_source(name) for name in own}


def _inserts(
    target: TargetTable, action: MergeRows, user: Expressions, names: Sequence[str]
) -> dict[str, Expression]:
    if isinstance(action.insert, dict):
        return user.new_values(target.schema, action.insert, "when_not_matched_insert")
    if not action.insert:
        return {}
    if missing := [one.name for one in target.schema.columns if one.name not in names and not one.optional]:
        raise SchemaMismatchError(
            f"rows that match nothing are inserted, but lack columns of table {target.name}: "
            f"{', '.join(missing)}; send them, or name the columns in when_not_matched_insert",
            table=target.name,
            missing=missing,
        )
    return {name: _of_source(name) for name in target.schema.arrow.names if name in names}


def _of_source(name: str) -> Expression:
    return Expression(f"source.{quote(name)}", frozenset())


def _noted(source: MergeSource, note: Any) -> pa.RecordBatchReader:
    """Return the rows for the engine, and note an error, of which the engine passes on only the text."""

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from source.batches()
        except Exception as error:
            note(error)
            raise

    return pa.RecordBatchReader.from_batches(source.schema, batches())


def _find(
    target: TargetTable, action: MergeRows, user: Expressions, delete: Expression | None
) -> tuple[Any, Any] | None:
    """Find the rows that match; returns the range of the first column of the key."""
    columns = {column.name: column for column in target.schema.columns}
    params = user.params(*([] if delete is None else [delete]))
    within, ranges = [], []
    for name in action.on:
        low, high, *known = target.session.fetch(composition.key_range(columns[name]), {})[0]
        ranges.append([low, high] if columns[name].type.startswith("decimal") else known)
        if low is None:
            within.append("FALSE")  # only nulls, or no rows at all
        elif columns[name].type not in FLOATING:  # Arrow and DuckDB order NaN differently
            within.append(composition.key_between(columns[name], *_bound(params, action, [low, high])))
        if name in target.schema.partition_by:
            within += _among(target, columns[name], params, action)
    target.session.run(composition.hits(action.on, within, delete), params)
    low, high = ranges[0]
    return None if low is None else (low, high)


def _refuse_duplicates(target: TargetTable, action: MergeRows | CompareKeys) -> None:
    found = target.session.fetch(composition.duplicates(action.on), {})
    if not found:
        return
    keys, *values = found[0]
    key, shown = _shown(action, values)
    raise DuplicateKeyError(
        f"{keys} of the keys of the rows are in table {target.name} already, or come more than once among "
        f"the rows: the first is {shown}; nothing was kept, leave these rows out or upsert them",
        table=target.name,
        key=key,
        keys=keys,
    )


def _shown(action: MergeRows | CompareKeys, values: Sequence[str]) -> tuple[dict[str, str], str]:
    key = dict(zip(action.on, values, strict=True))
    return key, ", ".join(f"{name}={value}" for name, value in key.items())


def _among(target: TargetTable, column: Column, params: dict[str, Any], action: MergeRows) -> list[str]:
    found = target.session.fetch(composition.distinct_keys(column, _VALUES_MAX + 1), {})
    if not 0 < len(found) <= _VALUES_MAX:
        return []
    return [composition.key_among(column, _bound(params, action, [value for (value,) in found]))]


def _bound(params: dict[str, Any], action: MergeRows, values: Sequence[str]) -> list[int]:
    """Add parameters after the user's parameters; returns their numbers."""
    first = max([len(action.params), *map(int, params)]) + 1
    numbers = list(range(first, first + len(values)))
    params |= {str(number): value for number, value in zip(numbers, values, strict=True)}
    return numbers


def _refuse_repeated(target: TargetTable, action: MergeRows, *, matching: bool) -> None:
    session = target.session
    if action.upsert or target.schema.unique_key:
        found = session.fetch(composition.a_repeated_key(action.on), {})
    elif matching:
        found = session.fetch(composition.hit_twice(action.on), {})
    else:
        return
    if found:
        key, shown = _shown(action, found[0])
        raise BadRequestError(_twice(target, shown), table=target.name, key=key)


def _twice(target: TargetTable, shown: str) -> str:
    return (
        f"several of the rows have the key {shown} and table {target.name} takes one row for each key; send "
        "only that one"
    )
