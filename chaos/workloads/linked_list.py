"""A linked list in a table: nodes are put in and taken out, and no link dangles.

A change replaces the row of the node before it, so of two changes next to each other one is refused.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import UnavailableError

TABLE: Final = "linked_list"
#: ``after`` is the next node, `END` behind the last one; ``bucket`` keeps nodes in parts of their own.
SCHEMA: Final = pa.schema([("bucket", pa.int64()), ("node", pa.int64()), ("after", pa.int64())])
HEAD, END = 0, -1
_BUCKETS: Final = 16
_VALUE: Final[list[Operation]] = [["r", TABLE, None]]
#: Nodes are put in below the first number, taken out above the second.
_FEW, _MANY = 15, 30
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 3, 6.0, 3.0


class LinkedList(Workload):
    """Changes and reads of a linked list."""

    name: ClassVar[str] = "linked_list"
    promise: ClassVar[str] = (
        "From the head every node is reached once, and the last link is the end, at every CSN."
    )

    def prepare(self, db: Database) -> None:
        """Create the table, with a head that is the end too."""
        self._nodes = itertools.count(1)
        self.create(db, TABLE, SCHEMA, partition_by=["bucket"], properties=SOME_HISTORY)
        session = self.session()
        value = [["link", HEAD, END]]
        if (
            session.write(lambda: Attempt(value, lambda tx: _insert(tx, HEAD, END), f="link"), tries=1)
            is None
        ):
            raise UnavailableError("expected that a cluster that is well takes the head")
        session.close()

    def clients(self) -> Sequence[Client]:
        """Return writers, and readers of all kinds."""
        writers = [self.acting(self._change, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        return [*writers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of the whole list."""
        query = {TABLE: f"select node, after from {TABLE}"}
        question = Question(_VALUE, query, lambda rows: Found([["r", TABLE, sorted(rows[TABLE])]]))
        return reading(self, lambda: question)

    def _change(self, session: Session) -> None:
        new = next(self._nodes)
        draw = random.random()

        def work(tx: Transaction) -> Found:
            links = {row["node"]: row["after"] for row in tx.read(TABLE, ["node", "after"]).to_pylist()}
            before = sorted(links)[int(draw * len(links))]
            at = links[before]
            share = (len(links) - _FEW) / (_MANY - _FEW)
            if at != END and random.random() < share:
                beyond = links[at]
                _relink(tx, before, beyond)
                tx.delete(TABLE, "bucket = ? and node = ?", [at % _BUCKETS, at])
                return Found([["unlink", at, None]], {"before": before, "beyond": beyond})
            _relink(tx, before, new)
            _insert(tx, new, at)
            return Found([["link", new, at]], {"before": before})

        session.write(lambda: Attempt([["change", new, None]], work, f="change"))

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read the list at each replica, and judge all reads."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        return broken(ended(lines(self.path)))


def _insert(tx: Transaction, node: int, after: int) -> None:
    row = {"bucket": [node % _BUCKETS], "node": [node], "after": [after]}
    tx.insert(TABLE, pa.table(row, schema=SCHEMA))


def _relink(tx: Transaction, node: int, after: int) -> None:
    tx.update(TABLE, {"after": after}, "bucket = ? and node = ?", [node % _BUCKETS, node])


def look(snap: Snapshot) -> Found:
    """Return all links, sorted."""
    rows = snap.read(TABLE, ["node", "after"]).to_pylist()
    return Found([["r", TABLE, sorted([row["node"], row["after"]] for row in rows)]])


def broken(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads whose links are no chain from the head to the end, and those that disagree."""
    wrong = []
    first_at: dict[int, dict[str, Any]] = {}
    for line in all_lines:
        if line["type"] != "ok" or line["f"] != "read":
            continue
        [(_, _, links)] = line["value"]
        at = f"at CSN {line['snapshot']} of {line.get('replica')} (operation {line['index']})"
        fault = fault_of(links)
        if fault is not None:
            story = f"Expected a chain from node {HEAD} to the end, found {fault} {at}.\n{links}"
            wrong.append(Violation(LinkedList.name, "no dangling link", story, line["time"]))
        first = first_at.setdefault(line["snapshot"], line)
        if first["value"] != line["value"]:
            story = f"Expected the links of operation {first['index']}, found others {at}."
            wrong.append(Violation(LinkedList.name, "replicas agree", story, line["time"]))
    return wrong


def fault_of(links: Sequence[Sequence[int]]) -> str | None:
    """Return what is wrong with links (node, next node); None if they are a chain from head to end."""
    after: dict[int, int] = {}
    for node, beyond in links:
        if node in after:
            return f"node {node} twice"
        after[node] = beyond
    node, reached = HEAD, set[int]()
    while node != END:
        if node not in after:
            return f"a dangling link to node {node}"
        if node in reached:
            return f"a ring through node {node}"
        reached.add(node)
        node = after[node]
    loose = sorted(after.keys() - reached)
    return f"nodes {loose} that nothing leads to" if loose else None
