"""Threads that encode row groups of large inserts beside the threads that read them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final


class SpareEncoders:
    """Threads that all inserts of an agent share.

    No work waits for a thread: each piece of work holds the rows of a row group, so what waits would need
    memory without a bound. An insert that finds no idle thread does its work itself.

    Args:
        threads: Their number; 0: no thread is ever idle.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._idle = threading.Semaphore(threads)
        self._pool = ThreadPoolExecutor(max_workers=max(threads, 1), thread_name_prefix="row-group")

    def run(self, work: Callable[[], object]) -> Future[None] | None:
        """Begin some work, which may block, in an idle thread; None, and nothing is done, if none is idle.

        The future raises what the work raised.
        """
        if not self._idle.acquire(blocking=False):
            return None
        return self._pool.submit(self._run, work)

    def close(self) -> None:
        """End the threads when their work is done; :meth:`run` must not be called any more."""
        self._pool.shutdown(wait=False)

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            self._idle.release()


#: For work that the calling thread does itself.
NO_SPARE: Final = SpareEncoders(0)
