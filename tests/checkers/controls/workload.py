"""A random load on the defective store, which writes its history as any client would.

Processes take turns in one thread, step by step in an order that a seed decides, so a history can be made
again. Time is the number of the line.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.checkers.conflicts import ADDED_ROWS, Conflicting
from tests.checkers.controls.defective_store import Defect, OpenTransaction, Store
from tests.checkers.operations import Append, End, History, MicroOperation, Read, Recorder, Write, load

#: A key is left alone after so many changes, since long lists make long histories.
_CHANGES_PER_KEY: Final = 12
_KEYS_PER_TABLE: Final = 3
_DRAWS_MAX: Final = 5
#: Share of the replaced registers that have been read before.
_UPDATES: Final = 0.7
#: Shares of the transactions that are rolled back, and of the commits whose answer is lost.
_ROLLED_BACK: Final = 0.08
_UNANSWERED: Final = 0.04
#: Share of the commits that take others along.
_GROUPED: Final = 0.3


@dataclass(slots=True)
class _Process:
    """One client: its number, the CSN that it has seen, and its open transaction."""

    number: int
    seen: int = 0
    fresh: bool = True
    transaction: OpenTransaction | None = None
    asked: list[MicroOperation] = field(default_factory=list)
    done: list[MicroOperation] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether its transaction has only to be ended, with changes."""
        return bool(self.transaction and self.transaction.changes and len(self.done) == len(self.asked))


class _Keys:
    """The keys in use, and unique elements for them."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator
        self._number = {
            (table, slot): slot
            for table in ("lists_a", "lists_b", "registers")
            for slot in range(_KEYS_PER_TABLE)
        }
        self._changes: dict[str, int] = {}

    def operations(self) -> list[MicroOperation]:
        """Draw one micro-operation, or two: most that replace a register have read it."""
        table, slot = place = self._random.choice(list(self._number))
        key = f"{table}/{self._number[place]}"
        if self._random.random() < 0.5:
            return [Read(key)]
        self._changes[key] = count = self._changes.get(key, 0) + 1
        if count == _CHANGES_PER_KEY:
            self._number[table, slot] += _KEYS_PER_TABLE
        if table != "registers":
            return [Append(key, count)]
        return [Read(key), Write(key, count)] if self._random.random() < _UPDATES else [Write(key, count)]


class Workload:
    """A number of processes at work on a store.

    Args:
        recorder: Where the history is written.
        store: The store.
        generator: Source of all random decisions.
        processes: Number of processes.
        fresh: Whether all readers want the newest snapshot; else half of them do.
        serializable: Whether the store promises that its transactions are.
    """

    def __init__(
        self,
        recorder: Recorder,
        store: Store,
        generator: random.Random,
        *,
        processes: int,
        fresh: bool,
        serializable: bool,
    ) -> None:
        self._recorder = recorder
        self._store = store
        self._random = generator
        self._keys = _Keys(generator)
        self._fresh = fresh
        self._serializable = serializable
        self._numbers = itertools.count(processes)
        self._processes = [_Process(number) for number in range(processes)]

    def run(self, transactions: int) -> None:
        """Run so many transactions; those that are open in the end have no last line."""
        begun = 0
        while begun < transactions:
            process = self._random.choice(self._processes)
            if process.transaction is None:
                begun += 1
                self._begin(process)
            elif len(process.done) < len(process.asked):
                self._step(process, process.transaction)
            else:
                self._end(process, process.transaction)

    def _begin(self, process: _Process) -> None:
        draws = self._random.randint(1, _DRAWS_MAX)
        process.asked = [one for _ in range(draws) for one in self._keys.operations()]
        process.done = []
        self._recorder.invoke(process.number, process.asked)
        fresh = self._fresh or self._random.random() < 0.5
        process.transaction = self._store.begin(
            seen=process.seen, replica=self._random.randrange(2), fresh=fresh
        )
        process.fresh = fresh

    def _step(self, process: _Process, transaction: OpenTransaction) -> None:
        operation = process.asked[len(process.done)]
        if isinstance(operation, Read):
            operation = Read(operation.key, self._store.read(transaction, operation.key))
        else:
            self._store.change(transaction, operation)
        process.done.append(operation)

    def _end(self, process: _Process, transaction: OpenTransaction) -> None:
        if self._random.random() < _ROLLED_BACK:
            self._store.roll_back(transaction)
            self._recorder.end(process.number, End.FAIL, process.asked)
            process.transaction = None
        elif not transaction.changes:
            self._store.finish(transaction)
            report = self._store.report(transaction) | {"csn": None}
            self._answer(process, transaction, report)
        elif self._random.random() < _UNANSWERED:
            self._lose(process, transaction)
        else:
            group = [process]
            if self._random.random() < _GROUPED:
                group += [one for one in self._processes if one.ready and one is not process]
            self._commit({one.transaction.tid: one for one in group if one.transaction})

    def _commit(self, group: dict[str, _Process]) -> None:
        asked = [one.transaction for one in group.values() if one.transaction]
        committed = self._store.commit(asked)
        for transaction in asked:
            process = group[transaction.tid]
            if transaction in committed:
                self._answer(process, transaction, self._store.report(transaction))
            else:
                self._recorder.end(process.number, End.FAIL, process.asked)
                process.transaction = None

    def _answer(self, process: _Process, transaction: OpenTransaction, report: dict[str, object]) -> None:
        promised = {"fresh": process.fresh, "serializable": self._serializable}
        self._recorder.end(process.number, End.OK, process.done, **report, **promised)
        csn = report["csn"]
        process.seen = max(process.seen, transaction.snapshot, csn if isinstance(csn, int) else 0)
        process.transaction = None

    def _lose(self, process: _Process, transaction: OpenTransaction) -> None:
        """Let a transaction end unknown: it was committed or not."""
        if self._random.random() < 0.5:
            self._store.commit([transaction], answered=False)
        else:
            self._store.finish(transaction)
        self._recorder.end(process.number, End.INFO, process.asked)
        process.transaction = None
        # A process whose operation is unknown never comes back; its successor knows nothing.
        process.number, process.seen = next(self._numbers), 0


def make_history(
    path: Path,
    *,
    seed: int,
    transactions: int,
    defects: Iterable[Defect] = (),
    conflicting: Conflicting = ADDED_ROWS,
    serializable: bool = False,
    fresh: bool = False,
    processes: int = 6,
) -> History:
    """Run the load on a new store, and return its history, read back from the file.

    Args:
        path: The file, which must not exist.
        seed: Source of all random decisions.
        transactions: How many are begun.
        defects: The defects of the store.
        conflicting: The kinds of changes of which two concurrent ones on a key conflict.
        serializable: Whether the store checks reads.
        fresh: Whether all readers want the newest snapshot.
        processes: Number of processes.
    """
    generator = random.Random(seed)
    store = Store(generator, defects=defects, conflicting=conflicting, serializable=serializable)
    with Recorder(path, itertools.count(1).__next__) as recorder:
        load_on = Workload(
            recorder, store, generator, processes=processes, fresh=fresh, serializable=serializable
        )
        load_on.run(transactions)
    return load(path)
