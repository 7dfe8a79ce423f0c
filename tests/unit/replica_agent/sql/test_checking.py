"""Checks as an SQL process binds and judges them, beside a model in Python."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.mutations import run
from tidelock.csnlog.core.ids import TableId
from tidelock.errors import BadRequestError, CheckViolationError
from tidelock.replica_agent.sql.expressions import _unsteady
from tidelock.replica_agent.sql.mutation import CheckRows
from tidelock.replica_agent.storage.catalog_reads import PartRow

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("at.most", pa.decimal128(9, 2)),
        ("user", pa.string()),
    ]
)
Row = dict[str, Any]


def _greater(left: float | None, right: float) -> bool | None:
    return None if left is None else math.isnan(left) or left > right


#: SQL of checks, the columns that each reads, and the same in Python; NaN is above all numbers.
CHECKS: dict[str, tuple[str, list[str], Any]] = {
    "positive": ("n > 0", ["n"], lambda row: None if row["n"] is None else row["n"] > 0),
    "required": ("n is not null", ["n"], lambda row: row["n"] is not None),
    "above": ("x > 1.5", ["x"], lambda row: _greater(row["x"], 1.5)),
    "a comment": (
        "s <> '' -- no empty text",
        ["s"],
        lambda row: None if row["s"] is None else row["s"] != "",
    ),
    "one of two": ("n is null or s is null", ["n", "s"], lambda row: row["n"] is None or row["s"] is None),
    "inside": (
        "list_contains(tags, 'a') or len(tags) < 2",
        ["tags"],
        lambda row: None if row["tags"] is None else "a" in row["tags"] or len(row["tags"]) < 2,
    ),
    "quoted": (
        '"at.most" <= 10',
        ["at.most"],
        lambda row: None if row["at.most"] is None else row["at.most"] <= 10,
    ),
    "a day": (
        "d >= date '2000-01-01'",
        ["d"],
        lambda row: None if row["d"] is None else row["d"] >= dt.date(2000, 1, 1),
    ),
    "a column of that name": (
        "user <> 'root'",
        ["user"],
        lambda row: None if row["user"] is None else row["user"] != "root",
    ),
    "a lambda": (
        "len(list_filter(tags, lambda x: x = '')) = 0",
        ["tags"],
        lambda row: None if row["tags"] is None else "" not in row["tags"],
    ),
    "nothing": ("null", [], lambda _: None),
    "always": ("true", [], lambda _: True),
}
NUMBERS = st.none() | st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
FLOATS = st.none() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, 2.0])
TEXTS = st.none() | st.sampled_from(["", "a", "root", "'", "\u0000", "x" * 5000])
ROWS = st.fixed_dictionaries(
    {
        "n": NUMBERS,
        "x": FLOATS,
        "s": TEXTS,
        "d": st.none() | st.sampled_from([dt.date(1, 1, 1), dt.date(2000, 1, 1)]),
        "tags": st.none() | st.lists(st.sampled_from(["", "a", "b"]), max_size=3),
        "at.most": st.none() | st.decimals(-20, 20, places=2),
        "user": TEXTS,
    }
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """Return the table `t` with all checks."""
    made = DataDir(tmp_path_factory.mktemp("checks") / "data")
    made.create_table(2, "t", SCHEMA, checks={name: sql for name, (sql, _, _) in CHECKS.items()})
    return made


#: Functions without arguments that DuckDB calls the same at each call, which are so for one process alone.
CONSTANT = {"list_pack", "list_value", "map", "pi"}


def test_functions_without_arguments_are_known() -> None:
    """A new one may be a clock: it is looked at before a check may call it."""
    sql = """
        select distinct function_name, stability from duckdb_functions()
        where len(parameters) = 0 and varargs is null and function_type = 'scalar'
    """
    with duckdb.connect() as connection:
        rows = connection.execute(sql).fetchall()
        steady = {name for name, stability in rows if stability == "CONSISTENT"}
        assert steady - _unsteady() <= CONSTANT


def inserted(directory: DataDir, rows: list[Row]) -> list[PartRow]:
    """Insert rows, and return their parts."""
    csn = directory.meta("snapshot_csn") + 1
    return directory.insert(csn, {TableId("default.t"): pa.Table.from_pylist(rows, SCHEMA)})


@given(st.lists(ROWS, max_size=4))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_as_the_model_says(directory: DataDir, rows: list[Row]) -> None:
    """Each check is bound, and its rows are counted; one of these rows is shown."""
    parts = inserted(directory, rows) if rows else []
    for name, (_, columns, judge) in CHECKS.items():
        broken = [row for row in rows if judge(row) is False]
        action = CheckRows((name,), tuple(part.part for part in parts))
        if not broken:
            assert run(directory, "t", action).ended.checked == {name: tuple(columns)}
            continue
        with pytest.raises(CheckViolationError) as caught:
            run(directory, "t", action)
        found = caught.value.details
        assert (found["table"], found["check"], found["rows"]) == ("default.t", name, len(broken))
        assert list(found["row"]) == columns


def test_checks_are_judged_together(directory: DataDir) -> None:
    """The first one that rows break is told, in the order of the request."""
    parts = inserted(directory, [{"n": -1, "s": "", "x": 0.0}])
    with pytest.raises(CheckViolationError, match="1 row breaks check a comment"):
        run(
            directory,
            "t",
            CheckRows(("a comment", "positive"), tuple(part.part for part in parts)),
        )


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("n > 0; drop table t", "not one SQL expression"),
        ("n > 0 -- \n) or (true", "not one SQL expression"),
        ("n as m", "found more than that"),
        ("n > 0, n > 1", "found more than that"),
        ("n + 1", "is bigint; expected a condition"),
        ("m > 0", "names m, which is no column of the table; it has n, x, s"),
        ("t.n > 0", "names t, which is no column"),
        ("hash(t) > 0", "names t, which is no column"),
        ("t['n'] > 0", "names t, which is no column"),
        ('"#row".n > 0', "names #row, which is no column"),
        ("s.length() > 3", "calls length behind a point"),
        ("main.age(d) is null", "calls age behind a point"),
        ("age(d) < interval 1 year", "age does not depend"),
        ("current_localtimestamp() > d", "current_localtimestamp does not depend"),
        ("list_filter(tags, lambda y: y = z) is null", "names z, which is no column"),
        ("list_filter(tags, lambda y: y = 'a') is null and y", "names y, which is no column"),
        ("columns('n') > 0", "name each column"),
        ("unnest(tags) = 'a'", "UNNEST"),
        ("count(*) > 0", "aggregate"),
        ("lag(n) over () > 0", "window"),
        ("n = (select 1)", "no subquery"),
        ("n in (from t select n)", "no subquery"),
        ("uuid() is not null", "uuid does not depend"),
        ("d <= current_date", "current_date does not depend"),
        ("CURRENT_TIMESTAMP is not null", "current_timestamp does not depend"),
        ("d <= today()", "today does not depend"),
        ("current_schema() is null", "current_schema does not depend"),
        ("session_user is null", "session_user does not depend"),
        ("getenv('HOME') is null", "getenv is not offered"),
        ("n > $1", "parameter"),
        ("(" * 1500 + "true" + ")" * 1500, "not one SQL expression|nested too deeply"),
    ],
)
def test_what_is_no_condition_of_one_row_is_refused(tmp_path: Path, sql: str, problem: str) -> None:
    """The error names the check and its table."""
    directory = DataDir(tmp_path / "data")
    directory.create_table(2, "t", SCHEMA, checks={"wrong": sql})
    with pytest.raises(BadRequestError, match=problem) as caught:
        run(directory, "t", CheckRows(("wrong",)))
    assert "check wrong of table default.t" in caught.value.message
