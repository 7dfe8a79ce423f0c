"""The client processes, one for each replica, as the demo drives them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from tidelock.demo import history
from tidelock.demo.client_process import Setup
from tidelock.demo.failure import DemoError

#: How long a client process may take to end when its standard input has, in seconds; then it is killed.
END_GRACE_S: Final = 10.0
_LOG_TAIL_LINES: Final = 3


class Clients:
    """Client processes, each with writers of one replica; a context manager that ends them.

    Args:
        setups: One for each process. All have the same folder of histories.
        folder: Where their error output goes.
    """

    def __init__(self, setups: Sequence[Setup], folder: Path) -> None:
        self._history = Path(setups[0].history)
        self._history.mkdir(parents=True, exist_ok=True)
        self._processes: list[_Process] = []
        self.sent_again = 0
        self.asked = 0
        try:
            for setup in setups:
                self._processes.append(_Process(setup, folder / f"client-{setup.replica}.log"))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def commits(self) -> int:
        """How many commits the writers were told of so far."""
        return history.count(self._history)

    def start(self, writers: int, *, interval_s: float, calm_after_s: float, calm_interval_s: float) -> None:
        """Let so many writers, the same number in each process, write at a pace (see `writer.Pace`)."""
        for index, process in enumerate(self._processes):
            process.tell(
                do="start",
                writers=list(range(index, writers, len(self._processes))),
                interval_s=interval_s,
                calm_after_s=calm_after_s,
                calm_interval_s=calm_interval_s,
            )

    def rest(self) -> None:
        """Return when every writer has finished its batch; DemoError when one has failed."""
        for process in self._processes:
            process.tell(do="rest")
        for process in self._processes:
            self._count(process.answer())

    def burst(self, replica: str, first_writer: int, writers: int, batches: int) -> None:
        """Commit so many batches by so many writers of a replica, wave by wave; DemoError when one fails."""
        [process] = [process for process in self._processes if process.replica == replica]
        numbers = list(range(first_writer, first_writer + writers))
        process.tell(do="burst", writers=numbers, batches=batches)
        self._count(process.answer())

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.end()

    def _count(self, answer: Mapping[str, int]) -> None:
        self.sent_again += answer["sent_again"]
        self.asked += answer["asked"]


class _Process:
    """One client process."""

    def __init__(self, setup: Setup, log: Path) -> None:
        self.replica = setup.replica
        self._log = log
        with log.open("wb") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tidelock.demo.client_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._input: IO[str] = self._child.stdin
        self._output: IO[str] = self._child.stdout
        self._send(asdict(setup))

    def tell(self, **order: Any) -> None:
        """Send a command."""
        self._send(order)

    def answer(self) -> Mapping[str, int]:
        """Wait for the answer to a command; DemoError when the process has ended instead."""
        line = self._output.readline()
        if not line:
            raise self._failed()
        answer: dict[str, int] = json.loads(line)
        return answer

    def end(self) -> None:
        """Close its standard input, upon which it ends; kill it if it does not."""
        for stream in (self._input, self._output):
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                stream.close()
        try:
            self._child.wait(END_GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _send(self, fields: Mapping[str, Any]) -> None:
        try:
            self._input.write(json.dumps(fields) + "\n")
            self._input.flush()
        except BrokenPipeError as error:
            raise self._failed() from error

    def _failed(self) -> DemoError:
        self._child.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = " | ".join(lines[-_LOG_TAIL_LINES:]) or "it said nothing"
        return DemoError(f"the clients of {self.replica} have ended: {said}")
