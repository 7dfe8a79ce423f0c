"""The availability that clients noticed during each kind of fault, out of the journal of a run. Pure.

An answer that did not come is unavailability, which is a length of time. A refusal by a replica that nothing
happened to is a fault of the product: that is judged by a check (`checks/refusals.py`).
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.reading.bands import Band

_TITLES: Final = (
    "fault",
    "times",
    "writers p50 s",
    "writers max s",
    "readers p50 s",
    "readers max s",
    "failed requests",
    "commits",
    "to serve again p50 s",
    "to serve again max s",
)


@dataclass(frozen=True, slots=True)
class Noticed:
    """The availability during one fault, from its begin until its targets served again.

    Attributes:
        band: The fault.
        writers_s: Longest time without an acknowledged commit, in seconds.
        readers_s: Longest time without an answer to a read, likewise.
        failed: Requests that failed, or whose outcome was not known.
        commits: Acknowledged commits.
        recovery_s: From its end until its targets served again; None if they never did.
    """

    band: Band
    writers_s: float
    readers_s: float
    failed: int
    commits: int
    recovery_s: float | None


@dataclass(frozen=True, slots=True)
class KindNoticed:
    """All faults of one kind; `_p50` is a median, `_max` the longest, times are in seconds."""

    kind: str
    times: int
    writers_p50_s: float
    writers_max_s: float
    readers_p50_s: float
    readers_max_s: float
    failed: int
    commits: int
    recovery_p50_s: float | None
    recovery_max_s: float | None


def noticed(lines: Iterable[Mapping[str, Any]], moments: Iterable[Band]) -> list[Noticed]:
    """Return the availability during each fault.

    Args:
        lines: The lines of the journal.
        moments: The faults.
    """
    calls = [line for line in lines if line["what"] == "call"]
    last_ns = max((line["ns"] for line in calls), default=0)
    writes = sorted(line["ns"] for line in calls if line["f"] == "write" and line["end"] == "ok")
    reads = sorted(line["ns"] for line in calls if line["f"] == "read" and line["end"] == "ok")
    failures = sorted(line["ns"] for line in calls if line["end"] != "ok")
    found = []
    for band in moments:
        until_ns = max(band.begin_ns, min(band.well_ns, last_ns))
        healed = band.well_ns <= last_ns
        found.append(
            Noticed(
                band,
                _longest_gap_s(writes, band.begin_ns, until_ns),
                _longest_gap_s(reads, band.begin_ns, until_ns),
                len(_inside(failures, band.begin_ns, until_ns)),
                len(_inside(writes, band.begin_ns, until_ns)),
                (band.well_ns - band.end_ns) / 1e9 if healed else None,
            )
        )
    return found


def by_kind(several: Iterable[Noticed]) -> list[KindNoticed]:
    """Return the figures of each kind, ordered by its name."""
    grouped: dict[str, list[Noticed]] = defaultdict(list)
    for one in several:
        grouped[one.band.kind].append(one)
    found = []
    for kind, ones in sorted(grouped.items()):
        writers, readers = [one.writers_s for one in ones], [one.readers_s for one in ones]
        recoveries = [one.recovery_s for one in ones if one.recovery_s is not None]
        found.append(
            KindNoticed(
                kind,
                len(ones),
                statistics.median(writers),
                max(writers),
                statistics.median(readers),
                max(readers),
                sum(one.failed for one in ones),
                sum(one.commits for one in ones),
                statistics.median(recoveries) if recoveries else None,
                max(recoveries, default=None),
            )
        )
    return found


def table(kinds: Iterable[KindNoticed]) -> str:
    """Return a Markdown table with a line for each kind."""
    lines = [f"| {' | '.join(_TITLES)} |", f"|{'---|' * len(_TITLES)}"]
    for one in kinds:
        stalls = (one.writers_p50_s, one.writers_max_s, one.readers_p50_s, one.readers_max_s)
        recoveries = (one.recovery_p50_s, one.recovery_max_s)
        figures = (
            one.kind,
            str(one.times),
            *map(_seconds, stalls),
            str(one.failed),
            str(one.commits),
            *map(_seconds, recoveries),
        )
        lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines)


def errors_by_kind(lines: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return how many calls did not end well, by the class of their error."""
    return Counter(
        line.get("error", "without an error")
        for line in lines
        if line["what"] == "call" and line["end"] != "ok"
    )


def _seconds(figure: float | None) -> str:
    return "never" if figure is None else f"{figure:.2f}"


def _inside(moments: Sequence[int], begin_ns: int, end_ns: int) -> Sequence[int]:
    return moments[bisect_left(moments, begin_ns) : bisect_right(moments, end_ns)]


def _longest_gap_s(moments: Sequence[int], begin_ns: int, end_ns: int) -> float:
    points = [begin_ns, *_inside(moments, begin_ns, end_ns), end_ns]
    return max(later - earlier for earlier, later in itertools.pairwise(points)) / 1e9
