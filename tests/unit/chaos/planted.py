"""Histories that are planted into judges, good ones and bad ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.record.history import TXN, Operation


class Planted:
    """Lines of a history, one operation after the other."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._index = itertools.count()
        self._processes = itertools.count(100)

    def operation(
        self,
        value: Sequence[Operation],
        *,
        end: str = "ok",
        f: str = TXN,
        process: int | None = None,
        **facts: Any,
    ) -> None:
        """Add an operation: its first and its last line; a transaction is content with an old snapshot."""
        facts = {"fresh": False, **facts} if f == TXN else facts
        which = next(self._processes) if process is None else process
        asked = [[name, key, None] if name == "r" else [name, key, item] for name, key, item in value]
        for kind, told, known in (("invoke", asked, {}), (end, list(value), facts)):
            index = next(self._index)
            line = {"index": index, "type": kind, "f": f, "process": which, "time": 10 * index, "value": told}
            self.lines.append(line | known)

    @property
    def ended(self) -> list[dict[str, Any]]:
        """The last lines."""
        return [line for line in self.lines if line["type"] != "invoke"]

    def write(self, path: Path) -> Path:
        """Write all lines into a file; return it."""
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")
        return path
