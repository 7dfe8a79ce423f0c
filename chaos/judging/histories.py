"""Judges histories of transactions by the checkers that know nothing of the product, and tells the story."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chaos.record.violation import Violation
from tests.checkers import black_box, by_timestamps
from tests.checkers.conflicts import ADDED_ROWS, ALL_CHANGES
from tests.checkers.levels import Level, Order
from tests.checkers.operations import History, Transaction, load
from tests.checkers.violations import Violation as Anomaly

#: Operations of a proof that a story shows as they were.
_SHOWN = 6
#: Characters of one operation.
_WIDTH = 400


def judged(
    check: str, path: Path, *, level: Level = Level.SNAPSHOT, appends_conflict: bool = False
) -> list[Violation]:
    """Judge a history by both checkers.

    Args:
        check: The workload.
        path: Its history, all of whose lines are transactions.
        level: The isolation that was promised.
        appends_conflict: Whether two concurrent appends to a key exclude each other.
    """
    return of_history(check, load(path), level=level, appends_conflict=appends_conflict)


def of_history(
    check: str, history: History, *, level: Level = Level.SNAPSHOT, appends_conflict: bool = False
) -> list[Violation]:
    """Judge a history as `judged`; what says that it was begun fresh owes REALTIME."""
    conflicting = ALL_CHANGES if appends_conflict else ADDED_ROWS
    found = by_timestamps.check(history, conflicting=conflicting, strict=True)
    found += black_box.check(history, level, Order.PROCESS, conflicting=conflicting)
    by_index = {one.index: one for one in history.transactions}
    return [_violation(check, anomaly, by_index) for anomaly in found]


def _violation(check: str, anomaly: Anomaly, by_index: dict[int, Transaction]) -> Violation:
    proof = [by_index[index] for index in dict.fromkeys(anomaly.operations) if index in by_index]
    story = [str(anomaly), *(_told(one) for one in proof[:_SHOWN])]
    ns = max((one.ended_ns or one.invoked_ns for one in proof), default=None)
    return Violation(check, anomaly.name, "\n".join(story), ns, tids(proof))


def tids(transactions: Sequence[Transaction]) -> tuple[str, ...]:
    """Return the names of transactions in the store, as far as they are known."""
    return tuple(one.tid for one in transactions if one.tid is not None)


def _told(one: Transaction) -> str:
    facts = " ".join(
        f"{name} {value}"
        for name, value in (
            ("tid", one.tid),
            ("snapshot", one.snapshot),
            ("csn", one.csn),
            ("at", one.replica),
        )
        if value is not None
    )
    told = f"operation {one.index} ({one.end}) of process {one.process}, {facts}: "
    return (told + ", ".join(str(operation) for operation in one.operations))[:_WIDTH]
