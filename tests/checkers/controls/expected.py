"""The names under which each checker must report each control."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.checkers.controls.defective_store import Defect
from tests.checkers.levels import Level, Order


class Findings(NamedTuple):
    """The names that the checkers must report; nothing where a checker cannot see the anomaly."""

    by_timestamps: frozenset[str]
    black_box: frozenset[str]
    order: Order = Order.PROCESS
    level: Level = Level.SNAPSHOT


def _findings(
    by_timestamps: str, black_box: str, order: Order = Order.PROCESS, level: Level = Level.SNAPSHOT
) -> Findings:
    return Findings(frozenset(by_timestamps.split()), frozenset(black_box.split()), order, level)


#: For each file of tests/testdata/histories, all names that are reported: these and no others.
HISTORIES: Final = {
    "internal": _findings("INT", "internal"),
    "garbage-read": _findings("EXT", "garbage-read"),
    "duplicate-elements": _findings("EXT", "duplicate-elements"),
    "incompatible-order": _findings("EXT", "incompatible-order"),
    "dirty-write": _findings("EXT", "G0"),
    "aborted-read": _findings("ABORT", "G1a"),
    "intermediate-read": _findings("EXT", "G1b"),
    "circular-information": _findings("EXT", "G1c"),
    "lost-update": _findings("NOCONFLICT", "lost-update"),
    "read-skew": _findings("EXT", "G-single"),
    "long-fork": _findings("EXT", "G-nonadjacent"),
    "write-skew": _findings("", "G2-item", level=Level.SERIALIZABLE),
    "session-goes-back": _findings("SESSION", "G-single-process"),
    "changed-before-commit": _findings("SERIAL", ""),
    "stale-read": _findings("REALTIME", "G-single-realtime", Order.REALTIME),
    "two-csns": _findings("CSN", ""),
    "replicas-differ": _findings("EXT AGREE", ""),
    "half-an-unknown": _findings("EXT", "G-single"),
}

#: For each defect of the store, the names that a few random histories must show; others may come with them.
DEFECTS: Final = {
    Defect.DIRTY_READ: _findings("EXT ABORT", "G1a G1c"),
    Defect.ABORT_LEAVES_ROWS: _findings("ABORT", "G1a"),
    Defect.HALF_A_COMMIT: _findings("EXT", "G1b"),
    Defect.FRACTURED_COMMIT: _findings("EXT", "G-single"),
    Defect.NO_CONFLICT_CHECK: _findings("NOCONFLICT", "lost-update"),
    Defect.NO_READ_CHECK: _findings("SERIAL", "G2-item", level=Level.SERIALIZABLE),
    Defect.READ_SKEW: _findings("INT EXT", "internal G-single"),
    Defect.LAGGING_REPLICA: _findings("EXT AGREE", "G-single-process"),
    Defect.LONG_FORK: _findings("EXT", "G-nonadjacent"),
    Defect.SWAPPED_ORDER: _findings("EXT AGREE", "incompatible-order"),
    Defect.DIRTY_WRITE: _findings("EXT", "G0"),
    Defect.TWO_CSNS: _findings("CSN", ""),
    Defect.CSN_OF_SNAPSHOT: _findings("CSN", "G-single-process"),
    Defect.SNAPSHOT_GOES_BACK: _findings("SESSION", "G-single-process"),
    Defect.STALE_FRESH_READ: _findings("REALTIME", "G-single-realtime", Order.REALTIME),
    Defect.LOST_COMMIT: _findings("EXT", "G-single-process"),
    Defect.DUPLICATE_APPEND: _findings("EXT", "duplicate-elements"),
    Defect.OWN_WRITES_UNSEEN: _findings("INT", "internal"),
    Defect.GARBAGE: _findings("EXT", "garbage-read"),
    Defect.HALF_AN_UNKNOWN: _findings("EXT", "G-single"),
}
