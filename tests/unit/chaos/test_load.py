"""Clients in their threads: an error that leaves a step is a violation, with the faults around it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from chaos.load import Load
from chaos.record.journal import Journal, load
from chaos.record.violation import Violation
from chaos.record.violations import Violations
from chaos.workloads.workload import Client, Workload
from chaos.world import World
from tidelock.client import Database


class Stepping(Client):
    """A client that counts its steps, and fails at one of them."""

    def __init__(self, fails_at: int | None) -> None:
        self.steps, self.closed = 0, False
        self._fails_at = fails_at
        self.several = threading.Event()

    def step(self) -> None:
        """Count."""
        self.steps += 1
        if self.steps == self._fails_at:
            raise OSError("no user has to bear this")
        if self.steps > 3:
            self.several.set()

    def close(self) -> None:
        """Take note."""
        self.closed = True


class Counting(Workload):
    """Clients that are given."""

    name = "counting"
    promise = "It counts."

    def __init__(self, world: World, *clients: Client) -> None:
        super().__init__(world)
        self._clients = clients

    def prepare(self, db: Database) -> None:
        """Nothing to do."""

    def clients(self) -> Sequence[Client]:
        """Return the clients."""
        return self._clients

    def judge(self, db: Database) -> Sequence[Violation]:
        """Find nothing."""
        return []


def test_an_error_that_leaves_a_step_is_a_violation(tmp_path: Path) -> None:
    """Its client ends, the others go on; all are closed at the end."""
    with Journal(tmp_path / "journal.jsonl") as journal:
        world = World(cast("Any", None), tmp_path, journal, 1, 2, 15.0)
        journal.note("begin", fault=4, kind="killed", targets=["r1"])
        violations = Violations(journal)
        failing, going = Stepping(2), Stepping(None)
        counting = Counting(world, failing, going)
        clients = Load(world, [counting], violations)
        assert going.several.wait(30.0)
        clients.end()
        clients.end()  # as after an interruption
        counting.history.close()
    assert (failing.steps, failing.closed, going.closed) == (2, True, True)
    [found] = violations.found
    assert (found.check, found.claim) == ("counting", "users need not bear this error")
    assert "OSError: no user has to bear this" in found.story
    [told] = [line for line in load(tmp_path / "journal.jsonl") if line["what"] == "violation"]
    assert (told["fault"], told["check"]) == ([4], "counting")
