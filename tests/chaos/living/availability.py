"""The availability that clients had while something happened to the cluster, out of their history. Pure.

A refusal by a replica that nothing happened to is a fault of the product as long as enough others are well.
An answer that did not come is no refusal: it counts as unavailability, which is a length of time.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.histories.workload import REFUSAL_EACH
from tidelock import errors

#: A home that comes back may still answer with what happened to it before, in ns.
AFTERMATH_NS: Final = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """Something that happened to replicas.

    Attributes:
        kind: A name.
        replicas: The replicas that it happened to; none = no replica, e.g. a server of ZooKeeper.
        begin_ns: Its begin, by the clock of the history.
        end_ns: All replicas were well again.
    """

    kind: str
    replicas: frozenset[str]
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Noticed:
    """The availability during one span.

    Attributes:
        writers_s: Longest time without an acknowledged commit, in seconds.
        readers_s: Longest time without an answer to a read, likewise.
        failed: Requests that failed, and were not to fail.
        commits: Acknowledged commits.
    """

    span: Span
    writers_s: float
    readers_s: float
    failed: int
    commits: int


def noticed(lines: Sequence[Mapping[str, Any]], spans: Iterable[Span]) -> list[Noticed]:
    """Return the availability in each span, by the lines of the history."""
    writes = sorted(line["ns"] for line in lines if _ended_well(line, "write"))
    reads = sorted(line["ns"] for line in lines if _ended_well(line, "read"))
    failures = [line["ns"] for line in lines if _failed(line)]
    return [
        Noticed(
            span,
            _longest_gap_s(writes, span),
            _longest_gap_s(reads, span),
            sum(span.begin_ns <= ns <= span.end_ns for ns in failures),
            sum(span.begin_ns <= ns <= span.end_ns for ns in writes),
        )
        for span in spans
    ]


def refusals_of_well_homes(lines: Iterable[Mapping[str, Any]], spans: Sequence[Span]) -> list[str]:
    """Return the refused writes whose home nothing had happened to."""
    found = []
    for line in lines:
        if not _failed(line) or line["f"] != "write":
            continue
        name = line.get("error", "").partition("(")[0]
        home = line["tid"].split("-")[1] if line.get("tid") else None
        refused = issubclass(getattr(errors, name, Exception), errors.RefusedError)
        if refused and home is not None and not _happened(spans, home, line["ns"]):
            found.append(f"{home} refused {line['key']}: {line['error']}")
    return found


def table(all_noticed: Iterable[Noticed]) -> str:
    """Return a table for people: one line for each kind of event."""
    by_kind: dict[str, list[Noticed]] = defaultdict(list)
    for one in all_noticed:
        by_kind[one.span.kind].append(one)
    titles = ("event", "times", "writers median s", "writers max s", "readers median s", "readers max s")
    lines = [f"| {' | '.join((*titles, 'failed requests', 'commits'))} |", f"|{'---|' * (len(titles) + 2)}"]
    for kind, several in sorted(by_kind.items()):
        writers, readers = [one.writers_s for one in several], [one.readers_s for one in several]
        figures = [f"{f(times):.2f}" for times in (writers, readers) for f in (statistics.median, max)]
        counts = [str(sum(one.failed for one in several)), str(sum(one.commits for one in several))]
        lines.append(f"| {' | '.join((kind, str(len(several)), *figures, *counts))} |")
    return "\n".join(lines)


def errors_by_kind(lines: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return how many requests failed by each kind of error, those left out that were to fail."""
    return Counter(line.get("error", "").partition("(")[0] for line in lines if _failed(line))


def _ended_well(line: Mapping[str, Any], f: str) -> bool:
    return bool(line["f"] == f and line["type"] == "ok")


def _failed(line: Mapping[str, Any]) -> bool:
    """Whether a request failed that was not made to fail by the load itself."""
    if line["type"] not in {"fail", "info"} or line["f"] not in {"write", "read"}:
        return False
    if line["f"] == "read":
        return True
    planned = int(line["key"].rpartition("-")[2]) % REFUSAL_EACH == 0
    return line.get("error") != "rolled back" and not planned


def _longest_gap_s(moments: Sequence[int], span: Span) -> float:
    inside = [ns for ns in moments if span.begin_ns <= ns <= span.end_ns]
    points = [span.begin_ns, *inside, span.end_ns]
    return max(later - earlier for earlier, later in itertools.pairwise(points)) / 1e9


def _happened(spans: Iterable[Span], replica: str, ns: int) -> bool:
    return any(
        replica in span.replicas and span.begin_ns <= ns <= span.end_ns + AFTERMATH_NS for span in spans
    )
