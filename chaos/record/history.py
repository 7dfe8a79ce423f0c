"""Writes histories in the operation format of Elle: JSON lines. Imports nothing of the product.

    {"index":7,"type":"ok","f":"txn","process":3,"time":12,"value":[["append","a/17",5],["r","a/2",[1,4]]]}

``type`` is ``invoke``, ``ok``, ``fail`` (certainly not done) or ``info`` (unknown); ``time`` is in ns of the
monotonic clock. A last line repeats what its first line asked for, with the reads filled, and what was told
besides: ``tid``, ``snapshot``, ``csn``, ``replica``, ``fresh``, and whatever else its workload judges by.
`tests/checkers/operations.py` reads lines whose ``f`` is ``txn``; lines of any other ``f`` are for the judge
of their workload alone.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

#: A micro-operation: its name, a key, and an element, a list, or None.
Operation = list[Any]

TXN: Final = "txn"


class History:
    """Writes one history; any number of threads may use it.

    A line is handed to the kernel before the call returns, so the history outlives its process.

    Args:
        path: The file, which must not exist; its folder is made.
        clock_ns: The monotonic clock.

    Raises:
        FileExistsError: The file exists.
    """

    def __init__(self, path: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("x", buffering=1, encoding="utf-8")
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._index = itertools.count()
        self._processes = itertools.count()

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def process(self) -> Process:
        """Return a process with a number of its own."""
        return Process(self)

    def number(self) -> int:
        """Return a number that no process has."""
        with self._lock:
            return next(self._processes)

    def line(self, kind: str, f: str, process: int, value: Sequence[Operation], facts: dict[str, Any]) -> int:
        """Write one line; return its moment in ns. Facts that are None are left out."""
        given = {name: fact for name, fact in facts.items() if fact is not None}
        with self._lock:
            ns = self._clock_ns()
            line = {"index": next(self._index), "type": kind, "f": f, "process": process, "time": ns}
            text = json.dumps({**line, "value": value, **given}, ensure_ascii=False, separators=(",", ":"))
            self._file.write(text + "\n")
        return ns


class Process:
    """One process of a history: operations one after the other, by one thread.

    After an operation of unknown end it has another number, as the format demands.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._f = TXN
        self.number = history.number()

    def anew(self) -> None:
        """Take another number: what comes now need not contain what was seen before."""
        self.number = self._history.number()

    def invoke(self, value: Sequence[Operation], f: str = TXN) -> int:
        """Write that an operation begins; return the moment in ns."""
        self._f = f
        return self._history.line("invoke", f, self.number, value, {})

    def ok(self, value: Sequence[Operation], **facts: Any) -> None:
        """Write that the operation was done, with its reads filled."""
        self._history.line("ok", self._f, self.number, value, facts)

    def fail(self, value: Sequence[Operation], **facts: Any) -> None:
        """Write that the operation was certainly not done."""
        self._history.line("fail", self._f, self.number, value, facts)

    def info(self, value: Sequence[Operation], **facts: Any) -> None:
        """Write that nobody knows whether the operation was done."""
        self._history.line("info", self._f, self.number, value, facts)
        self.anew()


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a history; a torn last line, of a process that was killed, is left out."""
    with path.open(encoding="utf-8", errors="replace") as texts:
        for text in texts:
            if text.endswith("\n"):
                yield json.loads(text)


def ended(all_lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the last line of each operation with ``invoked`` (ns); without one it counts as ``info``."""
    opened: dict[int, dict[str, Any]] = {}
    for line in all_lines:
        if line["type"] == "invoke":
            opened[line["process"]] = line
        else:
            yield {**line, "invoked": opened.pop(line["process"])["time"]}
    for line in opened.values():
        yield {**line, "type": "info", "invoked": line["time"]}
