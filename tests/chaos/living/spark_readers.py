"""Spark sessions that read the tables of a load beside its own clients, each in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.histories.workload import Workload
from tests.support.spark.process import SparkJobError, SparkProcess
from workloads.history import CallEnd

_PAUSE_S: Final = 0.5


class SparkReaders:
    """Sessions that read while a load runs; a context manager that ends them.

    Args:
        folder: For the logs of the sessions.
        number: How many sessions.
    """

    def __init__(self, folder: Path, number: int) -> None:
        folders = [folder / f"spark{which}" for which in range(number)]
        for one in folders:
            one.mkdir(parents=True)
        self._sessions = [SparkProcess("retrying", one) for one in folders]
        self._errors: list[BaseException] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions:
            session.close()

    @contextmanager
    def reading(self, load: Workload) -> Iterator[None]:
        """Read both tables of a load again and again inside the block, and note each read in its history."""
        over = threading.Event()
        threads = [
            threading.Thread(target=self._read, args=(session, f"{load.name}-s{which}", load, over))
            for which, session in enumerate(self._sessions)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _read(self, session: SparkProcess, process: str, load: Workload, over: threading.Event) -> None:
        joined = False
        try:
            while not over.wait(_PAUSE_S):
                load.recorder.note("invoke", "read", process)
                try:
                    if not joined:
                        session.call("join", url=load.cluster.urls)
                        joined = True
                    found = session.call("balances", tables=load.tables)
                except SparkJobError as error:
                    load.recorder.note(CallEnd.FAIL, "read", process, error=str(error).splitlines()[0])
                else:
                    load.recorder.note(CallEnd.OK, "read", process, replica="Spark, any", **found)
        except BaseException as error:
            self._errors.append(error)
