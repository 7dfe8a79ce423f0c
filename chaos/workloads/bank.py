"""Accounts in two tables, and transfers between them: the total is constant.

A transfer reads two accounts and replaces both rows, so it conflicts with any other that touches one of them.
Each row has a stamp that only one transfer writes, so an account is a register whose versions tell which
transfer a reader has seen.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.judging.histories import judged
from chaos.record.history import TXN, Operation, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, Rows, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tests.checkers.levels import Level
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import UnavailableError

TABLES: Final = ("bank_a", "bank_b")
SCHEMA: Final = pa.schema(
    [pa.field("account", pa.int64(), nullable=False), ("balance", pa.int64()), ("stamp", pa.int64())]
)
ACCOUNTS: Final = 6
BALANCE: Final = 100
TOTAL: Final = len(TABLES) * ACCOUNTS * BALANCE
_ALL: Final = [f"{table}/{account}" for table in TABLES for account in range(ACCOUNTS)]
_SQL: Final = " union all ".join(f"select '{table}' as t, * from {table}" for table in TABLES)
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 3, 4.0, 3.0


class Bank(Workload):
    """Transfers and reads of all accounts."""

    name: ClassVar[str] = "bank"
    promise: ClassVar[str] = "The total of all accounts is the same at every CSN, and no transfer is lost."

    def prepare(self, db: Database) -> None:
        """Create both tables with all accounts."""
        self.stamps = itertools.count(1)
        for table in TABLES:
            self.create(db, table, SCHEMA, partition_by=["account"], properties=SOME_HISTORY)
        opened = {table: [(account, next(self.stamps)) for account in range(ACCOUNTS)] for table in TABLES}
        value = [["w", f"{table}/{account}", stamp] for table in TABLES for account, stamp in opened[table]]

        def work(tx: Transaction) -> None:
            for table, rows in opened.items():
                tx.insert(table, _rows([(account, BALANCE, stamp) for account, stamp in rows]))

        session = self.session()
        if session.write(lambda: Attempt(value, work), tries=1) is None:
            raise UnavailableError("expected that a cluster that is well opens the accounts")
        session.close()

    def clients(self) -> Sequence[Client]:
        """Return tellers, readers pinned at each replica and at any, and a reader of old CSNs."""
        choices = [self.world.chosen(f"{self.name}/{number}") for number in range(_WRITERS)]
        tellers = [self.acting(Teller(self, chosen).act, _WRITE_PAUSE_S) for chosen in choices]
        return [*tellers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of all accounts at one CSN."""
        queries = {table: f"select account, balance, stamp from {table}" for table in TABLES}
        question = Question([["r", key, None] for key in _ALL], queries, _found_by_spark)
        return reading(self, lambda: question, f=TXN)

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read([["r", key, None] for key in _ALL], look, csn=csn)

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all accounts at each replica, and judge totals and versions."""
        self.read_everywhere(db, [["r", key, None] for key in _ALL], lambda _, snap: look(snap), TXN)
        found = judged(self.name, self.path, level=Level.SERIALIZABLE)
        return [*wrong_totals(lines(self.path)), *found]


class Teller:
    """A client that moves money between two accounts.

    Args:
        bank: The workload.
        chosen: The source of its choices.
    """

    def __init__(self, bank: Bank, chosen: random.Random) -> None:
        self._bank, self._chosen = bank, chosen

    def act(self, session: Session) -> None:
        """Run one transfer."""
        # In one order, so that two tellers do not wait for each other's locks.
        first, second = sorted(self._chosen.sample(_ALL, 2))
        amount = self._chosen.randint(-5, 5)
        isolation = self._chosen.choice(["snapshot", "serializable"])

        def attempt() -> Attempt:
            value: list[Operation] = [["r", first, None], ["r", second, None]]
            value += [["w", first, next(self._bank.stamps)], ["w", second, next(self._bank.stamps)]]
            return Attempt(value, lambda tx: _transfer(tx, value, amount), {"isolation": isolation})

        session.write(attempt)


def _transfer(tx: Transaction, value: Sequence[Operation], amount: int) -> Found:
    filled: list[Operation] = []
    for (_, key, _), (_, _, stamp), change in zip(value[:2], value[2:], (-amount, amount), strict=True):
        table, _, account = key.partition("/")
        rows = tx.read(table, where="account = ?", params=[int(account)]).to_pylist()
        filled.append(["r", key, [row["stamp"] for row in rows]])
        balance = sum(row["balance"] for row in rows)
        if stamp % 2:
            tx.delete(table, "account = ?", [int(account)])
            tx.insert(table, _rows([(int(account), balance + change, stamp)]))
        else:
            new = {"balance": balance + change, "stamp": stamp}
            tx.update(table, new, "account = ?", [int(account)])
    return Found([*filled, *value[2:]])


def look(snap: Snapshot) -> Found:
    """Return the stamps of all accounts, and their total."""
    return _found([tuple(row.values()) for row in snap.sql(_SQL).to_pylist()])


def _found_by_spark(rows: Rows) -> Found:
    return _found([(table, *row) for table in TABLES for row in rows[table]])


def _found(rows: Iterable[tuple[Any, ...]]) -> Found:
    """Return the stamps of accounts, and their total, by rows of table, account, balance and stamp."""
    stamps: dict[str, list[int]] = {key: [] for key in _ALL}
    total = 0
    for table, account, balance, stamp in rows:
        stamps[f"{table}/{account}"].append(stamp)
        total += balance
    return Found([["r", key, found] for key, found in stamps.items()], {"total": total})


def _rows(rows: Sequence[tuple[int, int, int]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def wrong_totals(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads in which money was made or lost, or in which an account has not one row."""
    found = []
    for line in all_lines:
        if line["type"] != "ok" or "total" not in line:
            continue
        rows = {key: elements for _, key, elements in line["value"]}
        several = {key: elements for key, elements in rows.items() if len(elements) != 1}
        if line["total"] != TOTAL or several:
            story = (
                f"Expected a total of {TOTAL} in {len(_ALL)} accounts with one row each, found "
                f"{line['total']} at CSN {line['snapshot']} of {line['replica']}"
                f"{f', and the stamps {several}' if several else ''} (operation {line['index']})."
            )
            found.append(Violation(Bank.name, "total constant", story, line["time"]))
    return found
