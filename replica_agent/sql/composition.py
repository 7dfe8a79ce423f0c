"""The statements of mutations and of the change feed, as text: pure composition.

Each expression is in separate brackets.

Names with ``#`` are ours, since no table has such a name. Those of columns begin with ``#tidelock:``, which
is left out here, and no column of a table has such a name:

* views ``#target`` (the table, with the row group of each row), ``#affected`` (only the row groups that are
  rewritten) and ``#stream`` (the rows that were sent for a merge, or whose keys are compared);
* views ``#before`` and ``#after`` (parts that a commit has removed and added);
* tables ``#source`` (the rows of a merge, or keys, with ``#row``), ``#twice`` (keys that occur more than
  once in it), ``#hits`` (which row of the source matches a row of which row group) and ``#net`` (the
  difference of before and after);
* columns ``#match`` (the row gets new values), ``#value:c`` (the new value of column c, in the type of its
  expression) and ``#misfit`` (a new value outside of its column's type, or other than that of a generated
  column: the number of the column, ``:`` or ``=``, and the value's text).

A row is judged once: the predicate is one column of a subquery, so a volatile function cannot give two
answers for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tidelock.column_names import OWN
from tidelock.column_types import is_nested
from tidelock.replica_agent.sql.expressions import Expression, RowExpression, literal
from tidelock.replica_agent.sql.request import quote
from tidelock.replica_agent.sql.scan import GROUP_COLUMN
from tidelock.replica_agent.sql.source import ROW
from tidelock.replica_agent.sql.type_names import type_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.table_columns import Column

TARGET, AFFECTED, STREAM, SOURCE, TWICE, HITS = (
    "#target",
    "#affected",
    "#stream",
    "#source",
    "#twice",
    "#hits",
)
MATCH, MISFIT, _VALUE = f"{OWN}match", f"{OWN}misfit", f"{OWN}value:"
BEFORE, AFTER, NET, COUNT = "#before", "#after", "#net", f"{OWN}count"
#: The kinds of rows in a change feed; the last two are for a key that is on both sides.
INSERT, DELETE, PREIMAGE, POSTIMAGE = "insert", "delete", "update_preimage", "update_postimage"

#: The expressions of generated columns, by the names of the columns.
Made = Mapping[str, RowExpression]

#: Values of a column from which its distribution is guessed.
_SAMPLED = 20_000

_NO_MISFIT = f"CAST(NULL AS VARCHAR) AS {quote(MISFIT)}"
_GROUP, _MATCH, _ROW, _COUNT = quote(GROUP_COLUMN), quote(MATCH), quote(ROW), quote(COUNT)


#: Types whose smallest and largest value any client can compare, as JSON.
_COMPARABLE = {
    "date": "{0} - DATE '1970-01-01'",
    "time": "epoch_us({0})",
    "timestamp": "epoch_us({0})",
    "timestamp_ntz": "epoch_us({0})",
    **dict.fromkeys(("boolean", "tinyint", "smallint", "int", "bigint", "string"), "{0}"),
}


# -- rows where a predicate is true --------------------------------------------------------------------------


def matching(alias: str, where: Expression) -> str:
    """Count the rows by row group where the predicate is true."""
    return f"SELECT {_GROUP}, count(*) FROM {target(alias)} WHERE {where.text} GROUP BY {_GROUP}"


def remaining(schema: TableSchema, alias: str, where: Expression) -> str:
    """Select the rows of the affected row groups that a delete leaves."""
    names = _names(schema.columns)
    return f"SELECT {names} FROM ({_judged(alias, where)}) WHERE NOT {_MATCH}"


def unchanged(schema: TableSchema, made: Made) -> str:
    """Select the rows of the affected row groups as they are, but for generated columns, which are made."""
    rows = f"SELECT {_names(schema.columns)}, TRUE AS {_MATCH}, {_NO_MISFIT} FROM {quote(AFFECTED)}"
    return _generated(schema, rows, (), made)


def updated(
    schema: TableSchema,
    alias: str,
    where: Expression | None,
    values: Mapping[str, Expression],
    made: Made,
) -> str:
    """Select all rows of the affected row groups, with new values where the predicate is true."""
    new = _values({name: f"CASE WHEN {_MATCH} THEN {value.text} END" for name, value in values.items()})
    # The parts come after the values, so that parameters are numbered in the user's order.
    inner = f"SELECT *, {new} FROM ({_judged(alias, where)}) AS {quote(alias)}"
    return _fitted(schema, inner, values, made, new_rows=False)


def _judged(alias: str, where: Expression | None) -> str:
    judged = "TRUE" if where is None else f"{_true(where)}"
    return f"SELECT *, {judged} AS {_MATCH} FROM {quote(AFFECTED)} AS {quote(alias)}"


def scalars(source: str, expressions: Iterable[Expression]) -> str:
    """Return a statement that binds only if each expression is one value of a row of ``source``.

    It is never run. In SELECT an aggregate, a window or an unnest would change the number of rows.
    """
    conditions = " OR ".join(f"{expression.text} IS NULL" for expression in expressions)
    return f"SELECT 1 FROM {source} WHERE {conditions or 'TRUE'}"


def values_of(source: str, expressions: Iterable[Expression]) -> str:
    """Select expressions over the rows of ``source``, to learn their types."""
    return f"SELECT {', '.join(expression.text for expression in expressions)} FROM {source}"


def target(alias: str) -> str:
    """Return the table as an item of FROM."""
    return f"{quote(TARGET)} AS {quote(alias)}"


# -- checks --------------------------------------------------------------------------------------------------


def no_rows(schema: TableSchema) -> str:
    """Return a statement that shows a table without rows as ``#target``; expressions are bound to it."""
    columns = ", ".join(f"CAST(NULL AS {type_of(one)}) AS {quote(one.name)}" for one in schema.columns)
    return f"CREATE TEMP VIEW {quote(TARGET)} AS SELECT {columns} LIMIT 0"


def count_violations(alias: str, checks: Sequence[RowExpression]) -> str:
    """Count, for each check, the rows that break it."""
    found = ", ".join(f"count(*) FILTER (WHERE {_false(one)})" for one in checks)
    return f"SELECT {found} FROM {target(alias)}"


def a_violation(alias: str, check: RowExpression) -> str:
    """Select a row that breaks a check: a number, then the columns that the check reads, as text."""
    texts = "".join(f", left(CAST({quote(name)} AS VARCHAR), 80)" for name in check.columns)
    return f"SELECT 1{texts} FROM {target(alias)} WHERE {_false(check)} LIMIT 1"


def _false(condition: Expression) -> str:
    return f"CAST({condition.text} AS BOOLEAN) IS FALSE"


# -- merges --------------------------------------------------------------------------------------------------


def load_source() -> str:
    """Store the rows of the view ``#stream``."""
    return f"CREATE TEMP TABLE {quote(SOURCE)} AS SELECT * FROM {quote(STREAM)}"


def load_keys(on: Sequence[str]) -> str:
    """Store the keys of the rows of the view ``#stream``."""
    names = ", ".join(map(quote, on))
    return (
        f"CREATE TEMP TABLE {quote(SOURCE)} AS SELECT {names}, row_number() OVER () - 1 AS {_ROW} "
        f"FROM {quote(STREAM)}"
    )


def drop_keys(on: Sequence[str]) -> str:
    """Forget the keys that rows of the view ``#before`` have."""
    same = " AND ".join(f"source.{quote(name)} = before.{quote(name)}" for name in on)
    known = f"SELECT source.{_ROW} FROM {source()} SEMI JOIN {quote(BEFORE)} AS before ON {same}"
    return f"DELETE FROM {quote(SOURCE)} WHERE {_ROW} IN ({known})"


def count_source() -> str:
    """Count the rows of the source."""
    return f"SELECT count(*) FROM {source()}"


def repeated_keys(on: Sequence[str]) -> str:
    """Store the keys that occur more than once in the source."""
    names = ", ".join(map(quote, on))
    given = " AND ".join(f"{quote(name)} IS NOT NULL" for name in on)
    return (
        f"CREATE TEMP TABLE {quote(TWICE)} AS SELECT {names} FROM {quote(SOURCE)} "
        f"WHERE {given} GROUP BY ALL HAVING count(*) > 1"
    )


def key_range(column: Column) -> str:
    """Select the smallest and the largest key of the source, twice: as text, and as JSON values or null."""
    name = quote(column.name)
    found = _COMPARABLE.get(column.type, "NULL").format(name)
    texts = ", ".join(f"CAST({which}({name}) AS VARCHAR)" for which in ("min", "max"))
    return f"SELECT {texts}, min({found}), max({found}) FROM {source()}"


def distinct_keys(column: Column, limit: int) -> str:
    """Select up to ``limit`` different keys of the source as text."""
    name = quote(column.name)
    return f"SELECT DISTINCT CAST({name} AS VARCHAR) FROM {source()} WHERE {name} IS NOT NULL LIMIT {limit}"


def key_between(column: Column, low: int, high: int) -> str:
    """Return the condition that a key of the table is between two parameters, which are text."""
    name, kind = f"target.{quote(column.name)}", type_of(column)
    return f"{name} >= CAST(${low} AS {kind}) AND {name} <= CAST(${high} AS {kind})"


def key_among(column: Column, params: Iterable[int]) -> str:
    """Return the condition that a key of the table equals one of some parameters, which are text."""
    values = ", ".join(f"CAST(${number} AS {type_of(column)})" for number in params)
    return f"target.{quote(column.name)} IN ({values})"


def hits(on: Sequence[str], within: Sequence[str], delete: Expression | None) -> str:
    """Store which row of the source matches a row of which row group, and whether it deletes.

    Args:
        on: Columns of the key.
        within: Conditions that all keys of the source fulfil, for the scan of the table.
        delete: Condition under which a matching row is deleted.
    """
    deletes = "FALSE" if delete is None else _true(delete)
    condition = " AND ".join(within) or "TRUE"
    return (
        f"CREATE TEMP TABLE {quote(HITS)} AS SELECT source.{_ROW}, target.{_GROUP}, {deletes} AS {_MATCH} "
        f"FROM {met(on)} WHERE {condition}"
    )


def a_repeated_key(on: Sequence[str]) -> str:
    """Select a key that several rows of the source have, as text."""
    return f"SELECT {_texts('twice', on)} FROM {quote(TWICE)} AS twice LIMIT 1"


def keep_last(on: Sequence[str]) -> str:
    """Keep only the last of the source's rows with the same key."""
    names = ", ".join(f"source.{quote(name)}" for name in on)
    order = f"row_number() OVER (PARTITION BY {names} ORDER BY source.{_ROW} DESC)"
    numbered = (
        f"SELECT source.{_ROW}, {order} AS n FROM {source()} SEMI JOIN {quote(TWICE)} AS twice ON {_same(on)}"
    )
    return f"DELETE FROM {quote(SOURCE)} WHERE {_ROW} IN (SELECT {_ROW} FROM ({numbered}) WHERE n > 1)"


def duplicates(on: Sequence[str]) -> str:
    """Count the keys of the source that are repeated or in the table; also select one of them, as text."""
    names = ", ".join(f"source.{quote(name)}" for name in on)
    found = (
        f"SELECT {names} FROM {source()} SEMI JOIN {quote(HITS)} AS hits ON hits.{_ROW} = source.{_ROW} "
        f"UNION SELECT {', '.join(map(quote, on))} FROM {quote(TWICE)}"
    )
    return f"SELECT count(*) OVER (), {_texts('found', on)} FROM ({found}) AS found ORDER BY ALL LIMIT 1"


def hit_twice(on: Sequence[str]) -> str:
    """Select a key of the table that several rows of the source have, as text."""
    names = _texts("source", on)
    return (
        f"SELECT {names} FROM {quote(TWICE)} AS twice JOIN {quote(SOURCE)} AS source ON {_same(on)} "
        f"SEMI JOIN {quote(HITS)} AS hits ON hits.{_ROW} = source.{_ROW} LIMIT 1"
    )


def hit_groups(*, only_deleting: bool) -> str:
    """Count the rows by row group that a merge updates or deletes."""
    condition = f"WHERE {_MATCH}" if only_deleting else ""
    return f"SELECT {_GROUP}, count(*) FROM {quote(HITS)} {condition} GROUP BY {_GROUP}"


def merged(
    schema: TableSchema,
    on: Sequence[str],
    values: Mapping[str, Expression],
    delete: Expression | None,
    made: Made,
) -> str:
    """Select the rows of the affected row groups that a merge leaves, with new values where they match."""
    matches = f"source.{_ROW} IS NOT NULL"
    new = _values({name: f"CASE WHEN {matches} THEN {value.text} END" for name, value in values.items()})
    old = ", ".join(f"target.{quote(column.name)}" for column in schema.columns)
    stays = "TRUE" if delete is None else f"NOT ({matches} AND {_true(delete)})"
    updates = matches if values else "FALSE"
    inner = (
        f"SELECT {old}, {', '.join([new, updates] if new else [updates])} AS {_MATCH} "
        f"FROM {quote(AFFECTED)} AS target LEFT JOIN {quote(SOURCE)} AS source ON {_equal(on)} WHERE {stays}"
    )
    return _fitted(schema, inner, values, made, new_rows=False)


def met(on: Sequence[str]) -> str:
    """Return rows of the table with the source row that they match, as an item of FROM."""
    return f"{quote(TARGET)} AS target JOIN {source()} ON {_equal(on)}"


def source() -> str:
    """Return the rows of a merge's source as an item of FROM."""
    return f"{quote(SOURCE)} AS source"


def count_missed() -> str:
    """Count the rows of the source that match no row."""
    return f"SELECT count(*) FROM {_missed()}"


def inserted(schema: TableSchema, values: Mapping[str, Expression], made: Made) -> str:
    """Select new rows for the rows of the source that match no row."""
    return _added(schema, values, made, _missed())


def all_inserted(schema: TableSchema, values: Mapping[str, Expression], made: Made) -> str:
    """Select new rows for all rows of the source."""
    return _added(schema, values, made, source())


def _added(schema: TableSchema, values: Mapping[str, Expression], made: Made, rows: str) -> str:
    new = _values({name: value.text for name, value in values.items()})
    inner = f"SELECT {new}, TRUE AS {_MATCH} FROM {rows}"
    return _fitted(schema, inner, values, made, new_rows=True)


def _missed() -> str:
    return f"{quote(SOURCE)} AS source ANTI JOIN {quote(HITS)} AS hits ON source.{_ROW} = hits.{_ROW}"


def _texts(alias: str, names: Iterable[str]) -> str:
    return ", ".join(f"left(CAST({alias}.{quote(name)} AS VARCHAR), 80)" for name in names)


def _same(on: Sequence[str]) -> str:
    return " AND ".join(f"source.{quote(name)} = twice.{quote(name)}" for name in on)


def _equal(on: Sequence[str]) -> str:
    return " AND ".join(f"target.{quote(name)} = source.{quote(name)}" for name in on)


# -- unchanged rows ----------------------------------------------------------------------------------------


def ordered(schema: TableSchema, within: str = "TRUE") -> str:
    """Select the rows of the affected parts for which a condition is true, in the order of the table."""
    order = f" ORDER BY {', '.join(map(quote, schema.sort_by))}" if schema.sort_by else ""
    return f"SELECT {_names(schema.columns)} FROM {quote(AFFECTED)} WHERE {within}{order}"


def floats(names: Sequence[str]) -> str:
    """Return a query for one row about `#affected`: whether each float column has a NaN, then a zero."""
    columns = [quote(name) for name in names]
    nan = [f"bool_or(isnan({column}))" for column in columns]
    zero = [f"bool_or({column} = 0)" for column in columns]
    return f"SELECT {', '.join([*nan, *zero])} FROM {quote(AFFECTED)}"


def quantiles(column: Column, count: int) -> str:
    """Select, as text, values that cut a column of the affected parts into about equal ranges, in order."""
    name = quote(column.name)
    sample = f"SELECT {name} AS v FROM {quote(AFFECTED)} WHERE {name} IS NOT NULL"
    pieces = (
        f"SELECT v, ntile({count}) OVER (ORDER BY v) AS piece "
        f"FROM (FROM ({sample}) USING SAMPLE reservoir({_SAMPLED} ROWS))"
    )
    bounds = (
        f"SELECT DISTINCT min(v) OVER (PARTITION BY piece) AS bound, piece FROM ({pieces}) WHERE piece > 1"
    )
    return f"SELECT CAST(bound AS VARCHAR) FROM ({bounds}) GROUP BY bound ORDER BY bound"


def in_range(column: Column, *, low: bool, high: bool) -> str:
    """Return the condition that a column is >= $low and < $high, which are text; nulls come last."""
    name, kind = quote(column.name), type_of(column)
    found = [f"{name} >= CAST($low AS {kind})"] if low else []
    found += [f"{name} < CAST($high AS {kind})"] if high else []
    within = " AND ".join(found) or "TRUE"
    return within if high else f"({within} OR {name} IS NULL)"


def derived(schema: TableSchema, sql: str, columns: Sequence[str], made: Made) -> str:
    """Select the rows of a SELECT, whose columns have these names, as rows of the table."""
    named = ", ".join(quote(_VALUE + name) for name in columns)
    inner = f"SELECT *, TRUE AS {_MATCH} FROM (\n{sql}\n) AS {quote('#rows')}({named})"
    return _fitted(schema, inner, columns, made, new_rows=True)


# -- changes of a commit -------------------------------------------------------------------------------------


def keep_net(names: Sequence[str]) -> str:
    """Store the rows whose counts before and after differ, for :func:`differences`."""
    return f"CREATE OR REPLACE TEMP TABLE {quote(NET)} AS {_net(names)}"


def differences(names: Sequence[str], key: Sequence[str], *, gone: bool) -> str:
    """Select the stored rows that are gone, or that have come; then their kind, and how many there are.

    In a table with a unique key, a key on both sides is an update.
    """
    columns = ", ".join(f"net.{quote(name)}" for name in names)
    kind, other_kind = (DELETE, PREIMAGE) if gone else (INSERT, POSTIMAGE)
    label, other = literal(kind), ""
    if key:
        same = " AND ".join(f"net.{quote(name)} = other.{quote(name)}" for name in key)
        label = f"CASE WHEN other.{_COUNT} IS NULL THEN {literal(kind)} ELSE {literal(other_kind)} END"
        other = f" LEFT JOIN {quote(NET)} AS other ON {same} AND (net.{_COUNT} > 0) <> (other.{_COUNT} > 0)"
    return (
        f"SELECT {columns}, {label}, CAST(abs(net.{_COUNT}) AS BIGINT) FROM {quote(NET)} AS net{other} "
        f"WHERE net.{_COUNT} {'<' if gone else '>'} 0"
    )


def _net(names: Sequence[str]) -> str:
    """Select rows with their count after minus their count before, without those of difference 0."""
    after = f"SELECT {_quoted(names)}, 1 AS {_COUNT} FROM {quote(AFTER)}"
    before = f"SELECT {_quoted(names)}, -1 FROM {quote(BEFORE)}"
    return (
        f"SELECT {_quoted(names)}, sum({_COUNT}) AS {_COUNT} FROM ({after} UNION ALL {before}) "
        f"GROUP BY {_quoted(names)} HAVING sum({_COUNT}) <> 0"
    )


# -- new values in the types of their columns ----------------------------------------------------------------


def _fitted(schema: TableSchema, inner: str, new: Iterable[str], made: Made, *, new_rows: bool) -> str:
    """Select the table's columns in their types, then ``#match`` and ``#misfit``."""
    given = set(new)
    columns = ", ".join(_column(column, given=column.name in given, new_rows=new_rows)
                        for column in schema.columns)  # fmt: skip
    misfits = " ".join(
        f"WHEN {_value(column)} IS NOT NULL AND {_try(column)} IS NULL "
        f"THEN {literal(f'{number}:')} || left(CAST({_value(column)} AS VARCHAR), 80)"
        for number, column in enumerate(schema.columns)
        if column.name in given
    )
    misfit = f"CASE {misfits} END AS {quote(MISFIT)}" if misfits else _NO_MISFIT
    return _generated(schema, f"SELECT {columns}, {_MATCH}, {misfit} FROM ({inner})", given, made)


def _generated(schema: TableSchema, rows: str, given: Collection[str], made: Made) -> str:
    """Select rows of :func:`_fitted` with the values of generated columns, where they get new values.

    A value that is given must be the one that is made.
    """
    if not made:
        return rows
    columns, misfits = [], [f"WHEN {quote(MISFIT)} IS NOT NULL THEN {quote(MISFIT)}"]
    for number, column in enumerate(schema.columns):
        name = quote(column.name)
        if column.name not in made:
            columns.append(name)
            continue
        value, fitting = made[column.name].text, generated(column, made[column.name])
        columns.append(f"CASE WHEN {_MATCH} THEN {fitting} ELSE {name} END AS {name}")
        wrong = {f"{number}:": (value, f"{value} IS NOT NULL AND {fitting} IS NULL")}
        if column.name in given:
            wrong[f"{number}="] = (name, f"{name} IS DISTINCT FROM {fitting}")
        for mark, (shown, condition) in wrong.items():
            text = f"coalesce(left(CAST({shown} AS VARCHAR), 80), 'NULL')"
            misfits.append(f"WHEN {_MATCH} AND {condition} THEN {literal(mark)} || {text}")
    misfit = f"CASE {' '.join(misfits)} END AS {quote(MISFIT)}"
    return f"SELECT {', '.join(columns)}, {_MATCH}, {misfit} FROM ({rows})"


def generated(column: Column, value: Expression) -> str:
    """Return the value of a generated column in its type, null if it has no equal there."""
    return _in_type(column, value.text)


def is_generated(column: Column, value: RowExpression) -> RowExpression:
    """Return the condition that a generated column has the value which its SQL makes."""
    name, fitting = quote(column.name), generated(column, value)
    text = f"({name} IS NOT DISTINCT FROM {fitting} AND ({fitting} IS NOT NULL OR {value.text} IS NULL))"
    return RowExpression(text, value.params, (column.name, *value.columns))


def _column(column: Column, *, given: bool, new_rows: bool) -> str:
    name = quote(column.name)
    if new_rows:
        return f"{_try(column) if given else _default(column)} AS {name}"
    return f"CASE WHEN {_MATCH} THEN {_try(column)} ELSE {name} END AS {name}" if given else name


def _default(column: Column) -> str:
    """Return the value of a row that comes without a column."""
    if column.type == "binary" and column.default is not None:
        return f"unhex({literal(column.default)})"
    return f"CAST({literal(column.default)} AS {type_of(column)})"


def _values(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{text} AS {quote(_VALUE + name)}" for name, text in texts.items())


def _value(column: Column) -> str:
    return quote(_VALUE + column.name)


def _try(column: Column) -> str:
    return _in_type(column, _value(column))


def _in_type(column: Column, value: str) -> str:
    """Return a value in the type of a column, null if it has no equal there.

    For arrays, structs and maps it fails instead: TRY_CAST would make nulls of the values inside.
    """
    return f"{'CAST' if is_nested(column.type) else 'TRY_CAST'}({value} AS {type_of(column)})"


def _true(condition: Expression) -> str:
    return f"(CAST({condition.text} AS BOOLEAN) IS TRUE)"


def _names(columns: Iterable[Column]) -> str:
    return _quoted(column.name for column in columns)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(quote, names))
