"""A second, simple implementation of the statements: tables are bags of rows in memory.

The second opinion of tests/support/histories/replay.py. Nothing here knows of parts, files, locks or
replicas: a statement looks at bags of rows and says which rows leave and which enter. A transaction has a
view (what is committed at a CSN, without what it has removed, with what it has added) and, when it commits,
its changes are made to whatever is there then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

#: Partition column, key, value. The key decides the float `f` of a row, see :func:`float_of`.
Row = tuple[int | None, int, int | None]
Rows = Counter[Row]
#: All tables at a CSN, by name.
Tables = Mapping[str, Rows]

SCHEMA: Final = pa.schema(
    [
        pa.field("p", pa.int32()),
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("f", pa.float64()),
    ]
)
PARTITION_BY: Final = ("p",)
#: The floats of rows, by their keys in turn: values that readers, writers and engines compare differently.
FLOATS: Final = (math.nan, 1.5, None, -0.0, math.inf, 0.0, -math.inf)


def float_of(k: int) -> float | None:
    """Return the float of all rows with a key: no statement changes it, and no rewriting may."""
    return FLOATS[k % len(FLOATS)]


def require_floats(floats: Sequence[float | None], keys: Sequence[int]) -> None:
    """AssertionError if rows have other floats than their keys say; zeros of both signs differ."""
    expected = [float_of(k) for k in keys]
    assert repr(floats) == repr(expected), f"rows with keys {keys} have {floats}, expected {expected}"


# -- conditions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Everything:
    """Every row."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Rows with low <= k <= high."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Rows of one partition."""

    p: int | None


@dataclass(frozen=True, slots=True)
class Remainder:
    """Rows with v % of == rest; one without v has none."""

    of: int
    rest: int


@dataclass(frozen=True, slots=True)
class Floats:
    """Rows whose float compares so with a number: NaN is the largest, and equal to itself; zeros are equal.

    Attributes:
        operator: "=", ">" or "<=".
        number: The number as text.
    """

    operator: str
    number: str


Condition = Everything | Keys | Partition | Remainder | Floats


def holds(where: Condition, row: Row) -> bool:
    """Whether a condition is true for a row."""
    p, k, v = row
    match where:
        case Everything():
            return True
        case Keys(low, high):
            return low <= k <= high
        case Partition(wanted):
            return p == wanted
        case Remainder(of, rest):
            return v is not None and v % of == rest
        case Floats():
            return compares(where, float_of(k))


def compares(where: Floats, value: float | None) -> bool:
    """Whether a condition is true for a float."""
    if value is None:
        return False
    number = float(where.number)
    one, other = ((math.isnan(item), 0.0 if math.isnan(item) else item) for item in (value, number))
    return {"=": one == other, ">": one > other, "<=": one <= other}[where.operator]


def in_sql(where: Condition) -> tuple[str, list[Any]]:
    """Return a condition as SQL, with its parameters."""
    match where:
        case Everything():
            return "true", []
        case Keys(low, high):
            return "k between ? and ?", [low, high]
        case Partition(None):
            return "p is null", []
        case Partition(p):
            return "p = ?", [p]
        case Remainder(of, rest):
            return "v % ? = ?", [of, rest]
        case Floats(operator, number):
            return f"f {operator} cast(? as double)", [number]


# -- statements ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """Return rows."""

    table: str
    where: Condition


@dataclass(frozen=True, slots=True)
class Insert:
    """Add rows."""

    table: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the rows where a condition is true."""

    table: str
    where: Condition


@dataclass(frozen=True, slots=True)
class Add:
    """v = v + this."""

    v: int


@dataclass(frozen=True, slots=True)
class Put:
    """A column becomes this; "p" is another partition."""

    column: str
    value: int | None


@dataclass(frozen=True, slots=True)
class Update:
    """Change the rows where a condition is true."""

    table: str
    where: Condition
    change: Add | Put


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows whose key is there take the place of every row with it; the others are added. No key twice."""

    table: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """By k: an odd source v deletes the target rows, another is added to theirs; unmatched rows are added."""

    table: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class DropPartition:
    """Remove a partition."""

    table: str
    p: int | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove everything."""

    table: str


@dataclass(frozen=True, slots=True)
class ReplacePartition:
    """Replace the rows of a partition."""

    table: str
    p: int | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class MovePartition:
    """Move a partition to another table."""

    table: str
    p: int | None
    into: str


Statement = (
    Read
    | Insert
    | Delete
    | Update
    | Upsert
    | Merge
    | DropPartition
    | Truncate
    | ReplacePartition
    | MovePartition
)


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a statement.

    Attributes:
        removed: Rows that leave, by table.
        added: Rows that enter, by table.
        told: The numbers of rows that it answers, by their names.
        read: The rows that it returns; None for all but Read.
    """

    removed: Tables = field(default_factory=dict)
    added: Tables = field(default_factory=dict)
    told: Mapping[str, int] = field(default_factory=dict)
    read: Rows | None = None


def effect(statement: Statement, tables: Tables) -> Effect:
    """Return what a statement does to these tables."""
    table = statement.table
    there = tables[table]
    match statement:
        case Read(_, where):
            return Effect(read=_matching(there, where))
        case Insert(_, rows):
            return Effect(added={table: Counter(rows)}, told={"rows": len(rows)})
        case Delete(_, where):
            gone = _matching(there, where)
            return Effect(removed={table: gone}, told={"deleted": gone.total()})
        case Update(_, where, change):
            old = _matching(there, where)
            new = _mapped(old, change)
            return Effect({table: old}, {table: new}, {"updated": old.total()})
        case Upsert(_, rows):
            return _upsert(table, there, rows)
        case Merge(_, rows):
            return _merge(table, there, rows)
        case DropPartition(_, p):
            gone = _matching(there, Partition(p))
            return Effect({table: gone}, told={"rows": gone.total()})
        case Truncate():
            return Effect({table: there}, told={"rows": there.total()})
        case ReplacePartition(_, p, rows):
            return Effect(
                {table: _matching(there, Partition(p))}, {table: Counter(rows)}, {"rows": len(rows)}
            )
        case MovePartition(_, p, into):
            moved = _matching(there, Partition(p))
            return Effect({table: moved}, {into: moved}, {"rows": moved.total()})


def _matching(rows: Rows, where: Condition) -> Rows:
    return Counter({row: count for row, count in rows.items() if holds(where, row)})


def _mapped(rows: Rows, change: Add | Put) -> Rows:
    new: Rows = Counter()
    for row, count in rows.items():
        new[_changed(row, change)] += count
    return new


def _changed(row: Row, change: Add | Put) -> Row:
    p, k, v = row
    match change:
        case Add(number):
            return p, k, None if v is None else v + number
        case Put("p", value):
            return value, k, v
        case Put(_, value):
            return p, k, value


def _upsert(table: str, there: Rows, rows: tuple[Row, ...]) -> Effect:
    by_key = {row[1]: row for row in rows}
    old = Counter({row: count for row, count in there.items() if row[1] in by_key})
    new: Rows = Counter()
    for row, count in old.items():
        new[by_key[row[1]]] += count
    fresh = Counter(row for row in rows if row[1] not in {k for _, k, _ in old})
    told = {"updated": old.total(), "inserted": fresh.total()}
    return Effect({table: old}, {table: new + fresh}, told)


def _merge(table: str, there: Rows, rows: tuple[Row, ...]) -> Effect:
    by_key = {row[1]: row for row in rows}
    matched = Counter({row: count for row, count in there.items() if row[1] in by_key})
    deleted = Counter({row: count for row, count in matched.items() if _odd(by_key[row[1]])})
    updated = matched - deleted
    new: Rows = Counter()
    for (p, k, v), count in updated.items():
        addend = by_key[k][2]
        new[p, k, None if v is None or addend is None else v + addend] += count
    fresh = Counter(row for row in rows if row[1] not in {k for _, k, _ in matched})
    told = {"deleted": deleted.total(), "updated": updated.total(), "inserted": fresh.total()}
    return Effect({table: matched}, {table: new + fresh}, told)


def _odd(row: Row) -> bool:
    return row[2] is not None and row[2] % 2 == 1


def removes(statement: Statement) -> bool:
    """Whether it is a statement that takes rows out of its table."""
    return not isinstance(statement, Read | Insert)


def tables_of(statement: Statement) -> set[str]:
    """The tables that a statement changes or reads."""
    return {statement.table} | ({statement.into} if isinstance(statement, MovePartition) else set())


# -- transactions --------------------------------------------------------------------------------------------


class View:
    """The changes of a transaction so far, and the tables as it sees them.

    Attributes:
        removed: Committed rows that it has removed, by table.
        added: Rows of its own, by table.
    """

    def __init__(self) -> None:
        self.removed: dict[str, Rows] = {}
        self.added: dict[str, Rows] = {}

    def run(self, statement: Statement, committed: Tables) -> Effect:
        """Run a statement on the tables as committed when it begins."""
        done = effect(statement, {table: self._seen(table, committed) for table in tables_of(statement)})
        for table, gone in done.removed.items():
            # Equal rows leave together, so of those that go the own ones are all own ones of their kind.
            own = self.added.get(table, Counter()) & gone
            self.added[table] = self.added.get(table, Counter()) - own
            self.removed[table] = self.removed.get(table, Counter()) + (gone - own)
        for table, new in done.added.items():
            self.added[table] = self.added.get(table, Counter()) + new
        return done

    def _seen(self, table: str, committed: Tables) -> Rows:
        return committed[table] - self.removed.get(table, Counter()) + self.added.get(table, Counter())

    def missing(self, committed: Tables) -> dict[str, Rows]:
        """Return the rows that it has removed and that are not there any more: somebody else removed them."""
        lost = {table: gone - committed[table] for table, gone in self.removed.items()}
        return {table: rows for table, rows in lost.items() if rows}

    def upon(self, committed: Tables) -> dict[str, Rows]:
        """Return all tables after its commit."""
        return {
            table: rows - self.removed.get(table, Counter()) + self.added.get(table, Counter())
            for table, rows in committed.items()
        }

    @property
    def changes(self) -> tuple[dict[str, Rows], dict[str, Rows]]:
        """Return the removed and added rows; equal for two views exactly if they change the same."""
        return (
            {table: rows for table, rows in self.removed.items() if rows},
            {table: rows for table, rows in self.added.items() if rows},
        )


def as_arrow(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return rows as a client gives them."""
    whole = [(*row, float_of(row[1])) for row in rows]
    columns: Iterable[Sequence[Any]] = zip(*whole, strict=True) if whole else ((),) * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def from_arrow(table: pa.Table) -> Rows:
    """Return rows as a client gets them."""
    return Counter(as_rows(table))


def as_rows(table: pa.Table) -> list[Row]:
    """Return rows in their order; AssertionError if a row has another float than its key says."""
    p, k, v, f = (table[name].to_pylist() for name in SCHEMA.names)
    require_floats(f, k)
    return list(zip(p, k, v, strict=True))
