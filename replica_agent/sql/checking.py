"""Conditions of tables in a SQL process: what their SQL may be, and whether rows break it.

They are the checks of a table, and that generated columns have the values which their SQL makes. A condition
depends on the columns of its row alone. So rows that satisfied it once satisfy it forever, on every replica:
it may ask for no other row, no time and no chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tidelock.errors import BadRequestError, CheckViolationError, TableChangedError
from tidelock.replica_agent.sql import composition
from tidelock.replica_agent.sql.expressions import Expressions, RowExpression
from tidelock.replica_agent.sql.mutation import CheckRows
from tidelock.replica_agent.sql.nested_values import require_fields
from tidelock.replica_agent.sql.plan import MutationPlan, TargetTable, all_rows
from tidelock.replica_agent.tables.checks import Check, Generated

#: The name of the table in expressions. No SQL can say it: a table may get another name, its checks stay.
_ROW: Final = "#row"
#: The types that a check may have; a null satisfies it.
_TRUE_OR_FALSE: Final = frozenset({"BOOLEAN", '"NULL"'})


def check(target: TargetTable, action: CheckRows) -> MutationPlan:
    """Bind conditions to the columns of their table, and look for a row that breaks one.

    Raises:
        BadRequestError: The SQL of a check is no condition over the columns of one row, or that of a
            generated column no value of it; or it fails for a row, as a division of texts does.
        CheckViolationError: Rows break a condition.
    """
    session = target.session
    if action.parts:
        shown = session.parts_named(action.parts)
        session.view(composition.TARGET, session.source(target.row, lambda: shown))
    else:
        session.run(composition.no_rows(target.schema))
    known = {one.name: one for one in target.schema.conditions}
    if not known.keys() >= set(action.conditions):
        raise TableChangedError(
            f"a check or a generated column of table {target.name} was taken away meanwhile; begin again",
            table=target.name,
        )
    asked = [known[name] for name in action.conditions]
    bound = {one.name: _bound(target, one) for one in asked}
    if action.parts:
        _require_satisfied(target, asked, bound)
    reads = {name: condition.reads for name, condition in bound.items()}
    return MutationPlan(target.affected(*all_rows(())), checked=MappingProxyType(reads))


class _Bound(msgspec.Struct, frozen=True):
    """A condition as an expression over the rows.

    Attributes:
        condition: The expression.
        reads: The columns that its SQL reads.
    """

    condition: RowExpression
    reads: tuple[str, ...]


def _bound(target: TargetTable, one: Check) -> _Bound:
    session, schema = target.session, target.schema
    rows, what = composition.target(_ROW), f"{one.what} of table {target.name}"
    session.doing = f"in {what}"
    if isinstance(one, Generated):
        column = schema.columns[schema.arrow.get_field_index(one.column)]
        value = target.expression(column)
        condition = composition.is_generated(column, value)
        session.bind(composition.scalars(rows, [value, condition]))
        require_fields(session, schema, [column.name], composition.values_of(rows, [value]), {})
        return _Bound(condition, value.columns)
    condition = Expressions(session.connection, (), ()).parse_of_row(one.sql, what, schema.arrow.names)
    session.bind(composition.scalars(rows, [condition]))
    [kind] = session.connection.sql(composition.values_of(rows, [condition])).types
    if str(kind) not in _TRUE_OR_FALSE:
        raise BadRequestError(
            f"{what} is {str(kind).lower()}; expected a condition, which is true or false: {one.sql}",
            check=one.name,
        )
    return _Bound(condition, condition.columns)


def _require_satisfied(target: TargetTable, conditions: Sequence[Check], bound: Mapping[str, _Bound]) -> None:
    """Raise CheckViolationError for the first condition that rows break."""
    session = target.session
    session.doing = f"in a check of table {target.name}"
    asked = [bound[one.name].condition for one in conditions]
    [counts] = session.fetch(composition.count_violations(_ROW, asked))
    for one, condition, rows in zip(conditions, asked, counts, strict=True):
        if rows:
            columns, values = condition.columns, session.fetch(composition.a_violation(_ROW, condition))[0]
            raise _violation(target, one, rows, dict(zip(columns, values[1:], strict=True)))


def _violation(target: TargetTable, one: Check, rows: int, row: dict[str, Any]) -> CheckViolationError:
    shown = ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in row.items())
    return CheckViolationError(
        f"{rows} row{'s break' if rows > 1 else ' breaks'} {one.what} of table {target.name}, which is "
        f"{one.sql}{f': one has {shown}' if shown else ''}; correct what breaks it, or leave it out",
        table=target.name,
        check=one.column if isinstance(one, Generated) else one.name,
        rows=rows,
        row=row,
    )
