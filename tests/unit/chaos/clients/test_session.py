"""Tests of the documented client: its loop, what it writes down, and what it does not bear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Self, cast

import pyarrow as pa
import pytest

from chaos import faults
from chaos.checks.outcomes import wrong
from chaos.checks.refusals import refusals
from chaos.clients import session as session_module
from chaos.clients.session import TRIES, Attempt, Found, RolledBack, Session
from chaos.reading.bands import acts_of, bands
from chaos.record.history import History, ended, lines
from chaos.record.journal import Journal, load
from chaos.world import World
from tests.unit.chaos.lines import run as replicas_of_a_run
from tidelock.client import Transaction
from tidelock.client.values.results import Decision
from tidelock.errors import (
    CommitUnknownError,
    CorruptError,
    DiskFullError,
    FencedError,
    LabelExistsError,
    NoConnectionError,
    NotEnoughReplicasError,
    SnapshotTooOldError,
    TransactionClosedError,
    UnavailableError,
)


class _Transaction:
    """A transaction that ends as it is told."""

    tid, csn, lease_s, snapshot_csn, holder = "4-r2-1-9", 7, 5.0, 4, "r2"

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._error is not None:
            raise self._error


class _Database:
    """A client whose calls end as they are told, one after the other; the last one again and again."""

    def __init__(self, *errors: Exception | None, decision: Decision | Exception | None = None) -> None:
        self._errors, self._decision = list(errors), decision
        self.urls: list[str] = []

    def connected(self, urls: list[str]) -> Self:
        self.urls = urls
        return self

    def _next(self) -> Exception | None:
        return self._errors.pop(0) if len(self._errors) > 1 else self._errors[0]

    def begin(self, **_: object) -> _Transaction:
        return _Transaction(self._next())

    def outcome(self, tid: str) -> Any:
        if isinstance(self._decision, Exception):
            raise self._decision
        assert tid == _Transaction.tid
        return SimpleNamespace(decision=self._decision, csn=7)

    def snapshot(self, csn: int | None = None) -> Any:
        error = self._next()
        if error is not None:
            raise error
        return _Snapshot(csn or 7)

    def land(self, _table: str, _rows: pa.Table) -> Any:
        error = self._next()
        if error is not None:
            raise error
        return SimpleNamespace(csn=None)

    def close(self) -> None:
        """Do nothing."""


class _Snapshot:
    holder = "r3"

    def __init__(self, csn: int) -> None:
        self.csn = csn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Run:
    """A session on such a client, and what it has written down."""

    def __init__(self, folder: Path, database: _Database, journal: Journal, history: History) -> None:
        cluster = SimpleNamespace(
            replicas=["r1", "r2"], connect=lambda *_, **__: database, secret=None, url=lambda of: of
        )
        values = dict.fromkeys(World.__dataclass_fields__, cast("Any", 0))
        values |= {"cluster": cluster, "folder": folder, "journal": journal, "drivers": {}}
        values["stopping"] = SimpleNamespace(wait=lambda _: False, is_set=lambda: False)
        self._history = history
        self.session = Session(World(**values), "sets", history)

    @property
    def history(self) -> list[dict[str, Any]]:
        return list(ended(lines(self._history.path)))

    @property
    def calls(self) -> list[dict[str, Any]]:
        return list(load(self.session.world.journal.path))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[_Database], _Run]]:
    """Return a maker of sessions."""
    with Journal(tmp_path / "journal.jsonl") as journal, closing(History(tmp_path / "h.jsonl")) as history:

        def make(database: _Database) -> _Run:
            monkeypatch.setattr(session_module, "connect", lambda urls, **_: database.connected(urls))
            return _Run(tmp_path, database, journal, history)

        yield make


def refused_begin(**_: object) -> NoReturn:
    """Refuse to begin a transaction."""
    raise FencedError("x")


def _attempts(**options: Any) -> Callable[[], Attempt]:
    elements = iter(range(100))

    def attempt() -> Attempt:
        return Attempt([["append", "a/1", next(elements)]], lambda _: None, **options)

    return attempt


def test_each_attempt_is_an_operation_of_its_own(run: Callable[[_Database], _Run]) -> None:
    """A retriable error, or one of "begin again", leads to another attempt with a new element."""
    on = run(_Database(FencedError("x"), TransactionClosedError("x"), NoConnectionError("x"), None))
    done = on.session.write(_attempts())
    assert done is not None
    assert (done.tid, done.csn) == ("4-r2-1-9", 7)
    assert [(line["type"], line["value"][0][2]) for line in on.history] == [
        ("fail", 0),
        ("fail", 1),
        ("fail", 2),
        ("ok", 3),
    ]
    assert {line["process"] for line in on.history} == {0}
    [*failed, last] = on.calls
    assert [call["error"] for call in failed] == [
        "FencedError",
        "TransactionClosedError",
        "NoConnectionError",
    ]
    facts = {"workload": "sets", "f": "write", "end": "ok", "tid": "4-r2-1-9", "csn": 7, "home": "r2"}
    assert facts.items() <= last.items()
    assert last["began_ns"] <= last["ns"]


@pytest.mark.parametrize(
    ("begin", "fresh", "serializable"),
    [
        ({}, False, None),
        ({"isolation": "snapshot"}, False, None),
        ({"fresh": True, "isolation": "serializable"}, True, True),
    ],
)
@pytest.mark.parametrize("error", [None, CommitUnknownError("x", tid="4-r2-1-9")], ids=["answered", "asked"])
def test_the_history_notes_what_a_transaction_is_owed(
    run: Callable[[_Database], _Run],
    begin: dict[str, Any],
    fresh: bool,
    serializable: bool | None,
    error: CommitUnknownError | None,
) -> None:
    """The checkers owe nobody a fresh snapshot, or reads that hold at the commit, unless it was asked for."""
    on = run(_Database(error, decision=Decision.COMMITTED))
    on.session.write(_attempts(begin=begin), tries=1)
    [line] = on.history
    assert (line["type"], line["fresh"], line.get("serializable")) == ("ok", fresh, serializable)


def test_a_refusal_is_judged_with_its_home_and_its_tid(run: Callable[[_Database], _Run]) -> None:
    """The check of refusals skips a call without a home, and the one of outcomes a call without a tid."""
    on = run(_Database(NotEnoughReplicasError("1 of 2 durable copies"), None))
    on.session.write(_attempts())
    whole = [replicas_of_a_run(), *on.calls]
    moments = bands(whole)
    [found] = refusals(whole, moments, acts_of(moments, faults.ALL))
    assert (found.story.partition(":")[0], found.tids) == ("r2 refused", ("4-r2-1-9",))
    [wrong_one] = wrong(on.calls[:1], {"4-r2-1-9": {"r1": ("committed", 7)}})
    assert wrong_one.claim == "I17 TRUTHFUL: what was refused is not committed"


def test_a_transaction_without_a_home_has_no_tid(
    run: Callable[[_Database], _Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its begin waits for its first statement, which finds no replica."""

    def closed(_: _Transaction) -> str:
        raise TransactionClosedError("the transaction is rolled_back")

    monkeypatch.setattr(_Transaction, "tid", property(closed))
    on = run(_Database(FencedError("x")))
    assert on.session.write(_attempts(), tries=1) is None
    assert [(call["error"], call.get("tid")) for call in on.calls] == [("FencedError", None)]


def test_a_begin_that_is_refused_has_the_home_that_was_asked(run: Callable[[_Database], _Run]) -> None:
    """Its client works with one replica; else nobody knows which one has refused."""
    database = _Database(None)
    database.begin = refused_begin  # type: ignore[method-assign]
    on = run(database)
    on.session.write(_attempts(), tries=1)
    on.session.replica = "r1"
    on.session.write(_attempts(), tries=1)
    assert [(call.get("home"), call.get("tid")) for call in on.calls] == [(None, None), ("r1", None)]


def test_the_loop_ends_after_some_tries(run: Callable[[_Database], _Run]) -> None:
    """After as many tries as the documented loop has, the work is given up."""
    on = run(_Database(FencedError("x")))
    assert on.session.write(_attempts()) is None
    assert len(on.history) == TRIES


def test_a_full_disk_is_borne_and_not_tried_again(run: Callable[[_Database], _Run]) -> None:
    """Somebody has to free space first."""
    on = run(_Database(DiskFullError("x")))
    assert on.session.write(_attempts()) is None
    assert [line["type"] for line in on.history] == ["fail"]


@pytest.mark.parametrize("error", [CorruptError("x"), LabelExistsError("x"), KeyError("x")])
def test_what_a_user_need_not_bear_is_raised(run: Callable[[_Database], _Run], error: Exception) -> None:
    """Nothing else is caught, neither for writes nor for reads."""
    on = run(_Database(error))
    with pytest.raises(type(error)):
        on.session.write(_attempts())
    with pytest.raises(type(error)):
        on.session.read([["r", "a/1", None]], lambda _: Found([["r", "a/1", []]]))


def test_an_expected_refusal_is_written_down_and_raised(run: Callable[[_Database], _Run]) -> None:
    """It is an answer, which its workload knows what to do with, and it tells a CSN."""
    on = run(_Database(LabelExistsError("x", csn=3)))
    with pytest.raises(LabelExistsError):
        on.session.write(_attempts(expected=(LabelExistsError,)))
    assert [(line["type"], line["told"]) for line in on.history] == [("fail", 3)]
    assert on.calls[0]["expected"] is True


def test_a_rollback_is_no_failure(run: Callable[[_Database], _Run]) -> None:
    """Its elements are certainly not there."""

    def work(_: Transaction) -> None:
        raise RolledBack

    on = run(_Database(None))
    assert on.session.write(lambda: Attempt([["append", "a/1", 1]], work)) is None
    assert [line["type"] for line in on.history] == ["fail"]
    assert [(call["f"], call["end"]) for call in on.calls] == [("rollback", "ok")]


@pytest.mark.parametrize(
    ("decision", "ends"),
    [
        (Decision.COMMITTED, ["ok"]),
        (Decision.ABORTED, ["fail", "ok"]),
        (Decision.RUNNING, ["info"]),
        (Decision.TOO_OLD, ["info"]),
        (UnavailableError("x"), ["info"]),
    ],
)
def test_an_unknown_outcome_is_asked_for(
    run: Callable[[_Database], _Run], decision: Decision | Exception, ends: list[str]
) -> None:
    """A committed one counts, an aborted one begins again, and without an answer it stays unknown."""
    on = run(_Database(CommitUnknownError("x", tid="4-r2-1-9"), None, decision=decision))
    done = on.session.write(_attempts())
    assert [line["type"] for line in on.history] == ends
    assert [call["end"] for call in on.calls] == ends
    assert on.calls[0]["tid"] == "4-r2-1-9"
    assert (done is None) == (ends == ["info"])
    assert on.session.process.number == (1 if ends == ["info"] else 0)


def test_what_has_travelled_as_one_request_has_no_snapshot(
    run: Callable[[_Database], _Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tid was given before, so the CSN in it says nothing of what it has seen."""
    monkeypatch.setattr(_Transaction, "lease_s", 0.0)
    on = run(_Database(None))
    on.session.write(_attempts())
    assert "snapshot" not in on.history[0]


def test_a_read_tells_where_and_at_which_csn(run: Callable[[_Database], _Run]) -> None:
    """Its facts, and what it has found."""
    on = run(_Database(None))
    found = Found([["r", "a/1", [1]]], {"total": 3})
    assert on.session.read([["r", "a/1", None]], lambda _: found) == 7
    assert {"snapshot": 7, "replica": "r3", "total": 3, "value": [["r", "a/1", [1]]]}.items() <= (
        on.history[0].items()
    )


def test_old_csns_are_read_by_processes_of_their_own(run: Callable[[_Database], _Run]) -> None:
    """So that no session goes back; one that is collected is expected, and only there."""
    on = run(_Database(None, None, SnapshotTooOldError("x")))
    look = lambda _: Found([["r", "a/1", []]])  # noqa: E731 - short
    on.session.read([["r", "a/1", None]], look)
    on.session.read([["r", "a/1", None]], look, csn=2)
    assert on.session.read([["r", "a/1", None]], look, csn=2) is None
    assert len({line["process"] for line in on.history}) == 3
    with pytest.raises(SnapshotTooOldError):
        on.session.read([["r", "a/1", None]], look)


def test_a_last_read_must_have_an_answer(run: Callable[[_Database], _Run]) -> None:
    """When all is well an answer that does not come is an error."""
    on = run(_Database(NoConnectionError("x"), None))
    assert on.session.must_read([], lambda _: Found([])) == 7
    assert on.history[-1]["last"] is True
    with pytest.raises(UnavailableError):
        run(_Database(NoConnectionError("x"))).session.must_read([], lambda _: Found([]))


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (None, "ok"),
        (CommitUnknownError("x"), "info"),
        (FencedError("x"), "fail"),
        (DiskFullError("x"), "fail"),
    ],
)
def test_rows_that_land_are_sent_once(
    run: Callable[[_Database], _Run], error: Exception | None, end: str
) -> None:
    """A client that lands rows sends none of them again."""
    on = run(_Database(error))
    assert on.session.land("landed", pa.table({"e": [1]}), [["add", "landed", 1]]) == (end == "ok")
    assert [line["type"] for line in on.history] == [end]


def test_a_client_of_a_replica_that_has_left_goes_to_another(run: Callable[[_Database], _Run]) -> None:
    """It does not go on asking a member that was replaced."""
    on = run(_Database(None))
    on.session.replica = "r9"
    on.session.read([], lambda _: Found([]))
    assert on.session.replica == "r1"


@pytest.mark.parametrize(("learns", "urls"), [(False, ["r2", "r1"]), (True, ["r2"])])
def test_clients_begin_at_different_replicas(
    run: Callable[[_Database], _Run], learns: bool, urls: list[str]
) -> None:
    """A client is given all addresses, or one from which it learns the others; each begins at its own."""
    database = _Database(None)
    on = run(database)
    session = Session(on.session.world, "sets", on.session.history, first="r2", learns=learns)
    session.read([], lambda _: Found([]))
    assert database.urls == urls


def test_questions_bear_what_may_be_repeated(run: Callable[[_Database], _Run]) -> None:
    """A merge that cannot be had now is no error; what is damaged is."""

    def ask(error: Exception) -> None:
        def question(_: object) -> None:
            raise error

        run(_Database(None)).session.ask(question)

    ask(NoConnectionError("x"))
    with pytest.raises(CorruptError):
        ask(CorruptError("x"))
