"""Checks of a definition: names, limits, and what changes of columns they allow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidelock.csnlog.core.ids import TableId
from tidelock.errors import BadRequestError, TooLargeError
from tidelock.replica_agent.tables.checks import Check
from tidelock.replica_agent.tables.column_changes import ColumnChanges, changed, returned
from tidelock.replica_agent.tables.schema import ColumnLimits, TableSchema

ARROW = pa.schema([("n", pa.int32()), ("m", pa.int64())])
LIMITS = ColumnLimits(checks=2, check_bytes=10)


def table(**checks: str) -> TableSchema:
    """Return a table whose checks read column n."""
    made = TableSchema.from_request("t", ARROW, checks=checks)
    return made.with_checked({name: ["n"] for name in checks})


def test_a_definition_keeps_its_checks() -> None:
    """In their order, with the ids of their columns; one without checks has no trace of them."""
    made = table(b="n > 0", a="n < 9")
    assert made.checks == (Check("b", "n > 0", (1,)), Check("a", "n < 9", (1,)))
    assert TableSchema.from_definition(TableId("default.t"), made.definition()) == made
    assert not made.is_plain
    assert "checks" not in table().definition()
    assert table().is_plain


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"A": "n > 1"}, r"has a check a already \(n > 0\)"),
        ({"b": None}, "has no check 'b'; it has: a"),
        ({"": "n > 1"}, "is empty"),
        ({"x\ny": "n > 1"}, "control character"),
        ({"b": ""}, r"has 0 bytes of SQL; expected 1 to 10 \(check_bytes_max\)"),
        ({"b": "n > 1 + 2 + 3"}, "has 13 bytes of SQL"),
    ],
)
def test_wrong_names_and_texts_are_refused(given: dict[str, str | None], problem: str) -> None:
    """The error says which check, and what would fit."""
    with pytest.raises(BadRequestError, match=problem):
        table(a="n > 0").with_checks(given, LIMITS)


def test_checks_have_a_limit() -> None:
    """A check that is taken away makes room."""
    made = table(a="n > 0", b="n < 9")
    with pytest.raises(TooLargeError, match=r"3 checks; the limit is 2 \(checks_max\)"):
        made.with_checks({"c": "true"}, LIMITS)
    assert [one.name for one in made.with_checks({"a": None, "c": "true"}, LIMITS).checks] == ["b", "c"]


@pytest.mark.parametrize("change", [ColumnChanges(drop=["n"]), ColumnChanges(rename={"n": "k"})])
def test_a_column_of_a_check_stays(change: ColumnChanges) -> None:
    """Until the check is taken away, by the same change at the earliest."""
    made = table(a="n > 0")
    with pytest.raises(BadRequestError, match="check a names it") as caught:
        changed(made, change)
    assert caught.value.details == {"column": "n", "check": "a"}
    assert (
        changed(made, ColumnChanges(drop=change.drop, rename=change.rename, checks={"a": None})).checks == ()
    )
    assert changed(made, ColumnChanges(drop=["m"])).checks == made.checks


def test_checks_that_rows_of_before_may_break() -> None:
    """New ones, others under a name that was used, and those of columns with another type."""
    before = table(a="n > 0", b="n < 9")
    assert before.checks_to_judge(before) == ()
    assert [one.name for one in before.checks_to_judge(table(a="n > 1"))] == ["a", "b"]
    wider = changed(before, ColumnChanges(types={"n": "bigint"}))
    assert [one.name for one in wider.checks_to_judge(before)] == ["a", "b"]
    other = changed(before, ColumnChanges(drop=["m"]))
    assert other.checks_to_judge(before) == ()


def test_columns_of_then_need_those_of_the_checks() -> None:
    """A table does not get columns back to which a check of now does not fit."""
    then = table()
    renamed = changed(then, ColumnChanges(rename={"n": "k"}))
    now = renamed.with_checks({"c": "k > 0"}).with_checked({"c": ["k"]})
    with pytest.raises(BadRequestError, match=r"check c of table default\.t names column k"):
        returned(now, then, [])
    assert returned(renamed.with_checks({"c": "m > 0"}).with_checked({"c": ["m"]}), then, []).checks
