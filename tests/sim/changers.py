"""Clients that run everything that removes, inside transactions over two tables.

Each transaction is written down as `tests/support/histories/replay.py` judges it: what every statement read
at and answered, and how the transaction ended. A statement that is refused or gets no answer leaves rollback
only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tests.sim.clients import CHANGED, BufferedBody, SimSession, begin, find, insert, rollback
from tests.sim.network import Serve
from tests.sim.sql import rows_of
from tests.support.histories import table_model as model
from tests.support.histories.replay import Life, Ran, Refusal
from tests.support.histories.session_plan import LEVELS, Drawer
from tidelock.csnlog.core.ids import Csn, Tid
from tidelock.errors import (
    SerializationConflictError,
    SnapshotTooOldError,
    TidelockError,
    TransactionClosedError,
)
from tidelock.replica_agent.sql.mutation import DeleteRows, MergeRows, UpdateRows
from tidelock.replica_agent.sql.pool import SqlRequest, select_statement
from tidelock.replica_agent.transactions.transaction import Isolation
from tidelock.wire.statements import Literal, RemoveResult
from workloads.history import CallEnd

if TYPE_CHECKING:
    from collections import Counter

    from tests.sim.world import SimWorld
    from tidelock.replica_agent.services.bundle import Services
    from tidelock.wire.statements import ChangeResult

#: The statements that need no SQL process, and those that its stand-in (tests/sim/sql.py) can run.
STATEMENTS: Final = (
    model.Read,
    model.Insert,
    model.Delete,
    model.Update,
    model.Upsert,
    model.DropPartition,
    model.Truncate,
    model.ReplacePartition,
    model.MovePartition,
)
#: Statements of a transaction, at most.
_STATEMENTS_MAX: Final = 5
#: How long a client waits for the end of a statement, in seconds.
STATEMENT_S: Final = 8.0


# -- what is asked: each runs at the agent -------------------------------------------------------------------


async def _removed(services: Services, tid: Tid, statement: model.Statement) -> tuple[Csn, int]:
    """POST drop_partition, truncate, move_partition; returns the CSN that was read, and the rows."""
    tx, removals = find(services, tid), services.transactions.removals
    match statement:
        case model.DropPartition(table, p) | model.ReplacePartition(table, p):
            done: RemoveResult = await removals.drop_partition(tx, table, {"p": p})
        case model.MovePartition(table, p, into):
            done = await removals.move_partition(tx, table, into, {"p": p})
        case _:
            done = await removals.truncate(tx, statement.table)
    return tx.statements.statement_csn, done.rows


async def _changed(services: Services, tid: Tid, statement: model.Statement) -> tuple[Csn, ChangeResult]:
    """POST delete, update, upsert; returns the CSN that was read, and what was done."""
    tx, mutations = find(services, tid), services.transactions.mutations
    with services.reads.failures.noted(str(tid), "the change"):
        match statement:
            case model.Delete(table, where):
                sql, params = model.in_sql(where)
                done = await mutations.delete(tx, table, DeleteRows(sql, tuple(params)))
            case model.Update(table, where, change):
                done = await mutations.update(tx, table, _update(where, change))
            case model.Upsert(table, rows):
                body = BufferedBody(model.as_arrow(rows))
                action = MergeRows("", ("k",), update=True, insert=True, upsert=True)
                done = await mutations.merge(tx, table, action, body.iter_any(), len(body.data))
            case _:
                raise AssertionError(statement)
    return tx.statements.statement_csn, done


def _update(where: model.Condition, change: model.Add | model.Put) -> UpdateRows:
    sql, params = model.in_sql(where)
    text = None if where == model.Everything() else sql
    given = () if text is None else tuple(params)
    if isinstance(change, model.Add):
        return UpdateRows({"v": "v + ?"}, text, (change.v, *given))
    return UpdateRows({change.column: Literal(change.value)}, text, given)


async def _read(services: Services, tid: Tid, table: str, where: model.Condition) -> tuple[Csn, bytes]:
    """POST /query inside a transaction; returns the CSN that was read, and the rows."""
    sql, params = model.in_sql(where)
    with services.reads.failures.noted(str(tid), "the query"):
        own = await services.reads.prepare_own_read(str(tid))
        text = select_statement(table, None, sql)
        request = SqlRequest(
            csn=own.csn, tid=str(tid), sql=text, params=tuple(params), adopted=own.adopted,
            defined=own.defined,
        )  # fmt: skip
        async with services.reads.sql.statement(request) as running:
            data = b"".join([piece async for piece in running.pieces()])
    assert running.ended is not None
    services.transactions.transactions.find(str(tid)).note_reads(running.ended.read_set())
    return own.csn, data


async def _inserted(
    services: Services,
    tid: Tid,
    table: str,
    rows: tuple[model.Row, ...],
    partition: dict[str, Any] | None,
) -> tuple[Csn, int]:
    """POST rows; returns the CSN that was read, and how many rows there were."""
    count = await insert(services, tid, table, model.as_arrow(rows), partition)
    return services.transactions.transactions.find(str(tid)).statements.statement_csn, count


async def _kill(services: Services, tid: Tid) -> None:
    """POST /transactions/{tid}/kill."""
    error = TransactionClosedError("killed", tid=str(tid), state="rolled_back")
    await services.transactions.commits.roll_back(services.transactions.transactions.find(str(tid)), error)


async def heartbeat(services: Services, tid: Tid) -> None:
    """POST /transactions/{tid}/heartbeat."""
    services.transactions.transactions.find(str(tid), sign_of_life=True)


# -- the client ----------------------------------------------------------------------------------------------


class Changer(SimSession):
    """One transaction after the other, at any home."""

    def __init__(self, world: SimWorld, name: str) -> None:
        super().__init__(world, name, 1)
        replicas = [host.name for host in world.hosts]
        self._drawer = Drawer(world.chance(f"statements {name}"), CHANGED, replicas, STATEMENTS)

    async def run(self) -> None:
        """Do all transactions."""
        for number in range(self.world.plan.transactions):
            await self.pause()
            home = self.chance.choice(self.world.hosts).name
            statements = [self._drawer.statement() for _ in range(self.chance.randint(1, _STATEMENTS_MAX))]
            await self.transaction(number, home, statements)

    async def transaction(
        self, number: int, home: str, statements: list[model.Statement], *, commits: bool = False
    ) -> Life | None:
        """Do one transaction; ``commits``: and commit it, else what becomes of it is left to chance."""
        isolation = self.chance.choices(LEVELS, (3, 1, 1))[0]
        label = f"label {self.chance.randrange(5)}" if not commits and self.chance.random() < 0.05 else None
        began_ns = self.world.now_ns
        try:
            asked = Isolation(isolation)
            tid: Tid = await self.ask("begin", lambda at: begin(at, label, self.csn, False, asked), at=home)
        except TidelockError as error:
            self.world.trace.comment(f"{self.name} does not begin at {home}: {error!r}")
            return None
        self.world.oracle.began(tid)
        name = f"{self.name}-{number}"
        life = Life(name, home, isolation, str(tid), tid.snapshot, began_ns)
        self.world.oracle.lives(life)
        self.csn = max(self.csn, tid.snapshot)
        for statement in statements:
            if not await self._run(life, tid, statement):
                self._end(life, CallEnd.FAIL, over=await self._give_up(tid, home))
                return life
            if self.chance.random() < 0.2:
                await self._rest(tid, home)
        fate = 1.0 if commits else self.chance.random()
        if fate < 0.15:
            self._end(life, CallEnd.FAIL, "given up", over=await self._give_up(tid, home))
        else:
            await self._commit(life, tid, home)
        return life

    async def _rest(self, tid: Tid, home: str) -> None:
        """Think for a while, with a sign of life or too long without one."""
        await asyncio.sleep(self.chance.choice([0.2, 1.0, 4.0]))
        try:
            await self.ask("heartbeat", lambda at: heartbeat(at, tid), at=home)
        except TidelockError as error:
            self.world.trace.comment(f"{tid} has no heartbeat: {error!r}")

    async def _give_up(self, tid: Tid, home: str) -> bool:
        """Roll back, have it killed, or leave it to its lease; whether it is over now."""
        serve: Serve = lambda at: rollback(at, tid)  # noqa: E731 - as its alternative
        fate = self.chance.random()
        if fate < 0.2:
            return False
        if fate < 0.4:
            serve = lambda at: _kill(at, tid)  # noqa: E731
        try:
            await self.ask("rollback", serve, at=home)
        except TidelockError as error:
            self.world.trace.comment(f"{tid} is not rolled back: {error!r}")
            return False
        return True

    async def _run(self, life: Life, tid: Tid, statement: model.Statement) -> bool:
        began_ns = self.world.now_ns
        life.failed = statement
        self.world.trace.note("statement", life.name, type(statement).__name__, statement.table)
        try:
            ran = await self._carry_out(tid, life.replica, statement)
        except TidelockError as error:
            life.error = repr(error)
            self._refused(life, error, began_ns)
            return False
        life.ran.append(ran)
        oracle = self.world.oracle
        oracle.logs.read(life.tid, oracle.follows(life.replica, Csn(ran.csn)), Csn(ran.csn))
        life.failed = None
        return True

    def _refused(self, life: Life, error: TidelockError, began_ns: int) -> None:
        self.world.trace.note("refused", life.name, type(error).__name__)
        self.world.trace.comment(f"{life.name}: {error!r}")
        if isinstance(error, SerializationConflictError):
            self.world.oracle.did["conflict"] += 1
            life.refusal = Refusal(life.failed, life.snapshot, error.details, began_ns, self.world.now_ns)
        elif isinstance(error, SnapshotTooOldError) and not self.world.oracle.is_left_out(life.replica):
            what = f"{life.name} ({life.tid}), open at {life.replica}, is told: {error.message}"
            self.world.oracle.violated("I12 GC-SAFE", what)

    async def _carry_out(self, tid: Tid, home: str, statement: model.Statement) -> Ran:
        match statement:
            case model.Read(table, where):
                csn, data = await self._asked("query", lambda at: _read(at, tid, table, where), home)
                with pa.ipc.open_stream(data) as reader:
                    rows: Counter[model.Row] = model.Rows(rows_of(reader.read_all()))
                return Ran(statement, csn, {}, rows)
            case model.Insert(table, given):
                csn, count = await self._asked(
                    "insert", lambda at: _inserted(at, tid, table, given, None), home
                )
                return Ran(statement, csn, {"rows": count})
            case model.ReplacePartition(table, p, given):
                csn, _ = await self._asked("drop", lambda at: _removed(at, tid, statement), home)
                _, count = await self._asked(
                    "insert", lambda at: _inserted(at, tid, table, given, {"p": p}), home
                )
                return Ran(statement, csn, {"rows": count})
            case model.DropPartition() | model.Truncate() | model.MovePartition():
                csn, count = await self._asked("remove", lambda at: _removed(at, tid, statement), home)
                return Ran(statement, csn, {"rows": count})
        csn, done = await self._asked("change", lambda at: _changed(at, tid, statement), home)
        counts = {"deleted": done.rows_deleted, "updated": done.rows_updated, "inserted": done.rows_inserted}
        return Ran(statement, csn, counts)

    async def _asked(self, what: str, serve: Serve, home: str) -> Any:
        answer = await self.ask(what, serve, at=home, timeout_s=STATEMENT_S)
        csn = answer[0]
        self.csn = max(self.csn, csn)
        return answer

    async def _commit(self, life: Life, tid: Tid, home: str) -> None:
        began_ns = self.world.now_ns
        end, csn, why, error = await self.decided(tid, home)
        if error is not None:
            self._refused(life, error, began_ns)
        life.csn = csn
        self._end(life, end, why or "")
        if csn is not None and end is CallEnd.OK:
            self.csn = max(self.csn, csn)
            self.world.acknowledged = max(self.world.acknowledged, csn)
        if end is CallEnd.INFO:
            self.renew()

    def _end(self, life: Life, end: CallEnd, error: str = "", *, over: bool = True) -> None:
        life.end, life.error = end, error or life.error
        self.world.oracle.logs.ended(life.tid)
        # In a run with faults nobody can say when the locks of a transaction without a CSN are given back.
        known = life.csn is not None or (over and self.world.plan.is_calm)
        life.ended_ns = self.world.now_ns if known else 0
        self.world.trace.note("end", life.name, end, life.csn)
        self.world.oracle.did[f"changes {end}"] += 1
