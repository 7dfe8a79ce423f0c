"""What has to hold: of each round at once, and of everything when the writers have ended.

Each function returns what is wrong first, or None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidelock.demo.agents import Part
from tidelock.demo.compare import Row
from tidelock.demo.data import Loaded
from tidelock.demo.history import Entry, expected_orders

#: Columns of `queries.orders_and_lines`.
_KEY, _COPIES, _LINES, _CENTS_OFF, _WRONG = range(5)


def every_order_is_whole(rows: Sequence[Row]) -> str | None:
    """Every order is there once, with its line items numbered without gaps, and costs what they add up to."""
    wrong = [row for row in rows if row[_WRONG]]
    if not wrong:
        return None
    first = wrong[0]
    return (
        f"{len(wrong)} orders are not whole; the first is {first[_KEY]}: {first[_COPIES]} rows in orders, "
        f"{first[_LINES]} line items, price off by {first[_CENTS_OFF]} cents"
    )


def nothing_loaded_is_missing(rows: Sequence[Row], loaded: Loaded) -> str | None:
    """The orders that were loaded are all there, with all their line items."""
    found = [(row[_COPIES], row[_LINES]) for row in rows if row[_KEY] == 0]
    expected = [(loaded.rows["orders"], loaded.rows["lineitem"])]
    if found == expected:
        return None
    return f"expected {expected[0]} loaded orders and line items, found {found[0] if found else 'none'}"


def visible_is_acknowledged(
    rows: Sequence[Row], csn: int, history: Sequence[Entry], loaded: Loaded
) -> str | None:
    """The new orders at a CSN are those of the transactions acknowledged up to it: no more, no fewer.

    So each acknowledged transaction is visible from its CSN on, once and whole. Transactions of unknown
    outcome are left out; that there are none is a check of its own.
    """
    expected = expected_orders(history, csn)
    unknown = {key for entry in history if entry.csn is None for key, _ in entry.orders()}
    found = {
        row[_KEY]: (row[_COPIES], row[_LINES])
        for row in rows
        if row[_KEY] > loaded.last_orderkey and row[_KEY] not in unknown
    }
    for key in sorted(expected.keys() | found.keys()):
        lines = expected.get(key)
        if lines is None:
            return f"order {key} is visible at CSN {csn}, and no transaction up to it was acknowledged"
        if found.get(key) != (1, lines):
            copies, there = found.get(key, (0, 0))
            return (
                f"order {key} with {lines} line items was acknowledged at or below CSN {csn}; "
                f"there it is visible {copies} times with {there} line items"
            )
    return None


def acknowledged_is_logged(history: Iterable[Entry], log: Iterable[Mapping[str, Any]]) -> str | None:
    """The CSN log holds each acknowledged transaction once, at the CSN that its client was told."""
    logged = [(tid["tid"], record["csn"]) for record in log for tid in record["tids"]]
    times = Counter(tid for tid, _ in logged)
    at = dict(logged)
    for entry in history:
        if entry.csn is not None and (times[entry.tid] != 1 or at.get(entry.tid) != entry.csn):
            return (
                f"transaction {entry.tid} was acknowledged at CSN {entry.csn}; "
                f"the log holds it {times[entry.tid]} times, last at {at.get(entry.tid)}"
            )
    return None


def every_outcome_is_known(history: Iterable[Entry]) -> str | None:
    """No client was left without knowing whether its transaction is committed."""
    unknown = [entry.tid for entry in history if entry.csn is None]
    return (
        f"the outcome of {len(unknown)} transactions is not known, the first is {unknown[0]}"
        if unknown
        else None
    )


def replicas_agree(parts: Mapping[str, Sequence[Part]], csn: int, table: str) -> str | None:
    """All replicas list the same parts of a table at a CSN, down to the checksums (I10)."""
    (first, expected), *others = parts.items()
    for replica, found in others:
        if list(found) != list(expected):
            differing = next(
                (pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]),
                (len(expected), len(found)),
            )
            return f"{table} at CSN {csn}: {first} lists {differing[0]}, {replica} lists {differing[1]}"
    return None


def tids_per_csn(tids: Iterable[str], log: Iterable[Mapping[str, Any]]) -> float:
    """Of some transactions, how many share a CSN on average; 0 when none is logged."""
    wanted = set(tids)
    counts = [sum(tid["tid"] in wanted for tid in record["tids"]) for record in log]
    shared = [count for count in counts if count]
    return sum(shared) / len(shared) if shared else 0.0


def committed_between(log: Iterable[Mapping[str, Any]], begin_ms: float, end_ms: float) -> int:
    """How many transactions were committed in a span of wall time, in ms since 1970."""
    return sum(len(record["tids"]) for record in log if begin_ms <= record["time_ms"] < end_ms)
