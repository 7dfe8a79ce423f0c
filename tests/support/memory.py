"""The largest resident memory of processes while something runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import psutil

MIB: Final = 1 << 20
_INTERVAL_S: Final = 0.05


class Peaks:
    """Samples processes between entering and leaving the `with` block.

    Args:
        processes: The processes, by names for the report, without their children.

    Attributes:
        at_rest: Bytes at the beginning.
        largest: The largest number of bytes of all samples.
    """

    def __init__(self, processes: Mapping[str, psutil.Process]) -> None:
        self._processes = processes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory")
        self.at_rest = {name: int(process.memory_info().rss) for name, process in processes.items()}
        self.largest = dict(self.at_rest)

    @property
    def growth(self) -> dict[str, int]:
        """Return the largest growth of each process, in bytes."""
        return {name: self.largest[name] - before for name, before in self.at_rest.items()}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def __str__(self) -> str:
        told = (
            f"{name} {before // MIB} -> {self.largest[name] // MIB} MiB"
            for name, before in self.at_rest.items()
        )
        return ", ".join(told)

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            for name, process in self._processes.items():
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.largest[name] = max(self.largest[name], int(process.memory_info().rss))
