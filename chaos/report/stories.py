"""The surroundings of a violation: faults, calls of its transactions, states of replicas. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.reading.bands import Band
from chaos.report.model import Call, Finding, Mark, ReplicaSaid, Run

#: A fault that ended so long before a moment acted shortly before it, in ns.
SHORTLY_NS: Final = 15_000_000_000
#: Notes and failed calls from so long before a moment until so long after it belong to its story, in ns.
_AROUND_NS: Final = 3_000_000_000
#: The parts of a tid: snapshot CSN, replica, boot, counter.
_TID_PARTS: Final = 4
#: Bounds of a story: faults before and after the moment, calls, failed calls nearby, notes, lines of logs.
_FAULTS_MAX, _LATER_MAX, _CALLS_MAX, _NEARBY_MAX, _NOTES_MAX, _LOG_MAX = 12, 6, 60, 12, 20, 60


@dataclass(frozen=True, slots=True)
class Suspect:
    """A fault that may be the cause, and its relation to the moment in words."""

    fault: Band
    relation: str


@dataclass(frozen=True, slots=True)
class Story:
    """All that a person needs to understand a violation.

    Attributes:
        found: The violation.
        moment_ns: When it happened: as the check says, or the first end of a call of its transactions; None
            if nothing tells.
        suspects: The faults that acted at the moment or shortly before it, the nearest first and among those
            that acted the ones at a home of its transactions; then those that hit such a home between the
            moment and the discovery.
        calls: The calls of its transactions in their order.
        nearby: Failed calls of other transactions around the moment.
        said: For each replica its last words up to the moment, and the first words after it.
        notes: Notes of the journal around the moment.
        log: Lines of logs: given by the check, or with a tid of its transactions.
    """

    found: Finding
    moment_ns: int | None
    suspects: tuple[Suspect, ...]
    calls: tuple[Call, ...]
    nearby: tuple[Call, ...]
    said: Mapping[str, tuple[ReplicaSaid | None, ReplicaSaid | None]]
    notes: tuple[Mark, ...]
    log: tuple[str, ...]


def stories(run: Run, findings: Iterable[Finding], logged: Mapping[str, Sequence[str]]) -> list[Story]:
    """Return the stories of findings of a run, in their order.

    Args:
        run: The run.
        findings: The violations.
        logged: Lines of logs by the tid in them.
    """
    findings = list(findings)
    asked = {tid for found in findings for tid in found.tids}
    by_tid: dict[str, list[Call]] = {tid: [] for tid in asked}
    for call in run.calls:
        if call.tid in asked:
            by_tid[call.tid].append(call)
    return [_story(run, found, by_tid, logged) for found in findings]


def home_of(tid: str) -> str | None:
    """Return the replica where a transaction was begun; None if the text is no tid."""
    parts = tid.split("-")
    return parts[1] if len(parts) == _TID_PARTS else None


def _story(
    run: Run, found: Finding, by_tid: Mapping[str, list[Call]], logged: Mapping[str, Sequence[str]]
) -> Story:
    calls = sorted((call for tid in found.tids for call in by_tid[tid]), key=lambda call: call.ns)
    moment = found.about_ns
    if moment is None and calls:
        moment = calls[0].ns
    return Story(
        found=found,
        moment_ns=moment,
        suspects=tuple(_suspects(run, found, moment, calls)),
        calls=tuple(calls[:_CALLS_MAX]),
        nearby=() if moment is None else tuple(_nearby(run, moment, found.tids)),
        said={} if moment is None else {name: _around(said, moment) for name, said in run.said.items()},
        notes=() if moment is None else tuple(_notes(run, moment)),
        log=(*found.log, *(line for tid in found.tids for line in logged.get(tid, ())))[:_LOG_MAX],
    )


def _suspects(run: Run, found: Finding, moment: int | None, calls: list[Call]) -> Iterable[Suspect]:
    if moment is None:
        named = [fault for fault in run.faults if fault.fault in found.faults]
        yield from (Suspect(fault, "named by the check") for fault in named)
        return
    homes = {home for tid in found.tids if (home := home_of(tid))}
    homes |= {home for call in calls if (home := call.home)}
    began = [fault for fault in run.faults if fault.begin_ns <= moment]
    near = [
        fault for fault in began if fault.fault in found.faults or run.well_ns(fault) >= moment - SHORTLY_NS
    ]
    near = near or sorted(began, key=run.well_ns)[-1:]

    def nearness(fault: Band) -> tuple[int, bool, int]:
        return max(moment - run.well_ns(fault), 0), not homes & set(fault.targets), -fault.begin_ns

    yield from (
        Suspect(fault, _when(run, fault, moment)) for fault in sorted(near, key=nearness)[:_FAULTS_MAX]
    )
    later = [
        fault for fault in run.faults if moment < fault.begin_ns <= found.ns and homes & set(fault.targets)
    ]
    for fault in later[:_LATER_MAX]:
        target = ", ".join(sorted(homes & set(fault.targets)))
        yield Suspect(fault, f"hit the home {target} {_length(fault.begin_ns - moment)} after the moment")


def _when(run: Run, fault: Band, moment: int) -> str:
    if moment <= run.healed_ns(fault):
        return f"acted at the moment, since {_length(moment - fault.begin_ns)}"
    ended = _length(moment - fault.end_ns)
    if moment <= run.well_ns(fault):
        return f"was healed {ended} before; its targets were not yet well"
    return f"was healed {ended} before; its targets were well"


def _length(ns: int) -> str:
    return f"{ns / 1e9:.2f} s"


def _nearby(run: Run, moment: int, tids: tuple[str, ...]) -> list[Call]:
    first = bisect.bisect_left(run.calls, moment - _AROUND_NS, key=lambda call: call.ns)
    last = bisect.bisect_right(run.calls, moment + _AROUND_NS, key=lambda call: call.ns)
    failed = [call for call in run.calls[first:last] if call.end != "ok" and call.tid not in tids]
    nearest = sorted(failed, key=lambda call: abs(call.ns - moment))[:_NEARBY_MAX]
    return sorted(nearest, key=lambda call: call.ns)


def _notes(run: Run, moment: int) -> list[Mark]:
    near = [note for note in run.notes if abs(note.ns - moment) <= _AROUND_NS]
    return near[:_NOTES_MAX]


def _around(said: tuple[ReplicaSaid, ...], moment: int) -> tuple[ReplicaSaid | None, ReplicaSaid | None]:
    after = bisect.bisect_right(said, moment, key=lambda one: one.ns)
    return (said[after - 1] if after else None), (said[after] if after < len(said) else None)
