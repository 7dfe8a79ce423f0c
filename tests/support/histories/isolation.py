"""Small tables of numbers, and sessions on them, for the tests of isolation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tidelock.client import Database, Transaction
from tidelock.errors import TransactionClosedError

SCHEMA = pa.schema([("p", pa.int64()), ("n", pa.int64())])
NUMBERS = itertools.count(1)


def rows(*numbers: int, p: int = 0) -> pa.Table:
    """Rows of one partition."""
    return pa.table([[p] * len(numbers), numbers], SCHEMA)


def seen(reader: Database | Transaction, table: str, where: str = "true") -> list[int]:
    """The numbers that somebody sees."""
    return sorted(reader.read(table, ["n"], where)["n"].to_pylist())


def make(sessions: Sequence[Database], *parts: Sequence[int] | pa.Table) -> str:
    """Make a table with so many parts, which every replica shows."""
    name = f"t{next(NUMBERS)}"
    csn = sessions[0].create_table(name, SCHEMA, partition_by=["p"], sort_by=["n"])["csn"]
    if parts:
        with sessions[0].begin(fresh=True) as tx:  # at once, so that each insert is a part
            for part in parts:
                tx.insert(name, part if isinstance(part, pa.Table) else rows(*part))
            csn = tx.commit(wait="all").csn
    for db in sessions:  # which has seen it from now on
        db.table(name, csn=csn)
    return name


def everywhere(sessions: Sequence[Database], table: str, *expected: int) -> None:
    """Every replica shows these numbers."""
    for db in sessions:
        assert seen(db, table) == sorted(expected)


def refused(tx: Transaction) -> None:
    """A refused transaction takes a rollback only."""
    with pytest.raises(TransactionClosedError):
        tx.commit()
    tx.rollback()


def add(tx: Transaction, table: str, number: int) -> None:
    """Add to all numbers."""
    tx.update(table, {"n": "n + ?"}, params=[number])


def times(tx: Transaction, table: str, factor: int) -> None:
    """Multiply all numbers."""
    tx.update(table, {"n": "n * ?"}, params=[factor])
