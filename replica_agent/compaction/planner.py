"""The choice of the parts of a table to merge: size-tiered, by partition and era. Pure.

A tier is a run of parts of one partition, next to each other in size, that is worth merging: at least
``parts_min`` of them, or as much as a part of target size, and together at least :data:`GROWTH` times the
largest. Size is counted in rows, which a merge conserves exactly; bytes are only a bound. It follows, for any
history of inserts (proved by the property tests):

* a row is rewritten at most log2 n times before its part has target size, then never again;
* when nothing is worth merging, n rows are in at most ``parts_min`` + O(log n) parts below target size;
* planning ends: every group replaces several parts by fewer, one of them at most below target size.

A partition that got no part for ``quiet_s`` is merged completely: two parts suffice.

Parts of different eras are never merged with each other: a long transaction sees the parts of one era and not
those of another, and could not remove the merged part. All of this applies to each era of a partition by
itself; when the transaction has ended, the eras are one again.

One agent plans a table, the same for all agents that see the same members. Rendezvous hashing: each table
goes to the replica with the highest hash. So the tables spread evenly, and if a replica joins or leaves, only
its own tables change their planner. While views differ two agents may plan one table; their transactions meet
at the locks of the parts, and one yields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec
import xxhash

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId

#: A merge makes a part of at least so many times the rows of its largest input. This bounds how often a row
#: is rewritten.
GROWTH = 2
#: The least number of parts that can be merged.
_PAIR = 2


class Candidate(msgspec.Struct, frozen=True):
    """A visible part that no transaction is about to remove.

    Attributes:
        part: Its id.
        path: Its partition, ``""`` without partitions.
        rows: Its rows, at least one.
        length: Its bytes.
        csn: The CSN that made it visible.
        age_s: Seconds since then, by the time of the log.
        era: Number of the long transactions to respect that do not see its rows. Each of them sees all parts
            of one era or none, and the same is true for their merged part.
    """

    part: PartId
    path: str
    rows: int
    length: int
    csn: Csn
    age_s: float
    era: int = 0


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a group; the settings ``compaction_*`` of the agent.

    Attributes:
        parts_min: Number of parts of about one size that are worth merging.
        parts_max: Most parts of a group.
        bytes_max: Most bytes of a group.
        target_bytes: A part of this size is not merged. At most a third of ``bytes_max``: a full group then
            has twice the bytes of any part in it, so that no set of parts is left unmerged for lack of room.
        quiet_s: A partition that got no part for so long is merged completely.
    """

    parts_min: int
    parts_max: int
    bytes_max: int
    target_bytes: int
    quiet_s: float


class Group(msgspec.Struct, frozen=True):
    """Parts of one partition to be merged, in the order in which they became visible."""

    path: str
    parts: tuple[PartId, ...]
    rows: int
    length: int


def planner_of(table: TableId, replicas: Iterable[ReplicaId]) -> ReplicaId | None:
    """Return the replica that plans a table, of those that can; None if no replica can."""
    return max(replicas, key=lambda replica: (_weight(table, replica), replica), default=None)


def _weight(table: TableId, replica: ReplicaId) -> int:
    return xxhash.xxh3_64_intdigest(f"{replica}/{table}".encode())


def plan(parts: Iterable[Candidate], limits: Limits, *, thorough: bool = False) -> list[Group]:
    """Return the groups that are worth merging now; no part is in two of them. The fullest partition first.

    Args:
        parts: The parts of one table.
        limits: The bounds of a group.
        thorough: Merge until every partition has at most one part below target size in each era, at any
            cost.
    """
    groups: list[tuple[int, Group]] = []
    for (path, _), small in _small_by_place(parts, limits).items():
        least = _PAIR if thorough or _quiet_in_s(small, limits) <= 0 else limits.parts_min
        growth = 1 if thorough else GROWTH
        groups += [(len(small), _group(path, run)) for run in _runs(small, limits, least, growth)]
    groups.sort(key=lambda item: (-item[0], item[1].path, item[1].parts))
    return [group for _, group in groups]


def quiet_in_s(parts: Iterable[Candidate], limits: Limits) -> float | None:
    """Return when the next partition (or era) of several small parts becomes quiet; None if all are quiet."""
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
    """Yield runs that are worth merging: the longest that begins with the smallest part, then the next ones.

    ``small`` is in ascending order, so the largest part of a run is its last one.
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
