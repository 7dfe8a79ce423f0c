"""Carriers: small transactions that depart together share their parts, their copies and one proposal.

A transaction of one request keeps its rows as they came until it departs (`Inserts.insert_whole`). The rows
of all that depart at once are encoded into one part for each table and partition. These parts belong to a
transaction of the home itself, the carrier. Its record entry and those of the transactions that it carries,
its riders, are in one record of the log or in none (`csnlog.core.batch.Proposal`). So riders get one CSN, and
a part is visible with all its rows or not at all.

What refuses one rider alone is asked before it boards: its values, its schema, its limits. What only the log
can refuse, its label or the version of a table, refuses the carrier as a whole. Then the carrier is rolled
back with its parts, the riders that are concerned go on alone, and hear what they would have heard without
the others. The rest goes on with another carrier, under new part ids. If nobody knows whether a carrier is in
the log, it is settled as any other transaction, and no rider goes on before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from tidelock.csnlog.core.codec import encode_tid
from tidelock.csnlog.core.ids import Csn, TableId, Tid
from tidelock.csnlog.core.model import TidRecord
from tidelock.csnlog.core.results import Committed
from tidelock.errors import CommitUnknownError, TidelockError, TooLargeError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.transactions.ending.closing import TransactionCloser
from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate
from tidelock.replica_agent.transactions.ending.settlement import Settlement
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import Transaction

_log = structlog.get_logger("commit")
#: Riders that get their answer in one iteration of the event loop: their commits go on then, all at once.
_ENDED_PER_TURN: Final = 64
#: A tid of the most bytes, as long as the carrier is not known.
_WIDEST_TID = "9" * 64


class Rider(msgspec.Struct, frozen=True, eq=False):
    """A sealed transaction that keeps rows, and nothing else.

    Attributes:
        tx: The transaction.
        deadline: Monotonic time by which it is to be decided.
        done: Its commit.
    """

    tx: Transaction
    deadline: float
    done: asyncio.Future[Committed]

    @property
    def nbytes(self) -> int:
        """Bytes of its rows in memory."""
        return sum(one.nbytes for one in self.tx.staged.rows)

    def record(self, carrier: str) -> TidRecord:
        """Return its entry in the record of the log."""
        rows: dict[TableId, int] = {}
        for one in self.tx.staged.rows:
            rows[one.schema.id] = rows.get(one.schema.id, 0) + one.count
        tx = self.tx
        return TidRecord(
            str(tx.tid), label=tx.label, meta=tx.meta, carrier=carrier, rows=rows, progress=tx.progress
        )

    def end(self, result: Committed | BaseException) -> None:
        """Answer its commit."""
        if self.done.done():
            return
        if isinstance(result, Committed):
            self.done.set_result(result)
        else:
            self.done.set_exception(result)


def grouped(riders: Iterable[Rider], settings: AgentSettings) -> list[list[Rider]]:
    """Return riders in groups, each of which one carrier can take: within limits, and without contradiction.

    Two commits under one label contradict each other, and so do two versions of a table.
    """
    groups: list[_Group] = []
    for rider in riders:
        if not groups or not groups[-1].takes(rider, settings):
            groups.append(_Group())
        groups[-1].add(rider)
    return [group.riders for group in groups]


@dataclass(slots=True, eq=False)
class _Group:
    riders: list[Rider] = field(default_factory=list)
    nbytes: int = 0
    record_bytes: int = 0
    labels: set[str] = field(default_factory=set)
    tables: dict[TableId, int] = field(default_factory=dict)

    def takes(self, rider: Rider, settings: AgentSettings) -> bool:
        tx = rider.tx
        return (
            self.nbytes + rider.nbytes <= settings.shared_parts_bytes_max
            and len(self.riders) + 1 < settings.batch_tids_max
            and self.record_bytes + _record_bytes(rider) <= settings.record_bytes_max // 2
            and tx.label not in self.labels
            and all(self.tables.get(table, version) == version for table, version in tx.staged.tables.items())
        )

    def add(self, rider: Rider) -> None:
        self.riders.append(rider)
        self.nbytes += rider.nbytes
        self.record_bytes += _record_bytes(rider)
        self.tables |= rider.tx.staged.tables
        if rider.tx.label is not None:
            self.labels.add(rider.tx.label)


def _record_bytes(rider: Rider) -> int:
    return len(encode_tid(rider.record(_WIDEST_TID)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Carriers:
    """Commits transactions that keep rows, together.

    Attributes:
        gate: Decides when they depart.
        reached: Returns the CSN that is applied here.
    """

    settings: AgentSettings
    transactions: Transactions
    staging: RowStaging
    settlement: Settlement
    closer: TransactionCloser
    gate: GroupCommitGate
    reached: Callable[[], Csn]
    _boarding: list[Rider] = field(default_factory=list, init=False)
    _departures: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def settle(self, tx: Transaction, deadline: float) -> Committed:
        """Commit a transaction with those that depart with it; errors as of :meth:`Settlement.settle`."""
        rider = Rider(tx, deadline, asyncio.get_running_loop().create_future())
        self._boarding.append(rider)
        if len(self._boarding) == 1:
            task = asyncio.create_task(self._depart(), name="departure")
            self._departures.add(task)
            task.add_done_callback(self._departures.discard)
        return await rider.done

    async def _depart(self) -> None:
        async with self.gate.batch():
            boarded, self._boarding = self._boarding, []
            wanted = [rider for rider in boarded if not rider.done.done()]
            try:
                await asyncio.gather(*(self._carry(group) for group in grouped(wanted, self.settings)))
            finally:
                for rider in boarded:  # only if this task was cancelled, with its agent
                    rider.done.cancel()

    async def _carry(self, group: Sequence[Rider]) -> None:
        """Commit the transactions of a group; return when each has its answer."""
        going = list(group)
        alone: list[asyncio.Task[None]] = []
        while going:
            for rider in going:
                if rider.tx.ending.called_off:
                    rider.end(rider.tx.called_off_error())
            going = [rider for rider in going if not rider.done.done()]
            leaving = going if len(going) == 1 else await self._carry_once(going)
            alone += [asyncio.create_task(self._go_alone(rider)) for rider in leaving]
            going = [rider for rider in going if rider not in leaving and not rider.done.done()]
        await asyncio.gather(*alone)

    async def _go_alone(self, rider: Rider) -> None:
        try:
            await self.staging.encode(rider.tx, [rider.tx])
            rider.end(await self.settlement.settle(rider.tx, rider.deadline))
        except Exception as error:
            rider.end(error)

    async def _carry_once(self, riders: Sequence[Rider]) -> list[Rider]:
        """Try to commit transactions with one carrier.

        Each has its answer then, or is returned, or was called off, or may be carried again.
        """
        try:
            carrier = self.transactions.begin(self.reached(), lease_s=None)
        except TidelockError:
            return list(riders)  # too many transactions are open: without a carrier they need none more
        for rider in riders:
            carrier.staged.tables |= rider.tx.staged.tables
            rider.tx.ending.carrier = carrier.tid
        carrier.ending.seal()
        try:
            return await self._settle(carrier, riders)
        finally:
            for rider in riders:
                rider.tx.ending.carrier = None

    async def _settle(self, carrier: Transaction, riders: Sequence[Rider]) -> list[Rider]:
        try:
            await self.staging.encode(carrier, [rider.tx for rider in riders])
            records = [rider.record(str(carrier.tid)) for rider in riders]
            done = await self.settlement.settle(carrier, min(rider.deadline for rider in riders), records)
        except CommitUnknownError as error:  # the log has ended here: this boot learns no more
            for rider in riders:
                rider.end(_of(rider.tx.tid, error, carrier.tid))
            return []
        except TidelockError as error:
            await self.closer.roll_back(carrier, error, pushed=True)
            return self._refused(carrier, riders, error)
        except Exception as error:
            _log.exception("carrier_met_unforeseen_error", tid=str(carrier.tid))
            found = await self.settlement.find_out(carrier)
            if found is None:
                await self.closer.roll_back(carrier, None, pushed=True)
                for rider in riders:
                    rider.end(error)
                return []
            done = found
        await self.closer.commit(carrier, done)
        for number, rider in enumerate(riders, 1):
            rider.end(done)
            if number % _ENDED_PER_TURN == 0:
                await asyncio.sleep(0)
        return []

    def _refused(self, carrier: Transaction, riders: Sequence[Rider], error: TidelockError) -> list[Rider]:
        """Return the riders that go on alone after their carrier was certainly not committed."""
        if any(rider.tx.ending.called_off for rider in riders):
            return []
        if isinstance(error, TooLargeError):
            return list(riders)
        concerned = error.details.get("riders")
        if concerned:
            return [rider for rider in riders if str(rider.tx.tid) in concerned]
        for rider in riders:
            rider.end(_of(rider.tx.tid, error, carrier.tid))
        return []


def _of(tid: Tid, error: TidelockError, carrier: Tid) -> TidelockError:
    """Return the error of a carrier as that of one of its riders, which knows no carrier."""
    message = error.message.replace(str(carrier), str(tid))
    details = {name: value for name, value in error.details.items() if name != "riders"}
    return type(error)(message, **(details | {"tid": str(tid)}))
