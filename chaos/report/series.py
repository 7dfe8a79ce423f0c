"""A window of time in bins, and what calls, replicas and faults look like in them. Pure."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.reading.bands import Band
from chaos.report.model import Call, ReplicaSaid, Run
from tidelock.csnlog.core.ids import epoch_of, sequence_of
from tidelock.wire.ids import Csn

#: Lengths of a bin and of a step of the axis, in seconds.
_BINS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60)
_STEPS_S: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200)
#: A replica that gave no answer for so many of its usual intervals did not answer.
_MISSED: Final = 3


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a run, from `begin_ns` to `end_ns`, in bins of `bin_ns`."""

    begin_ns: int
    end_ns: int
    bin_ns: int

    @classmethod
    def over(cls, begin_ns: int, end_ns: int, bins_max: int) -> Window:
        """Return the window in as many bins of a round length as allowed; it lasts a second at least."""
        end_ns = max(end_ns, begin_ns + 1_000_000_000)
        fine = (end_ns - begin_ns) / 1e9 / bins_max
        length_s = next((length for length in _BINS_S if length >= fine), fine)
        return cls(begin_ns, end_ns, int(length_s * 1e9))

    @property
    def bins(self) -> list[tuple[int, int]]:
        """The begin and the end of each bin; the last one may be shorter."""
        return [
            (begin, min(begin + self.bin_ns, self.end_ns))
            for begin in range(self.begin_ns, self.end_ns, self.bin_ns)
        ]

    def ticks(self, origin_ns: int, most: int = 12) -> list[int]:
        """Return moments for the axis, round numbers of seconds after `origin_ns`."""
        length_s = (self.end_ns - self.begin_ns) / 1e9
        step = int(next((s for s in _STEPS_S if length_s / s <= most), length_s / most) * 1e9)
        first = origin_ns + -(-(self.begin_ns - origin_ns) // step) * step
        return list(range(first, self.end_ns + 1, step))


@dataclass(frozen=True, slots=True)
class Spread:
    """Latencies of one bin, in seconds."""

    p50: float
    p99: float
    largest: float


@dataclass(frozen=True, slots=True)
class Bin:
    """The calls that ended in one bin: writes by their end, latencies of the acknowledged calls."""

    begin_ns: int
    end_ns: int
    acknowledged: int
    refused: int
    unknown: int
    reads: int
    writing: Spread | None
    reading: Spread | None

    def per_second(self, count: int) -> float:
        """Return a count of this bin as a rate."""
        return count * 1e9 / (self.end_ns - self.begin_ns)


def between(calls: Sequence[Call], begin_ns: int, end_ns: int) -> Sequence[Call]:
    """Return the calls, sorted by their end, that ended from `begin_ns` to just before `end_ns`."""
    first = bisect.bisect_left(calls, begin_ns, key=lambda call: call.ns)
    return calls[first : bisect.bisect_left(calls, end_ns, key=lambda call: call.ns)]


def binned(calls: Sequence[Call], window: Window) -> list[Bin]:
    """Return the bins of a window over calls that are sorted by their end."""
    found = []
    last = len(window.bins) - 1
    for number, (begin, end) in enumerate(window.bins):
        inside = between(calls, begin, end + (number == last))  # the last moment belongs to the last bin
        writes = [call for call in inside if call.f == "write"]
        reads = [call for call in inside if call.f == "read" and call.end == "ok"]
        ends = [call.end for call in writes]
        found.append(
            Bin(
                begin_ns=begin,
                end_ns=end,
                acknowledged=ends.count("ok"),
                refused=ends.count("fail"),
                unknown=ends.count("info"),
                reads=len(reads),
                writing=spread([call.took_s for call in writes if call.end == "ok"]),
                reading=spread([call.took_s for call in reads]),
            )
        )
    return found


def spread(values: Iterable[float]) -> Spread | None:
    """Return median, 99th percentile (nearest rank) and largest; None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1])


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the sorted values do not exceed."""
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def longest_gap(run: Run) -> tuple[int, int] | None:
    """Return begin and end of the longest time between acknowledged commits; None below two commits."""
    moments = [call.ns for call in run.calls if call.f == "write" and call.end == "ok"]
    return max(itertools.pairwise(moments), key=lambda pair: pair[1] - pair[0], default=None)


def missing_ns(said: Sequence[ReplicaSaid]) -> int:
    """Return the time between two answers of a replica above which it did not answer."""
    steps = sorted(later.ns - earlier.ns for earlier, later in itertools.pairwise(said))
    return _MISSED * int(quantile(steps, 0.5)) if steps else 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which a replica said the same of its state; None = it did not answer."""

    begin_ns: int
    end_ns: int
    state: str | None
    serving: bool


def stretches(said: Sequence[ReplicaSaid], window: Window) -> list[Stretch]:
    """Return the states of a replica in a window, in their order.

    Only members are asked: so they begin with its first line, end with its last, and have no hole between.
    """
    found: list[Stretch] = []
    missing = missing_ns(said)
    now = max(window.begin_ns, said[0].ns) if said else window.end_ns
    for number, one in enumerate(said):
        following = said[number + 1].ns if number + 1 < len(said) else one.ns + missing
        until = following if following - one.ns <= missing or not missing else one.ns
        if until < window.begin_ns or one.ns > window.end_ns:
            continue
        begin, end = max(one.ns, window.begin_ns), min(until, window.end_ns)
        if begin > now:
            _extend(found, Stretch(now, begin, None, serving=False))
        silent = one.csn is None and one.state is None
        state = None if silent else one.state or "answers"
        _extend(found, Stretch(begin, end, state, serving=one.serving))
        now = max(now, end)
    if said and now < min(window.end_ns, said[-1].ns):
        _extend(found, Stretch(now, min(window.end_ns, said[-1].ns), None, serving=False))
    return found


def _extend(found: list[Stretch], more: Stretch) -> None:
    last = found[-1] if found else None
    if last is not None and (last.state, last.serving) == (more.state, more.serving):
        found[-1] = Stretch(last.begin_ns, more.end_ns, more.state, serving=more.serving)
    elif more.end_ns > more.begin_ns:
        found.append(more)


def paths(said: Sequence[ReplicaSaid], window: Window) -> Iterator[list[tuple[int, int]]]:
    """Yield the pieces without holes of a replica's line (moment, CSN): one point a bin, and each fall."""
    missing = missing_ns(said)
    piece: list[tuple[int, int]] = []
    before: ReplicaSaid | None = None
    for one in said:
        if not window.begin_ns <= one.ns <= window.end_ns:
            continue
        held = one.csn is not None and (before is None or one.ns - before.ns <= missing)
        if not held and piece:
            yield piece
            piece = []
        before = one
        if one.csn is None:
            continue
        same = len(piece) > 1 and _bin(window, piece[-1][0]) == _bin(window, one.ns)
        if same and piece[-2][1] <= piece[-1][1] <= one.csn:
            piece[-1] = (one.ns, one.csn)
        else:
            piece.append((one.ns, one.csn))
    if piece:
        yield piece


def _bin(window: Window, ns: int) -> int:
    return (ns - window.begin_ns) // window.bin_ns


class CsnScale:
    """CSNs as distances: within an epoch their differences, between two epochs one step.

    Args:
        csns: The CSNs that decide where the scale begins and ends; others count as its begin or its end.
    """

    def __init__(self, csns: Iterable[int]) -> None:
        ends: dict[int, tuple[int, int]] = {}
        for csn in csns:
            epoch, sequence = epoch_of(Csn(csn)), sequence_of(Csn(csn))
            low, high = ends.get(epoch, (sequence, sequence))
            ends[epoch] = (min(low, sequence), max(high, sequence))
        self._offsets: dict[int, int] = {}
        self.length = 0
        for epoch, (low, high) in sorted(ends.items()):
            self._offsets[epoch] = self.length - low
            self.length += high - low + 1

    def __call__(self, csn: int) -> int:
        """Return the distance of a CSN from the smallest one of the scale."""
        epoch = epoch_of(Csn(csn))
        if epoch not in self._offsets:
            return 0 if all(epoch < known for known in self._offsets) else self.length
        return min(max(self._offsets[epoch] + sequence_of(Csn(csn)), 0), self.length)


def csn_text(csn: int | None) -> str:
    """Return a CSN for people: the number, with the epoch before it if there was more than the first."""
    if csn is None:
        return "none"
    epoch = epoch_of(Csn(csn))
    return f"epoch {epoch}, {sequence_of(Csn(csn))}" if epoch else str(csn)


def lanes(faults: Sequence[Band], run: Run) -> dict[str, list[list[Band]]]:
    """Return the lanes of each kind, so that no two faults of a lane overlap, and the kinds by name."""
    found: dict[str, list[list[Band]]] = {}
    for fault in sorted(faults, key=lambda one: (one.kind, one.begin_ns)):
        kind = found.setdefault(fault.kind, [])
        free = next((lane for lane in kind if run.well_ns(lane[-1]) <= fault.begin_ns), None)
        if free is None:
            kind.append([fault])
        else:
            free.append(fault)
    return found
