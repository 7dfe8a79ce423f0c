"""The tailer of a table, without Spark and agents: the batches, requests and pins of a query."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from tests.unit.spark.test_streams import TABLE, commit
from tidelock.client.reads.feed import ChangePage, ChangeSet
from tidelock.errors import BadRequestError, SnapshotTooOldError
from tidelock.spark.source import table_tailer
from tidelock.spark.source.stream_offsets import BatchLimits, Position
from tidelock.spark.source.stream_options import read_stream_options
from tidelock.spark.source.table_tailer import TableTailer

NO_LIMITS = BatchLimits()


@dataclass
class PinStub:
    """A pinned CSN."""

    db: StubDatabase
    csn: int

    def __post_init__(self) -> None:
        self.db.pins.append(self.csn)

    def close(self) -> None:
        """Release the pin."""
        self.db.pins.remove(self.csn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Feed:
    """The changes from one CSN to another."""

    db: StubDatabase
    since: int
    until: int | None

    def page(self, *, files_max: int | None, bytes_max: int | None, wait_s: float | None) -> ChangePage:
        """Return the commits that fit; bytes are not counted."""
        assert bytes_max is None
        self.db.waits.append(wait_s)
        end = self.db.end if self.until is None else self.until
        sets = self.db.between(self.since, end)
        most = len(sets) if files_max is None else files_max
        most = min(most, self.db.page_max)
        return ChangePage(
            sets[most - 1].csn if most < len(sets) else end, most >= len(sets), tuple(sets[:most])
        )

    def sets(self) -> Iterator[ChangeSet]:
        """Return all commits."""
        assert self.until is not None
        return iter(self.db.between(self.since, self.until))


@dataclass
class StubDatabase:
    """A client of a cluster with one table, whose commits the test adds."""

    commits: list[ChangeSet] = field(default_factory=list)
    end: int = 0
    horizon: int = 0
    horizon_of_others: int = 0
    page_max: int = 1000
    pins: list[int] = field(default_factory=list)
    waits: list[float | None] = field(default_factory=list)
    seen_csn: int = 0

    def add(self, csn: int, added: str = "", removed: str = "") -> None:
        """Add a commit."""
        self.commits.append(commit(csn, added, removed))
        self.end = csn

    def between(self, since: int, until: int) -> list[ChangeSet]:
        """Return the commits in (since, until]."""
        if since < self.horizon:
            raise SnapshotTooOldError("gone")
        csns = [changes.csn for changes in self.commits]
        return self.commits[bisect.bisect_right(csns, since) : bisect.bisect_right(csns, until)]

    def letters(self, csn: int) -> list[str]:
        """Return the names of the parts at a CSN."""
        names: set[str] = set()
        for changes in self.commits:
            if changes.csn <= csn:
                names |= {part.part for part in changes.added}
                names -= {part.part for part in changes.removed}
        return sorted(names)

    def changes(self, _table: str, since: int, until: int | None = None) -> Feed:
        """Return a range of the change feed."""
        return Feed(self, since, until)

    def parts(self, _table: str, *, csn: int) -> list[dict[str, Any]]:
        """Return the parts at a CSN: one letter each, of ten bytes."""
        if csn < self.horizon:
            raise SnapshotTooOldError("gone")
        return [{"path": "", "part": name, "length": 10} for name in self.letters(csn)]

    def snapshot(self, csn: int | None = None, **_: Any) -> PinStub:
        """Pin a CSN."""
        if csn is not None and csn < max(self.horizon, self.horizon_of_others):
            raise SnapshotTooOldError("gone")
        return PinStub(self, self.end if csn is None else csn)

    def status(self) -> dict[str, Any]:
        """Return the status of the cluster."""
        return {"end_csn": self.end, "wait_bound_s": 5.0}

    def close(self) -> None:
        """Do nothing; nothing is open."""


@pytest.fixture
def db(monkeypatch: pytest.MonkeyPatch) -> StubDatabase:
    """The database of every tailer of the test; the tailers do not wait between requests."""
    made = StubDatabase()
    monkeypatch.setattr(table_tailer, "connect", lambda *_, **__: made)
    monkeypatch.setattr(table_tailer, "PAUSE_S", 0.0)
    monkeypatch.setattr(table_tailer, "PIN_INTERVAL_S", 0.0)
    return made


def tailer_with(**options: str) -> TableTailer:
    """Return a tailer of the table."""
    return TableTailer(read_stream_options(TABLE | options, {}))


def read(
    tailer: TableTailer, start: Position, limits: BatchLimits = NO_LIMITS
) -> tuple[Position, Sequence[str]]:
    """Return the end of the next batch, and its parts."""
    end = tailer.advance(start, limits)
    if end == start:
        return end, ""
    batch = tailer.plan(start, end)
    letters = [part["part"] for part in batch.first]
    return end, "".join(letters + [part.part for changes in batch.sets for part in changes.added])


def test_what_is_there_and_what_comes(db: StubDatabase) -> None:
    """Batches have at most two parts, and a second run that plans a batch again finds the same parts."""
    db.add(3, "abc")
    db.add(5, "d", "a")
    at, two = Position(5, 0), BatchLimits(files_max=2)
    tailer = tailer_with()
    assert tailer.begin() == at
    assert read(tailer, at, two) == (Position(5, 2), "bc")
    db.add(7, "e")
    db.add(8, "f")
    db.add(9, "g")
    assert read(tailer, Position(5, 2), two) == (Position(5), "d")
    assert read(tailer, Position(5), two) == (Position(8), "ef")
    assert read(tailer, Position(8), two) == (Position(9), "g")
    assert read(tailer, Position(9), two) == (Position(9), "")
    again = tailer_with()
    assert [part["part"] for part in again.plan(Position(5, 2), Position(5)).first] == ["d"]
    assert [changes.csn for changes in again.plan(Position(5), Position(8)).sets] == [7, 8]


def test_an_empty_table_has_no_first_batch(db: StubDatabase) -> None:
    """An empty table has no first batch; a query that begins with the latest does not get existing rows."""
    db.end = 4
    assert tailer_with().begin() == Position(4)
    db.add(5, "a")
    assert tailer_with(startingOffsets="latest").begin() == Position(5)
    assert tailer_with(startingCsn="2").begin() == Position(2)


def test_a_first_batch_that_is_run_again(db: StubDatabase) -> None:
    """Spark keeps no beginning: a new process is asked for one, and must read the rows of the end it gets."""
    db.add(3, "abc")
    first = tailer_with()
    assert read(first, first.begin(), BatchLimits(files_max=2)) == (Position(3, 2), "ab")
    db.add(7, "d")
    again = tailer_with()
    assert again.begin() == Position(7, 0)
    assert [part["part"] for part in again.plan(again.begin(), Position(3, 2)).first] == ["a", "b"]
    assert db.pins[-1] == 3
    db.horizon_of_others = 7  # this table keeps its history for longer, but nobody can pin it
    third = tailer_with()
    assert [part["part"] for part in third.plan(third.begin(), Position(3)).first] == ["a", "b", "c"]
    assert read(again, Position(3, 2)) == (Position(3), "c")
    assert read(again, Position(3)) == (Position(7), "d")


@pytest.mark.parametrize("options", [{}, {"startingOffsets": "latest"}])
def test_a_query_without_present_rows_keeps_where_it_began(db: StubDatabase, options: dict[str, str]) -> None:
    """Its first batch is empty, and its end is the beginning: a process that runs it again skips nothing."""
    db.add(3, "a", "")
    db.add(4, "", "a")
    first = tailer_with(**options)
    start = first.begin()
    db.add(5, "b")
    assert first.begin() == start == Position(4)
    assert read(first, start) == (start, "")
    again = tailer_with(**options)
    batch = again.plan(again.begin(), start)
    assert (batch.csn, list(batch.first), list(batch.sets)) == (4, [], [])
    for tailer in (first, again):
        assert read(tailer, start) == (Position(5), "b")


def test_without_a_limit_all_pages_are_one_batch(db: StubDatabase) -> None:
    """Agents divide their answers into pages, but only a limit of the query divides a batch."""
    db.page_max = 2
    for csn, name in enumerate("abcde", 1):
        db.add(csn, name)
    assert read(tailer_with(), Position(0)) == (Position(5), "abcde")
    assert read(tailer_with(), Position(0), BatchLimits(files_max=3)) == (Position(2), "ab")


def test_what_cannot_be_told_ends_the_query_behind_what_can(db: StubDatabase) -> None:
    """The commits before a removal are read; the query cannot continue at the removal."""
    for csn, (added, removed) in enumerate([("a", ""), ("b", ""), ("c", "a"), ("d", "")], 1):
        db.add(csn, added, removed)
    tailer = tailer_with()
    assert read(tailer, Position(0)) == (Position(2), "ab")
    with pytest.raises(BadRequestError, match="CSN 3"):
        tailer.advance(Position(2), BatchLimits())
    with pytest.raises(BadRequestError, match="CSN 3"):
        tailer.plan(Position(2), Position(4))
    assert read(tailer_with(skipChangeCommits="true"), Position(2)) == (Position(4), "d")
    assert read(tailer_with(readChangeFeed="true"), Position(2)) == (Position(4), "cd")


def test_an_idle_query_asks_once_and_keeps_little(db: StubDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pin moves with the commits to other tables; its checkpoint moves with them rarely."""
    db.add(1, "a")
    tailer = tailer_with()
    assert read(tailer, Position(1)) == (Position(1), "")
    assert (db.waits, db.pins) == ([table_tailer.WAIT_S], [1])
    db.end = 7
    assert read(tailer, Position(1)) == (Position(1), "")
    assert (len(db.waits), db.pins) == (2, [7])
    db.horizon = 7
    db.add(8, "b")
    assert read(tailer, Position(1)) == (Position(8), "b")
    tailer.release(Position(8))
    assert db.pins == [8]
    db.end = 9
    monkeypatch.setattr(table_tailer, "MOVE_INTERVAL_S", -1.0)
    assert read(tailer, Position(8)) == (Position(9), "")
    tailer.close()
    assert db.pins == []


def test_it_stops_where_it_was_told_to(db: StubDatabase) -> None:
    """Later commits are not read, and no request waits for them."""
    db.add(1, "a")
    tailer = tailer_with()
    tailer.stop_at_newest()
    db.add(2, "b")
    start = tailer.begin()
    assert (start, db.pins) == (Position(1, 0), [1])
    assert read(tailer, start) == (Position(1), "a")
    assert read(tailer, Position(1)) == (Position(1), "")
    assert read(tailer, Position(0)) == (Position(1), "a")
    assert set(db.waits) == {None}


def test_history_that_is_gone(db: StubDatabase) -> None:
    """Reading deleted history is an error; the query never reads fewer rows."""
    db.add(1, "a")
    db.add(2, "b")
    db.horizon = 2
    with pytest.raises(SnapshotTooOldError):
        tailer_with().advance(Position(1), BatchLimits())
    assert read(tailer_with(), Position(2)) == (Position(2), "")
