"""Times of callers: one rule for every argument that is a point in time."""

from __future__ import annotations

import contextlib
import datetime as dt
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replicas.fake_agent import FakeCluster
from tidelock.client import Database
from tidelock.client.values.arguments import milliseconds, past_point
from tidelock.errors import BadRequestError, TidelockError
from tidelock.wire.rows import instant

TEN = 1_795_341_600_000  # 2026-11-22T10:00:00Z
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2026-11-22T10:00:00Z", TEN),
        ("2026-11-22T10:00Z", TEN),
        ("2026-11-22 10:00:00+00:00", TEN),
        ("2026-11-22T15:30:00+05:30", TEN),
        ("2026-11-21T23:00:00-11:00", TEN),
        ("20261122T100000Z", TEN),
        ("2026-W47-7T10:00:00Z", TEN),
        ("2026-11-22T10:00:00.123Z", TEN + 123),
        ("2026-11-22T10:00:00.123999Z", TEN + 123),
        ("1969-12-31T23:59:59.9995Z", -1),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140_000),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999),
        ("9999-12-31T23:59:59.999-23:59", 253_402_387_139_999),
    ],
)
def test_iso_text_with_a_zone_is_a_point_in_time(text: str, expected_ms: int) -> None:
    """Each form of ISO 8601, in every year that a datetime has, is rounded down to a millisecond."""
    assert milliseconds(text) == expected_ms
    assert milliseconds(dt.datetime.fromisoformat(text)) == expected_ms


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("2026-11-22T10:00:00", "no time zone.*give e.g."),
        ("2026-11-22", "'2026-11-22', which has no time zone"),
        (dt.datetime(2026, 11, 22, 10), "no time zone"),  # noqa: DTZ001 - what is refused
        (dt.date(2026, 11, 22), r"found datetime.date\(2026, 11, 22\); give e.g."),
        ("2016-12-31T23:59:60Z", "second must be in 0..59"),
        ("2026-02-29T00:00:00Z", "day"),
        ("10000-01-01T00:00:00Z", "ISO 8601"),
        ("0000-01-01T00:00:00Z", "year"),
        ("2026-11-22Z", "ISO 8601"),
        ("1795341600000", "ISO 8601"),
        ("yesterday", "ISO 8601"),
        ("", "ISO 8601"),
        (pd.NaT, "no time zone"),
        (1.5, "expected a datetime"),
        (True, "expected a datetime"),
        (b"2026-11-22T10:00:00Z", "expected a datetime"),
    ],
)
def test_what_is_no_point_in_time_is_refused_with_the_reason(wrong: Any, message: str) -> None:
    """A time without a zone, a day, a leap second and other forms are never guessed."""
    with pytest.raises(BadRequestError, match=message):
        milliseconds(wrong)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_every_millisecond_comes_back_as_itself(time_ms: int) -> None:
    """A program that passes the time of a commit on means the same millisecond."""
    time = EPOCH + dt.timedelta(milliseconds=time_ms)
    assert milliseconds(time) == milliseconds(time.isoformat()) == time_ms
    assert milliseconds(pd.Timestamp(TEN, unit="ms", tz="UTC")) == TEN
    assert instant(TEN) == EPOCH + dt.timedelta(milliseconds=TEN)


@pytest.mark.parametrize(
    "ask",
    [
        lambda db, at: db.snapshot(at=at).close(),
        lambda db, at: db.read("t", at=at),
        lambda db, at: db.scan("t", at=at).to_table(),
        lambda db, at: db.sql("select 1 as one", at=at),
    ],
    ids=["snapshot", "read", "scan", "sql"],
)
def test_each_read_of_the_past_takes_iso_text(
    fake_cluster: FakeCluster, fake_db: Database, ask: Callable[[Database, Any], object]
) -> None:
    """Text, datetime and number name the same snapshot, and a naive time is refused before a request."""
    offset = dt.timezone(dt.timedelta(hours=2))
    for at in ("2026-11-22T12:00:00+02:00", dt.datetime(2026, 11, 22, 12, tzinfo=offset), TEN):
        ask(fake_db, at)
    sent = [request for agent in fake_cluster.agents.values() for request in agent.requests]
    assert [request.json for request in sent if (request.method, request.path) == ("POST", "/snapshots")] == [
        {"at_ms": TEN}
    ] * 3
    with pytest.raises(BadRequestError, match="no time zone"):
        ask(fake_db, "2026-11-22T12:00:00")
    assert [r for agent in fake_cluster.agents.values() for r in agent.requests] == sent


#: A call of each other method that takes a point in time, by the names of the method and of the argument.
ASKED: dict[tuple[str, str], Callable[[Database, Any], object]] = {
    ("clone_table", "at"): lambda db, at: db.clone_table("t", "u", at=at),
    ("restore_table", "at"): lambda db, at: db.restore_table("t", at=at),
    ("tag", "at"): lambda db, at: db.tag("q1", at=at),
    ("export", "at"): lambda db, at: db.export("t", "folder", at=at),
    ("diff", "since"): lambda db, at: db.diff("t", at),
    ("diff", "until"): lambda db, at: db.diff("t", 1, at),
    ("subscribe", "as_of"): lambda db, at: next(iter(db.subscribe("t", as_of=at))),
    ("subscribe", "until"): lambda db, at: next(iter(db.subscribe("t", until=at))),
}


def test_every_argument_for_a_time_is_known_here() -> None:
    """A method that gets one more has to be asked below, or above."""
    above = {(name, "at") for name in ("snapshot", "read", "scan", "sql", "csn_at")}
    found = {
        (name, parameter.name)
        for name, method in inspect.getmembers(Database, inspect.isfunction)
        if not name.startswith("_")
        for parameter in inspect.signature(method).parameters.values()
        if re.search("datetime|Point", str(parameter.annotation))
    }
    assert found == ASKED.keys() | above


@pytest.mark.parametrize("asked", ASKED, ids="-".join)
def test_each_statement_about_the_past_takes_iso_text(
    fake_cluster: FakeCluster,
    fake_db: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: tuple[str, str],
) -> None:
    """Text with a zone is sent as its milliseconds; without one it is refused, and no statement is sent."""
    call = ASKED[asked]
    monkeypatch.chdir(tmp_path)  # an export writes there

    def sent() -> list[str]:
        requests = [request for agent in fake_cluster.agents.values() for request in agent.requests]
        return [
            f"{one.path} {one.json} {one.query}"
            for one in requests
            if one.path not in {"/status", "/transactions"} and not one.path.endswith("/rollback")
        ]

    with pytest.raises(BadRequestError, match="no time zone"):
        call(fake_db, "2026-11-22T12:00:00")
    assert sent() == []
    with contextlib.suppress(TidelockError, StopIteration):
        call(fake_db, "2026-11-22T12:00:00+02:00")
    assert asked == ("subscribe", "until") or any(str(TEN) in text for text in sent()), sent()


def test_a_question_about_history_takes_iso_text(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """`csn_at` sends the same milliseconds as a snapshot of that time would."""
    fake_cluster["r1"].plan("GET /csns", BadRequestError("seen"))
    with pytest.raises(BadRequestError, match="seen"):
        fake_db.csn_at("2026-11-22T12:00:00+02:00")
    assert fake_cluster["r1"].requests[-1].query == {"at_ms": str(TEN)}
    with pytest.raises(BadRequestError, match="no time zone"):
        fake_db.csn_at("2026-11-22")


@pytest.mark.parametrize("wrong", [7.9, True, b"7", "not a tag!"])
def test_a_past_that_is_neither_csn_nor_tag_is_refused(wrong: Any) -> None:
    """A number is never cut to another CSN: `restore_table` would give the rows of that one."""
    with pytest.raises(BadRequestError, match="expected csn as an integer"):
        past_point(wrong, None)


def test_a_past_is_a_csn_a_tag_or_a_time() -> None:
    """Digits are a CSN, as on the command line."""
    assert [past_point(csn, None)[:2] for csn in (7, "7", "q2")] == [(7, None), (7, None), (None, "q2")]
    assert past_point(None, "2026-11-22T12:00:00+02:00") == (None, None, TEN)
