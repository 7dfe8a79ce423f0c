"""History is kept: no CSN was refused as too old before its time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

from chaos.checks.check import Check
from chaos.record.journal import load
from chaos.record.violation import Violation
from chaos.world import World
from tidelock.errors import SnapshotTooOldError
from tidelock.replica_agent.snapshots.retention_clock import RATE_MAX


class History(Check):
    """A CSN can be read until it is as old as the history, whatever happens to clocks (I12)."""

    name: ClassVar[str] = "history"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        return forgotten(load(world.journal.path))


def forgotten(lines: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return the CSNs that were refused as too old, and were not. Pure.

    A CSN is younger than the begin of any commit that got it or an earlier one. The clock by which replicas
    forget goes at most `RATE_MAX` times as fast as time, so that share of the history has to pass.

    Args:
        lines: The lines of a journal; the line ``run`` has the length of the history in seconds.
    """
    history_s = 0.0
    began: list[tuple[int, int]] = []
    refused = []
    for line in lines:
        if line["what"] == "run":
            history_s = line["history_s"]
        elif line["what"] == "call" and line.get("csn") is not None:
            if line["f"] == "write" and line["end"] == "ok":
                began.append((line["csn"], line["began_ns"]))
            elif line.get("error") == SnapshotTooOldError.__name__:
                refused.append(line)
    began.sort()
    csns = [csn for csn, _ in began]
    latest = [*accumulate((began_ns for _, began_ns in began), max)]
    found = []
    for line in refused:
        earlier = bisect_right(csns, line["csn"])
        if not earlier:  # nobody knows when it was made
            continue
        age_s = (line["ns"] - latest[earlier - 1]) / 1e9
        if age_s < history_s / RATE_MAX:
            story = (
                f"CSN {line['csn']} was at most {age_s:.1f} s old, and {history_s:g} s are kept: "
                f"{line.get('message', '')}"
            )
            found.append(Violation(History.name, "I12 GC-SAFE: history is kept", story, line["ns"]))
    return found
