"""Child processes that run a module and exchange lines of JSON over standard input and output.

The parent uses :class:`Child`; the module in the child reads :func:`requests` and calls :func:`answer`.
The child ends at the end of its standard input, also if the parent has died.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Final

_LOG_TAIL_LINES: Final = 3


class ChildEndedError(Exception):
    """The child has ended instead of answering; the message has the last lines of its log."""


class Child:
    """A process of Python, by default of this one, that runs a module.

    Args:
        module: Its import name.
        arguments: Its command line.
        python: The command that starts its Python, which may be in a container.
        log: Where its standard error is added; None = it is that of this process.
        folder: Its working directory; None = that of this process.
        env: Its environment; None = that of this process.
        own_session: Whether it leads a session, and so a process group, of its own.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: Sequence[str] = (sys.executable,),
        log: Path | None = None,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        own_session: bool = False,
    ) -> None:
        self.log = log
        with contextlib.ExitStack() as opened:
            self.process: Final = subprocess.Popen(
                [*python, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=opened.enter_context(log.open("ab")) if log else None,
                text=True,
                cwd=folder,
                env=env,
                start_new_session=own_session,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input: IO[str] = self.process.stdin
        self._output: IO[str] = self.process.stdout

    def send(self, message: Any) -> None:
        """Send one line; ChildEndedError if the child does not read any more."""
        try:
            self._input.write(json.dumps(message) + "\n")
            self._input.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def receive(self) -> Any:
        """Wait for one line and return its content; ChildEndedError if the process ends instead."""
        line = self._output.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def end_input(self) -> None:
        """Close the child's standard input; the child should then end."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._input.close()

    def end(self, grace_s: float) -> None:
        """Close its standard input, wait until it has ended, kill it when that takes longer."""
        self.end_input()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.reap()

    def kill(self) -> None:
        """SIGKILL; harmless when it has ended."""
        self.process.kill()
        self.reap()

    def reap(self) -> None:
        """Wait for the end of a child that was asked to end, and close both pipes."""
        self.end_input()
        self.process.wait()
        self._output.close()

    def _ended(self) -> ChildEndedError:
        code = self.process.wait()
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log else []
        said = " | ".join(lines[-_LOG_TAIL_LINES:]) or "it said nothing"
        return ChildEndedError(f"the process has ended with exit code {code}: {said}")


def requests() -> Iterator[Any]:
    """Yield the requests of the parent, line by line, until standard input ends; for the child."""
    while line := sys.stdin.readline():
        yield json.loads(line)


def serve(made: AbstractContextManager[object]) -> None:
    """Run jobs for the parent until standard input ends; for the child.

    A request is a line ``{"job", "args"}`` with the name of a method; the answer is ``{"result"}`` or
    ``{"error"}``, the name and the message of the exception.

    Args:
        made: Gives the object that has the methods. It may write to standard output, as Java does: answers go
            to a copy of the original descriptor.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with made as jobs:
        for request in requests():
            try:
                told = {"result": getattr(jobs, request["job"])(**request["args"])}
            except Exception as error:
                told = {"error": f"{type(error).__name__}: {error}"}
            answer(told, to=answers)


def answer(message: Any, *, to: IO[str] | None = None) -> None:
    """Send one line to the parent; for the child.

    Args:
        message: What JSON can hold; anything else is sent as text.
        to: A copy of standard output, where libraries write to the real one.
    """
    stream = to or sys.stdout
    stream.write(json.dumps(message, default=str) + "\n")
    stream.flush()
