"""Lists over four tables: transactions append to them and read them, as in Elle and Jepsen.

How does a reader know in which order a list was appended to? In two ways that users have, too:

* In the tables of *rows* an element is a row, and transactions insert rows without any look at others, so
  they never conflict. Rows have no order. The order is that of the commits, and the change feed tells it: the
  column `_commit_csn`. All clients learn it from one reading of the feed, which goes on from CSN to CSN; what
  feed and rows do not agree about is a violation, and at the end the feed of each replica is read from the
  beginning. The elements of one CSN (group commit) have the order of their numbers: the store promises none.
* In the tables of *texts* the list of a key is a text in one row, and an append is a merge by a unique key
  that makes the text longer. So the order is in the value itself, the black-box checker needs nothing that
  the store says of its CSNs, and two appends at the same time exclude each other.

A key is appended to about twelve times, then another takes its place, so that lists stay short.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.history import TXN, Operation, lines
from chaos.judging import of_history
from chaos.session import Attempt, Found, Session
from chaos.violation import Violation
from chaos.workloads.workload import Client, Workload
from tests.checkers.operations import History, load
from tests.checkers.operations import Transaction as Recorded
from tidelock.client import Database, Snapshot, Transaction

ROWS: Final = ("la0", "la1")
TEXTS: Final = ("la2", "la3")
TABLES: Final = (*ROWS, *TEXTS)
ROW_SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("e", pa.int64())])
TEXT_SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])

#: Keys of a table that are appended to, changes of a key, and keys of a table that one snapshot reads.
_ACTIVE, _CHANGES, _READ = 3, 12, 6
#: Share of micro-operations that read, and of transactions with reads that are serializable.
_READS, _SERIALIZABLE = 0.4, 0.3
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 4, 0.6, 0.9
#: Keeps the history of a table although others have a short one: the feed reaches back to its creation.
_PROPERTIES: Final = {"retention_s": "86400"}


class Keys:
    """The keys of one table that are in use; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes = [0]  # by key

    def change(self, chosen: random.Random) -> int:
        """Return a key to append to."""
        with self._lock:
            active = [key for key, count in enumerate(self._changes) if count < _CHANGES]
            while len(active) < _ACTIVE:
                active.append(len(self._changes))
                self._changes.append(0)
            key = chosen.choice(active)
            self._changes[key] += 1
            return key

    def all(self) -> list[int]:
        """Return all keys that were ever in use."""
        with self._lock:
            return list(range(len(self._changes)))

    def newest(self) -> list[int]:
        """Return the keys that are read."""
        with self._lock:
            return list(range(len(self._changes)))[-_READ:]


class CommitOrder:
    """The CSN of each element of the tables of rows, as the change feed tells it; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._upto = 0
        self._csns: dict[tuple[str, int], int] = {}

    def begin(self, csn: int) -> None:
        """Learn what is committed above a CSN at which the tables are empty."""
        self._upto = csn

    def learn(self, db: Database, csn: int) -> None:
        """Read the feed up to a CSN; TidelockError if it cannot be read now."""
        with self._lock:
            if csn > self._upto:
                told = [feed(db, table, self._upto, csn) for table in ROWS]
                for one in told:
                    self._csns |= one
                self._upto = csn

    def sort(self, table: str, elements: Iterable[int]) -> tuple[list[int], list[int]]:
        """Return elements in the order of their commits, and those that the feed has not told of."""
        there = list(elements)
        unknown = sorted(one for one in there if (table, one) not in self._csns)
        return sorted(there, key=lambda one: (self._csns.get((table, one), 1 << 62), one)), unknown

    @property
    def learnt(self) -> dict[tuple[str, int], int]:
        """What is known."""
        return self._csns


def feed(db: Database, table: str, since: int, until: int) -> dict[tuple[str, int], int]:
    """Return the CSN of each element that the change feed of a table tells of."""
    told = db.changes(table, since, until).to_table()
    pairs = zip(told["e"].to_pylist(), told["_commit_csn"].to_pylist(), strict=True)
    return {(table, element): csn for element, csn in pairs}


class ListAppend(Workload):
    """Appends and reads of lists."""

    name: ClassVar[str] = "list_append"
    promise: ClassVar[str] = (
        "Every read of a list is a beginning of the one order of its appends, at its CSN."
    )

    def prepare(self, db: Database) -> None:
        """Create its tables."""
        self.keys = {table: Keys() for table in TABLES}
        self.order = CommitOrder()
        self.elements = itertools.count(1)
        for table in ROWS:
            self.create(db, table, ROW_SCHEMA, properties=_PROPERTIES)
        for table in TEXTS:
            self.create(db, table, TEXT_SCHEMA, properties={**_PROPERTIES, "unique_key": "k"})
        with db.snapshot() as snap:
            self.order.begin(snap.csn)
            self._begin_csn = snap.csn

    def clients(self) -> Sequence[Client]:
        """Return writers, readers of the newest at each replica and at any, and a reader of old CSNs."""
        choices = [self.world.chosen(f"{self.name}/{number}") for number in range(_WRITERS)]
        writers = [self.acting(Writer(self, chosen).act, _WRITE_PAUSE_S) for chosen in choices]
        return [*writers, *self.readers(self._read, _READ_PAUSE_S)]

    # -- reading --------------------------------------------------------------------------------------------

    def _read(self, session: Session, csn: int | None) -> int | None:
        keys = {table: self.keys[table].newest() for table in TABLES}
        value = [["r", f"{table}/{key}", None] for table in TABLES for key in keys[table]]
        return session.read(value, partial(self._look, session, keys=keys), csn=csn)

    def _look(self, session: Session, snap: Snapshot, keys: dict[str, list[int]]) -> Found:
        self.order.learn(session.database, snap.csn)
        lists, strange = self.lists(snap.sql(_query(keys)))
        value = [["r", f"{table}/{key}", lists[table, key]] for table in TABLES for key in keys[table]]
        return Found(value, {"strange": strange or None})

    def lists(self, rows: pa.Table) -> tuple[dict[tuple[str, int], list[int]], list[int]]:
        """Return the lists of the rows of a query, and the elements that the feed does not know."""
        lists: dict[tuple[str, int], list[int]] = defaultdict(list)
        for row in rows.to_pylist():
            found = [int(one) for one in row["v"].split(",")] if row["v"] is not None else [row["e"]]
            lists[row["t"], row["k"]] += found
        strange: list[int] = []
        for (table, key), there in lists.items():
            if table in ROWS:
                lists[table, key], unknown = self.order.sort(table, there)
                strange += unknown
        return lists, strange

    # -- the end --------------------------------------------------------------------------------------------

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all lists and the whole feed at each replica, and judge by both checkers."""
        keys = {table: self.keys[table].all() for table in TABLES}
        value = [["r", f"{table}/{key}", None] for table in TABLES for key in keys[table]]
        end = self.read_everywhere(db, value, partial(self._look, keys=keys), TXN)
        found = []
        for replica in sorted(self.world.cluster.replicas):
            with self.world.cluster.connect(replica) as one:
                for table in ROWS:
                    told = feed(one, table, self._begin_csn, end)
                    found += feeds_differ(replica, table, told, self.order.learnt)
        return [*found, *of_lines(self.path)]


class Writer:
    """A client that appends and reads in transactions.

    Args:
        load: The workload.
        chosen: The source of its choices.
    """

    def __init__(self, load: ListAppend, chosen: random.Random) -> None:
        self._load, self._chosen = load, chosen

    def act(self, session: Session) -> None:
        """Run one transaction."""
        session.write(lambda: self._attempt(session))

    def _attempt(self, session: Session) -> Attempt:
        value: list[Operation] = []
        for _ in range(self._chosen.choice([1, 2, 2, 3, 4])):
            table = self._chosen.choice(TABLES)
            if self._chosen.random() < _READS:
                value.append(["r", f"{table}/{self._chosen.choice(self._load.keys[table].newest())}", None])
            else:
                key = self._load.keys[table].change(self._chosen)
                value.append(["append", f"{table}/{key}", next(self._load.elements)])
        reads = any(name == "r" for name, _, _ in value)
        serializable = reads and self._chosen.random() < _SERIALIZABLE
        begin = {"isolation": "serializable"} if serializable else {}
        return Attempt(value, lambda tx: self._work(session, tx, value), begin)

    def _work(self, session: Session, tx: Transaction, value: Sequence[Operation]) -> Found:
        filled: list[Operation] = []
        own: dict[str, list[int]] = defaultdict(list)
        strange: list[int] = []
        for name, name_of_key, element in value:
            table, _, text = name_of_key.partition("/")
            key = int(text)
            if name == "r":
                self._load.order.learn(session.database, tx.snapshot_csn)
                lists, unknown = self._load.lists(tx.sql(_query({table: [key]})))
                found = lists[table, key]
                # Its own have no CSN, so they stand behind; by their numbers, in which they were appended.
                strange += [one for one in unknown if one not in own[name_of_key]]
                filled.append(["r", name_of_key, found])
                continue
            own[name_of_key].append(element)
            filled.append([name, name_of_key, element])
            if table in ROWS:
                tx.insert(table, pa.table({"k": [key], "e": [element]}, schema=ROW_SCHEMA))
            else:
                row = pa.table({"k": [key], "v": [str(element)]}, schema=TEXT_SCHEMA)
                longer = {"v": "target.v || ',' || source.v"}
                tx.merge(table, row, on=["k"], when_matched_update=longer)
        return Found(filled, {"strange": strange or None})


def _query(keys: dict[str, list[int]]) -> str:
    """Return a query of the elements of some keys: t, k, e or v."""
    parts = []
    for table, some in keys.items():
        columns = "e, null::varchar as v" if table in ROWS else "null::bigint as e, v"
        where = f"k in ({', '.join(map(str, some))})"
        parts.append(f"select '{table}' as t, k, {columns} from {table} where {where}")
    return " union all ".join(parts)


# -- judgement ----------------------------------------------------------------------------------------------


def of_lines(path: Path) -> list[Violation]:
    """Judge a history by both checkers, its texts again by their own rule, and the feed against the rows."""
    history = load(path)
    texts = History(tuple(_of_texts(one) for one in history.transactions))
    found = of_history(ListAppend.name, history)
    found += [one for one in of_history(ListAppend.name, texts, appends_conflict=True) if one not in found]
    return [*found, *unknown_to_the_feed(lines(path))]


def _of_texts(transaction: Recorded) -> Recorded:
    kept = [one for one in transaction.operations if one.key.partition("/")[0] in TEXTS]
    return replace(transaction, operations=tuple(kept))


def unknown_to_the_feed(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads with rows that the change feed up to their CSN did not tell of."""
    return [
        Violation(
            ListAppend.name,
            "feed",
            f"Expected that the change feed up to CSN {line['snapshot']} tells of all rows that are read "
            f"there, found elements {line['strange']} that it does not tell of in operation {line['index']}.",
            line["time"],
            (line["tid"],) if "tid" in line else (),
        )
        for line in all_lines
        if line.get("strange")
    ]


def feeds_differ(
    replica: str, table: str, told: dict[tuple[str, int], int], learnt: dict[tuple[str, int], int]
) -> list[Violation]:
    """Return what the whole feed of a replica tells otherwise than the feed did during the run."""
    expected = {key: csn for key, csn in learnt.items() if key[0] == table}
    wrong = sorted(key for key in expected.keys() | told.keys() if expected.get(key) != told.get(key))
    if not wrong:
        return []
    key = wrong[0]
    story = (
        f"Expected that the change feed of {table} at {replica} tells the CSNs that were told before, found "
        f"{len(wrong)} elements with others; {key[1]} had {expected.get(key)}, now it has {told.get(key)}."
    )
    return [Violation(ListAppend.name, "feed", story)]
