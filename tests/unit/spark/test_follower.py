"""Following a table without Spark and without agents: what a query is told, asks for, and keeps pinned."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from tests.unit.spark.test_streams import TABLE, commit
from tidelock.client.feed import ChangePage, ChangeSet
from tidelock.errors import BadRequestError, SnapshotTooOldError
from tidelock.spark.source import follower
from tidelock.spark.source.follower import TableTailer
from tidelock.spark.source.stream_offsets import Limits, Position
from tidelock.spark.source.stream_options import read_stream_options


@dataclass
class Pin:
    """A pinned CSN."""

    db: StubDatabase
    csn: int

    def __post_init__(self) -> None:
        self.db.pins.append(self.csn)

    def parts(self, _table: str) -> list[dict[str, Any]]:
        """The parts that are there: one letter each, of ten bytes."""
        return [{"path": "", "part": name, "length": 10} for name in self.db.letters(self.csn)]

    def close(self) -> None:
        """Give it back."""
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
        """As many as fit; no bytes are counted."""
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
        """All of them."""
        assert self.until is not None
        return iter(self.db.between(self.since, self.until))


@dataclass
class StubDatabase:
    """A table's commits, as a client shows them."""

    commits: list[ChangeSet] = field(default_factory=list)
    end: int = 0
    horizon: int = 0
    page_max: int = 1000
    pins: list[int] = field(default_factory=list)
    waits: list[float | None] = field(default_factory=list)
    seen_csn: int = 0

    def add(self, csn: int, added: str = "", removed: str = "") -> None:
        """Commit."""
        self.commits.append(commit(csn, added, removed))
        self.end = csn

    def between(self, since: int, until: int) -> list[ChangeSet]:
        """The commits in (since, until]."""
        if since < self.horizon:
            raise SnapshotTooOldError("gone")
        csns = [one.csn for one in self.commits]
        return self.commits[bisect.bisect_right(csns, since) : bisect.bisect_right(csns, until)]

    def letters(self, csn: int) -> list[str]:
        """The parts at a CSN."""
        found: set[str] = set()
        for one in self.commits:
            if one.csn <= csn:
                found |= {part.part for part in one.added}
                found -= {part.part for part in one.removed}
        return sorted(found)

    def changes(self, _table: str, since: int, until: int | None = None) -> Feed:
        """The change feed."""
        return Feed(self, since, until)

    def snapshot(self, csn: int | None = None, **_: Any) -> Pin:
        """Pin a CSN."""
        if csn is not None and csn < self.horizon:
            raise SnapshotTooOldError("gone")
        return Pin(self, self.end if csn is None else csn)

    def status(self) -> dict[str, Any]:
        """How the cluster is."""
        return {"end_csn": self.end, "wait_bound_s": 5.0}

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def db(monkeypatch: pytest.MonkeyPatch) -> StubDatabase:
    """What every follower of the test is connected to; it does not wait between questions."""
    made = StubDatabase()
    monkeypatch.setattr(follower, "connect", lambda *_, **__: made)
    monkeypatch.setattr(follower, "PAUSE_S", 0.0)
    monkeypatch.setattr(follower, "PIN_INTERVAL_S", 0.0)
    return made


def following(**options: str) -> TableTailer:
    """A follower of the table."""
    return TableTailer(read_stream_options(TABLE | options, {}))


def read(found: TableTailer, start: Position, limits: Limits = Limits()) -> tuple[Position, Sequence[str]]:  # noqa: B008
    """The next batch: where it ends, and its parts."""
    end = found.advance(start, limits)
    if end == start:
        return end, ""
    batch = found.plan(start, end)
    letters = [part["part"] for part in batch.first]
    return end, "".join(letters + [part.part for one in batch.sets for part in one.added])


def test_what_is_there_and_what_comes(db: StubDatabase) -> None:
    """In steps of two parts at most, and a second run that plans a batch anew finds the same in it."""
    db.add(3, "abc")
    db.add(5, "d", "a")
    at, two = Position(5, 0), Limits(files_max=2)
    found = following()
    assert found.begin() == at
    assert read(found, at, two) == (Position(5, 2), "bc")
    db.add(7, "e")
    db.add(8, "f")
    db.add(9, "g")
    assert read(found, Position(5, 2), two) == (Position(5), "d")
    assert read(found, Position(5), two) == (Position(8), "ef")
    assert read(found, Position(8), two) == (Position(9), "g")
    assert read(found, Position(9), two) == (Position(9), "")
    again = following()
    assert [part["part"] for part in again.plan(Position(5, 2), Position(5)).first] == ["d"]
    assert [one.csn for one in again.plan(Position(5), Position(8)).sets] == [7, 8]


def test_an_empty_table_has_no_first_batch(db: StubDatabase) -> None:
    """An empty table has no first batch; who asks for the latest does not get what is there."""
    db.end = 4
    assert following().begin() == Position(4)
    db.add(5, "a")
    assert following(startingOffsets="latest").begin() == Position(5)
    assert following(startingCsn="2").begin() == Position(2)


def test_without_a_limit_all_pages_are_one_batch(db: StubDatabase) -> None:
    """Agents cut their answers; only a limit of the query cuts a batch."""
    db.page_max = 2
    for csn, name in enumerate("abcde", 1):
        db.add(csn, name)
    assert read(following(), Position(0)) == (Position(5), "abcde")
    assert read(following(), Position(0), Limits(files_max=3)) == (Position(2), "ab")


def test_what_cannot_be_told_ends_the_query_behind_what_can(db: StubDatabase) -> None:
    """Two batches that were added are read; at the removal there is no way on."""
    for csn, (added, removed) in enumerate([("a", ""), ("b", ""), ("c", "a"), ("d", "")], 1):
        db.add(csn, added, removed)
    found = following()
    assert read(found, Position(0)) == (Position(2), "ab")
    with pytest.raises(BadRequestError, match="CSN 3"):
        found.advance(Position(2), Limits())
    with pytest.raises(BadRequestError, match="CSN 3"):
        found.plan(Position(2), Position(4))
    assert read(following(skipChangeCommits="true"), Position(2)) == (Position(4), "d")
    assert read(following(readChangeFeed="true"), Position(2)) == (Position(4), "cd")


def test_an_idle_query_asks_once_and_keeps_little(db: StubDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pin follows what is committed to other tables; its checkpoint does, once in a while."""
    db.add(1, "a")
    found = following()
    assert read(found, Position(1)) == (Position(1), "")
    assert (db.waits, db.pins) == ([follower.WAIT_S], [1])
    db.end = 7
    assert read(found, Position(1)) == (Position(1), "")
    assert (len(db.waits), db.pins) == (2, [7])
    db.horizon = 7
    db.add(8, "b")
    assert read(found, Position(1)) == (Position(8), "b")
    found.release(Position(8))
    assert db.pins == [8]
    db.end = 9
    monkeypatch.setattr(follower, "MOVE_INTERVAL_S", -1.0)
    assert read(found, Position(8)) == (Position(9), "")
    found.close()
    assert db.pins == []


def test_it_stops_where_it_was_told_to(db: StubDatabase) -> None:
    """What is committed later is not read, and nobody waits for it."""
    db.add(1, "a")
    found = following()
    found.stop_at_newest()
    db.add(2, "b")
    start = found.begin()
    assert (start, db.pins) == (Position(1, 0), [1])
    assert read(found, start) == (Position(1), "a")
    assert read(found, Position(1)) == (Position(1), "")
    assert read(found, Position(0)) == (Position(1), "a")
    assert set(db.waits) == {None}


def test_history_that_is_gone(db: StubDatabase) -> None:
    """It says so; never is there less."""
    db.add(1, "a")
    db.add(2, "b")
    db.horizon = 2
    with pytest.raises(SnapshotTooOldError):
        following().advance(Position(1), Limits())
    assert read(following(), Position(2)) == (Position(2), "")
