"""The faults of a run as bands in time, out of its journal, and when commits were promised. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from chaos.faults.fault import Fault
from chaos.planning.tolerance import Act, Shape, demands_commits

#: A node that comes back may still answer with what happened to it before, in ns.
AFTERMATH_NS: Final = 5_000_000_000
#: The moment of what has not ended.
_NEVER: Final = 1 << 63
#: Lines of the journal that are about one fault.
_ABOUT: Final = frozenset({"begin", "proof", "spared", "end", "well"})


@dataclass(frozen=True, slots=True)
class Band:
    """One fault of a run.

    Attributes:
        fault: Its number.
        kind: Its kind.
        targets: The nodes.
        begin_ns: When it began, by the clock of the journal.
        end_ns: When it was healed; after all time if it never was.
        well_ns: When its targets served again, likewise.
        proof: What has proven its effect.
    """

    fault: int
    kind: str
    targets: tuple[str, ...]
    begin_ns: int
    end_ns: int = _NEVER
    well_ns: int = _NEVER
    proof: str | None = None


def bands(lines: Iterable[Mapping[str, Any]]) -> list[Band]:
    """Return the faults of a journal in the order of their begins."""
    found: dict[int, Band] = {}
    for line in lines:
        if line["what"] not in _ABOUT:
            continue
        number = line["fault"]
        match line["what"]:
            case "begin":
                found[number] = Band(number, line["kind"], tuple(line["targets"]), line["ns"])
            case "proof":
                found[number] = replace(found[number], proof=found[number].proof or line["proof"])
            case "spared":  # it has found nothing to harm
                found.pop(number, None)
            case "end":
                found[number] = replace(found[number], end_ns=line["ns"])
            case "well":
                found[number] = replace(found[number], well_ns=line["ns"])
    return list(found.values())


def at(moments: Sequence[Band], ns: int, *, aftermath_ns: int = AFTERMATH_NS) -> list[Band]:
    """Return the bands that a moment lies in, or not long after."""
    return [band for band in moments if band.begin_ns <= ns <= band.well_ns + aftermath_ns]


def acts_of(moments: Sequence[Band], kinds: Sequence[type[Fault]]) -> Mapping[int, Act]:
    """Return what each fault did, by its number; KeyError if a kind does not exist any more."""
    known = {kind.kind: kind for kind in kinds}
    return {band.fault: Act.of(known[band.kind], band.targets) for band in moments}


def shapes(lines: Iterable[Mapping[str, Any]]) -> list[tuple[int, Shape]]:
    """Return what the cluster was from which moment on, by the lines `run` and `members`."""
    found: list[tuple[int, Shape]] = []
    for line in lines:
        if line["what"] == "run":
            names = (tuple(line["replicas"]), tuple(line["zookeepers"]))
            found.append((line["ns"], Shape(*names, line["copies"])))
        elif line["what"] == "members":
            found.append((line["ns"], replace(found[-1][1], replicas=tuple(line["replicas"]))))
    return found


def calm(moments: Iterable[Band], begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Return the spans of time between two moments in which no fault acted."""
    spans, calm_from_ns = [], begin_ns
    for band in sorted(moments, key=lambda band: band.begin_ns):
        if calm_from_ns < min(band.begin_ns, end_ns):
            spans.append((calm_from_ns, min(band.begin_ns, end_ns)))
        calm_from_ns = max(calm_from_ns, band.well_ns)
    if calm_from_ns < end_ns:
        spans.append((calm_from_ns, end_ns))
    return spans


def promised(
    cluster: Sequence[tuple[int, Shape]], moments: Sequence[Band], acts: Mapping[int, Act], end_ns: int
) -> list[tuple[int, int]]:
    """Return the spans of time in which commits were promised; spans that meet are one.

    Args:
        cluster: What the cluster was from which moment on, as `shapes` returns it.
        moments: The faults.
        acts: What each of them does, by its number.
        end_ns: Until here.
    """
    begin_ns = cluster[0][0]
    edges = {begin_ns, end_ns, *(ns for ns, _ in cluster)}
    edges |= {edge for band in moments for edge in (band.begin_ns, band.well_ns)}
    ordered = sorted(edge for edge in edges if begin_ns <= edge <= end_ns)
    spans: list[tuple[int, int]] = []
    for begin, end in itertools.pairwise(ordered):
        [*_, (_, shape)] = [one for one in cluster if one[0] <= begin]
        acting = [acts[band.fault] for band in moments if band.begin_ns < end and band.well_ns > begin]
        if not demands_commits(shape, acting):
            continue
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
    return spans
