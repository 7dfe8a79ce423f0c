"""Lists over four tables: transactions append to them and read them, as in Elle and Jepsen.

How does a reader know in which order a list was appended to? In two ways that users have, too:

* In the tables of *rows* an element is a row, and transactions insert rows without any look at others, so
  they never conflict. Rows have no order. The order is that of the commits, and the change feed tells it: the
  column `_commit_csn`. So reads are written down as they are found, and at the end, when the whole feed was
  read at each replica, the lists are put into the order of their commits; that history is judged. What feed
  and rows do not agree about is a violation, and so is a feed that tells a client during the run otherwise.
  The transactions of one CSN (group commit) have the order of their begins: the store promises none.
* In the tables of *texts* the list of a key is a text in one row, and an append is a merge by a unique key
  that makes the text longer. So the order is in the value itself, the black-box checker needs nothing that
  the store says of its CSNs, and two appends at the same time exclude each other.

A key is appended to about twelve times, then another takes its place, so that lists stay short.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.judging.histories import of_history
from chaos.record.history import TXN, Operation, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, Rows, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tests.checkers.operations import History, load
from tests.checkers.operations import Transaction as Recorded
from tidelock.client import Database, Snapshot, Transaction

ROWS: Final = ("la0", "la1")
TEXTS: Final = ("la2", "la3")
TABLES: Final = (*ROWS, *TEXTS)
#: The CSN of the commit of each element of a table.
CommitOrder = dict[tuple[str, int], int]
ROW_SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("e", pa.int64())])
TEXT_SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])

#: Keys of a table that are appended to, changes of a key, and keys of a table that one snapshot reads.
_ACTIVE, _CHANGES, _READ = 3, 12, 20
#: Micro-operations of a transaction, and the shares that read or append to texts where it does both.
_OPERATIONS: Final = (1, 2, 2, 3, 4)
_READS, _TEXTS = 0.3, 0.4
#: Shares of the transactions with reads that are serializable, and that see all that was acknowledged before.
_SERIALIZABLE, _FRESH = 0.3, 0.3
#: Clients that only insert rows, those that also read and merge texts, and their pauses; the pause of the
#: reader of the feed, and that of all other readers together.
_INSERTING, _INSERT_PAUSE_S = 3, 0.35
_MIXING, _MIX_PAUSE_S = 3, 2.5
_FOLLOW_PAUSE_S, _READ_PAUSE_S = 4.0, 1.5
#: Behind all CSNs.
_LATER: Final = 1 << 62
#: Keeps the history of a table although others have a short one: the feed reaches back to its creation.
_FOLLOWED: Final = {"retention_s": "86400"}


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


def feed(db: Database, table: str, since: int, until: int) -> CommitOrder:
    """Return the CSN of each element that the change feed of a table tells of."""
    told = db.changes(table, since, until).to_table()
    pairs = zip(told["e"].to_pylist(), told["_commit_csn"].to_pylist(), strict=True)
    return {(table, element): csn for element, csn in pairs}


class Follower:
    """A client that follows the feed of both tables of rows, from CSN to CSN.

    Args:
        csn: A CSN at which the tables are empty.
    """

    def __init__(self, csn: int) -> None:
        self.csn = csn
        #: The CSN of each element, as the feed has told it.
        self.told: CommitOrder = {}

    def follow(self, session: Session) -> None:
        """Read what was committed since the last time."""
        session.ask(self._read)

    def _read(self, db: Database) -> None:
        with db.snapshot() as snap:
            until = snap.csn
        new = [feed(db, table, self.csn, until) for table in ROWS] if until > self.csn else []
        for one in new:
            self.told |= one
        self.csn = max(self.csn, until)


class ListAppend(Workload):
    """Appends and reads of lists."""

    name: ClassVar[str] = "list_append"
    promise: ClassVar[str] = (
        "Every read of a list is a beginning of the one order of its appends, at its CSN."
    )

    def prepare(self, db: Database) -> None:
        """Create its tables."""
        self.keys = {table: Keys() for table in TABLES}
        self.elements = itertools.count(1)
        for table in ROWS:
            self.create(db, table, ROW_SCHEMA, properties=_FOLLOWED)
        for table in TEXTS:
            self.create(db, table, TEXT_SCHEMA, properties=SOME_HISTORY | {"unique_key": "k"})
        with db.snapshot() as snap:
            self._begin_csn = snap.csn
            self._follower = Follower(snap.csn)

    def clients(self) -> Sequence[Client]:
        """Return writers, readers of all kinds, and one who follows the feed."""
        choices = [self.world.chosen(f"{self.name}/{number}") for number in range(_INSERTING + _MIXING)]
        inserting = [
            self.acting(Writer(self, chosen, inserts_only=True).act, _INSERT_PAUSE_S)
            for chosen in choices[:_INSERTING]
        ]
        mixing = [self.acting(Writer(self, chosen).act, _MIX_PAUSE_S) for chosen in choices[_INSERTING:]]
        following = self.acting(self._follower.follow, _FOLLOW_PAUSE_S)
        return [*inserting, *mixing, following, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of the newest lists of all tables at one CSN."""
        return reading(self, lambda: _question(self._newest()), f=TXN)

    def _newest(self) -> dict[str, list[int]]:
        return {table: self.keys[table].newest() for table in TABLES}

    def _read(self, session: Session, csn: int | None) -> int | None:
        keys = self._newest()
        return session.read(_reads(keys), partial(look, keys), csn=csn)

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all lists and the whole feed at each replica, and judge by both checkers."""
        keys = {table: self.keys[table].all() for table in TABLES}
        end = self.read_everywhere(db, _reads(keys), lambda _, snap: look(keys, snap), TXN)
        feeds: dict[str, CommitOrder] = {}
        for replica in sorted(self.world.cluster.replicas):
            with self.world.cluster.connect(replica) as one:
                feeds[replica] = feed(one, ROWS[0], self._begin_csn, end)
                feeds[replica] |= feed(one, ROWS[1], self._begin_csn, end)
        order = next(iter(feeds.values()))
        found = [one for replica, told in feeds.items() for one in feeds_differ(replica, told, order)]
        followed = {key: csn for key, csn in order.items() if csn <= self._follower.csn}
        found += feeds_differ("a client that followed it", self._follower.told, followed)
        path = self.path.with_name(f"{self.name}.ordered.jsonl")
        return [*found, *write_ordered(lines(self.path), order, path), *of_lines(path)]


class Writer:
    """A client that appends and reads in transactions.

    Args:
        load: The workload.
        chosen: The source of its choices.
        inserts_only: It inserts rows and does nothing else, so each transaction travels as one request, and
            shares its CSN with others.
    """

    def __init__(self, load: ListAppend, chosen: random.Random, *, inserts_only: bool = False) -> None:
        self._load, self._chosen, self._inserts_only = load, chosen, inserts_only

    def act(self, session: Session) -> None:
        """Run one transaction."""
        session.write(self._attempt)

    def _attempt(self) -> Attempt:
        value: list[Operation] = []
        for _ in range(self._chosen.choice(_OPERATIONS)):
            mixed = not self._inserts_only
            table = self._chosen.choice(TEXTS if mixed and self._chosen.random() < _TEXTS else ROWS)
            if mixed and self._chosen.random() < _READS:
                value.append(["r", f"{table}/{self._chosen.choice(self._load.keys[table].newest())}", None])
            else:
                key = self._load.keys[table].change(self._chosen)
                value.append(["append", f"{table}/{key}", next(self._load.elements)])
        reads = any(name == "r" for name, _, _ in value)
        begin: dict[str, Any] = {}
        if reads and self._chosen.random() < _SERIALIZABLE:
            begin["isolation"] = "serializable"
        if reads and self._chosen.random() < _FRESH:
            begin["fresh"] = True
        return Attempt(value, partial(_work, value=value), begin)


def _work(tx: Transaction, value: Sequence[Operation]) -> Found:
    filled: list[Operation] = []
    for name, name_of_key, element in value:
        table, _, text = name_of_key.partition("/")
        key = int(text)
        if name == "r":
            filled += look({table: [key]}, tx).value
            continue
        filled.append([name, name_of_key, element])
        if table in ROWS:
            tx.insert(table, pa.table({"k": [key], "e": [element]}, schema=ROW_SCHEMA))
        else:
            row = pa.table({"k": [key], "v": [str(element)]}, schema=TEXT_SCHEMA)
            tx.merge(table, row, on=["k"], when_matched_update={"v": "target.v || ',' || source.v"})
    return Found(filled)


def _reads(keys: dict[str, list[int]]) -> list[Operation]:
    return [["r", f"{table}/{key}", None] for table, some in keys.items() for key in some]


def look(keys: dict[str, list[int]], reader: Snapshot | Transaction) -> Found:
    """Return the lists of some keys; those of rows in the order of their numbers."""
    parts = []
    for table, some in keys.items():
        columns = "e, null::varchar as v" if table in ROWS else "null::bigint as e, v"
        parts.append(f"select '{table}' as t, k, {columns} from {table} where {_where(some)}")
    found = reader.sql(" union all ".join(parts)).to_pylist()
    return _found(keys, ((row["t"], row["k"], row["e"] if row["v"] is None else row["v"]) for row in found))


def _question(keys: dict[str, list[int]]) -> Question:
    """Return the read of some lists by Spark."""
    queries = {
        table: f"select k, {'e' if table in ROWS else 'v'} from {table} where {_where(some)}"
        for table, some in keys.items()
    }

    def found(rows: Rows) -> Found:
        return _found(keys, ((table, *row) for table in keys for row in rows[table]))

    return Question(_reads(keys), queries, found)


def _where(some: Sequence[int]) -> str:
    return f"k in ({', '.join(map(str, some))})"


def _found(keys: dict[str, list[int]], rows: Iterable[tuple[Any, ...]]) -> Found:
    """Return some lists by rows of table, key, and an element or the text of a list."""
    there: dict[str, list[int]] = {key: [] for _, key, _ in _reads(keys)}
    for table, key, told in rows:
        there[f"{table}/{key}"] += [int(one) for one in told.split(",")] if isinstance(told, str) else [told]
    in_rows = {key for key in there if key.partition("/")[0] in ROWS}
    return Found([["r", key, sorted(found) if key in in_rows else found] for key, found in there.items()])


# -- judgement ----------------------------------------------------------------------------------------------


def of_lines(path: Path) -> list[Violation]:
    """Judge a history by both checkers, and its texts again by their own rule."""
    history = load(path)
    texts = History(tuple(_of_texts(one) for one in history.transactions))
    found = of_history(ListAppend.name, history)
    found += [one for one in of_history(ListAppend.name, texts, appends_conflict=True) if one not in found]
    return found


def _of_texts(transaction: Recorded) -> Recorded:
    kept = [one for one in transaction.operations if one.key.partition("/")[0] in TEXTS]
    return replace(transaction, operations=tuple(kept))


def write_ordered(all_lines: Iterable[dict[str, Any]], order: CommitOrder, path: Path) -> list[Violation]:
    """Write a history whose lists of rows are in the order of their commits.

    Args:
        all_lines: The lines of the history as clients have written it.
        order: The CSN of each element of the tables of rows.
        path: The new file.

    Returns:
        The reads with rows that the feed does not tell of.
    """
    found = []
    told = list(all_lines)
    begun = {
        (key.partition("/")[0], element): line["index"]
        for line in told
        if line["type"] == "invoke"
        for name, key, element in line["value"]
        if name == "append"
    }

    def place(table: str, element: int) -> tuple[int, int, int]:
        """Own elements, which have no CSN yet, stand behind."""
        return order.get((table, element), _LATER), begun.get((table, element), 0), element

    with path.open("x", encoding="utf-8") as file:
        for line in told:
            own = {element for name, _, element in line["value"] if name == "append"}
            strange: list[int] = []
            for operation in line["value"]:
                name, key, there = operation
                table = key.partition("/")[0]
                if name == "r" and there is not None and table in ROWS:
                    operation[2] = sorted(there, key=partial(place, table))
                    strange += [one for one in there if (table, one) not in order and one not in own]
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            if strange:
                story = (
                    f"Expected that the change feed tells of all rows that are read, found the elements "
                    f"{strange} that it does not tell of: operation {line['index']} at CSN "
                    f"{line.get('snapshot')}."
                )
                tids = (line["tid"],) if "tid" in line else ()
                found.append(Violation(ListAppend.name, "feed", story, line["time"], tids))
    return found


def texts_of(all_lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a history without the tables of rows, for a checker to which all appends exclude each other."""
    for line in all_lines:
        value = [one for one in line["value"] if one[1].partition("/")[0] in TEXTS]
        if value:
            yield {**line, "value": value}


def feeds_differ(reader: str, told: CommitOrder, expected: CommitOrder) -> list[Violation]:
    """Return what the feed has told one reader otherwise than another."""
    wrong = sorted(key for key in expected.keys() | told.keys() if expected.get(key) != told.get(key))
    if not wrong:
        return []
    key = wrong[0]
    story = (
        f"Expected that the change feed tells {reader} the CSNs that it tells others, found {len(wrong)} "
        f"elements with others, or none: {key} has {expected.get(key)}, and here {told.get(key)}."
    )
    return [Violation(ListAppend.name, "feed", story)]
