"""Definitions of a transaction: what stays of many statements, and when they are right at a later CSN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.replica_agent.tables.test_definitions import Known
from tidelock.csnlog.core.ids import TableId
from tidelock.csnlog.core.model import DefineTable
from tidelock.errors import RefusedError, TableChangedError, TableExistsError
from tidelock.replica_agent.tables import definitions
from tidelock.replica_agent.tables.definitions import After, KnownTables, joined, require_right
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.schema import TableSchema

ARROW = pa.schema([("k", pa.int64())])
NAMES = ("a", "b", "c")
#: A statement: its kind, a name, another name or a comment.
Step = tuple[str, str, str]
STEPS = st.tuples(
    st.sampled_from(["create", "replace", "drop", "rename", "comment"]),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
)


def run(step: Step, tables: KnownTables) -> list[DefineTable]:
    """Return the definitions of a statement."""
    kind, name, other = step
    match kind:
        case "create":
            return definitions.creating(TableSchema.from_request(name, ARROW), tables)
        case "replace":
            return definitions.replacing(TableSchema.from_request(name, ARROW), tables)
        case "drop":
            return definitions.dropping(full_name(name), tables)
        case "rename":
            return definitions.altering(full_name(name), tables, to=full_name(other), properties={})
    return definitions.altering(full_name(name), tables, to=None, properties={"comment": other})


def made_by(steps: Sequence[Step], known: Known) -> list[DefineTable]:
    """Return the definitions of a transaction; a statement that is refused leaves nothing."""
    made: list[DefineTable] = []
    for step in steps:
        try:
            made = joined(made, run(step, After(known, made)))
        except RefusedError:
            continue
    return made


def used_by(made: Sequence[DefineTable]) -> dict[TableId, int]:
    """Return the versions of the tables that definitions change, as a transaction notes them."""
    found: dict[TableId, int] = {}
    for one in made:
        if (
            one.version
            and one.table not in found
            and not any(other.table == one.table and not other.version for other in made)
        ):
            found[one.table] = one.version - 1
    return found


def shown(known: Known) -> dict[str, str]:
    """Return the comments of all tables by name."""
    return {
        last.schema.name: last.schema.properties.get("comment", "")
        for table, last in known.tables.items()
        if table not in known.gone
    }


def expected(steps: Sequence[Step], before: dict[str, str]) -> dict[str, str]:
    """Return what a model says of the same statements."""
    now = dict(before)
    for kind, name, other in steps:
        mine, new = f"default.{name}", f"default.{other}"
        if kind == "replace" or (kind == "create" and mine not in now):
            now[mine] = ""
        elif kind == "drop":
            now.pop(mine, None)
        elif kind == "rename" and mine in now and new not in now:
            now[new] = now.pop(mine)
        elif kind == "comment" and mine in now:
            now[mine] = other
    return now


@given(st.lists(STEPS, max_size=8), st.lists(STEPS, max_size=12))
def test_a_transaction_of_definitions_does_what_its_statements_say(
    before: list[Step], steps: list[Step]
) -> None:
    """In one commit; ids are unique, versions follow each other, names have one table."""
    known = Known()
    for step in before:
        known.apply(*made_by([step], known))
    start = shown(known)
    made = made_by(steps, known)
    require_right(made, used_by(made), known, known)
    known.apply(*made)  # checks versions and names
    assert shown(known) == expected(steps, start)
    created = {one.table for one in made if not one.version}
    assert not {one.table for one in made if one.drops} & created


@given(st.lists(STEPS, max_size=6), st.lists(STEPS, max_size=5), st.lists(STEPS, max_size=5))
def test_definitions_that_are_right_later_keep_every_promise(
    before: list[Step], mine: list[Step], others: list[Step]
) -> None:
    """They are refused, or each name has one table, and nothing of others is undone."""
    then = Known()
    for step in before:
        then.apply(*made_by([step], then))
    made = made_by(mine, then)
    now = Known()
    now.tables, now.gone = dict(then.tables), set(then.gone)
    foreign = made_by(others, now)
    now.apply(*foreign)
    touched = {one.table for one in made} & {one.table for one in foreign}
    try:
        require_right(made, used_by(made), then, now)
    except (TableChangedError, TableExistsError):
        names = {one.definition["name"] for one in made} & {one.definition["name"] for one in foreign}
        assert touched or names
        return
    assert not touched
    untouched = {name: now.bearer(full_name(name)) for name in NAMES}
    now.apply(*made)
    for name, table in untouched.items():
        if table is not None and table in {one.table for one in foreign}:
            assert now.bearer(full_name(name)) == table


#: Statements of a transaction, those of others before its commit, and the error.
MEETINGS: Final[list[tuple[list[Step], list[Step], type[RefusedError] | None, str]]] = [
    ([("rename", "a", "c")], [("comment", "b", "x")], None, ""),
    ([("comment", "a", "x")], [("comment", "a", "y")], TableChangedError, "default.a was changed"),
    ([("drop", "a", "")], [("rename", "a", "c")], TableChangedError, "dropped, or got another name"),
    ([("comment", "a", "x")], [("drop", "a", "")], TableChangedError, "dropped, or got another name"),
    ([("create", "c", "")], [("create", "c", "")], TableExistsError, "default.c"),
    ([("create", "c", "")], [("create", "c", ""), ("rename", "c", "d")], TableExistsError, "default.c"),
    ([("rename", "a", "c")], [("rename", "b", "c")], TableExistsError, "default.c"),
    ([("rename", "a", "c"), ("rename", "b", "a")], [("create", "d", "")], None, ""),
    ([("drop", "a", ""), ("create", "a", "")], [("create", "c", "")], None, ""),
]


@pytest.mark.parametrize(("mine", "others", "error", "words"), MEETINGS)
def test_definitions_conflict_where_they_meet_and_nowhere_else(
    mine: list[Step], others: list[Step], error: type[RefusedError] | None, words: str
) -> None:
    """A table or a name of both is a conflict that says which; all else is none."""
    then = Known()
    for name in ("a", "b"):
        then.apply(*run(("create", name, ""), then))
    made = made_by(mine, then)
    now = Known()
    now.tables, now.gone = dict(then.tables), set(then.gone)
    for step in others:  # each in a transaction of its own
        now.apply(*run(step, now))

    if error is None:
        require_right(made, used_by(made), then, now)
        return
    with pytest.raises(error, match=words):
        require_right(made, used_by(made), then, now)
