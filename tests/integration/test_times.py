"""CSNs and their times, as clients ask for them: when a commit was, what was newest when, and who has it."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import http
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, NoSuchCsnError, SnapshotTooOldError, UnknownTableError

SCHEMA: Final = pa.schema([pa.field("p", pa.int32()), pa.field("n", pa.int64(), nullable=False)])
NUMBERS: Final = itertools.count(1)
MILLISECOND: Final = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(replicas=2, settings={**QUICK, "horizon_interval_s": 0.2})


@pytest.fixture
def table(db: Database) -> str:
    """A new table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["p"])
    return name


def rows(*numbers: int) -> pa.Table:
    """Return rows of partition 1."""
    return pa.table({"p": [1] * len(numbers), "n": numbers}, SCHEMA)


def commits(db: Database, table: str, count: int) -> list[tuple[int, datetime]]:
    """Commit so many times, each at a later time than the one before; return CSNs and times."""
    done: list[tuple[int, datetime]] = []
    while len(done) < count:
        result = db.insert(table, rows(len(done)))
        assert result.csn is not None
        assert result.time is not None
        if not done or result.time > done[-1][1]:
            done.append((result.csn, result.time))
    return done


def no_history_below(db: Database, csn: int) -> None:
    """Give up all history below a CSN, as soon as all replicas have applied it."""
    eventually(lambda: db.raise_horizon(csn)["horizon"] >= csn <= db.status()["horizon"], what="the horizon")


def test_each_commit_has_its_time_and_each_time_its_commit(db: Database, table: str) -> None:
    """A snapshot at the time of a commit has that commit and none of a later time."""
    made = commits(db, table, 4)
    for (csn, time), (later, _) in itertools.pairwise(made):
        assert db.time_of(csn) == time
        assert csn <= db.csn_at(time) < later
        assert db.csn_at(time - MILLISECOND) < csn
        with db.snapshot(at=time) as snap:
            assert csn <= snap.csn < later
    newest, _ = made[-1]
    assert db.csn_at(datetime.now(UTC)) >= newest


def test_a_time_that_has_not_come_is_refused(db: Database, table: str) -> None:
    """The content of a snapshot of tomorrow is not decided yet; clocks that differ a little do no harm."""
    csn = db.insert(table, rows(1)).csn
    assert csn is not None
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for ask_for in (lambda: db.csn_at(tomorrow), lambda: db.snapshot(at=tomorrow)):
        with pytest.raises(NoSuchCsnError, match=r"has not come yet, it is 20.* give a time in the past"):
            ask_for()
    assert db.csn_at(datetime.now(UTC) + timedelta(seconds=2)) >= csn


def test_a_time_before_the_history_is_refused_with_its_begin(db: Database, table: str) -> None:
    """The error says when the history begins, and a snapshot of that time works."""
    (old, time), (begin, _) = commits(db, table, 2)
    no_history_below(db, begin)
    for ask_for in (lambda: db.csn_at(time), lambda: db.snapshot(at=time)):
        with pytest.raises(SnapshotTooOldError, match=r"is before the history .* begins at 20") as refused:
            ask_for()
        assert refused.value.details["min_csn"] >= begin
    with pytest.raises(SnapshotTooOldError, match="begins at 20"):
        db.csn_at(datetime(1999, 1, 1, tzinfo=UTC))
    assert db.csn_at(db.time_of(begin)) >= begin
    assert old < begin


def test_a_csn_above_the_end_has_no_time(db: Database) -> None:
    """Nor is it on any replica."""
    for ask_for in (db.time_of, db.in_sync_replicas):
        with pytest.raises(NoSuchCsnError, match="the log ends at"):
            ask_for(1 << 40)


def test_the_replicas_that_have_a_csn(local: LocalCluster, db: Database, table: str) -> None:
    """A replica that is away is not among them."""
    csn = db.insert(table, rows(1), wait="all").csn
    assert csn is not None
    assert db.in_sync_replicas(csn) == ["r1", "r2"]
    local.stop("r2")
    try:
        eventually(lambda: db.in_sync_replicas(csn) == ["r1"], what="r1 alone")
    finally:
        local.start("r2")
    eventually(lambda: db.in_sync_replicas(csn) == ["r1", "r2"], what="both again")


def test_the_last_change_of_a_table(db: Database, table: str) -> None:
    """Its definition, its rows, and what removes them; compaction and other tables change nothing."""
    first = db.last_change(table)
    assert first.table == f"default.{table}"
    made = commits(db, table, 8)
    assert (db.last_change(table).csn, db.last_change(table).time) == made[-1]
    assert first.csn < made[0][0]
    db.optimize(table)
    other = f"t{next(NUMBERS)}"
    db.create_table(other, SCHEMA)
    assert db.last_change(table).csn == made[-1][0]
    gone = db.truncate(table)
    assert (db.last_change(table).csn, db.last_change(table).time) == (gone.csn, gone.time)
    db.insert(other, rows(1))
    assert gone.csn is not None
    no_history_below(db, gone.csn + 1)
    assert db.last_change(table).csn == gone.csn
    with pytest.raises(UnknownTableError):
        db.last_change("none")


def test_what_is_no_time_and_no_csn(local: LocalCluster, db: Database) -> None:
    """Each is refused with what to give instead."""
    with pytest.raises(BadRequestError, match="time zone"):
        db.csn_at(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused
    with pytest.raises(BadRequestError, match="milliseconds since 1970"):
        db.csn_at(1 << 60)
    for path in ("/api/v1/csns", "/api/v1/csns/x", "/api/v1/csns/9999999999999999999", "/api/v1/csns/-1"):
        assert http("GET", f"{local.url('r1')}{path}").status == 400
