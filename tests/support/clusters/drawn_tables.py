"""A table under drawn changes of all kinds, and the model of what it shows at each CSN."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.clusters.shown_tables import TYPES, WIDER, Model, Rows
from tidelock.client import Database
from tidelock.errors import BadRequestError

TABLE: Final = "t"
_TAGS: Final = 3


class DrawnTable:
    """A table under drawn changes.

    Attributes:
        drawn: What is drawn, from a seed.
        now: The table as it is.
        at: The table at the CSNs of its changes.
        tags: The CSNs that tags name.
        born: The CSN of which the table is: a clone in its place is another one.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        """Begin without a table.

        Args:
            seed: The seed.
            folder: A folder for files that are imported.
        """
        self.drawn = random.Random(seed)
        self._folder = folder
        self.tags: dict[str, int] = {}
        self.now = Model(((1, "k", "bigint"), (2, "p", "bigint"), (3, "c3", "string")))
        self.at: dict[int, Model] = {}
        self.made = 3
        self.born = 0

    def create(self, db: Database) -> None:
        """Create the table."""
        columns = {name: kind for _, name, kind in self.now.columns}
        made = db.create_table(TABLE, columns, partition_by=["p"], sort_by=["k"])
        self.born = made["csn"]
        self.at[self.born] = self.now

    def step(self, db: Database) -> None:
        """Make one change at a replica."""
        db.snapshot(min_csn=max(self.at)).close()
        rows = (self.insert, self.insert, self.insert_more_columns, self.update, self.delete, self.merge)
        bytes_again = (self.restore, self.restore_partition, self.clone, self.undrop, self.import_files)
        self.drawn.choice((*rows, self.alter, self.alter, *bytes_again, self.tag, self.untag))(db)

    def insert(self, db: Database) -> None:
        """Insert some rows."""
        rows = self._rows(12)
        done = db.insert(TABLE, self.now.arrow(rows), wait="all")
        self._note(done.csn or 0, replace(self.now, rows=(*self.now.rows, *rows)))

    def insert_more_columns(self, db: Database) -> None:
        """Insert rows with a column that the table may lack."""
        name, kind = f"c{self.drawn.randrange(8)}", self.drawn.choice([*TYPES])
        if name in {name for _, name, _ in self.now.columns}:
            self.insert(db)
            return
        self.made += 1
        self.now = replace(self.now, columns=(*self.now.columns, (self.made, name, kind)))
        rows = self._rows(3)
        done = db.insert(TABLE, self.now.arrow(rows), merge_schema=True, wait="all")
        self._note(done.csn or 0, replace(self.now, rows=(*self.now.rows, *rows)))

    def import_files(self, db: Database) -> None:
        """Take files of others, in folders of their partitions."""
        rows = self._rows(6)
        folder = self._folder / f"import{len(self.at)}"
        for p in {row[2] for row in rows}:
            inner = folder / f"p={p}"
            inner.mkdir(parents=True)
            some = [row for row in rows if row[2] == p]
            pq.write_table(self.now.arrow(some).drop_columns(["p"]), inner / "some.parquet")
        done = db.import_files(TABLE, folder, wait="all")
        self._note(done.csn or 0, replace(self.now, rows=(*self.now.rows, *rows)))

    def tag(self, db: Database) -> None:
        """Give an earlier CSN a name, or move the name to it."""
        name, csn = f"tag{self.drawn.randrange(_TAGS)}", self._earlier()
        db.tag(name, csn, move=True)
        self.tags[name] = csn

    def untag(self, db: Database) -> None:
        """End a tag."""
        if self.tags:
            name = self.drawn.choice(sorted(self.tags))
            db.untag(name)
            del self.tags[name]

    def alter(self, db: Database) -> None:
        """Drop, rename, widen, add and order columns in one commit."""
        free = [column for column in self.now.columns if column[1] not in {"k", "p"}]
        drop = [one for one in free if self.drawn.random() < 0.2]
        names = {name: f"c{self.drawn.randrange(8)}" for _, name, _ in free if self.drawn.random() < 0.4}
        rename: dict[str, str] = {}
        taken = {name for _, name, _ in self.now.columns if name not in {n for _, n, _ in drop}}
        for name, new in names.items():
            if new not in taken and name not in {n for _, n, _ in drop}:
                rename[name] = new
                taken = taken - {name} | {new}
        types = {
            one: self.drawn.choice(WIDER[one[2]])
            for one in free
            if one[2] in WIDER and one not in drop and self.drawn.random() < 0.3
        }
        now = self.now.widened({column: kind for (column, *_), kind in types.items()})
        kept = [
            (column, rename.get(name, name), kind)
            for column, name, kind in now.columns
            if column not in {column for column, *_ in drop}
        ]
        added = []
        for name in {f"c{self.drawn.randrange(8)}" for _ in range(self.drawn.randint(0, 2))} - taken:
            self.made += 1
            added.append((self.made, name, self.drawn.choice([*TYPES])))
        columns = [*kept, *added]
        order = self.drawn.sample([name for _, name, _ in columns], self.drawn.randint(0, 2))
        columns.sort(key=lambda one: order.index(one[1]) if one[1] in order else len(order))
        if tuple(columns) == self.now.columns:
            return
        done = db.alter_table(
            TABLE,
            drop=[name for _, name, _ in drop],
            rename=rename,
            types={name: kind for (_, name, _), kind in types.items()},
            add={name: kind for _, name, kind in added} if added else None,
            order=order,
        )
        self._note(done["csn"], replace(now, columns=tuple(columns)))

    def update(self, db: Database) -> None:
        """Give a column, which was perhaps added later, another value in some rows."""
        free = [one for one in self.now.columns if one[0] not in {1, 2}]
        if not free:
            return
        column, name, kind = self.drawn.choice(free)
        value, below = self._value(kind), self.drawn.randint(0, 100)
        text = f"cast(? as {'varchar' if kind == 'string' else kind})"
        sent = str(value) if isinstance(value, Decimal) else value
        done = db.update(TABLE, {name: text}, f"k % 100 < {below}", [sent])
        rows = ({**row, column: value} if row[1] % 100 < below else row for row in self.now.rows)
        self._note(done.csn or 0, replace(self.now, rows=tuple(rows)))

    def delete(self, db: Database) -> None:
        """Delete some rows."""
        below = self.drawn.randint(0, 20)
        done = db.delete(TABLE, f"k % 100 < {below}")
        rows = tuple(row for row in self.now.rows if row[1] % 100 >= below)
        self._note(done.csn or 0, replace(self.now, rows=rows))

    def merge(self, db: Database) -> None:
        """Compact the table: parts of all versions become one of the newest."""
        db.optimize(TABLE)
        with db.snapshot() as snap:
            self._note(snap.csn, self.now)

    def restore(self, db: Database) -> None:
        """Make the table again as it was at an earlier CSN, with the columns of then."""
        named = sorted(name for name, csn in self.tags.items() if csn >= self.born)
        points: list[int | str] = [self._earlier(), *named]
        to = self.drawn.choice(points)
        done = db.restore_table(TABLE, to)
        self._note(done.csn or 0, self.at_point(to))

    def restore_partition(self, db: Database) -> None:
        """Make a partition again as it was, shown with the columns of now."""
        csn, p = self._earlier(), self.drawn.randrange(2)
        then = self.at[csn]
        types = {column: kind for column, _, kind in self.now.columns}
        narrow = any(types.get(column, kind) != kind for column, _, kind in then.columns)
        try:
            done = db.restore_table(TABLE, csn, partition={"p": p})
        except BadRequestError:
            assert narrow, f"partition {p} at CSN {csn} has the types of now"
            return
        rows = (row for model, same in ((self.now, False), (then, True)) for row in model.rows
                if (row[2] == p) is same)  # fmt: skip
        self._note(done.csn or 0, replace(self.now, rows=tuple(rows)))

    def clone(self, db: Database) -> None:
        """Let a clone take the place of the table."""
        with db.begin() as tx:
            tx.clone_table(TABLE, "copy")
            tx.drop_table(TABLE)
            tx.rename_table("copy", TABLE)
            tx.commit()
        self.born = tx.csn or 0
        self._note(self.born, self.now)

    def undrop(self, db: Database) -> None:
        """Drop the table, and bring it back."""
        db.drop_table(TABLE)
        self._note(db.undrop_table(TABLE)["csn"], self.now)

    def at_point(self, point: int | str) -> Model:
        """Return the table at a CSN or at a tag."""
        return self.at[self.tags[point] if isinstance(point, str) else point]

    def later(self) -> tuple[int, int]:
        """Return two CSNs of this table, the second not before the first."""
        first, second = sorted((self._earlier(), self._earlier()))
        return first, second

    def _earlier(self) -> int:
        return self.drawn.choice([csn for csn in self.at if csn >= self.born])

    def _note(self, csn: int, model: Model) -> None:
        self.now = model
        if csn:
            self.at[csn] = model

    def _rows(self, most: int) -> Rows:
        return [self._row() for _ in range(self.drawn.randint(1, most))]

    def _row(self) -> dict[int, Any]:
        row = {column: self._value(kind) for column, _, kind in self.now.columns}
        return row | {1: self.drawn.randrange(1000), 2: self.drawn.randrange(2)}

    def _value(self, kind: str) -> Any:
        if kind == "string":
            return self.drawn.choice([None, "", "x", "größe"])
        if kind in {"float", "double"}:
            return self.drawn.choice([None, 0.0, 1.5, -2.25])
        if kind.startswith("decimal"):
            value = self.drawn.choice([None, "0", "-1234567.89", "0.5"])
            return None if value is None else pa.scalar(Decimal(value), TYPES[kind]).as_py()
        return self.drawn.choice([None, 0, -1, {"tinyint": 127, "bigint": 1 << 40}.get(kind, 1 << 14)])
