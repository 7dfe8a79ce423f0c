"""Decides on the system calls of one agent: it counts them, and kills the agent or fails the call at one.

All calls of the agent's own process count, whichever thread makes them; those of its workers do not. They
are taken one after the other, so the n-th is one certain call, and no other call of the agent passes before
the decision.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import select
import signal
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.chaos import seccomp


@dataclass(frozen=True, slots=True)
class Call:
    """A system call of an agent; ``subject`` is a path or the object of its descriptor."""

    name: str
    subject: str

    def __str__(self) -> str:
        return f"{self.name}({self.subject})"


#: Calls of one sort that are struck at most.
_ALIKE: Final = 12


def census(calls: Iterable[Call]) -> str:
    """Return the number of calls of each sort: ``4 fdatasync of catalog.db-wal, 1 fsync of *.pack``."""
    sorts = Counter(f"{call.name} of {_sort(call.subject)}" for call in calls)
    return ", ".join(f"{count} {sort}" for sort, count in sorts.items())


def _sort(subject: str) -> str:
    """Return the sort of a call: a file's name, without the numbers that differ from commit to commit."""
    name = Path(subject).name.partition(":")[0]
    return re.sub(r"^(?:r\d+-\d+-\d+|\d+)(?=\.|$)", "*", name).rstrip(".0123456789")


def chosen(passed: Sequence[Call], seed: int) -> Iterator[int]:
    """Yield the numbers of the calls to strike at, from 1, and some above those that were counted.

    Calls of one sort come in long rows: pages of a log, packs of a start. Of such a row its ends are struck,
    and some within, which the seed draws. Each call of any other sort is struck.
    """
    rows: dict[str, list[int]] = defaultdict(list)
    for number, call in enumerate(passed, 1):
        rows[f"{call.name} of {_sort(call.subject)}"].append(number)
    drawn, ends = random.Random(seed), _ALIKE // 3
    found: list[int] = []
    for row in rows.values():
        inner = row[ends:-ends]
        found += row if len(row) <= _ALIKE else [*row[:ends], *drawn.sample(inner, ends), *row[-ends:]]
    return itertools.chain(sorted(found), range(len(passed) + 1, len(passed) + 1 + ends))


def _every(_: Call) -> bool:
    return True


@dataclass(slots=True)
class Trap:
    """The fate of the n-th call of a kind.

    Attributes:
        kind: One of `seccomp.KINDS`.
        at: The number n of the call, from 1; 0 = the calls are only counted.
        error: The errno of the call's answer, 0 = as if it were done; None = the agent is killed before it.
        lasting: Whether all later calls end in the same way.
        about: Which calls count.
        passed: The number of calls that have counted, the n-th included.
        hit: The n-th call, once it was made.
    """

    kind: str
    at: int
    error: int | None = None
    lasting: bool = False
    about: Callable[[Call], bool] = _every
    passed: list[Call] = field(default_factory=list)
    hit: Call | None = None

    def springs(self, call: Call) -> bool:
        """Count a call; return whether the call is to fail or kill."""
        if not self.about(call):
            return False
        self.passed.append(call)
        if self.at and len(self.passed) == self.at:
            self.hit = call
            return True
        return self.lasting and self.hit is not None


class Supervisor:
    """A thread that supervises each process that is started through its socket.

    Args:
        address: The address of the socket, for `tests.chaos.launcher`.
    """

    def __init__(self, address: Path) -> None:
        self.address = address
        self._trap: Trap | None = None
        self._lock = threading.Lock()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(address))
        self._server.listen()
        self._closed, self._closing = os.pipe()
        self._threads = [threading.Thread(target=self._accept, name=f"supervisor {address.name}")]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop answering calls; from now on they fail with ENOSYS."""
        os.close(self._closing)
        for thread in self._threads:
            thread.join()
        self._server.close()
        os.close(self._closed)

    @contextlib.contextmanager
    def armed(self, trap: Trap) -> Iterator[Trap]:
        """Count calls inside the block, and let one of them fail or kill the agent."""
        with self._lock:
            self._trap = trap
        try:
            yield trap
        finally:
            with self._lock:
                self._trap = None

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._server.fileno(), self._closed], [], [])
            if self._closed in ready:
                return
            connection, _ = self._server.accept()
            with connection:
                pid, listeners, _, _ = socket.recv_fds(connection, 32, 1)
            for listener in listeners:
                thread = threading.Thread(
                    target=self._serve, args=(int(pid), listener), name=f"calls {int(pid)}"
                )
                self._threads.append(thread)
                thread.start()

    def _serve(self, pid: int, listener: int) -> None:
        """Answer the calls of a process and of its children until all have ended, or the filter is gone."""
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._closed, 0)
        try:
            while True:
                events = dict(poll.poll())
                if not events.get(listener, 0) & select.POLLIN:
                    return
                try:
                    notification = seccomp.receive(listener)
                except FileNotFoundError:
                    continue
                self._decide(pid, listener, notification)
        finally:
            os.close(listener)

    def _decide(self, pid: int, listener: int, notification: seccomp.Notification) -> None:
        with self._lock:
            trap = self._trap
            if trap is None or not (
                _counts(trap, notification, pid) and trap.springs(_call(notification, pid))
            ):
                seccomp.let_go(listener, notification)
            elif trap.error is None:
                os.kill(pid, signal.SIGKILL)
            else:
                seccomp.answer(listener, notification, error=trap.error)


def _counts(trap: Trap, notification: seccomp.Notification, pid: int) -> bool:
    """Return whether a call is of a trap's kind, and made by a thread of the agent itself."""
    ours = notification.name in seccomp.KINDS[trap.kind]
    return ours and Path(f"/proc/{pid}/task/{notification.thread}").exists()


def _call(notification: seccomp.Notification, pid: int) -> Call:
    return Call(notification.name, seccomp.subject(notification, pid))
