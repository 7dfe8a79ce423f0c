"""Landing tables with a unique key: the last row of a key wins, and nobody waits for a lock of a client.

The rows of all clients that wait are one statement of this home: later rows of a key replace earlier ones,
and both those that are in the table. It is committed before they are answered, so rows that a client sends
afterwards, to whatever home, win. A conflict with another transaction is met again after a pause.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.csnlog.core.ids import TableName
from tidelock.csnlog.core.results import Committed
from tidelock.errors import CommitUnknownError, RefusedError, SerializationConflictError, UnavailableError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.part_writer import conformed
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.mutations import Mutations
from tidelock.wire.writes import LandAnswer

#: Pauses before a statement that met a conflict is tried again (seconds).
_PAUSES_S = (0.02, 0.3)
#: Name of the column that numbers the rows in the order of their arrival.
_NUMBER = "_number"


class _Waiting(msgspec.Struct, frozen=True, eq=False):
    """Rows of one landing, when they are given up (monotonic seconds), and the answer."""

    schema: TableSchema
    rows: pa.Table
    until: float
    done: asyncio.Future[LandAnswer]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LandingUpserts:
    """Brings rows into landing tables by key."""

    settings: AgentSettings
    transactions: Transactions
    waiters: CsnWaiters
    mutations: Mutations
    commits: Commits
    metrics: Metrics
    clock: Callable[[], float]
    chance: random.Random = field(default_factory=random.Random)
    _waiting: dict[TableName, list[_Waiting]] = field(default_factory=dict, init=False)
    _working: dict[TableName, asyncio.Task[None]] = field(default_factory=dict, init=False)

    async def land(self, schema: TableSchema, stream: bytes, timeout_s: float) -> LandAnswer:
        """Return when rows are visible here.

        Args:
            schema: The table.
            stream: A complete Arrow IPC stream.
            timeout_s: How long to wait.

        Raises:
            CommitUnknownError: They may or may not become visible.
            RefusedError, UnavailableError: Nothing is written.
        """
        done: asyncio.Future[LandAnswer] = asyncio.get_running_loop().create_future()
        one = _Waiting(schema, conformed(stream, schema), self.clock() + timeout_s, done)
        self._waiting.setdefault(schema.name, []).append(one)
        if schema.name not in self._working:
            task = asyncio.create_task(self._work(schema.name), name=f"landings of {schema.name}")
            self._working[schema.name] = task
            task.add_done_callback(lambda _: self._working.pop(schema.name))
        await asyncio.wait({done}, timeout=max(0.0, timeout_s))
        if done.done():
            return done.result()
        if one in self._waiting.get(schema.name, ()):
            self._waiting[schema.name].remove(one)
            raise UnavailableError(
                f"rows of others for {schema.name} were written first, for more than {timeout_s:.1f} s; "
                "nothing of these is written: try again, or at another replica"
            )
        raise CommitUnknownError(f"the rows are on their way, and not visible after {timeout_s:.1f} s")

    async def _work(self, name: TableName) -> None:
        try:
            while going := self._take(name):
                await self._write(going)
        finally:
            for one in self._waiting.pop(name, ()):  # only if this task was cancelled, with its agent
                one.done.cancel()

    def _take(self, name: TableName) -> list[_Waiting]:
        waiting = self._waiting.get(name, [])
        going: list[_Waiting] = []
        size = 0
        while waiting:
            size += waiting[0].rows.nbytes
            if going and size > self.settings.row_group_bytes:
                break
            going.append(waiting.pop(0))
        return going

    async def _write(self, going: list[_Waiting]) -> None:
        """Bring rows into the table, and answer; what refuses one of several does not refuse the others."""
        try:
            done = await self._write_once_free(going)
        except RefusedError as error:
            if len(going) > 1 and not isinstance(error, SerializationConflictError):
                for one in going:
                    await self._write([one])
                return
            self._refuse(going, error)
        except Exception as error:
            self._refuse(going, error)
        else:
            for one in going:
                self.metrics.landing.rows.inc(one.rows.num_rows)
                if not one.done.done():
                    one.done.set_result(LandAnswer(one.rows.num_rows, None, done.csn))

    @staticmethod
    def _refuse(going: list[_Waiting], error: Exception) -> None:
        for one in going:
            if not one.done.done():
                one.done.set_exception(error)

    async def _write_once_free(self, going: list[_Waiting]) -> Committed:
        """Repeat the statement as long as other transactions are in its way, and somebody waits."""
        until = max(one.until for one in going)
        while True:
            try:
                return await self._write_once(going)
            except SerializationConflictError:
                if self.clock() >= until:
                    raise
                await asyncio.sleep(self.chance.uniform(*_PAUSES_S))

    async def _write_once(self, going: list[_Waiting]) -> Committed:
        schema = going[-1].schema
        rows = last_of_each_key(pa.concat_tables([one.rows for one in going]), schema.unique_key)
        tx = self.transactions.begin(self.waiters.reached)
        try:
            await self.mutations.insert(tx, schema, _stream(rows), None)
        except BaseException as error:
            failed = error if isinstance(error, RefusedError) else None
            await asyncio.shield(self.commits.roll_back(tx, failed))
            raise
        done = await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
        assert done is not None, "rows that land are a change"
        return done


def last_of_each_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the last row of each key, in the order of the rows."""
    numbered = rows.select(key).append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(_NUMBER, "max")])[f"{_NUMBER}_max"]
    if len(last) == rows.num_rows:
        return rows
    return rows.take(last.take(pc.sort_indices(last)))


async def _stream(rows: pa.Table) -> AsyncIterator[bytes]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    yield sink.getvalue().to_pybytes()
