"""The checks of each round of Spark, and the conversion of a round to a part of the clients' history.

An order counts as one write of the history, with the key of the order. All loaded orders together count as
the write with key "0". So the invariants of workloads/checker.py define which rows must be visible at which
CSN: all acknowledged and loaded rows, once and whole, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tidelock.wire.rows import Fields
from workloads.compare import Row
from workloads.history import Balance
from workloads.tpch.data import Loaded

#: The key of what was loaded, in a history and in the rows of `queries.orders_and_lines`.
LOADED_KEY: Final = "0"
#: Columns of `queries.orders_and_lines`.
_KEY, _COPIES, _LINES, _CENTS_OFF, _WRONG = range(5)


def every_order_is_whole(rows: Sequence[Row]) -> str | None:
    """Name orders that do not exist exactly once, with line items without gaps, at the price of their sum."""
    wrong = [row for row in rows if row[_WRONG]]
    if not wrong:
        return None
    first = wrong[0]
    return (
        f"{len(wrong)} orders are not whole; the first is {first[_KEY]}: {first[_COPIES]} rows in orders, "
        f"{first[_LINES]} line items, price off by {first[_CENTS_OFF]} cents"
    )


def balances(rows: Iterable[Row]) -> list[list[Any]]:
    """Return the answer of `queries.orders_and_lines` in the form of a read of a history.

    Nothing was loaded when no row has its key.
    """
    return [
        [str(row[_KEY]), *Balance(sum_a=row[_CENTS_OFF], rows_a=row[_COPIES], sum_b=0, rows_b=row[_LINES])]
        for row in rows
    ]


def loaded_rows(loaded: Loaded) -> tuple[int, int]:
    """Return how many rows of both tables the key of what was loaded stands for."""
    return loaded.rows["orders"], loaded.rows["lineitem"]


def log_lines(log: Iterable[Fields], added_by_load: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
    """Yield the records of GET /log in the form of a history.

    Args:
        log: The records.
        added_by_load: Parts of the load. Its entries may be so many that the log keeps them in a manifest,
            which GET /log does not show.
    """
    for record in log:
        tids = []
        for tid in record["tids"]:
            added = [
                [entry[name] for name in ("table", "part", "path", "rows", "length", "checksum")]
                for entry in tid["entries"]
                if entry["action"] == "AddPart"
            ]
            removed = [entry["part"] for entry in tid["entries"] if entry["action"] == "RemovePart"]
            parts = added_by_load if tid["manifest"] else added
            tids.append([tid["tid"], parts, removed, not tid["data_change"], tid["carrier"]])
        yield [record["csn"], record["kind"] == "end", tids]


def committed_between(log: Iterable[Fields], begin_ms: float, end_ms: float) -> int:
    """Return how many transactions were committed in a span of wall time, in ms since 1970."""
    found = [record["tids"] for record in log if begin_ms <= record["time_ms"] < end_ms]
    return sum(len(tids) - len({tid["carrier"] for tid in tids} - {None}) for tids in found)
