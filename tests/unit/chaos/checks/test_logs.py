"""The checks of logs: they fail at what must not happen, and at a replica that is outvoted."""

from __future__ import annotations

import json

import pytest

from chaos import faults
from chaos.checks.logs import disks_hurt, unforeseen
from chaos.checks.outvoted import disagreements, flipped
from chaos.reading.bands import bands
from tests.unit.chaos.lines import fault


def event(name: str, **fields: object) -> str:
    """Return a line of a log."""
    return json.dumps({"event": name, "level": "error", "replica": "r1", **fields})


@pytest.mark.parametrize(
    "line",
    [
        event("machine_broken", reason="two records of one CSN"),
        event("request_failed", request="GET /status"),
        event("peer_lost", exception="Traceback (most recent call last): ..."),
        event("whatever", level="critical"),
        "Traceback (most recent call last):",
    ],
)
def test_what_must_never_happen_is_found_in_a_log(line: str) -> None:
    """Beside lines that tell of faults which an agent has foreseen."""
    assert unforeseen([event("peer_lost", reason="no answer"), line, '{"event": "cut in the mid']) == [line]


def test_a_replica_whose_disk_was_damaged_may_stop() -> None:
    """It is right to stop with the error of its disk; another replica may not do that."""
    stopped = event("stopped", exception="sqlite3.DatabaseError: database disk image is malformed")
    broken = event("machine_broken", reason="two records of one CSN")
    assert unforeseen([stopped, broken], disk_hurt=True) == [broken]
    assert unforeseen([stopped]) == [stopped]
    lines = [*fault(1, "catalog damaged", ["r4"], 1, 2, 3), *fault(2, "killed", ["r1"], 1, 2, 3)]
    assert disks_hurt(bands(lines), faults.ALL) == {"r4"}


def test_a_disagreement_is_told_unless_bytes_were_damaged() -> None:
    """The replica whose bytes were flipped may differ; the others may not."""
    line = event("states_disagree", others=["r2", "r3"], outvoted=True, csn=7, tables=["bank"])
    lines = [event("states_agree"), "states_disagree, cut", line]
    [found] = disagreements("r1", lines, [])
    assert line in found.story
    assert disagreements("r1", lines, ["r3"]) == []
    assert disagreements("r1", lines, ["r1"]) == []
    assert len(disagreements("r1", lines, ["r4"])) == 1


def test_only_flipped_bits_excuse_a_replica_that_differs() -> None:
    """A replica that was killed, or whose disk was full, has to show what the others do."""
    lines = [
        *fault(1, "bit flip in a part", ["r1"], 1, 2, 3),
        *fault(2, "bit flip in a pack", ["r2"], 1, 2, 3),
        *fault(3, "disk full", ["r3"], 1, 2, 3),
        *fault(4, "killed", ["r4"], 1, 2, 3),
    ]
    assert flipped(bands(lines), faults.ALL) == {"r1", "r2"}
