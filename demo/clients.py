"""The client processes, one for each replica, as the demo drives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from demo.client_process import Setup
from demo.failure import DemoError
from workloads.child import Child, ChildEndedError
from workloads.history import count_ok

#: Seconds that a client process may take to end after the end of its input; then it is killed.
END_GRACE_S: Final = 10.0


class ClientProcesses:
    """Client processes, each with writers of one replica; a context manager that ends them.

    Args:
        setups: One for each process. All write one history.
        folder: Where their error output goes.
    """

    def __init__(self, setups: Sequence[Setup], folder: Path) -> None:
        self._history = Path(setups[0].history)
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

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def commits(self) -> int:
        """Return how many commits were reported to the writers so far."""
        return count_ok(self._history)

    def start(self, writers: int, *, interval_s: float, calm_after_s: float, calm_interval_s: float) -> None:
        """Let a number of writers, equal in each process, write at a pace (see `writer.WriterPace`)."""
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
        """Commit a number of batches by writers of a replica, wave by wave; DemoError if one fails."""
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
        self._child = Child("demo.client_process", log=log)
        self.tell(**asdict(setup))

    def tell(self, **order: Any) -> None:
        """Send a command; DemoError when the process has ended."""
        with self._explained():
            self._child.send(order)

    def answer(self) -> Mapping[str, int]:
        """Wait for the answer to a command; DemoError when the process has ended instead."""
        with self._explained():
            answer: dict[str, int] = self._child.receive()
            return answer

    def end(self) -> None:
        """Close the standard input of the process, which then ends; kill it if it does not."""
        self._child.end(END_GRACE_S)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ChildEndedError as error:
            raise DemoError(f"the clients of {self.replica} have ended: {error}") from error
