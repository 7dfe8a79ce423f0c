"""Checks of tables in a SQL process: what their SQL may be, and whether rows break it.

A check depends on the columns of its row alone. So rows that satisfied it once satisfy it forever, on every
replica: it may ask for no other row, no time and no chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

from tidelock.errors import BadRequestError, CheckViolationError, TableChangedError
from tidelock.replica_agent.sql import composition
from tidelock.replica_agent.sql.expressions import Expressions, RowExpression
from tidelock.replica_agent.sql.mutation import CheckRows
from tidelock.replica_agent.sql.plan import MutationPlan, TargetTable, all_rows
from tidelock.replica_agent.tables.checks import Check

#: The name of the table in expressions. No SQL can say it: a table may get another name, its checks stay.
_ROW: Final = "#row"
#: The types that a check may have; a null satisfies it.
_TRUE_OR_FALSE: Final = frozenset({"BOOLEAN", '"NULL"'})


def check(target: TargetTable, action: CheckRows) -> MutationPlan:
    """Bind checks to the columns of their table, and look for a row that breaks one.

    Raises:
        BadRequestError: The SQL of a check is no condition over the columns of one row; or it fails for a
            row, as a division of texts does.
        CheckViolationError: Rows break a check.
    """
    session = target.session
    if action.parts:
        shown = session.parts_named(action.parts)
        session.view(composition.TARGET, session.source(target.row, lambda: shown))
    else:
        session.run(composition.no_rows(target.schema))
    known = {one.name: one for one in target.schema.checks}
    if gone := [name for name in action.checks if name not in known]:
        raise TableChangedError(
            f"check {gone[0]} of table {target.name} was taken away meanwhile; begin again", table=target.name
        )
    bound = {name: _bound(target, known[name]) for name in action.checks}
    if action.parts:
        _require_satisfied(target, [known[name] for name in action.checks], bound)
    checked = {name: expression.columns for name, expression in bound.items()}
    return MutationPlan(target.affected(*all_rows(())), checked=MappingProxyType(checked))


def _bound(target: TargetTable, one: Check) -> RowExpression:
    session = target.session
    what = f"check {one.name} of table {target.name}"
    expression = Expressions(session.connection, (), ()).parse_of_row(
        one.sql, what, target.schema.arrow.names
    )
    session.doing = f"in {what}"
    rows = composition.target(_ROW)
    session.bind(composition.scalars(rows, [expression]))
    [kind] = session.connection.sql(composition.values_of(rows, [expression])).types
    if str(kind) not in _TRUE_OR_FALSE:
        raise BadRequestError(
            f"{what} is {str(kind).lower()}; expected a condition, which is true or false: {one.sql}",
            check=one.name,
        )
    return expression


def _require_satisfied(target: TargetTable, checks: Sequence[Check], bound: dict[str, RowExpression]) -> None:
    """Raise CheckViolationError for the first check that rows break."""
    session = target.session
    session.doing = f"in a check of table {target.name}"
    [counts] = session.fetch(composition.count_violations(_ROW, [bound[one.name] for one in checks]))
    for one, rows in zip(checks, counts, strict=True):
        if rows:
            expression = bound[one.name]
            columns, values = expression.columns, session.fetch(composition.a_violation(_ROW, expression))[0]
            raise _violation(target, one, rows, dict(zip(columns, values[1:], strict=True)))


def _violation(target: TargetTable, one: Check, rows: int, row: dict[str, Any]) -> CheckViolationError:
    shown = ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in row.items())
    return CheckViolationError(
        f"{rows} row{'s break' if rows > 1 else ' breaks'} check {one.name} of table {target.name}, which is "
        f"{one.sql}{f': one has {shown}' if shown else ''}; correct what breaks it, or leave it out",
        table=target.name,
        check=one.name,
        rows=rows,
        row=row,
    )
