"""Columns, defaults and checks of one table, drawn together: a model says which statement is refused.

Each transaction makes a few drawn changes at a drawn replica, while replicas are killed. A row that would
break a check refuses its statement, wherever its value comes from: the row, a default, an update. A check is
refused if a row breaks it, a drop or a new name if a check needs the column. At each CSN every replica shows
the columns, the checks and the rows of the model.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, CheckViolationError

TABLE: Final = "t"
NAMES: Final = tuple(f"c{number}" for number in range(8))
CHECKS: Final = ("low", "high", "other")
#: Values, of which few break a check, and one breaks most of them.
VALUES: Final = (None, -9, 0, 1, 4, 4, 9, 9)

#: The kinds of statements; rows are drawn more often.
KINDS: Final = (
    "insert", "insert", "insert", "update", "delete", "add", "add", "drop", "drop", "rename", "default",
    "check", "check", "uncheck", "checked column",
)  # fmt: skip
#: Those that a transaction takes only before it has rows of the table.
BEFORE_ROWS: Final = frozenset({"add", "drop", "rename", "default", "checked column"})

Row = Mapping[str, int | None]


class Model(msgspec.Struct, frozen=True):
    """The table: its columns behind the key `k`, with their defaults; checks as (column, bound); its rows.

    A check is that the column is above the bound, or null.
    """

    columns: tuple[tuple[str, int | None], ...] = (("c0", 4), ("c1", None))
    checks: tuple[tuple[str, tuple[str, int]], ...] = ()
    rows: tuple[Row, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the columns behind the key."""
        return [name for name, _ in self.columns]

    @property
    def checked(self) -> set[str]:
        """The columns that checks name."""
        return {column for _, (column, _) in self.checks}

    def broken(self) -> bool:
        """Return whether a row breaks a check."""
        return any(
            (value := row[column]) is not None and value <= bound
            for row in self.rows
            for _, (column, bound) in self.checks
        )


class Life:
    """The drawn life of a table.

    Attributes:
        drawn: What is drawn, from a seed.
        refused: The numbers of statements that were refused, by their kinds.
    """

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.refused: dict[str, int] = {}
        self._keys = 0

    def transaction(self, db: Database, now: Model) -> tuple[Model, int | None]:
        """Run a transaction of drawn statements; return the table after it, and its CSN if it has one."""
        after = now
        with db.begin(fresh=True) as tx:
            wrote = False
            for _ in range(self.drawn.randint(1, 4)):
                kind = self.drawn.choice(KINDS)
                if wrote and kind in BEFORE_ROWS:
                    kind = "check"
                wrote |= kind in {"insert", "update", "delete"}
                found = self._run(kind, tx, after)
                if found is None:  # a statement with rows was refused: the transaction takes no other one
                    tx.rollback()
                    return now, None
                after = found
            assert shown(tx.read(TABLE), after) == rows_of(after)
            if self.drawn.random() < 0.2:
                tx.rollback()
                return now, None
        return after, tx.csn

    def _run(self, kind: str, tx: Transaction, now: Model) -> Model | None:
        """Run a statement; return the table after it, or None if rows of it were refused."""
        match kind:
            case "insert":
                return self._insert(tx, now)
            case "update":
                return self._update(tx, now)
            case "delete":
                tx.delete(TABLE, "k % 3 = 0")
                return replace(now, rows=tuple(row for row in now.rows if (row["k"] or 0) % 3))
            case "uncheck":
                return self._uncheck(tx, now)
            case "default":
                return self._default(tx, now)
            case "drop" | "rename":
                return self._take(kind, tx, now)
            case _:
                return self._define(kind, tx, now)

    def _insert(self, tx: Transaction, now: Model) -> Model | None:
        """Insert rows that leave out some of the columns with a default."""
        out = {name for name, value in now.columns if value is not None and self.drawn.random() < 0.5}
        given: list[dict[str, int | None]] = []
        for _ in range(self.drawn.randint(1, 3)):
            self._keys += 1
            row = {name: self.drawn.choice(VALUES) for name in now.names if name not in out}
            given.append({"k": self._keys, **row})
        made = tuple({**dict(now.columns), **row} for row in given)
        schema = pa.schema([(name, pa.int64()) for name in given[0]])
        after = replace(now, rows=(*now.rows, *made))
        return self._judged("insert", lambda: tx.insert(TABLE, pa.Table.from_pylist(given, schema)), after)

    def _update(self, tx: Transaction, now: Model) -> Model | None:
        """Give a column another value in every second row."""
        if not now.columns:
            return now
        name, value = self.drawn.choice(now.names), self.drawn.choice(VALUES)
        made = tuple({**row, name: value} if (row["k"] or 0) % 2 else row for row in now.rows)

        def run() -> object:
            return tx.update(TABLE, {name: "cast(? as bigint)"}, "k % 2 = 1", [value])

        return self._judged("update", run, replace(now, rows=made))

    def _judged(self, kind: str, run: Callable[[], object], after: Model) -> Model | None:
        """Run a statement with rows, which is refused if the model says that one breaks a check."""
        if not after.broken():
            run()
            return after
        with pytest.raises(
            CheckViolationError, match=rf"breaks? check \w+ of table default\.{TABLE}, which is"
        ):
            run()
        self._note(kind)
        return None

    def _uncheck(self, tx: Transaction, now: Model) -> Model:
        if not now.checks:
            return now
        name, _ = self.drawn.choice(now.checks)
        tx.alter_table(TABLE, checks={name: None})
        return replace(now, checks=tuple(one for one in now.checks if one[0] != name))

    def _default(self, tx: Transaction, now: Model) -> Model:
        """Change a default, which holds for rows that come from then on."""
        if not now.columns:
            return now
        name, value = self.drawn.choice(now.names), self.drawn.choice(VALUES)
        if dict(now.columns)[name] == value:
            return now
        tx.alter_table(TABLE, default={name: value})
        return replace(now, columns=tuple((one, value if one == name else v) for one, v in now.columns))

    def _take(self, kind: str, tx: Transaction, now: Model) -> Model:
        """Drop or rename a column, which is refused if a check names it."""
        free = [name for name in NAMES if name not in now.names]
        if not now.columns or not (free or kind == "drop"):
            return now
        name, new = self.drawn.choice(now.names), self.drawn.choice(free or NAMES)

        def run() -> object:
            if kind == "drop":
                return tx.alter_table(TABLE, drop=[name])
            return tx.alter_table(TABLE, rename={name: new})

        if name in now.checked:
            with pytest.raises(BadRequestError, match=r"check \w+ names it"):
                run()
            self._note(kind)
            return now
        run()
        if kind == "drop":
            rows = tuple({one: value for one, value in row.items() if one != name} for row in now.rows)
            return replace(now, columns=tuple(one for one in now.columns if one[0] != name), rows=rows)
        rows = tuple({new if one == name else one: value for one, value in row.items()} for row in now.rows)
        columns = tuple((new if one == name else one, value) for one, value in now.columns)
        return replace(now, columns=columns, rows=rows)

    def _define(self, kind: str, tx: Transaction, now: Model) -> Model:
        """Add a column with a default, a check, or both in one change, which the rows of now must keep."""
        after, add, checks = now, None, {}
        free = [name for name in NAMES if name not in now.names]
        if kind != "check" and free:
            name, value = self.drawn.choice(free), self.drawn.choice(VALUES)
            add = f"{name} bigint" if value is None else f"{name} bigint default {value}"
            rows = tuple({**row, name: value} for row in now.rows)
            after = replace(now, columns=(*now.columns, (name, value)), rows=rows)
        unused = [check for check in CHECKS if check not in dict(now.checks)]
        if kind != "add" and unused and after.columns:
            column = after.names[-1] if kind == "checked column" else self.drawn.choice(after.names)
            check, bound = self.drawn.choice(unused), self.drawn.choice([-5, -5, -1, 2])
            checks = {check: f"{column} > {bound}"}
            after = replace(after, checks=(*after.checks, (check, (column, bound))))
        if after == now:
            return now
        if not after.broken():
            tx.alter_table(TABLE, add=add, checks=checks)
            return after
        with pytest.raises(
            CheckViolationError, match=rf"check {next(iter(checks))} of table default\.{TABLE}"
        ):
            tx.alter_table(TABLE, add=add, checks=checks)
        self._note(kind)
        return now

    def _note(self, kind: str) -> None:
        self.refused[kind] = self.refused.get(kind, 0) + 1


def shown(found: pa.Table, model: Model) -> list[Row]:
    """Return the rows that were read, in the order of their keys; they have the columns of the model."""
    assert found.column_names == ["k", *model.names]
    return sorted(found.to_pylist(), key=lambda row: row["k"])


def rows_of(model: Model) -> list[Row]:
    """Return the rows of the model, in the order of their keys."""
    return sorted((dict(row) for row in model.rows), key=lambda row: row["k"] or 0)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=3, settings=QUICK))


def live(local: LocalCluster, dbs: list[Database], seed: int, count: int) -> Life:
    """Run transactions, with kills, and compare every replica with the model at every CSN."""
    life, now, places = Life(seed), Model(), random.Random(seed)
    dbs[0].create_table(TABLE, "k bigint not null, c0 bigint default 4, c1 bigint")
    at: dict[int, Model] = {}
    for number in range(count):
        if number % 10 == 9:
            down = places.choice(local.replicas)
            local.kill(down, signal.SIGKILL)
            local.start(down)
        now, csn = life.transaction(places.choice(dbs), now)
        if csn is not None:
            at[csn] = now
    all_follow(local)
    for db in dbs:
        for csn, model in at.items():
            with db.snapshot(csn=csn) as snapshot:
                table = snapshot.table(TABLE)
                assert table.checks == {name: f"{column} > {bound}" for name, (column, bound) in model.checks}
                assert shown(snapshot.read(TABLE), model) == rows_of(model)
                assert shown(snapshot.sql(f"select * from {TABLE}"), model) == rows_of(model)
    return life


def test_columns_defaults_and_checks_are_those_of_the_model(
    local: LocalCluster, dbs: list[Database], fresh_seed: int
) -> None:
    """A short life, of another seed each time."""
    live(local, dbs, fresh_seed, 30)


@pytest.mark.slow
def test_each_kind_of_refusal_is_met_by_a_kept_seed(local: LocalCluster, dbs: list[Database]) -> None:
    """Rows, updates, drops, new names, checks and checked columns are refused where the model says so."""
    life = live(local, dbs, 43, 60)
    assert {"insert", "update", "drop", "rename", "check", "checked column"} <= life.refused.keys()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_long_life_of_columns_and_checks_is_the_models(
    local: LocalCluster, dbs: list[Database], fresh_seed: int, number: int
) -> None:
    """The same for longer."""
    live(local, dbs, fresh_seed + number, 150)
