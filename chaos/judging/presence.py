"""Judges reads of sets, whose elements are added once and perhaps removed once, by transactions. Pure.

The micro-operations of such a history are ``["add", set, element]``, ``["remove", set, element]``, and
``["r", set, [element, ...]]``, which returns the whole set. Found are, by the name of the claim:

    once       an element is there twice, or two operations that have added it were acknowledged
    committed  an element is there that nobody has added, or whose transaction certainly failed
    snapshot   an element is there below the CSN of its commit, or from the CSN of its removal on
    lost       an acknowledged element is missing at or above its CSN; or one without a CSN at the end
    atomic     of a transaction of unknown end a part is seen, or it is seen and later it is not
    agree      two reads of a set at one CSN differ
    session    a process reads below what it has read or committed
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.record.violation import Violation

#: Findings of one claim that are told; more of them would add nothing.
SHOWN: Final = 5

Line = dict[str, Any]
_Member = tuple[str, Any]
#: A claim, the sentence that tells what broke it, and the lines that prove it.
_Told = tuple[str, tuple[str, tuple[Line, ...]]]


@dataclass(frozen=True, slots=True)
class _Read:
    """A whole set at a CSN; ``last``: all is healed, and what was acknowledged must be there."""

    of: str
    csn: int
    there: Counter[Any]
    line: Line


@dataclass(slots=True)
class _Facts:
    """A history by its elements.

    ``added`` and ``removed`` have the last line of the operation that did it, or may have; ``twice`` has
    those that were acknowledged twice.
    """

    added: dict[_Member, Line] = field(default_factory=dict)
    failed: dict[_Member, Line] = field(default_factory=dict)
    twice: list[tuple[_Member, Line, Line]] = field(default_factory=list)
    removed: dict[_Member, list[Line]] = field(default_factory=lambda: defaultdict(list))
    reads: list[_Read] = field(default_factory=list)
    members: dict[str, list[_Member]] = field(default_factory=lambda: defaultdict(list))


def judged(check: str, ended: Iterable[Line]) -> list[Violation]:
    """Return what is wrong, at most `SHOWN` of each claim.

    Args:
        check: The workload.
        ended: The last lines of all operations (`chaos.record.history.ended`).
    """
    all_lines = list(ended)
    facts = _facts(all_lines)
    wrong = (
        _added_twice(facts),
        _wrong_reads(facts),
        _torn(facts),
        _disagreeing(facts),
        _sessions(all_lines),
    )
    return _violations(check, itertools.chain(*wrong))


def sessions(check: str, ended: Iterable[Line]) -> list[Violation]:
    """Return where a process has gone back in time, at most `SHOWN`."""
    return _violations(check, _sessions(ended))


def _violations(check: str, told: Iterable[_Told]) -> list[Violation]:
    count: Counter[str] = Counter()
    found: list[Violation] = []
    for claim, (story, involved) in told:
        count[claim] += 1
        if count[claim] > SHOWN:
            continue
        tids = tuple(dict.fromkeys(line["tid"] for line in involved if line.get("tid")))
        shown = "\n".join((story, *(_shown(line) for line in involved)))
        found.append(Violation(check, claim, shown, max(line["time"] for line in involved), tids))
    return found


def _facts(all_lines: Iterable[Line]) -> _Facts:
    facts = _Facts()
    for line in all_lines:
        for name, of, element in line["value"]:
            member = (of, element)
            if name == "add":
                _note_added(facts, member, line)
            elif name == "remove" and line["type"] != "fail":
                facts.removed[member].append(line)
            elif name == "r" and line["type"] == "ok" and "snapshot" in line:
                facts.reads.append(_Read(of, line["snapshot"], Counter(element), line))
    return facts


def _note_added(facts: _Facts, member: _Member, line: Line) -> None:
    if line["type"] == "fail":
        facts.failed[member] = line
        return
    known = facts.added.get(member)
    if known is None:
        facts.members[member[0]].append(member)
    elif known["type"] == line["type"] == "ok":
        facts.twice.append((member, known, line))
    if known is None or line["type"] == "ok":
        facts.added[member] = line


def _added_twice(facts: _Facts) -> Iterator[_Told]:
    for (of, element), first, second in facts.twice:
        story = f"Expected that one operation adds {element!r} to {of}, found two that were acknowledged."
        yield "once", (story, (first, second))


def _wrong_reads(facts: _Facts) -> Iterator[_Told]:
    for read in facts.reads:
        at = f"in {read.of} at CSN {read.csn}"
        for element, count in read.there.items():
            member = (read.of, element)
            if count > 1:
                yield "once", (f"Expected {element!r} once {at}, found it {count} times.", (read.line,))
            added = facts.added.get(member)
            if added is None:
                failed = facts.failed.get(member)
                why = "its transaction has failed" if failed else "nobody has added it"
                proof = (failed, read.line) if failed else (read.line,)
                yield "committed", (f"Expected no {element!r} {at}, since {why}; found it.", proof)
            elif _csn(added) is not None and added["csn"] > read.csn:
                story = f"Expected no {element!r} {at}, since it was added at {added['csn']}; found it."
                yield "snapshot", (story, (added, read.line))
            for removed in facts.removed.get(member, ()):
                if _csn(removed) is not None and removed["csn"] <= read.csn:
                    story = (
                        f"Expected no {element!r} {at}, since it was removed at {removed['csn']}; found it."
                    )
                    yield "snapshot", (story, (removed, read.line))
        for member in facts.members[read.of]:
            if member[1] not in read.there and (added := _missed(facts, member, read)) is not None:
                story = f"Expected {member[1]!r} {at}, since it was acknowledged; found it missing."
                yield "lost", (story, (added, read.line))


def _missed(facts: _Facts, member: _Member, read: _Read) -> Line | None:
    """Return the line that has added what a read must have shown; None if it need not have."""
    added = facts.added.get(member)
    if added is None or added["type"] != "ok" or _may_be_gone(facts, member, read.csn):
        return None
    csn = _csn(added)
    due = read.line.get("last", False) if csn is None else csn <= read.csn
    return added if due else None


def _may_be_gone(facts: _Facts, member: _Member, csn: int) -> bool:
    removals = facts.removed.get(member, ())
    return any(_csn(removed) is None or removed["csn"] <= csn for removed in removals)


def _torn(facts: _Facts) -> Iterator[_Told]:
    """Find transactions without a known CSN that are seen in part, or seen and then not any more."""
    unknown: dict[int, list[_Member]] = defaultdict(list)
    for member, added in facts.added.items():
        if _csn(added) is None:
            unknown[added["index"]].append(member)
    reads: dict[str, list[_Read]] = defaultdict(list)
    for read in facts.reads:
        reads[read.of].append(read)
    for members in unknown.values():
        first: _Read | None = None
        last: _Read | None = None
        for member in members:
            for read in reads[member[0]]:
                if member[1] in read.there:
                    first = read if first is None or read.csn < first.csn else first
                elif not _may_be_gone(facts, member, read.csn):
                    last = read if last is None or read.csn > last.csn else last
        if first is not None and last is not None and first.csn <= last.csn:
            added = facts.added[members[0]]
            story = (
                f"Expected {added['value']} as a whole from one CSN on, found some of it in {first.of} at "
                f"CSN {first.csn}, and some of it missing in {last.of} at CSN {last.csn}."
            )
            yield "atomic", (story, (added, first.line, last.line))


def _disagreeing(facts: _Facts) -> Iterator[_Told]:
    known: dict[tuple[str, int], _Read] = {}
    for read in facts.reads:
        first = known.setdefault((read.of, read.csn), read)
        if first.there != read.there:
            more, less = read.there - first.there, first.there - read.there
            story = (
                f"Expected one answer for {read.of} at CSN {read.csn}, found {sorted(more)} more and "
                f"{sorted(less)} less at {read.line.get('replica')} than at {first.line.get('replica')}."
            )
            yield "agree", (story, (first.line, read.line))


def _sessions(all_lines: Iterable[Line]) -> Iterator[_Told]:
    highest: dict[int, tuple[int, Line]] = {}
    for line in all_lines:
        if line["type"] != "ok" or not isinstance(line["process"], int):
            continue
        snapshot = line.get("snapshot")
        csn, before = highest.get(line["process"], (0, line))
        if snapshot is not None and snapshot < csn:
            story = f"Expected that process {line['process']} reads at CSN {csn} or above, found {snapshot}."
            yield "session", (story, (before, line))
        reached = max(snapshot or 0, line.get("csn") or 0)
        if reached > csn:
            highest[line["process"]] = (reached, line)


def _csn(line: Line) -> int | None:
    csn: int | None = line.get("csn")
    return csn


def _shown(line: Line, width: int = 400) -> str:
    facts = " ".join(f"{name} {line[name]}" for name in ("tid", "snapshot", "csn", "replica") if name in line)
    told = (
        f"operation {line['index']} ({line['type']}) of process {line['process']}, {facts}: {line['value']}"
    )
    return told[:width]
