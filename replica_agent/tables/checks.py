"""Checks: conditions that no row of a table breaks, as its definition has them. Pure.

A condition is true for each row, or null, as in the CHECK of standard SQL. What is in its SQL is known to SQL
processes alone (:mod:`tidelock.replica_agent.sql.checking`): they tell the columns that it reads. A generated
column is a condition too, so that rows which bring a value of it are judged wherever checks are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tidelock.column_names import OWN, problem_of, same
from tidelock.errors import BadRequestError, TooLargeError


class Check(msgspec.Struct, frozen=True):
    """A condition that no row of a table breaks.

    Attributes:
        name: Its name.
        sql: One expression of SQL over the columns of one row.
        columns: The ids of these columns, ascending.
    """

    name: str
    sql: str
    columns: tuple[int, ...] = ()

    @property
    def what(self) -> str:
        """Return what it is, for messages."""
        return f"check {self.name}"


class Generated(Check, frozen=True):
    """The condition that a generated column has the value which its SQL makes.

    Attributes:
        column: The name of that column.
    """

    column: str = ""

    @property
    def what(self) -> str:
        """Return what it is, for messages."""
        return f"generated column {self.column}"


def name_of(column: int) -> str:
    """Return the name of the condition of a generated column, by the id of the column; no check has it."""
    return f"{OWN}{column}"


def after(
    table: str,
    checks: Sequence[Check],
    given: Mapping[str, str | None],
    *,
    checks_max: int,
    bytes_max: int,
) -> tuple[Check, ...]:
    """Return the checks of a table after a change; those that are new have no columns yet.

    Args:
        table: The name of the table.
        checks: Its checks.
        given: SQL by the names of checks; None takes a check away.
        checks_max: Most checks.
        bytes_max: Most bytes of the SQL of one.

    Raises:
        BadRequestError: A name is malformed or given already, or there is no such check; or the SQL is empty
            or too long.
        TooLargeError: The table would have too many checks.
    """
    found = {same(one.name): one for one in checks}
    for name, sql in given.items():
        there = found.get(same(name))
        if sql is None:
            if there is None:
                known = ", ".join(one.name for one in checks) or "none"
                raise BadRequestError(f"table {table} has no check {name!r}; it has: {known}", check=name)
            del found[same(name)]
            continue
        if there is not None:
            raise BadRequestError(
                f"table {table} has a check {there.name} already ({there.sql}); give another name, or take "
                "that one away before",
                check=name,
            )
        if problem := problem_of(name):
            raise BadRequestError(f"the name of check {name!r} of table {table} {problem}", check=name)
        require_sql(f"check {name} of table {table}", sql, bytes_max)
        found[same(name)] = Check(name, sql)
    if len(found) > checks_max:
        raise TooLargeError(
            f"table {table} would have {len(found)} checks; the limit is {checks_max} (checks_max): join "
            "some of them by AND",
            limit=checks_max,
            found=len(found),
        )
    return tuple(found.values())


def require_sql(what: str, sql: str, bytes_max: int) -> None:
    """Raise BadRequestError unless the SQL of a condition has a length that it may have."""
    if not 0 < (length := len(sql.encode())) <= bytes_max:
        raise BadRequestError(
            f"{what} has {length} bytes of SQL; expected 1 to {bytes_max} (check_bytes_max)"
        )
