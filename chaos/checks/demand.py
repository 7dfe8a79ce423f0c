"""Commits went on whenever enough was well."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from chaos import faults
from chaos.checks.check import Check
from chaos.planning.tolerance import Act
from chaos.reading.bands import Band, acts_of, bands, promised, shapes
from chaos.record.journal import load
from chaos.record.violation import Violation
from chaos.world import World

#: Time from a change of what is well until commits are demanded, in seconds: a new leader of ZooKeeper, and
#: the end of the sessions of those that are away.
GRACE_S: Final = 10.0


class Demand(Check):
    """Clients commit while `copies` replicas and a majority of ZooKeeper are well (I14)."""

    name: ClassVar[str] = "demanded commits"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        lines = list(load(world.journal.path))
        return stalls(lines, acts_of(bands(lines), faults.ALL), stall_max_s=world.stall_max_s)


def stalls(
    lines: Sequence[Mapping[str, Any]],
    acts: Mapping[int, Act],
    *,
    stall_max_s: float,
    grace_s: float = GRACE_S,
) -> list[Violation]:
    """Return the times without a commit that are too long. Pure.

    Args:
        lines: The journal; commits are demanded between the phases `faults` and `heal`.
        acts: What each fault did, by its number.
        stall_max_s: The bound.
        grace_s: So long nothing is demanded after enough is well again.
    """
    moments = bands(lines)
    begin_ns = _phase(lines, "faults")
    end_ns = _phase(lines, "heal")
    if begin_ns is None or end_ns is None:
        return []
    commits = sorted(
        line["ns"]
        for line in lines
        if line["what"] == "call" and line["f"] == "write" and line["end"] == "ok"
    )
    found = []
    for span in promised(shapes(lines), moments, acts, end_ns):
        begin, end = max(span[0], begin_ns) + int(grace_s * 1e9), span[1]
        if begin >= end:
            continue
        points = [begin, *(ns for ns in commits if begin < ns < end), end]
        for before, after in itertools.pairwise(points):
            if after - before > stall_max_s * 1e9:
                found.append(_violation(before, after, moments))
    return found


def _violation(before: int, after: int, moments: Iterable[Band]) -> Violation:
    acting = [
        f"{band.kind} at {', '.join(band.targets)}"
        for band in moments
        if band.begin_ns < after and band.well_ns > before
    ]
    story = (
        f"no commit was acknowledged for {(after - before) / 1e9:.1f} s although enough was well; "
        f"meanwhile: {'; '.join(acting) or 'nothing'}"
    )
    return Violation(Demand.name, "I14 LIVE: commits go on", story, before)


def _phase(lines: Iterable[Mapping[str, Any]], name: str) -> int | None:
    return next((line["ns"] for line in lines if line["what"] == "phase" and line["name"] == name), None)
