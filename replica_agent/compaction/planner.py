"""Which parts of a table to merge: size-tiered, by partition and era. Pure.

A tier is a run of parts of one partition, next to each other in size, that is worth merging: at least
``parts_min`` of them, or as much as a part of target size, and together at least :data:`GROWTH` times the
largest. Size is rows, which a merge conserves exactly; bytes only bound. From that follow, for any history of
inserts (proved by the property tests):

* a row is rewritten at most log2 n times before its part has target size, then never again;
* what is left of n rows, when nothing is worth merging, are at most ``parts_min`` + O(log n) parts below
  target size;
* planning ends: every group makes fewer parts of more.

A partition to which nothing has been added for ``quiet_s`` is finished up: two parts suffice.

Parts of different eras are never merged with each other: a transaction that is open for long sees the ones
and not the others, and could not remove what has become of them. All of this holds for each era of a
partition by itself; when the transaction has ended, they are one again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tidelock.csnlog.core.ids import Csn, PartId

#: A merge makes a part of at least so many times the rows of the largest one that it takes: what bounds how
#: often a row is rewritten.
GROWTH = 2
#: Fewer parts than these are nothing to merge.
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """A visible part that nobody is about to remove.

    Attributes:
        part: Its id.
        path: Its partition, ``""`` without partitions.
        rows: Its rows, at least one.
        length: Its bytes.
        csn: The CSN that made it visible.
        age_s: Seconds since then, by the time of the log.
        era: How many of the long transactions that are heeded do not see its rows. Parts of one era are seen
            by all of them that see one of these parts, and so is what they are merged into.
    """

    part: PartId
    path: str
    rows: int
    length: int
    csn: Csn
    age_s: float
    era: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a group; the settings ``compaction_*`` of the agent.

    Attributes:
        parts_min: Parts of about one size that are worth merging.
        parts_max: Most parts of a group.
        bytes_max: Most bytes of a group.
        target_bytes: A part of this size is left alone. At most a third of ``bytes_max``: a full group then
            has twice the bytes of any part in it, so that no number of parts is left for want of room.
        quiet_s: A partition that got no part for so long is finished up.
    """

    parts_min: int
    parts_max: int
    bytes_max: int
    target_bytes: int
    quiet_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """Parts of one partition to be merged, in the order in which they became visible."""

    path: str
    parts: tuple[PartId, ...]
    rows: int
    length: int


def plan(parts: Iterable[Candidate], limits: Limits, *, thorough: bool = False) -> list[Group]:
    """Return the groups that are worth merging now; no part is in two of them. The fullest partition first.

    Args:
        parts: Of one table.
        limits: What bounds a group.
        thorough: Merge until every partition has at most one part below target size in each era, at any
            price.
    """
    groups: list[tuple[int, Group]] = []
    for (path, _), small in _small_by_place(parts, limits).items():
        least = _PAIR if thorough or _quiet_in_s(small, limits) <= 0 else limits.parts_min
        growth = 1 if thorough else GROWTH
        groups += [(len(small), _group(path, run)) for run in _runs(small, limits, least, growth)]
    groups.sort(key=lambda item: (-item[0], item[1].path, item[1].parts))
    return [group for _, group in groups]


def quiet_in_s(parts: Iterable[Candidate], limits: Limits) -> float | None:
    """Return when the next partition (or era) of several small parts becomes quiet; None if all are."""
    waits = [
        _quiet_in_s(small, limits) for small in _small_by_place(parts, limits).values() if len(small) >= _PAIR
    ]
    return min((wait for wait in waits if wait > 0), default=None)


def _small_by_place(parts: Iterable[Candidate], limits: Limits) -> dict[tuple[str, int], list[Candidate]]:
    """Return the parts below target size by partition and era, the smallest first."""
    small: dict[tuple[str, int], list[Candidate]] = {}
    for part in parts:
        if part.length < limits.target_bytes:
            small.setdefault((part.path, part.era), []).append(part)
    for found in small.values():
        found.sort(key=lambda part: (part.rows, part.csn, part.part))
    return small


def _quiet_in_s(small: Sequence[Candidate], limits: Limits) -> float:
    return limits.quiet_s - min(part.age_s for part in small)


def _runs(
    small: Sequence[Candidate], limits: Limits, least: int, growth: int
) -> Iterable[Sequence[Candidate]]:
    """Yield runs that are worth merging: the longest that begins with the smallest part, then what follows.

    ``small`` ascends, so of the sums of a run only the last part can be the largest.
    """
    rows = [0, *accumulate(part.rows for part in small)]
    length = [0, *accumulate(part.length for part in small)]

    def worth(begin: int, end: int) -> bool:
        enough = end - begin >= least or length[end] - length[begin] >= limits.target_bytes
        return enough and rows[end] - rows[begin] >= growth * small[end - 1].rows

    begin = fits = 0
    while begin + _PAIR <= len(small):
        while (
            fits < len(small)
            and fits - begin < limits.parts_max
            and length[fits + 1] - length[begin] <= limits.bytes_max
        ):
            fits += 1
        end = next((end for end in range(fits, begin + 1, -1) if worth(begin, end)), None)
        if end is None:
            begin += 1
        else:
            yield small[begin:end]
            begin = end
        fits = max(fits, begin)


def _group(path: str, run: Sequence[Candidate]) -> Group:
    ordered = sorted(run, key=lambda part: (part.csn, part.part))
    return Group(
        path,
        tuple(part.part for part in ordered),
        sum(part.rows for part in run),
        sum(part.length for part in run),
    )
