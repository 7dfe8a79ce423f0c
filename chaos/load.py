"""The clients of all workloads, each in a thread of its own."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Final

from chaos.record.violation import Violation
from chaos.record.violations import Violations
from chaos.workloads.workload import Client, Workload
from chaos.world import World

#: How long a client may need for its last step, in seconds: the longest wait of a client for an answer.
_END_S: Final = 120.0


class Load:
    """All clients of a run, which begin at once.

    Args:
        world: The run.
        workloads: They are prepared.
        violations: Takes what ends a client before its time.
    """

    def __init__(self, world: World, workloads: Sequence[Workload], violations: Violations) -> None:
        self._world, self._violations = world, violations
        self._threads: list[tuple[threading.Thread, Workload]] = []
        for workload in workloads:
            for number, client in enumerate(workload.clients()):
                thread = threading.Thread(
                    target=self._run,
                    args=(workload, client),
                    name=f"{workload.name}-{number}",
                    daemon=True,
                )
                self._threads.append((thread, workload))
        for thread, _ in self._threads:
            thread.start()

    def _run(self, workload: Workload, client: Client) -> None:
        try:
            while not self._world.stopping.is_set():
                client.step()
        except Exception:
            self._tell(workload, "users need not bear this error", traceback.format_exc())
        finally:
            try:
                client.close()
            except Exception:
                self._tell(workload, "a client ends", traceback.format_exc())

    def _tell(self, workload: Workload, claim: str, story: str) -> None:
        self._violations.add(Violation(workload.name, claim, story, time.monotonic_ns()))

    def end(self) -> None:
        """Let all clients end, and wait for them; one that does not end is a violation."""
        self._world.stopping.set()
        deadline = time.monotonic() + _END_S
        threads, self._threads = self._threads, []
        for thread, workload in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive() and thread.ident is not None:
                frame = sys._current_frames().get(thread.ident)  # noqa: SLF001 - the documented way to see it
                where = "".join(traceback.format_stack(frame))
                self._tell(
                    workload, "a client ends", f"{thread.name} has not ended after {_END_S:.0f} s:\n{where}"
                )
