"""The figures of a run: totals, faults by kind, errors, outcomes that clients did not know. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chaos.availability import Noticed, Span, noticed
from chaos.report.model import Call, FaultSeen, Outcome, Run

#: The error of a commit whose answer was lost; a client that learnt the outcome later still reports it.
_LOST_ANSWER: Final = "CommitUnknownError"


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """A fault with what clients noticed from its begin until its targets were well."""

    fault: FaultSeen
    noticed: Noticed


@dataclass(frozen=True, slots=True)
class KindFigures:
    """The faults of one kind; times in seconds, as median and largest, None if there are none."""

    kind: str
    times: int
    proven: int
    writers_s: tuple[float, float] | None
    readers_s: tuple[float, float] | None
    to_well_s: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Doubt:
    """A call whose outcome its client did not know, and the answer to it.

    Attributes:
        call: The call.
        answer: How it was resolved; None if it was not.
    """

    call: Call
    answer: str | None


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """Calls that failed with one error: how many, and an example of the message."""

    f: str
    end: str
    error: str
    times: int
    example: str


def fault_figures(run: Run) -> list[FaultFigures]:
    """Return the faults with what was noticed of them."""
    spans = [
        Span(fault.kind, frozenset(fault.targets), fault.begin_ns, run.until_ns(fault)) for fault in run.faults
    ]
    return [
        FaultFigures(fault, figures)
        for fault, figures in zip(run.faults, noticed(run.calls, spans), strict=True)
    ]


def kind_figures(figures: Sequence[FaultFigures]) -> list[KindFigures]:
    """Return a line for each kind of fault, by name."""
    kinds: dict[str, list[FaultFigures]] = defaultdict(list)
    for one in figures:
        kinds[one.fault.kind].append(one)
    return [
        KindFigures(
            kind=kind,
            times=len(several),
            proven=sum(bool(one.fault.proofs) for one in several),
            writers_s=_middle_and_largest([one.noticed.writers_s for one in several]),
            readers_s=_middle_and_largest([one.noticed.readers_s for one in several]),
            to_well_s=_middle_and_largest(
                [seconds for one in several if (seconds := one.fault.to_well_s) is not None]
            ),
        )
        for kind, several in sorted(kinds.items())
    ]


def doubts(run: Run) -> list[Doubt]:
    """Return the writes whose outcome a client did not know, with their resolution.

    A client that asked at once notes one call, with the end that it learnt and the error of the lost answer.
    What was found out later is a line ``outcome``, or a later call with the same tid.
    """
    told = {one.tid: one for one in run.outcomes}
    later: dict[str, Call] = {
        call.tid: call for call in run.calls if call.tid is not None and call.end in {"ok", "fail"}
    }
    found = []
    for call in run.calls:
        if call.f != "write":
            continue
        if call.end == "info":
            found.append(Doubt(call, _answer(call, told.get(call.tid or ""), later.get(call.tid or ""))))
        elif call.error == _LOST_ANSWER:
            found.append(Doubt(call, f"{_ENDS[call.end]}: the client asked for the outcome at once"))
    return found


def errors(run: Run) -> list[ErrorFigures]:
    """Return the failed calls by kind of call, end and error, the most frequent ones first."""
    times: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], str] = {}
    for call in run.calls:
        if call.error is None and call.end == "ok":
            continue
        key = (call.f, call.end, call.error or "not recorded")
        times[key] += 1
        examples.setdefault(key, call.message or "")
    return [ErrorFigures(*key, count, examples[key]) for key, count in times.most_common()]


_ENDS: Final = {"ok": "committed", "fail": "aborted"}


def _answer(call: Call, told: Outcome | None, later: Call | None) -> str | None:
    if told is not None:
        return told.outcome + (f" with CSN {told.csn}" if told.csn is not None else "")
    if later is not None and later.ns >= call.ns:
        return f"{_ENDS[later.end]}: a later call of the same transaction"
    return None


def _middle_and_largest(values: Sequence[float]) -> tuple[float, float] | None:
    return (statistics.median(values), max(values)) if values else None
