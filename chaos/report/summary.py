"""The figures of a run: totals, faults by kind, errors, outcomes that clients did not know. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chaos.reading.availability import Availability, noticed, undisturbed_per_s
from chaos.report.model import Call, Outcome, Run

#: The error of a commit whose answer was lost; a client that learnt the outcome later still reports it.
_LOST_ANSWER: Final = "CommitUnknownError"


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


def availability(run: Run) -> Availability:
    """Return what clients noticed of each fault, in the order of their begins, and of none."""
    lines = _lines(run)
    return Availability(noticed(lines, run.faults), undisturbed_per_s(lines, run.faults))


def ends(run: Run) -> Counter[tuple[str, str]]:
    """Return how many calls of which kind (write, read) have ended how (ok, fail, info)."""
    return Counter((call.f, call.end) for call in run.calls)


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


def _lines(run: Run) -> list[Mapping[str, Any]]:
    return [{"what": "call", "ns": call.ns, "f": call.f, "end": call.end} for call in run.calls]


def _answer(call: Call, told: Outcome | None, later: Call | None) -> str | None:
    if told is not None and told.outcome in _ENDS.values():
        return told.outcome + (f" with CSN {told.csn}" if told.csn is not None else "")
    if later is not None and later.ns >= call.ns:
        return f"{_ENDS[later.end]}: a later call of the same transaction"
    return None
