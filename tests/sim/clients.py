"""Clients of a run: writers, readers, and the questions that a client asks of an agent.

They behave as the client library does (tidelock/client/decide.py): commit() is repeated at the home, and
where that does not answer or has forgotten the transaction, any replica is asked for the outcome. What they
are told goes into the history.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.sim.network import RefusedConnectionError, Serve
from tests.support.history import End
from tidelock.csnlog.ids import Csn, TableName, Tid
from tidelock.csnlog.results import Aborted, Committed, Outcome
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    CorruptError,
    FencedError,
    RefusedError,
    TableExistsError,
    TidelockError,
    UnknownTransactionError,
)
from tidelock.replica_agent.catalog_read import PartRow
from tidelock.replica_agent.commit import WaitFor
from tidelock.replica_agent.schema import TableSchema, full_name
from tidelock.replica_agent.state import Action
from tidelock.replication.model import Location

if TYPE_CHECKING:
    from tests.sim.world import World
    from tidelock.replica_agent.operations import Operations

TABLES: Final = ("a", "b")
SCHEMA: Final = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64())])
#: Rows of a write in both tables.
ROWS: Final = (1, 2)
#: How long a client waits for an answer, and for the outcome of a commit.
ANSWER_S: Final = 4.0
OUTCOME_S: Final = 20.0

#: Parts of each table with their bytes.
Lists = dict[str, list[tuple[PartRow, bytes]]]

_FORGOTTEN = (UnknownTransactionError, FencedError)


class _Body:
    """The body of an insert, as a web server has it."""

    def __init__(self, rows: dict[str, list[Any]]) -> None:
        sink = pa.BufferOutputStream()
        columns = [pa.array(rows[field.name], field.type) for field in SCHEMA]
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self.data: bytes = sink.getvalue().to_pybytes()

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Give the body."""
        yield self.data


# -- what is asked: each runs at the agent -------------------------------------------------------------------


async def begin(operations: Operations, label: str | None, min_csn: Csn, fresh: bool) -> Tid:
    """POST /transactions."""
    tx = await operations.begin(label=label, min_csn=min_csn or None, fresh=fresh, lease_s=None, meta=None)
    return tx.tid


async def insert(operations: Operations, tid: Tid, table: str, rows: dict[str, list[Any]]) -> None:
    """POST /transactions/{tid}/rows/{table}."""
    tx = operations.transactions.find(str(tid))
    operations.transactions.touch(tx)
    operations.require(Action.INSERT)
    body: Any = _Body(rows)
    await operations.inserts.insert(tx, table, body, len(body.data))


async def commit(operations: Operations, tid: Tid, wait: WaitFor, timeout_s: float) -> Committed | None:
    """POST /transactions/{tid}/commit."""
    return await operations.commits.commit(tid, wait=wait, timeout_s=timeout_s)


async def rollback(operations: Operations, tid: Tid) -> None:
    """POST /transactions/{tid}/rollback."""
    await operations.commits.rollback(operations.transactions.find(str(tid)))


async def outcome(operations: Operations, tid: Tid) -> Outcome:
    """GET /outcomes/{tid}."""
    return await operations.outcome(tid)


async def listed(operations: Operations, csn: Csn) -> Lists:
    """Both tables at a CSN: parts and their verified bytes."""
    await operations.require_read(csn)
    found: Lists = {}
    for table in TABLES:
        rows = operations.catalog.reader.parts(full_name(table), csn)
        found[str(full_name(table))] = [(row, _bytes(operations, row)) for row in rows]
    return found


def asking_outcome(tid: Tid) -> Serve:
    """Return the question for an outcome."""
    return lambda at: outcome(at, tid)


def asking_lists(csn: Csn) -> Serve:
    """Return the question for both tables at a CSN."""
    return lambda at: listed(at, csn)


def asking_create(schema: TableSchema) -> Serve:
    """Return the wish for a table."""
    return lambda at: at.create_table(schema)


def _bytes(operations: Operations, row: PartRow) -> bytes:
    assert row.file is not None, f"{row} is listed and lies nowhere"
    location = Location(row.file, row.offset, row.length, row.blocks)
    return operations.inserts.files.read(location)


@functools.lru_cache(maxsize=20_000)
def _rows(data: bytes) -> tuple[tuple[str, int], ...]:
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    return tuple(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))


def balances(found: Lists) -> list[list[Any]]:
    """Return key, sum and rows in the first table, sum and rows in the second."""
    sums: dict[str, list[int]] = {}
    for index, table in enumerate(found):
        for _, data in found[table]:
            for key, n in _rows(data):
                entry = sums.setdefault(key, [0, 0, 0, 0])
                entry[2 * index] += n
                entry[2 * index + 1] += 1
    return [[key, *sums[key]] for key in sorted(sums)]


async def create_tables(world: World) -> None:
    """Make both tables, as soon as somebody does that."""
    for table in TABLES:
        schema = TableSchema.from_request(table, SCHEMA)
        while True:
            try:
                await Session(world, "c", 0).ask("create", asking_create(schema))
                break
            except TableExistsError:
                break
            except TidelockError:
                await asyncio.sleep(0.2)


class Session:
    """A client's session: it never goes back behind what it has committed or read."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance(f"client {name}")
        self.csn = Csn(0)
        self._number = number

    @property
    def process(self) -> str:
        """Its name in the history; a new one after a call whose outcome it does not know."""
        return f"{self.name}/{self._number}"

    def renew(self) -> None:
        """Go on as another process."""
        self._number += 1

    async def ask(self, what: str, serve: Serve, *, at: str = "", timeout_s: float = ANSWER_S) -> Any:
        """Ask an agent: the one named, or any."""
        dst = at or self.chance.choice(self.world.hosts).name
        return await self.world.network.call(self.name, dst, what, serve, timeout_s=timeout_s)

    def note(self, kind: End | str, f: str, **fields: Any) -> None:
        """Write a line of the history."""
        self.world.note(kind, f, self.process, **fields)

    async def pause(self) -> None:
        """Think about it for a while."""
        await asyncio.sleep(self.chance.expovariate(self.world.plan.transactions / 36.0))


class Writer(Session):
    """Inserts +n into one table and -n into the other, in one transaction, again and again."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, 1)

    async def run(self) -> None:
        """Do all transactions."""
        for number in range(self.world.plan.transactions):
            await self.pause()
            await self._write(f"{self.name}.{number}", number + 1)

    async def _write(self, key: str, n: int) -> None:
        home = self.chance.choice(self.world.hosts).name
        label = f"label {self.chance.randrange(5)}" if self.chance.random() < 0.1 else None
        tid = await self._filled(key, n, home, label)
        fate = self.chance.random()
        if tid is None:
            return
        if fate < 0.05:
            self.note(End.FAIL, "write", key=key, tid=str(tid), error="given up")
        elif fate < 0.15:
            try:
                await self.ask("rollback", lambda at: rollback(at, tid), at=home)
            except TidelockError as error:
                self.world.trace.comment(f"{key} not rolled back: {error!r}")
            self.note(End.FAIL, "write", key=key, tid=str(tid), error="rolled back")
        else:
            await self._commit(key, tid, home)

    async def write_at(self, home: str) -> None:
        """Do one transaction at this home."""
        tid = await self._filled(self.name, 1, home, None)
        if tid is not None:
            await self._commit(self.name, tid, home)

    async def _filled(self, key: str, n: int, home: str, label: str | None) -> Tid | None:
        self.note("invoke", "write", key=key, rows=list(ROWS))
        tid: Tid | None = None
        try:
            fresh, acknowledged = self.chance.random() < 0.15, self.world.acknowledged
            tid = await self.ask("begin", lambda at: begin(at, label, self.csn, fresh), at=home)
            self.csn = max(self.csn, tid.snapshot)
            if fresh and tid.snapshot < acknowledged:
                what = f"{tid} is fresh, and CSN {acknowledged} was acknowledged before it was asked for"
                self.world.oracle.violated("I11 MONOREAD", what)
            first: dict[str, list[Any]] = {"k": [key], "n": [n]}
            second: dict[str, list[Any]] = {"k": [key, key], "n": [1 - n, -1]}
            await self.ask("insert", lambda at: insert(at, tid, TABLES[0], first), at=home)
            await self.ask("insert", lambda at: insert(at, tid, TABLES[1], second), at=home)
        except TidelockError as error:
            self.note(End.FAIL, "write", key=key, tid=tid and str(tid), error=repr(error))
            return None
        return tid

    async def _commit(self, key: str, tid: Tid, home: str) -> None:
        self.note("invoke", "commit", key=key, tid=str(tid), snapshot=tid.snapshot)
        end, csn, error = await self._decided(tid, home)
        self.note(end, "write", key=key, tid=str(tid), csn=csn, error=error)
        if csn is not None and end is End.OK:
            self.csn = max(self.csn, csn)
            self.world.acknowledged = max(self.world.acknowledged, csn)
        if end is End.INFO:
            self.renew()

    async def _decided(self, tid: Tid, home: str) -> tuple[End, Csn | None, str | None]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + OUTCOME_S
        lost, why = False, ""
        wait = self.chance.choice([WaitFor.HOME, WaitFor.HOME, WaitFor.COPIES, WaitFor.ALL])
        while loop.time() < until_s:
            try:
                done = await self.ask("commit", lambda at: commit(at, tid, wait, ANSWER_S / 2), at=home)
            except CommitUnknownError as error:
                lost, why = True, repr(error)
            except RefusedError as error:
                if not isinstance(error, _FORGOTTEN) and not (lost and isinstance(error, BadRequestError)):
                    return End.FAIL, None, repr(error)
                why = repr(error)
            except TidelockError as error:
                lost, why = lost or not isinstance(error, RefusedConnectionError), repr(error)
            else:
                self.world.oracle.promised(done.csn, wait)
                return End.OK, done.csn, None
            match await self._told(tid):
                case Committed(csn):
                    return End.OK, csn, None
                case Aborted():
                    return End.FAIL, None, f"aborted after {why}"
            await asyncio.sleep(self.chance.uniform(0.05, 1.0))
        return End.INFO, None, why

    async def _told(self, tid: Tid) -> Outcome | None:
        replica = self.chance.choice(self.world.hosts).name
        try:
            found: Outcome = await self.ask("outcome", asking_outcome(tid), at=replica)
        except TidelockError as error:
            self.world.trace.comment(f"{replica} does not tell of {tid}: {error!r}")
            return None
        note_outcome(self, replica, tid, found)
        return found


def note_outcome(session: Session, replica: str, tid: Tid, found: Outcome) -> None:
    """Write down what a replica says of a transaction, if that is final."""
    match found:
        case Committed(csn):
            told: dict[str, Any] = {"outcome": "committed", "csn": csn}
        case Aborted():
            told = {"outcome": "aborted"}
        case _:
            return
    session.note(End.OK, "outcome", replica=replica, tid=str(tid), **told)


class Reader(Session):
    """Reads both tables at one pinned CSN, now and then at an old one."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, 1)
        self._seen: list[Csn] = []

    async def run(self) -> None:
        """Read as long as writers write."""
        for number in range(self.world.plan.transactions):
            await self.pause()
            old = self._seen[0] if self._seen and number % 3 == 2 else None
            try:
                await self._read(old)
            except CorruptError as error:
                self.world.oracle.violated("I9 HONEST", error.message)
            except TidelockError as error:
                self.note(End.FAIL, "read", error=repr(error))

    async def _read(self, old: Csn | None) -> None:
        replica = self.chance.choice(self.world.hosts).name
        least = self.csn or None
        pin = await self.ask(
            "snapshot",
            lambda at: at.open_snapshot(csn=old, at_ms=None, min_csn=None if old else least, ttl_s=3.0),
            at=replica,
        )
        found = await self.ask("read", lambda at: listed(at, pin.csn), at=replica)
        note_read(self, replica, pin.csn, found, exact=old is not None)
        if old is None:
            self.csn = max(self.csn, pin.csn)
        self._seen = [*self._seen[-5:], pin.csn]
        if self.chance.random() < 0.7:  # else its lease runs out
            await self.ask("close", lambda at: at.snapshots.close(pin.id), at=replica)


def note_read(session: Session, replica: str, csn: Csn, found: Lists, *, exact: bool) -> None:
    """Write down a read: rows and lists."""
    session.note(End.OK, "read", replica=replica, csn=csn, exact=exact, rows=balances(found))
    for table, rows in found.items():
        parts = [[row.part, row.path, row.rows, row.length, row.checksum] for row, _ in rows]
        session.note(End.OK, "parts", replica=replica, csn=csn, table=table, parts=parts)


def names() -> list[TableName]:
    """Return the full names of both tables."""
    return [full_name(table) for table in TABLES]
