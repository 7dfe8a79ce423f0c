"""The clients' own history: what they were told about each transaction, written down at once.

It is the yardstick of the demo's checks, so it holds nothing that came from a table: the writer knows what
it sent, and notes the tid and the CSN that the commit returned. One file belongs to one writer thread, one
line to one transaction. A line is handed to the kernel before the writer goes on, so a history outlives its
process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_SUFFIX: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction that inserted orders.

    Attributes:
        tid: Its id.
        csn: Where it became visible; None when its outcome could not be learnt, so that it may be visible
            or not.
        first_key: Key of its first order; the others follow without gaps.
        lines: How many line items each order has.
    """

    tid: str
    csn: int | None
    first_key: int
    lines: tuple[int, ...]

    def orders(self) -> Iterator[tuple[int, int]]:
        """The key of each order, with the number of its line items."""
        return enumerate(self.lines, start=self.first_key)


class HistoryFile:
    """The history of one writer thread; a context manager."""

    def __init__(self, folder: Path, name: str) -> None:
        # Buffered by lines: each one is written when it is complete.
        self._file = (folder / f"{name}{_SUFFIX}").open("a", buffering=1, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, entry: Entry) -> None:
        """Note one transaction."""
        self._file.write(json.dumps(asdict(entry)) + "\n")


def read(folder: Path) -> list[Entry]:
    """All transactions of all writers, by CSN; those of unknown outcome last. For writers that have ended."""
    entries = [
        _entry(line) for path in folder.glob(f"*{_SUFFIX}") for line in path.read_text("utf-8").splitlines()
    ]
    return sorted(entries, key=lambda entry: (entry.csn is None, entry.csn or 0, entry.first_key))


def count(folder: Path) -> int:
    """How many transactions are noted so far, while the writers write."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(f"*{_SUFFIX}"))


def expected_orders(entries: Iterable[Entry], csn: int) -> dict[int, int]:
    """The orders that must be visible at a CSN, and no others: line items by order key."""
    return {
        key: lines
        for entry in entries
        if entry.csn is not None and entry.csn <= csn
        for key, lines in entry.orders()
    }


def _entry(line: str) -> Entry:
    fields = json.loads(line)
    return Entry(fields["tid"], fields["csn"], fields["first_key"], tuple(fields["lines"]))
