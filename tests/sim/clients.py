"""Clients of a run: writers, readers, and the questions that they ask of an agent.

They behave as the client library does (tidelock/client/writes/decide.py): commit() is repeated at the home,
and where that does not answer or has forgotten the transaction, any replica is asked for the outcome. What
they are told goes into the history.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from tests.sim.log_lives import LogLife
from tests.sim.network import RefusedConnectionError, Serve
from tests.sim.sql import part_rows
from tests.sim.transfers import ROWS, SCHEMA, TABLES, Lists, balances, rows_of
from tests.support.histories import table_model
from tests.support.histories.replay import Seen
from tidelock.csnlog.core.ids import Csn, TableId, Tid
from tidelock.csnlog.core.results import Aborted, Committed, Outcome
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    CorruptError,
    FencedError,
    RefusedError,
    SnapshotTooOldError,
    StandbyError,
    TableExistsError,
    TidelockError,
    UnknownTransactionError,
)
from tidelock.replica_agent.snapshots.pinned import Pin
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.ending.commit import WaitFor
from tidelock.replica_agent.transactions.outcomes.rules import CLIENT
from tidelock.replica_agent.transactions.transaction import Isolation, Transaction
from tidelock.replication.core.model import Location
from tidelock.wire.tables import CreateTableRequest
from workloads.history import CallEnd

if TYPE_CHECKING:
    from tests.sim.world import SimWorld
    from tidelock.replica_agent.services.bundle import Services

#: Tables of `table_model`, which all statements change.
CHANGED: Final = ("x", "y")
#: How long a client waits for an answer, and for the outcome of a commit.
ANSWER_S: Final = 4.0
OUTCOME_S: Final = 20.0
#: How long a writer uses a block of tids.
RESERVED_USE_S: Final = 4.0
#: Lease of a pin.
PIN_S: Final = 3.0

#: Labels of these numbers are streaming queries'; the writers number their batches alike, so that they race.
_QUERIES: Final = frozenset({3, 4})
_FORGOTTEN = (UnknownTransactionError, FencedError)


class BufferedBody:
    """The body of an insert, as a web server has it."""

    def __init__(self, rows: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        self.data: bytes = sink.getvalue().to_pybytes()

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Give the body."""
        yield self.data


# -- what is asked: each runs at the agent -------------------------------------------------------------------


async def begin(
    services: Services,
    label: str | None,
    min_csn: Csn,
    fresh: bool,
    isolation: Isolation = Isolation.SNAPSHOT,
    batch: int | None = None,
) -> Tid:
    """POST /transactions."""
    tx = await services.transactions.begin(
        label=label,
        batch=batch,
        min_csn=min_csn or None,
        fresh=fresh,
        lease_s=None,
        meta=None,
        isolation=isolation,
    )
    return tx.tid


def find(services: Services, tid: Tid) -> Transaction:
    """Return a transaction that takes a statement now."""
    return services.transactions.find_for_statement(str(tid))


async def insert(
    services: Services, tid: Tid, table: str, rows: pa.Table, partition: Mapping[str, Any] | None = None
) -> int:
    """POST /transactions/{tid}/rows/{table}."""
    tx = find(services, tid)
    body = BufferedBody(rows)
    inserted, _ = await services.transactions.insert(
        tx, table, body.iter_any(), len(body.data), partition=partition
    )
    return inserted


async def reserve(services: Services, count: int) -> Tid:
    """POST /tids."""
    return services.transactions.reserve(count)


async def write(
    services: Services,
    tid: Tid,
    rows: Mapping[str, pa.Table],
    *,
    label: str | None,
    batch: int | None,
    min_csn: Csn,
    wait: WaitFor,
) -> Committed | None:
    """POST /commits."""
    streams = [(table, BufferedBody(content).data) for table, content in rows.items()]
    return await services.transactions.write(
        tid, streams, label=label, batch=batch, meta=None, progress=None,
        min_csn=min_csn or None, wait=wait, timeout_s=ANSWER_S / 2,
    )  # fmt: skip


async def commit(services: Services, tid: Tid, wait: WaitFor, timeout_s: float) -> Committed | None:
    """POST /transactions/{tid}/commit."""
    return await services.transactions.commits.commit(tid, wait=wait, timeout_s=timeout_s)


async def rollback(services: Services, tid: Tid) -> None:
    """POST /transactions/{tid}/rollback."""
    await services.transactions.commits.roll_back(services.transactions.transactions.find(str(tid)))


async def outcome(services: Services, tid: Tid) -> Outcome:
    """GET /outcomes/{tid}."""
    return await services.transactions.outcomes.outcome(tid, CLIENT)


async def listed(services: Services, csn: Csn, tables: Sequence[str] = (*TABLES, *CHANGED)) -> Lists:
    """Tables at a CSN: parts and their verified bytes."""
    await services.reads.require_read(csn)
    found: Lists = {}
    for table in tables:
        rows = services.reads.reader.parts(TableId(full_name(table)), csn)
        found[str(full_name(table))] = [(row, bytes_of(services, row)) for row in rows]
    return found


def asking_outcome(tid: Tid) -> Serve:
    """Return the question for an outcome."""
    return lambda at: outcome(at, tid)


def asking_lists(csn: Csn) -> Serve:
    """Return the question for all tables at a CSN."""
    return lambda at: listed(at, csn)


def asking_create(schema: TableSchema) -> Serve:
    """Return the wish for a table."""
    asked = CreateTableRequest(
        schema.name, "", [*schema.partition_by], [*schema.sort_by], {**schema.properties}
    )
    return lambda at: at.definitions.alone(at.definitions.creating(asked, schema.arrow))


def bytes_of(services: Services, row: PartRow) -> bytes:
    """Return the bytes of a part that a replica lists.

    Raises:
        StandbyError: It lacks the part, which was removed since: only readers of the past need it, and they
            go to another replica (rule clone).
    """
    if row.file is None:
        assert not services.reads.reader.visible([row.part]), f"{row} is listed and lies nowhere"
        raise StandbyError(f"part {row.part} is not on this replica", part=row.part)
    return services.peers.files.read(Location(row.file, row.offset, row.length, row.blocks))


async def create_tables(world: SimWorld, others: Sequence[TableSchema] = ()) -> None:
    """Make all tables, and others; each try may fail while the replicas start."""
    schemas = [TableSchema.from_request(table, SCHEMA) for table in TABLES]
    schemas += [
        TableSchema.from_request(table, table_model.SCHEMA, table_model.PARTITION_BY, ["k"])
        for table in CHANGED
    ]
    for schema in (*schemas, *others):
        while True:
            try:
                await SimSession(world, "c", 0).ask("create", asking_create(schema))
                break
            except TableExistsError:
                break
            except TidelockError:
                await asyncio.sleep(0.2)


class ProposalEnd(NamedTuple):
    """The answer to a commit: its CSN, or the error with which it was refused."""

    end: CallEnd
    csn: Csn | None = None
    why: str | None = None
    error: TidelockError | None = None


class SimSession:
    """A client's session: it never goes back behind what it has committed or read."""

    def __init__(self, world: SimWorld, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance(f"client {name}")
        self._csn, self._of = Csn(0), world.oracle.logs.now
        self._number = number

    @property
    def csn(self) -> Csn:
        """The largest CSN that it was told, without those that a rebuild has left out."""
        logs = self.world.oracle.logs
        if self._of is not logs.now:
            self._of = logs.now
            if logs.now is LogLife.REMADE and self._csn > logs.base:
                self._csn = logs.base
                self.renew()
        return self._csn

    @csn.setter
    def csn(self, csn: Csn) -> None:
        self._csn = csn

    @property
    def process(self) -> str:
        """Its name in the history; a new one after a call of unknown outcome, and after a rebuild."""
        return f"{self.name}/{self._number}"

    def renew(self) -> None:
        """Go on as another process."""
        self._number += 1

    async def ask(
        self, what: str, serve: Serve, *, at: str = "", timeout_s: float = ANSWER_S, twice: bool = False
    ) -> Any:
        """Ask an agent: the one named, or any."""
        dst = at or self.chance.choice(self.world.hosts).name
        return await self.world.network.call(self.name, dst, what, serve, timeout_s=timeout_s, twice=twice)

    def note(self, kind: CallEnd | str, f: str, **fields: Any) -> None:
        """Write a line of the history."""
        self.world.note(kind, f, self.process, **fields)

    async def pause(self) -> None:
        """Think about it for a while."""
        await asyncio.sleep(self.chance.expovariate(self.world.plan.transactions / 36.0))

    async def decided(self, tid: Tid, home: str) -> ProposalEnd:
        """Ask for a commit until its outcome is known, as the client library does."""
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
                    return ProposalEnd(CallEnd.FAIL, None, repr(error), error)
                why = repr(error)
            except TidelockError as error:
                lost, why = lost or not isinstance(error, RefusedConnectionError), repr(error)
            else:
                if done is None:  # it has changed nothing
                    return ProposalEnd(CallEnd.OK)
                self.world.oracle.promised(done.csn, wait)
                return ProposalEnd(CallEnd.OK, done.csn)
            match await self._told(tid):
                case Committed(csn):
                    return ProposalEnd(CallEnd.OK, csn)
                case Aborted():
                    return ProposalEnd(CallEnd.FAIL, None, f"aborted after {why}")
            await asyncio.sleep(self.chance.uniform(0.05, 1.0))
        return ProposalEnd(CallEnd.INFO, None, why)

    async def _told(self, tid: Tid) -> Outcome | None:
        replica = self.chance.choice(self.world.hosts).name
        try:
            found: Outcome = await self.ask("outcome", asking_outcome(tid), at=replica)
        except TidelockError as error:
            self.world.trace.comment(f"{replica} does not tell of {tid}: {error!r}")
            return None
        note_outcome(self, replica, tid, found)
        return found


class SimWriter(SimSession):
    """Inserts +n into one table and -n into the other, in one transaction, again and again."""

    def __init__(self, world: SimWorld, name: str) -> None:
        super().__init__(world, name, 1)
        self._reserved: dict[str, list[tuple[Tid, float]]] = {}  # by home, with the time of their reservation

    async def run(self) -> None:
        """Do all transactions."""
        whole = self.world.chance(f"whole writes of {self.name}")
        for number in range(self.world.plan.transactions):
            await self.pause()
            key, n = f"{self.name}.{number}", number + 1
            if whole.random() < self.world.plan.whole:
                home = self.chance.choice(self.world.hosts).name
                others = [SimWriter(self.world, f"{key}.{i}") for i in range(1, self.world.plan.crowd)]
                crowd = [other._write_whole(other.name, n, home) for other in others]
                await asyncio.gather(self._write_whole(key, n, home), *crowd)
            else:
                await self._write(key, n)

    async def _write_whole(self, key: str, n: int, home: str) -> None:
        """Do one transaction as one request, as tidelock/client/writes/whole_writes.py does."""
        share = 0.1 if self.world.plan.crowd == 1 else 0.4  # of a crowd some have the same label
        label, batch = _labelled(self.chance.randrange(5) if self.chance.random() < share else None, n)
        csn, wait = self.csn, self.chance.choice([WaitFor.HOME, WaitFor.HOME, WaitFor.COPIES])
        self.note("invoke", "write", key=key, rows=list(ROWS))
        try:
            tid = await self._next_tid(home)
        except TidelockError as error:
            self.note(CallEnd.FAIL, "write", key=key, tid=None, error=repr(error))
            return
        # It reads at what is applied when it comes, which nobody tells the client: no "snapshot".
        self.note("invoke", "commit", key=key, tid=str(tid))
        self._note_end(key, tid, await self._sent(tid, home, rows_of(key, n), label, batch, csn, wait))

    async def _next_tid(self, home: str) -> Tid:
        """Return a tid of a home that this client has not used; reserve three if there is none."""
        loop = asyncio.get_running_loop()
        kept = [
            (tid, at_s) for tid, at_s in self._reserved.get(home, []) if loop.time() < at_s + RESERVED_USE_S
        ]
        if not kept:
            at_s = loop.time()
            first: Tid = await self.ask("reserve", lambda at: reserve(at, 3), at=home)
            kept = [(replace(first, counter=first.counter + number), at_s) for number in range(3)]
        (tid, _), *self._reserved[home] = kept
        return tid

    async def _sent(
        self,
        tid: Tid,
        home: str,
        rows: Mapping[str, pa.Table],
        label: str | None,
        batch: int | None,
        csn: Csn,
        wait: WaitFor,
    ) -> ProposalEnd:
        def serve(at: Services) -> Awaitable[Committed | None]:
            return write(at, tid, rows, label=label, batch=batch, min_csn=csn, wait=wait)

        try:
            done = await self.ask(
                "write", serve, at=home, timeout_s=self.chance.choice([1.0, ANSWER_S]), twice=True
            )
        except (RefusedError, RefusedConnectionError) as error:
            if isinstance(error, UnknownTransactionError):
                self._reserved.pop(home, None)
            if not isinstance(error, FencedError):
                return ProposalEnd(CallEnd.FAIL, None, repr(error), error)
        except TidelockError:
            pass
        else:
            if done is None:
                return ProposalEnd(CallEnd.OK)
            self.world.oracle.promised(done.csn, wait)
            return ProposalEnd(CallEnd.OK, done.csn)
        return await self.decided(tid, home)

    async def _write(self, key: str, n: int) -> None:
        home = self.chance.choice(self.world.hosts).name
        label = self.chance.randrange(5) if self.chance.random() < 0.1 else None
        tid = await self._filled(key, n, home, label)
        fate = self.chance.random()
        if tid is None:
            return
        if fate < 0.05:
            self.note(CallEnd.FAIL, "write", key=key, tid=str(tid), error="given up")
        elif fate < 0.15:
            try:
                await self.ask("rollback", lambda at: rollback(at, tid), at=home)
            except TidelockError as error:
                self.world.trace.comment(f"{key} not rolled back: {error!r}")
            self.note(CallEnd.FAIL, "write", key=key, tid=str(tid), error="rolled back")
        else:
            await self._commit(key, tid, home)

    async def write_at(self, home: str) -> CallEnd:
        """Do one transaction at this home, and return how it ended."""
        tid = await self._filled(self.name, 1, home)
        return CallEnd.FAIL if tid is None else await self._commit(self.name, tid, home)

    async def _filled(self, key: str, n: int, home: str, number: int | None = None) -> Tid | None:
        """Begin and insert; some have the label of that number, or are a batch of a streaming query."""
        label, batch = _labelled(number, n)
        csn = self.csn
        self.note("invoke", "write", key=key, rows=list(ROWS))
        tid: Tid | None = None
        try:
            fresh, acknowledged = self.chance.random() < 0.15, self.world.acknowledged
            tid = await self.ask("begin", lambda at: begin(at, label, csn, fresh, batch=batch), at=home)
            self.world.oracle.began(tid)
            self.csn = max(self.csn, tid.snapshot)
            if fresh and tid.snapshot < acknowledged:
                what = f"{tid} is fresh, and CSN {acknowledged} was acknowledged before it was asked for"
                self.world.oracle.violated("I11 MONOREAD", what)
            for table, rows in rows_of(key, n).items():
                await self.ask("insert", functools.partial(_insert, tid, table, rows), at=home)
        except TidelockError as error:
            self.note(CallEnd.FAIL, "write", key=key, tid=tid and str(tid), error=repr(error))
            return None
        return tid

    async def _commit(self, key: str, tid: Tid, home: str) -> CallEnd:
        self.note("invoke", "commit", key=key, tid=str(tid), snapshot=tid.snapshot)
        return self._note_end(key, tid, await self.decided(tid, home))

    def _note_end(self, key: str, tid: Tid, ended: ProposalEnd) -> CallEnd:
        end, csn, error, _ = ended
        self.note(end, "write", key=key, tid=str(tid), csn=csn, error=error)
        if csn is not None and end is CallEnd.OK:
            self.csn = max(self.csn, csn)
            if csn in self.world.oracle.records:  # else ZooKeeper was set back meanwhile
                self.world.acknowledged = max(self.world.acknowledged, csn)
        if end is CallEnd.INFO:
            self.renew()
        return end


def _labelled(number: int | None, n: int) -> tuple[str | None, int | None]:
    """Return label and batch of the n-th transaction of a writer, whose label has this number."""
    label = None if number is None else f"query {number}" if number in _QUERIES else f"label {number}"
    return label, n if number in _QUERIES else None


async def _insert(tid: Tid, table: str, rows: pa.Table, services: Services) -> int:
    return await insert(services, tid, table, rows)


def note_outcome(session: SimSession, replica: str, tid: Tid, found: Outcome) -> None:
    """Write down what a replica says of a transaction, if that is final."""
    match found:
        case Committed(csn):
            told: dict[str, Any] = {"outcome": "committed", "csn": csn}
        case Aborted():
            told = {"outcome": "aborted"}
        case _:
            return
    log = session.world.oracle.follows(replica, Csn(told.get("csn", session.world.oracle.logs.older + 1)))
    session.note(CallEnd.OK, "outcome", replica=replica, tid=str(tid), log=log, **told)


class SimReader(SimSession):
    """Reads all tables at one pinned CSN, now and then at an old one; holds some pins for a while."""

    def __init__(self, world: SimWorld, name: str) -> None:
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
                self.note(CallEnd.FAIL, "read", error=repr(error))

    async def _read(self, old: Csn | None) -> None:
        replica = self.chance.choice(self.world.hosts).name
        least, asked_s = self.csn or None, asyncio.get_running_loop().time()
        pin: Pin = await self.ask(
            "snapshot",
            lambda at: at.reads.open_snapshot(
                csn=old, at_ms=None, min_csn=None if old else least, ttl_s=PIN_S
            ),
            at=replica,
        )
        if old is None:
            self.csn = max(self.csn, pin.csn)
        self._seen = [*self._seen[-5:], pin.csn]
        held = _Held(pin, replica, asked_s + PIN_S, self.world.oracle.logs.now)
        try:
            await self._look(held, replica, exact=old is not None)
            while self.chance.random() < 0.4:  # fail over, and come back
                await asyncio.sleep(self.chance.uniform(0.2, 0.6 * PIN_S))
                await self._renew(held)
                await self._look(held, self.chance.choice(self.world.hosts).name, exact=True)
        finally:
            if self.chance.random() < 0.7:  # else its lease runs out
                await self.ask("close", lambda at: at.reads.snapshots.close(pin.id), at=replica)

    async def _renew(self, held: _Held) -> None:
        asked_s = asyncio.get_running_loop().time()
        try:
            await self.ask("renew", lambda at: at.reads.snapshots.renew(held.pin.id), at=held.replica)
        except TidelockError as error:
            self.world.trace.comment(f"{self.name}: {held.pin.id} is not renewed: {error!r}")
        else:
            held.until_s = asked_s + PIN_S

    async def _look(self, held: _Held, replica: str, *, exact: bool) -> None:
        csn = held.pin.csn
        try:
            found = await self.ask("read", asking_lists(csn), at=replica)
        except SnapshotTooOldError as error:
            if asyncio.get_running_loop().time() <= held.until_s and held.log is self.world.oracle.logs.now:
                what = f"{replica} refuses CSN {csn}, which {held.pin.id} pins: {error.message}"
                self.world.oracle.violated("I12 GC-SAFE", what)
            raise
        note_read(self, replica, csn, found, exact=exact)


class _Held:
    """A pin, the replica that renews it, and until when it certainly holds."""

    def __init__(self, pin: Pin, replica: str, until_s: float, log: LogLife) -> None:
        self.pin, self.replica, self.until_s, self.log = pin, replica, until_s, log


def note_read(session: SimSession, replica: str, csn: Csn, found: Lists, *, exact: bool) -> None:
    """Write down a read: rows and lists."""
    log = session.world.oracle.follows(replica, csn)
    session.note(CallEnd.OK, "read", replica=replica, csn=csn, exact=exact, rows=balances(found), log=log)
    for table, rows in found.items():
        parts = [[row.part, row.path, row.rows, row.length, row.checksum] for row, _ in rows]
        session.note(CallEnd.OK, "parts", replica=replica, csn=csn, table=table, parts=parts, log=log)
    tables = {table: _changed_rows(found[full_name(table)]) for table in CHANGED}
    session.world.oracle.story.seen.append(Seen(replica, csn, tables))
    session.world.oracle.logs.seen(log)


def _changed_rows(parts: list[tuple[PartRow, bytes]]) -> table_model.Rows:
    rows: table_model.Rows = Counter()
    for row, data in parts:
        rows.update(_model_rows(data, row.path))
    return rows


@functools.lru_cache(maxsize=20_000)
def _model_rows(data: bytes, path: str) -> tuple[table_model.Row, ...]:
    return tuple(part_rows(data, path))


def names() -> list[TableId]:
    """Return the full names of all tables."""
    return [TableId(full_name(table)) for table in (*TABLES, *CHANGED)]
