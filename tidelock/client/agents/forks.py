"""Behaviour of a client when its process forks (multiprocessing, Spark's Python workers).

A child inherits sockets and locks, but no threads. Sharing a socket would mix two processes' answers, and a
lock may be held by a thread that the child does not have. So every object that holds sockets, locks or
threads is registered here and replaces them in the child. Transactions and snapshots remain with the parent,
whose heartbeat keeps them alive. A child may use them, but it does not keep them alive itself.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object that cannot be shared with a child process."""

    def after_fork(self) -> None:
        """Reset the object in the child, without waiting for anything of the parent."""


_registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def register(item: ForkAware) -> None:
    """Call `item.after_fork()` in every child that this process forks, as long as the item exists."""
    _registered.add(item)


def _after_fork() -> None:
    for item in list(_registered):
        item.after_fork()


os.register_at_fork(after_in_child=_after_fork)
