"""The check of a label: it fails where a label is free again, or tells what its first run did not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pyarrow as pa
import pytest

from chaos.checks.label import LABEL, TABLE, Label
from chaos.record.journal import Journal
from chaos.world import World
from tidelock.errors import LabelExistsError


class Store:
    """A database of one table that keeps labels, and forgets or mistakes them as a test says.

    Attributes:
        labels: The CSN of each label.
        rows: The rows of the table, None before it is made.
    """

    def __init__(self) -> None:
        self.labels: dict[str, int] = {}
        self.rows: pa.Table | None = None
        self._csn = 4

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_table(self, name: str, schema: pa.Schema) -> None:
        """Make the table, which may not be there."""
        assert (name, self.rows) == (TABLE, None)
        self.rows = schema.empty_table()

    def read(self, name: str) -> pa.Table | None:
        """Return all rows."""
        assert name == TABLE
        return self.rows

    @contextmanager
    def begin(self, *, label: str) -> Iterator[Any]:
        """Yield a transaction that commits at the end; LabelExistsError if its label is taken."""
        if label in self.labels:
            raise LabelExistsError("the label is taken", csn=self.labels[label])
        self._csn += 1
        yield SimpleNamespace(insert=self._insert, csn=self._csn)
        self.labels[label] = self._csn

    def _insert(self, name: str, rows: pa.Table) -> None:
        self.rows = pa.concat_tables([self.read(name), rows])


@pytest.fixture
def store() -> Store:
    """An empty database."""
    return Store()


@pytest.fixture
def world(store: Store, tmp_path: Path) -> Iterator[World]:
    """A run on it."""
    cluster = cast("Any", SimpleNamespace(connect=lambda: store))
    with Journal(tmp_path / "journal.jsonl") as journal:
        yield World(cluster, tmp_path, journal, seed=1, copies=2)


@pytest.fixture
def check(world: World) -> Label:
    """The check, whose job has run once."""
    made = Label()
    made.prepare(world)
    return made


def test_a_label_that_stays_taken_is_clean(check: Label, world: World) -> None:
    """The answer has the CSN of the first run, and the job has one row."""
    assert check.judge(world) == []
    assert check.judge(world) == []


def test_a_label_that_is_free_again_is_found(check: Label, world: World, store: Store) -> None:
    """So it would be where a clock has made a replica forget outcomes too early."""
    store.labels.clear()
    [found] = check.judge(world)
    assert found.claim == "a label commits once"
    assert found.story == "the label was free again: its job ran once more, at CSN 6"


def test_a_label_of_another_commit_is_found(check: Label, world: World, store: Store) -> None:
    """A client would look for its rows at the wrong CSN."""
    store.labels[LABEL] = 9
    [found] = check.judge(world)
    assert "its first run was at CSN 5; 1 rows" in found.story


@pytest.mark.parametrize("count", [0, 2])
def test_a_label_whose_rows_are_not_there_once_is_found(
    check: Label, world: World, store: Store, count: int
) -> None:
    """The label is taken, and what was done under it is lost or doubled."""
    assert store.rows is not None
    store.rows = pa.concat_tables([store.rows.slice(0, 0)] + [store.rows] * count)
    [found] = check.judge(world)
    assert found.story.endswith(f"; {count} rows")
