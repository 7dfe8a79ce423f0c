"""The logs of a run in which ZooKeeper is set back, and made again out of catalogs.

There are up to three: the first log; the one that goes on from the older state, whose CSNs may have been
given before; and the one behind the rebuild, which begins with what the newest of the given catalogs has
applied. Whatever a replica showed belongs to the log that its catalog follows, and is judged by that log and
by all logs that contain it. What a client was told counts in the log that ZooKeeper held then. So a commit is
lost only if the log behind the rebuild begins without it.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.support.histories.replay import Life, Story
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.model import Record
from workloads.history import CallEnd

#: The end of a write that a log contradicts: what was told, and whether the log does not have it.
_CONTRADICTIONS: Final = frozenset({(str(CallEnd.OK), True), (str(CallEnd.FAIL), False)})


class LogLife(enum.IntEnum):
    """The log that ZooKeeper holds."""

    FIRST = 0
    OLDER = 1
    REMADE = 2


@dataclass
class LogLives:
    """The logs.

    Attributes:
        now: The log that ZooKeeper holds now.
        records: Its records.
        older: The last CSN that the first two logs share.
        base: The last CSN that the third one has of :attr:`base_of`.
        base_of: The log of the catalog from which the third one was made.
        lost: The transactions that the third one has left out. They never come back.
        foreign: The transactions of boots that no catalog of the third one names, so no replica knows them.
    """

    now: LogLife = LogLife.FIRST
    logs: dict[LogLife, dict[Csn, Record]] = field(default_factory=lambda: {LogLife.FIRST: {}})
    older: Csn = CSN_NONE
    base: Csn = CSN_NONE
    base_of: LogLife = LogLife.FIRST
    lost: frozenset[str] = frozenset()
    foreign: set[str] = field(default_factory=set)
    #: The reads of the lives of changers: log and CSN, by tid.
    _read: dict[str, list[tuple[LogLife, Csn]]] = field(default_factory=dict)
    #: The log that ZooKeeper held when a life ended, by tid.
    _ended: dict[str, LogLife] = field(default_factory=dict)
    #: The log of each look of the story, in their order.
    _seen: list[LogLife] = field(default_factory=list)

    @property
    def records(self) -> dict[Csn, Record]:
        """The records of the present log."""
        return self.logs[self.now]

    def set_back(self, last: Csn) -> None:
        """ZooKeeper is what it was when the log ended there."""
        self.now, self.older = LogLife.OLDER, last
        self.logs[LogLife.OLDER] = {
            csn: record for csn, record in self.logs[LogLife.FIRST].items() if csn <= last
        }

    def remade(self, base_of: LogLife, base: Csn) -> None:
        """The tree was made again out of catalogs, of which the newest was there."""
        self.now, self.base, self.base_of = LogLife.REMADE, base, base_of
        self.logs[LogLife.REMADE] = {csn: record for csn, record in self.logs[base_of].items() if csn <= base}
        kept = _all(self.logs[LogLife.REMADE])
        self.lost = frozenset().union(*(_all(log) for log in self.logs.values())) - kept

    def of_catalog(self, db: sqlite3.Connection, reached: Csn) -> set[LogLife]:
        """Return the logs of which a catalog has records that the other one does not have."""
        first, other = self.logs[LogLife.FIRST], self.logs.get(LogLife.OLDER, {})
        found = set()
        for csn in sorted({csn for csn in first.keys() | other.keys() if self.older < csn <= reached}):
            if (csn in first) != (csn in other):  # also a record without transactions
                found.add(LogLife.FIRST if csn in first else LogLife.OLDER)
                continue
            rows = db.execute("SELECT tid FROM outcomes WHERE csn = ?", (csn,))
            there = {tid for (tid,) in rows}
            for which, log in ((LogLife.FIRST, first), (LogLife.OLDER, other)):
                if there & _tids(log, csn) and not there & _tids(other if log is first else first, csn):
                    found.add(which)
        return found

    def holds(self, which: LogLife, log: LogLife, csn: Csn) -> bool:
        """Return whether a CSN of one log is the same in another one."""
        if which is log:
            return True
        if LogLife.REMADE in (which, log):
            origin = which if log is LogLife.REMADE else log
            return csn <= self.base and (origin is self.base_of or csn <= self.older)
        return csn <= self.older

    # -- what was told and shown -----------------------------------------------------------------------------

    def read(self, tid: str, which: LogLife, csn: Csn) -> None:
        """A transaction has read at a replica that follows that log."""
        self._read.setdefault(tid, []).append((which, csn))

    def ended(self, tid: str) -> None:
        """A client knows the end of a transaction."""
        self._ended[tid] = self.now

    def seen(self, which: LogLife) -> None:
        """A client has looked at all tables."""
        self._seen.append(which)

    def lines(self, lines: Iterable[dict[str, Any]], log: LogLife) -> list[dict[str, Any]]:
        """Return the lines of the clients' history that a log has to explain."""
        known = {tid.tid: csn for csn, record in self.logs[log].items() for tid in record.tids}
        found = []
        for line in lines:
            if "log" in line and not self._counts(line, log):
                continue
            found.append(self._of_write(line, log, known) if line["f"] == "write" else line)
        return found

    def _counts(self, line: dict[str, Any], log: LogLife) -> bool:
        """Return whether a log has to explain what a replica showed; an abort counts in its own log only."""
        if "csn" not in line:
            return bool(line["log"] is log)
        return self.holds(line["log"], log, line["csn"])

    def acknowledged_nowhere(self, lines: Iterable[dict[str, Any]], lives: Iterable[Life]) -> list[str]:
        """Return the commits that clients were told of, and that no log has."""
        known = frozenset().union(*(_all(log) for log in self.logs.values()))
        told = [line["tid"] for line in lines if line["f"] == "write" and line["type"] == CallEnd.OK]
        told += [life.tid for life in lives if life.end is CallEnd.OK and life.csn is not None]
        return [tid for tid in told if tid not in known]

    def _of_write(self, line: dict[str, Any], log: LogLife, known: Mapping[str, Csn]) -> dict[str, Any]:
        """Return the end of a write as it counts in a log: as the log says where nobody was told by it."""
        tid = line.get("tid", "")
        told, csn = line.get("when", LogLife.FIRST), known.get(tid)
        is_own = told is log and told is not LogLife.OLDER
        is_told = log is self.now and tid not in self.foreign  # replicas tell outcomes of the present log
        unknown = line["type"] == CallEnd.INFO and not is_told
        if unknown or (not is_own and (line["type"], csn is None) in _CONTRADICTIONS):
            return {**line, "type": str(CallEnd.FAIL if csn is None else CallEnd.OK), "csn": csn}
        return line

    def story(self, story: Story, log: LogLife) -> Story:
        """Return the part of the changers' story that a log has to explain."""
        known = {tid.tid: csn for csn, record in self.logs[log].items() for tid in record.tids}
        lives = [
            self._of_life(life, log, known)
            for life in story.lives
            if all(self.holds(which, log, csn) for which, csn in self._read.get(life.tid, ()))
        ]
        seen = [
            one
            for one, which in zip(story.seen, self._seen, strict=True)
            if self.holds(which, log, Csn(one.csn))
        ]
        return replace(story, lives=lives, seen=seen)

    def _of_life(self, life: Life, log: LogLife, known: Mapping[str, Csn]) -> Life:
        told, csn = self._ended.get(life.tid, LogLife.FIRST), known.get(life.tid)
        if told is log and told is not LogLife.OLDER:
            return life
        life = replace(life, refusal=None)  # its reason is in the log of then
        if life.end is CallEnd.OK and life.csn is None:
            return life  # it has changed nothing
        if (str(life.end), csn is None) in _CONTRADICTIONS:
            return replace(life, end=CallEnd.FAIL if csn is None else CallEnd.OK, csn=csn, ended_ns=0)
        return life


def _tids(log: Mapping[Csn, Record], csn: Csn) -> set[str]:
    return {tid.tid for tid in log[csn].tids} if csn in log else set()


def _all(log: Mapping[Csn, Record]) -> frozenset[str]:
    return frozenset(tid.tid for record in log.values() for tid in record.tids)
