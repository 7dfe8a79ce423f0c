"""Landing tables with a unique key: the last row of a key wins, and nobody waits for a lock of a client.

The rows of all clients that wait are one statement of this home: later rows of a key replace earlier ones,
and both those that are in the table. It is committed before they are answered, so rows that a client sends
afterwards, to whatever home, win. A statement that meets another transaction is run again after a pause,
without the rows of clients that have given up: these rows must not win over later ones.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.csnlog.core.ids import TableId
from tidelock.csnlog.core.results import Committed
from tidelock.errors import (
    CommitUnknownError,
    RefusedError,
    SerializationConflictError,
    TransactionClosedError,
    UnavailableError,
)
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.damaged_parts import DamagedParts
from tidelock.replica_agent.storage.row_streams import conformed
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.mutations import Mutations
from tidelock.wire.writes import LandAnswer

#: Pauses before a statement that met a conflict is run again (seconds).
_PAUSES_S: Final = (0.02, 0.3)
#: Share of ``staged_memory_bytes_max`` that the rows of one statement may have, and those of all that wait.
_STATEMENT_SHARE: Final = 8
#: Name of the column that numbers the rows in the order of their arrival.
_NUMBER: Final = "_number"


@dataclass(slots=True, eq=False)
class _Waiting:
    """Rows of one landing; ``running``: a statement has them at this moment."""

    schema: TableSchema
    rows: pa.Table
    nbytes: int
    done: asyncio.Future[LandAnswer]
    running: bool = False

    def refuse(self, error: Exception) -> None:
        """Answer with an error, unless the caller has given up."""
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LandingUpserts:
    """Brings rows into landing tables by key.

    Attributes:
        damage: Has the parts fetched again that a statement found damaged.
        executor: Runs work on rows that takes longer than the event loop may pause.
        clock: Monotonic seconds.
    """

    settings: AgentSettings
    transactions: Transactions
    waiters: CsnWaiters
    mutations: Mutations
    commits: Commits
    metrics: Metrics
    damage: DamagedParts
    executor: Executor
    clock: Callable[[], float]
    chance: random.Random = field(default_factory=random.Random)
    _waiting: dict[TableId, list[_Waiting]] = field(default_factory=dict, init=False)
    _waiting_bytes: int = field(default=0, init=False)
    _working: dict[TableId, asyncio.Task[None]] = field(default_factory=dict, init=False)

    async def land(self, schema: TableSchema, stream: bytes, deadline: float) -> LandAnswer:
        """Return when rows are visible here.

        Args:
            schema: The table.
            stream: A complete Arrow IPC stream.
            deadline: Monotonic time until which to wait.

        Raises:
            CommitUnknownError: They may or may not become visible.
            RefusedError, UnavailableError: Nothing is written, and never will be.
        """
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(
            self.executor, conformed, stream, schema, self.settings.staged_memory_bytes_max
        )
        one = _Waiting(schema, rows, rows.nbytes, loop.create_future())
        self._join(one)
        await asyncio.wait({one.done}, timeout=max(0.0, deadline - self.clock()))
        if one.done.done():
            return one.done.result()
        one.done.cancel()  # no statement that begins from here on has these rows
        if one.running:
            raise CommitUnknownError("the rows are being written, and not visible in time")
        raise UnavailableError(
            f"rows of others for {schema.name} were written first, or other transactions were in the way for "
            "too long; nothing of these is written: try again"
        )

    def _join(self, one: _Waiting) -> None:
        if self._waiting_bytes + one.nbytes > (limit := self.settings.staged_memory_bytes_max):
            raise UnavailableError(
                f"rows of {self._waiting_bytes} bytes wait to be written by key, the limit is "
                f"staged_memory_bytes_max={limit}; try again, or at another replica"
            )
        table = one.schema.id
        self._waiting.setdefault(table, []).append(one)
        self._waiting_bytes += one.nbytes
        if table not in self._working:
            self._working[table] = asyncio.create_task(self._work(table), name=f"landings of {table}")

    async def _work(self, table: TableId) -> None:
        try:
            while going := self._take(table):
                await self._write(going)
        finally:  # with the last look at the list, so that the next caller begins again
            del self._working[table]
            for one in self._waiting.pop(table):  # none, unless this task was cancelled with its agent
                self._waiting_bytes -= one.nbytes
                one.done.cancel()

    def _take(self, table: TableId) -> list[_Waiting]:
        waiting = self._waiting[table]
        going: list[_Waiting] = []
        size = 0
        while waiting:
            size += waiting[0].nbytes
            limit = self.settings.staged_memory_bytes_max // _STATEMENT_SHARE
            if going and (size > limit or waiting[0].rows.schema != going[0].rows.schema):
                break
            going.append(waiting.pop(0))
            self._waiting_bytes -= going[-1].nbytes
        return going

    async def _write(self, going: Sequence[_Waiting]) -> None:
        """Bring rows into the table, and answer; what refuses one of several does not refuse the others."""
        while wanted := [one for one in going if not one.done.done()]:
            try:
                done = await self._write_once(wanted)
            except SerializationConflictError:
                await asyncio.sleep(self.chance.uniform(*_PAUSES_S))
            except RefusedError as error:
                if error.retriable or isinstance(error, TransactionClosedError):
                    refusal = UnavailableError(f"nothing is written ({error.message}); try again")
                    for one in wanted:
                        one.refuse(refusal)
                elif len(wanted) > 1:
                    for one in wanted:
                        await self._write([one])
                else:
                    wanted[0].refuse(error)
            except Exception as error:
                for one in wanted:
                    one.refuse(error)
            else:
                for one in wanted:
                    self.metrics.landing.rows.inc(one.rows.num_rows)
                    if not one.done.done():
                        one.done.set_result(LandAnswer(one.rows.num_rows, None, done.csn))

    async def _write_once(self, going: Sequence[_Waiting]) -> Committed:
        schema = going[-1].schema
        work = partial(_statement, [one.rows for one in going], schema.unique_key)
        stream = await asyncio.get_running_loop().run_in_executor(self.executor, work)
        for one in going:
            one.running = True
        try:
            tx = self.transactions.begin(self.waiters.reached)
            try:
                await self.mutations.insert(tx, schema, _whole(stream), None)
            except BaseException as error:
                failed = error if isinstance(error, RefusedError) else None
                await asyncio.shield(self.commits.roll_back(tx, failed))
                if (damaged := self.damage.met(error)) is not None:
                    raise damaged from error
                raise
            done = await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
        finally:
            for one in going:
                one.running = False
        assert done is not None, "rows that land are a change"
        return done


def _statement(rows: Sequence[pa.Table], key: tuple[str, ...]) -> bytes:
    """Return the rows of one statement as an Arrow IPC stream."""
    wanted = last_of_each_key(pa.concat_tables(rows), key)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wanted.schema) as writer:
        writer.write_table(wanted)
    return bytes(sink.getvalue().to_pybytes())


def last_of_each_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the last row of each key, in the order of the rows."""
    numbers = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))
    numbered = rows.select(key).append_column(_NUMBER, numbers)
    last = numbered.group_by(list(key)).aggregate([(_NUMBER, "max")])[f"{_NUMBER}_max"]
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pc.subtract(last.take(pc.sort_indices(last)), 1))


async def _whole(stream: bytes) -> AsyncIterator[bytes]:
    yield stream
