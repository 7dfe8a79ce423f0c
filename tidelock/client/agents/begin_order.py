"""The order of begins: a transaction whose begin waits begins before its thread sends anything else.

So a thread sees no difference to a begin that leaves at once: what it commits, creates or reads after
`begin()`, with whichever client of its process, comes after the snapshot of the transaction. Threads and
processes are not ordered among each other by this; `Database.begin` says how a program orders them.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol


class WaitingBegin(Protocol):
    """A transaction whose begin waits."""

    def begin_first(self) -> None:
        """Begin, unless it has begun or ended meanwhile. Never raises an error of Tidelock."""


class _Line(threading.local):
    """The begins that wait, of one thread."""

    def __init__(self) -> None:
        self.waiting: dict[weakref.ref[WaitingBegin], None] = {}
        self.silent = False


_line = _Line()


def wait(begin: WaitingBegin) -> None:
    """Let a begin wait until it leaves, or this thread sends a request; it is held weakly."""
    waiting = _line.waiting
    waiting[weakref.ref(begin, lambda ref: waiting.pop(ref, None))] = None


def begin_all() -> None:
    """Send the begins that wait in this thread; called before each of its requests."""
    if _line.silent or not _line.waiting:
        return
    waiting = list(_line.waiting)
    _line.waiting.clear()  # the requests of the begins pass
    for ref in waiting:
        if (begin := ref()) is not None:
            begin.begin_first()


@contextlib.contextmanager
def unordered() -> Iterator[None]:
    """Send requests whose answers do not reach the program, and that change nothing: begins go on waiting."""
    before, _line.silent = _line.silent, True
    try:
        yield
    finally:
        _line.silent = before


def leave(begin: WaitingBegin) -> None:
    """Take a begin out of the line of this thread; harmless if it does not wait there."""
    _line.waiting.pop(weakref.ref(begin), None)
