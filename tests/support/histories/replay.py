"""Judges the answers to sessions by replaying all commits in the order of the log on bags of rows.

Every transaction is run again by `table_model`, each statement at the CSN that it was told to have read at;
its changes are made when its CSN comes. Then every read, every number of rows that a statement answered, and
every table that was looked at on any replica at any CSN must be what the model says (I3, I4, I5, I6, I10). A
transaction must find what it removes (I7); a serializable one must do the same when it is run again at the
moment of its commit; and a transaction that was refused for a conflict must have had one.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.histories.table_model import Read, Rows, Statement, Tables, View, removes, tables_of
from tidelock.csnlog.core.ids import Tid
from workloads.history import CallEnd, LogLine

#: So many violations are told; more of them say nothing new.
SHOWN: Final = 8
#: So many commits before a difference are told with it.
_BEFORE: Final = 6


@dataclass(frozen=True, slots=True)
class Ran:
    """A statement that was answered.

    Attributes:
        csn: What it read at.
        told: Numbers of rows, by their names.
        read: The rows that a read returned.
    """

    statement: Statement
    csn: int
    told: Mapping[str, int] = field(default_factory=dict)
    read: Rows | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A conflict that a session was told of.

    Attributes:
        statement: What was refused; None: the commit.
        csn: What it read at.
        details: Of the error.
        began_ns: When it was asked for; monotonic clock.
        ended_ns: When it was refused.
    """

    statement: Statement | None
    csn: int
    details: Mapping[str, Any]
    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class Life:
    """A transaction of a session.

    Attributes:
        name: Of the session, with a number.
        failed: The statement that was refused or got no answer.
        ended_ns: When its end was known; 0 if it never was.
        error: What it ended with.
    """

    name: str
    replica: str
    isolation: str
    tid: str
    snapshot: int
    began_ns: int
    ran: list[Ran] = field(default_factory=list)
    failed: Statement | None = None
    refusal: Refusal | None = None
    end: CallEnd = CallEnd.INFO
    csn: int | None = None
    ended_ns: int = 0
    error: str = ""

    def __str__(self) -> str:
        at = f"at CSN {self.csn}" if self.csn else self.error
        return f"{self.name} ({self.isolation}, {self.tid}) {self.end} {at}"


@dataclass(frozen=True, slots=True)
class Seen:
    """Tables as a replica showed them at a CSN."""

    replica: str
    csn: int
    tables: Tables


@dataclass(frozen=True, slots=True)
class Fed:
    """The change feed of a table on a replica for (since, until]: deleted and inserted rows by CSN."""

    replica: str
    table: str
    since: int
    until: int
    changes: Mapping[int, tuple[Rows, Rows]]


@dataclass(slots=True)
class Story:
    """All events of a history.

    Attributes:
        tables: Names, all empty at the CSN ``created``.
        crashes: Replicas that were killed or stopped, and when they had ended (monotonic clock, ns): one that
            is being stopped may still begin transactions.
    """

    tables: tuple[str, ...]
    created: int
    lives: list[Life] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    fed: list[Fed] = field(default_factory=list)
    crashes: list[tuple[str, int]] = field(default_factory=list)
    log: tuple[LogLine, ...] = ()


def judge(story: Story) -> list[str]:
    """Return what is wrong, at most SHOWN of it."""
    replay = _Replay(story)
    wrong = (
        *(_truthful(story), replay.commits(), replay.others()),
        *(replay.looks(), replay.feeds(), _justified(story)),
    )
    return list(itertools.islice(itertools.chain.from_iterable(wrong), SHOWN))


def _truthful(story: Story) -> Iterator[str]:
    """I17: what each session was told of its commit is what the log says."""
    logged = {one.tid: line.csn for line in story.log for one in line.tids}
    for life in story.lives:
        csn = logged.get(life.tid)
        if (life.end is CallEnd.OK and csn != life.csn) or (life.end is CallEnd.FAIL and csn is not None):
            yield f"I17: {life}, and the log has it at {csn}"


class _Replay:
    """The commits, one after the other; `commits` comes first."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._by_tid = {life.tid: life for life in story.lives}
        self._csns = [story.created]
        self._states: list[Tables] = [{table: Counter() for table in story.tables}]
        self._done: set[str] = set()

    def commits(self) -> Iterator[str]:
        """Replay the log."""
        for line in self._story.log:
            if line.csn <= self._story.created:
                continue
            before = self._states[-1]
            after = before
            for one in line.tids:
                life = self._by_tid.get(one.tid)
                if one.compaction:
                    continue
                if life is None:
                    yield f"the log has {one.tid} at CSN {line.csn}, which nobody has asked for"
                    continue
                self._done.add(one.tid)
                view = View()
                yield from self._statements(life, view)
                if lost := view.missing(after):
                    yield f"I7: {life} removes at CSN {line.csn} what is not there: {lost}" + self._told(lost)
                if life.isolation == "serializable":
                    yield from _same_again(life, view, before)
                after = view.upon(after)
            self._csns.append(line.csn)
            self._states.append(after)

    def others(self) -> Iterator[str]:
        """Look at what those read that are not in the log, and whether they had nothing to commit."""
        for life in self._story.lives:
            if life.tid in self._done:
                continue
            view = View()
            yield from self._statements(life, view)
            if life.end is CallEnd.OK and view.changes != ({}, {}):
                yield f"I4: {life} was told that it changed nothing, and changes {view.changes}"

    def looks(self) -> Iterator[str]:
        """Compare every look with the state of its CSN."""
        for seen in self._story.seen:
            expected = self.at(seen.csn)
            for table, rows in seen.tables.items():
                if rows != expected[table]:
                    difference = _difference(rows, expected[table])
                    yield f"{seen.replica} shows {table} at CSN {seen.csn} with {difference}"
                    yield f"  {self._before(table, seen.csn)}"

    def feeds(self) -> Iterator[str]:
        """Compare what change feeds told of each CSN with the states before and at it."""
        for fed in self._story.fed:
            expected = {}
            for csn in {csn for csn in self._csns if fed.since < csn <= fed.until} | fed.changes.keys():
                before, after = self.at(csn - 1)[fed.table], self.at(csn)[fed.table]
                if before != after:
                    expected[csn] = (before - after, after - before)
            if fed.changes != expected:
                wrong = {csn for csn, found in fed.changes.items() if expected.get(csn) != found}
                first = min(wrong | (expected.keys() - fed.changes.keys()))
                where = f"of {fed.table} in ({fed.since}, {fed.until}] on {fed.replica}"
                told = f"{fed.changes.get(first)}, expected {expected.get(first)}"
                yield f"the change feed {where} told at CSN {first} {told}"

    def at(self, csn: int) -> Tables:
        """Return the tables at a CSN."""
        return self._states[bisect.bisect_right(self._csns, csn) - 1]

    def _statements(self, life: Life, view: View) -> Iterator[str]:
        for ran in life.ran:
            done = view.run(ran.statement, self.at(ran.csn))
            if ran.read is not None and ran.read != done.read:
                difference = _difference(ran.read, done.read or Counter())
                yield f"{life}: {ran.statement} at CSN {ran.csn} returned {difference}"
                yield f"  {self._before(ran.statement.table, ran.csn)}"
            wrong = {name: count for name, count in ran.told.items() if done.told.get(name, 0) != count}
            if wrong:
                yield f"{life}: {ran.statement} at CSN {ran.csn} told {wrong}, expected {done.told}"
                yield f"  {self._before(ran.statement.table, ran.csn)}"

    def _told(self, lost: Iterable[str]) -> str:
        return "".join(f"\n  {self._before(table, self._csns[-1])}" for table in lost)

    def _before(self, table: str, csn: int) -> str:
        """Say which commits have changed a table last."""
        found = []
        for life in sorted(self._story.lives, key=lambda life: life.csn or 0):
            done = [ran.statement for ran in life.ran if table in _changed(ran.statement)]
            if done and life.csn is not None and life.csn <= csn:
                found.append(f"{life.csn}: {life.name} {done}")
        return f"before: {'; '.join(found[-_BEFORE:]) or 'nothing'}"


def _changed(statement: Statement) -> set[str]:
    return set() if isinstance(statement, Read) else tables_of(statement)


def _same_again(life: Life, view: View, before: Tables) -> Iterator[str]:
    """A serializable transaction could have run at the moment of its commit, and would have done the same."""
    again = View()
    for ran in life.ran:
        done = again.run(ran.statement, before)
        if ran.read is not None and ran.read != done.read:
            yield f"SERIALIZABLE: {life}: at its commit {ran.statement} returns {done.read}, not {ran.read}"
    if again.changes != view.changes:
        yield f"SERIALIZABLE: {life} changes {view.changes}; at its commit that would be {again.changes}"


# -- conflicts -----------------------------------------------------------------------------------------------


def _justified(story: Story) -> Iterator[str]:
    """Find refusals without a transaction that removes from the same table or changed what was read."""
    logged = {one.tid: line.csn for line in story.log for one in line.tids}
    lives = {life.tid: life for life in story.lives}
    for life in story.lives:
        if (refusal := life.refusal) is None:
            continue
        if refusal.statement is None:
            why = _no_reason_at_commit(life, refusal, story)
        else:
            why = _no_reason(life, refusal, lives, logged, story)
        if why:
            what = refusal.statement or "its commit"
            yield f"unjustified: {life} was refused {what} ({refusal.details}): {why}"


def _no_reason_at_commit(life: Life, refusal: Refusal, story: Story) -> str:
    table = refusal.details.get("table")
    if life.isolation != "serializable":
        return "only a serializable transaction is refused at its commit"
    if not any(table == _full(name) for ran in life.ran for name in tables_of(ran.statement)):
        return "it has not read that table"
    since = [other for other in story.lives if other.csn is not None and other.csn > life.snapshot]
    if any(table == _full(name) for other in since for ran in other.ran for name in _changed(ran.statement)):
        return ""
    return "nobody has changed that table since its snapshot"


def _no_reason(
    life: Life, refusal: Refusal, lives: Mapping[str, Life], logged: Mapping[str, int], story: Story
) -> str:
    tid, table = str(refusal.details.get("holder")), refusal.details.get("table")
    if tid == life.tid:
        return "by itself"
    csn, holder = logged.get(tid), lives.get(tid)
    if csn is not None and csn <= life.snapshot:
        return f"its snapshot contains the holder, committed at CSN {csn}"
    if holder is None:
        return ""  # a compaction; those are not written down
    statements = [ran.statement for ran in holder.ran] + ([holder.failed] if holder.failed else [])
    if not any(removes(one) and table == _full(one.table) for one in statements):
        return f"the holder {holder} removes nothing from {table}"
    if holder.began_ns > refusal.ended_ns:
        return f"the holder {holder} began later"
    home = Tid.parse(tid).home
    ended_well = holder.ended_ns and not any(
        replica == home and at_ns >= holder.began_ns for replica, at_ns in story.crashes
    )
    if csn is None and ended_well and holder.ended_ns < refusal.began_ns:
        return f"the holder {holder} had ended before"
    return ""


def _full(name: str) -> str:
    return f"default.{name}"


def _difference(found: Rows, expected: Rows) -> str:
    return f"{dict(found - expected)} more and {dict(expected - found)} less than expected"
