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

from chaos.reading.bands import Band, calm

_TITLES: Final = (
    "fault",
    "times",
    "writers p50 s",
    "writers max s",
    "readers p50 s",
    "readers max s",
    "failed requests",
    "commits",
    "load held",
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
        seconds: Its length.
        recovery_s: From its end until its targets served again; None if they never did.
    """

    band: Band
    writers_s: float
    readers_s: float
    failed: int
    commits: int
    seconds: float
    recovery_s: float | None


@dataclass(frozen=True, slots=True)
class KindNoticed:
    """All faults of one kind; `_p50` is a median, `_max` the longest, times are in seconds.

    `commits_per_s` is the rate of acknowledged commits over all these faults, whatever else acted meanwhile.
    """

    kind: str
    times: int
    writers_p50_s: float
    writers_max_s: float
    readers_p50_s: float
    readers_max_s: float
    failed: int
    commits: int
    commits_per_s: float
    recovery_p50_s: float | None
    recovery_max_s: float | None


@dataclass(frozen=True, slots=True)
class Availability:
    """The availability in a run: during each fault, and the commits per second while none acted."""

    faults: Sequence[Noticed]
    undisturbed_per_s: float | None


def noticed(lines: Iterable[Mapping[str, Any]], moments: Iterable[Band]) -> list[Noticed]:
    """Return the availability during each fault.

    Args:
        lines: The lines of the journal.
        moments: The faults.
    """
    calls = [line for line in lines if line["what"] == "call"]
    last_ns = max((line["ns"] for line in calls), default=0)
    writes, reads = _answered(calls, "write"), _answered(calls, "read")
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
                (until_ns - band.begin_ns) / 1e9,
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
        commits, seconds = sum(one.commits for one in ones), sum(one.seconds for one in ones)
        found.append(
            KindNoticed(
                kind,
                len(ones),
                statistics.median(writers),
                max(writers),
                statistics.median(readers),
                max(readers),
                sum(one.failed for one in ones),
                commits,
                commits / seconds if seconds else 0.0,
                statistics.median(recoveries) if recoveries else None,
                max(recoveries, default=None),
            )
        )
    return found


def undisturbed_per_s(lines: Sequence[Mapping[str, Any]], moments: Sequence[Band]) -> float | None:
    """Return the acknowledged commits per second while no fault acted, from the first commit to the last.

    Args:
        lines: The lines of the journal.
        moments: The faults.

    Returns:
        The rate; None if some fault acted all the time.
    """
    writes = _answered(lines, "write")
    if not writes:
        return None
    spans = calm(moments, writes[0], writes[-1])
    commits = sum(len(_inside(writes, begin_ns, end_ns)) for begin_ns, end_ns in spans)
    calm_ns = sum(end_ns - begin_ns for begin_ns, end_ns in spans)
    return commits / calm_ns * 1e9 if calm_ns else None


def table(kinds: Iterable[KindNoticed], per_s: float | None) -> str:
    """Return a Markdown table with a line for each kind.

    Args:
        kinds: The kinds.
        per_s: Commits per second while no fault acted, of which the load held is a share; None = unknown.
    """
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
            load_held(one.commits_per_s, per_s),
            *map(_seconds, recoveries),
        )
        lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines)


def load_held(commits_per_s: float, undisturbed: float | None) -> str:
    """Return the share of the undisturbed rate of commits that a rate is, in percent, as text."""
    return "not known" if not undisturbed else f"{commits_per_s / undisturbed:.0%}"


def errors_by_kind(lines: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return how many calls did not end well, by the class of their error."""
    return Counter(
        line.get("error", "without an error")
        for line in lines
        if line["what"] == "call" and line["end"] != "ok"
    )


def _seconds(figure: float | None) -> str:
    return "never" if figure is None else f"{figure:.2f}"


def _answered(lines: Iterable[Mapping[str, Any]], f: str) -> list[int]:
    calls = (line for line in lines if line["what"] == "call")
    return sorted(line["ns"] for line in calls if line["f"] == f and line["end"] == "ok")


def _inside(moments: Sequence[int], begin_ns: int, end_ns: int) -> Sequence[int]:
    return moments[bisect_left(moments, begin_ns) : bisect_right(moments, end_ns)]


def _longest_gap_s(moments: Sequence[int], begin_ns: int, end_ns: int) -> float:
    points = [begin_ns, *_inside(moments, begin_ns, end_ns), end_ns]
    return max(later - earlier for earlier, later in itertools.pairwise(points)) / 1e9
