"""Short histories for tests, one transaction to a call."""

from __future__ import annotations

from typing import Any

from tests.checkers.operations import Append, End, History, MicroOperation, Read, Transaction, Write


def a(key: str, *elements: int) -> tuple[MicroOperation, ...]:
    """Return appends to a key."""
    return tuple(Append(key, element) for element in elements)


def r(key: str, *elements: int) -> tuple[MicroOperation, ...]:
    """Return a read of a key."""
    return (Read(key, elements),)


def w(key: str, element: int) -> tuple[MicroOperation, ...]:
    """Return a replacement of a list."""
    return (Write(key, element),)


def ok(*operations: tuple[MicroOperation, ...], **facts: Any) -> dict[str, Any]:
    """Return a transaction that ended well."""
    return {"operations": sum(operations, ()), "end": End.OK, **facts}


def info(*operations: tuple[MicroOperation, ...], **facts: Any) -> dict[str, Any]:
    """Return a transaction of unknown end."""
    return {**ok(*operations, **facts), "end": End.INFO}


def fail(*operations: tuple[MicroOperation, ...], **facts: Any) -> dict[str, Any]:
    """Return a failed transaction."""
    return {**ok(*operations, **facts), "end": End.FAIL}


def history(*transactions: dict[str, Any], sequential: bool = False) -> History:
    """Return a history, by default of concurrent transactions of different processes.

    Args:
        transactions: The transactions; the n-th has index and process n unless it says otherwise.
        sequential: Whether each one begins after the end of the one before.
    """
    made = []
    for number, given in enumerate(transactions):
        times = (10 * number, 10 * number + 5) if sequential else (number, 1000 + number)
        ended_ns = None if given["end"] is End.INFO else times[1]
        default = {"index": number, "process": number, "invoked_ns": times[0], "ended_ns": ended_ns}
        made.append(Transaction(**(default | given)))
    return History(tuple(made))
