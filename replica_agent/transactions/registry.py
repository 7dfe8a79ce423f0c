"""The registry of a home's transactions: begin, leases, memory, ends; a restart aborts them all.

Ended transactions are remembered for ``closed_kept_s``, but at most ``closed_max`` of them, so that a
repeated commit() or rollback() gets the same answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.results import Aborted, Committed, Running
from tidelock.errors import (
    BadRequestError,
    TableChangedError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.pack_writer import StagedBytes
from tidelock.replica_agent.storage.row_streams import CheckedRows
from tidelock.replica_agent.transactions.adopted_merges import AdoptedMerges
from tidelock.replica_agent.transactions.ended import pack, unpack
from tidelock.replica_agent.transactions.reservations import Reservations
from tidelock.replica_agent.transactions.transaction import Isolation, Transaction, TransactionLease, TxState


@dataclass(slots=True, eq=False, repr=False)
class Transactions:
    """The registry: makes tids, finds transactions, watches leases.

    Attributes:
        clock: Monotonic seconds.
        reserved: The tids that clients hold for transactions of one request.
    """

    replica: ReplicaId
    boot: int
    settings: AgentSettings
    clock: Callable[[], float]
    reserved: Reservations = field(init=False)
    _counter: int = field(default=0, init=False)
    _live: dict[str, Transaction] = field(default_factory=dict, init=False)
    _closed: dict[int, bytes] = field(default_factory=dict, init=False)  # by counter, in the order of ends
    #: The counters in that order: to find the first entry of a dict that has lost its first entries takes
    #: longer and longer.
    _closed_order: deque[int] = field(default_factory=deque, init=False)
    _keyed: dict[str, Tid] = field(default_factory=dict, init=False)  # live or closed
    _applied: Csn = field(default=CSN_NONE, init=False)  # the catalog knows the outcomes up to it
    memory_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Begin without reservations."""
        settings = self.settings
        self.reserved = Reservations(settings.tids_reserved_s, settings.tids_reserved_max, self.clock)

    def begin(
        self,
        snapshot: Csn,
        *,
        lease_s: float | None = None,
        label: str | None = None,
        batch: int | None = None,
        meta: dict[str, Any] | None = None,
        progress: str | None = None,
        isolation: Isolation = Isolation.SNAPSHOT,
        data_change: bool = True,
        key: str | None = None,
    ) -> Transaction:
        """Make a transaction that reads at ``snapshot``; local, no ZooKeeper operation.

        With the ``key`` of a transaction that is still remembered, return that transaction as it was begun,
        with its own snapshot and lease.

        Raises:
            BadRequestError: The lease is out of range; or the key was given with another label or isolation.
            TransactionClosedError: The transaction that was begun with this key takes no more statements.
            UnavailableError: Too many transactions are open.
        """
        if key is not None and (begun := self._by_key(key)) is not None:
            self.require_open(begun)
            if (begun.label, begun.batch, begun.isolation) != (label, batch, isolation):
                msg = (
                    f"key {key!r} was given before, with label {begun.label!r}, batch {begun.batch} and "
                    f"isolation {begun.isolation.value}; repeat it with these, or choose another key"
                )
                raise BadRequestError(msg)
            self.touch(begun)
            return begun
        lease = self.settings.lease_s if lease_s is None else lease_s
        if not 0 < lease <= self.settings.lease_max_s:
            msg = (
                f"lease_s={lease:g} is outside 0..{self.settings.lease_max_s:g} (lease_max_s); give seconds "
                "above 0, up to that"
            )
            raise BadRequestError(msg)
        self._require_room()
        self._counter += 1
        tid = Tid(snapshot, self.replica, self.boot, self._counter)
        now = self.clock()
        tx = Transaction(
            tid=tid,
            reads_from=snapshot,
            begun_at=now,
            lease=TransactionLease(seconds=lease, until=now + lease),
            label=label,
            batch=batch,
            key=key,
            meta=meta,
            progress=progress,
            isolation=isolation,
            data_change=data_change,
        )
        self._live[str(tid)] = tx
        if key is not None:
            self._keyed[key] = tid
        return tx

    def reserve(self, snapshot: Csn, count: int) -> Tid:
        """Reserve tids for transactions of one request each; return the first one.

        The counters of the others follow. They are reserved for ``tids_reserved_s``.

        Raises:
            BadRequestError: The count is out of range.
        """
        if not 0 < count <= self.settings.tids_reserved_once_max:
            msg = (
                f"count={count} is outside 1..{self.settings.tids_reserved_once_max} "
                "(tids_reserved_once_max); reserve fewer tids at a time"
            )
            raise BadRequestError(msg)
        first = self._counter + 1
        self._counter += count
        self.reserved.add(range(first, first + count), snapshot)
        return Tid(snapshot, self.replica, self.boot, first)

    def begin_reserved(
        self,
        tid: Tid,
        reached: Csn,
        *,
        label: str | None = None,
        batch: int | None = None,
        meta: dict[str, Any] | None = None,
        progress: str | None = None,
    ) -> Transaction:
        """Make the transaction for which a tid was reserved, whose changes are known already.

        Its statements read what is applied when they run. So it holds no history below ``reached``, and the
        snapshot CSN of its tid may be some seconds old.

        Raises:
            UnknownTransactionError: The tid is not reserved: it was used, or its reservation has ended.
            UnavailableError: Too many transactions are open.
        """
        if not self._own(tid) or not self.reserved.holds(tid):
            raise self._unknown(str(tid))
        self._require_room()
        self.reserved.end(tid)
        now, lease = self.clock(), self.settings.lease_s
        tx = self._live[str(tid)] = Transaction(
            tid=tid,
            reads_from=reached,
            begun_at=now,
            lease=TransactionLease(seconds=lease, until=now + lease),
            label=label,
            batch=batch,
            meta=meta,
            progress=progress,
            isolation=Isolation.READ_COMMITTED,
        )
        return tx

    def withdraw(self, tid: Tid) -> None:
        """End the reservation of a tid, if it has one: its outcome is asked for."""
        if self._own(tid):
            self.reserved.end(tid)

    def _own(self, tid: Tid) -> bool:
        return (tid.home, tid.boot) == (self.replica, self.boot)

    def _require_room(self) -> None:
        if len(self._live) >= self.settings.transactions_max:
            msg = (
                f"{len(self._live)} transactions are open, the limit is "
                f"transactions_max={self.settings.transactions_max}; commit or roll back some"
            )
            raise UnavailableError(msg)
        if len(self._closed) > self.settings.closed_max:
            msg = (
                f"{len(self._closed)} transactions have ended and are not applied on this replica yet, the "
                f"limit is closed_max={self.settings.closed_max}; try again, or use another replica"
            )
            raise UnavailableError(msg)

    def _by_key(self, key: str) -> Transaction | None:
        tid = self._keyed.get(key)
        return None if tid is None else self._remembered(str(tid))

    @property
    def issued(self) -> int:
        """Return the number of tids that were given away in this boot: begun, or reserved."""
        return self._counter

    def open_by(self, key: str) -> bool:
        """Return whether a transaction that was begun with this key takes statements."""
        tx = self._by_key(key)
        return tx is not None and tx.state is TxState.OPEN

    def find(self, tid: str, *, sign_of_life: bool = False) -> Transaction:
        """Return a transaction, open or recently closed; UnknownTransactionError otherwise.

        With ``sign_of_life`` its lease begins again. A closed one is made again for each caller.
        """
        tx = self._remembered(tid)
        if tx is None:
            raise self._unknown(tid)
        if sign_of_life:
            self.touch(tx)
        return tx

    def remembers(self, tid: Tid) -> bool:
        """Return whether a transaction is open here, or has ended and is remembered."""
        return self._remembered(str(tid)) is not None

    def _unknown(self, tid: str) -> UnknownTransactionError:
        return UnknownTransactionError(
            f"replica {self.replica} has no transaction {tid}: it ended long ago, was never begun, or its "
            "home is another replica; outcome(tid) tells how it ended",
            tid=tid,
        )

    def outcome(self, tid: str) -> Committed | Aborted | Running | None:
        """Return what became of a transaction as far as it is remembered here; None if it is not.

        A committed transaction that changed nothing has left nothing, and counts as aborted.
        """
        tx = self._remembered(tid)
        if tx is None:
            return None
        if tx.ending.outcome is not None:
            return tx.ending.outcome
        return Running() if tx.ending.closed_at is None else Aborted()

    def _remembered(self, text: str) -> Transaction | None:
        """Return a live transaction, or a closed one that is still remembered."""
        live = self._live.get(text)
        if live is not None:
            return live
        try:
            tid = Tid.parse(text)
        except ValueError:
            return None
        packed = self._closed.get(tid.counter) if self._own(tid) else None
        tx = None if packed is None else unpack(packed, tid)
        return tx if tx is not None and tx.tid == tid else None

    def is_open(self, tid: str) -> bool:
        """Return whether a transaction of this replica takes statements."""
        tx = self._live.get(tid)
        return tx is not None and tx.state is TxState.OPEN

    def touch(self, tx: Transaction) -> None:
        """Accept a sign of life: the lease begins again."""
        if tx.leased:
            tx.lease.renew(self.clock())

    def require_open(self, tx: Transaction) -> None:
        """Raise an error that says why, unless the transaction takes statements.

        Raises:
            TableChangedError: A table that it has used was changed or dropped.
            TransactionClosedError: It has ended, or accepts rollback only for another reason.
        """
        if tx.state is TxState.OPEN:
            return
        error = tx.ending.error
        # Its lease ran out, or a client has killed it; or a table was dropped, which nobody was told so far.
        if isinstance(error, TransactionClosedError | TableChangedError):
            raise error
        why = f": {error.message}" if error else ""
        hint = "roll it back" if tx.state is TxState.FAILED else "begin a new one"
        msg = f"transaction {tx.tid} is {tx.state.value}{why}; {hint}"
        raise TransactionClosedError(msg, tid=str(tx.tid), state=tx.state.value)

    @contextlib.asynccontextmanager
    async def removing(self, tx: Transaction) -> AsyncIterator[None]:
        """Run a statement that removes rows, or depends on the existing rows: one at a time.

        Two such statements at once would not see what the other has added. An error in the middle leaves only
        the rollback. Nested inside another such statement, this does nothing.

        Raises:
            TransactionClosedError: The transaction takes no statements, or was ended meanwhile.
        """
        self.require_open(tx)
        with tx.statements.cuttable() as task:
            if tx.statements.statement_task is task:
                yield
                return
            async with tx.statements.statement_lock:
                self.require_open(tx)
                tx.statements.statement_task = task
                try:
                    yield
                except BaseException as error:
                    self._note_half_applied(tx, error)
                    raise
                finally:
                    tx.statements.statement_task = None

    @contextlib.asynccontextmanager
    async def alone(self, tx: Transaction) -> AsyncIterator[None]:
        """Run a statement that keeps nothing if it is refused, when no other one of :meth:`removing` runs.

        After an error the transaction goes on. Nested inside such a statement, this does nothing. Raises as
        :meth:`removing`.
        """
        self.require_open(tx)
        with tx.statements.cuttable() as task:
            if tx.statements.statement_task is task:
                yield
                return
            async with tx.statements.statement_lock:
                self.require_open(tx)
                yield

    def _note_half_applied(self, tx: Transaction, error: BaseException) -> None:
        """Note that a statement ended in the middle; raise an error that says more than its cancellation."""
        tx.statements.half_applied = True
        if isinstance(error, TidelockError):
            tx.ending.fail(error)
        elif tx.state is TxState.OPEN:  # the client hung up
            tx.ending.fail(BadRequestError("a client gave up a statement before its end; roll back"))
        elif isinstance(error, asyncio.CancelledError) and tx.state is not TxState.FAILED:
            self.require_open(tx)

    def add(self, tx: Transaction, staged: StagedBytes) -> None:
        """Keep a small part in memory."""
        tx.staged.memory[staged.meta.part] = staged
        self.memory_bytes += staged.meta.length

    def keep(self, tx: Transaction, rows: CheckedRows) -> None:
        """Keep the rows of a small insert in memory."""
        tx.staged.rows.append(rows)
        self.memory_bytes += rows.nbytes

    def take_rows(self, tx: Transaction) -> list[CheckedRows]:
        """Return the rows that are kept, and forget them."""
        rows, tx.staged.rows = tx.staged.rows, []
        self.memory_bytes -= sum(one.nbytes for one in rows)
        return rows

    def drop_memory(self, tx: Transaction, part: PartId) -> None:
        """Release a small part."""
        staged = tx.staged.memory.pop(part, None)
        if staged is not None:
            self.memory_bytes -= staged.meta.length

    def forget_memory(self, tx: Transaction) -> None:
        """Forget the parts in memory: they are on disk, or not wanted any more."""
        self.memory_bytes -= sum(staged.meta.length for staged in tx.staged.memory.values())
        tx.staged.memory.clear()

    def close(
        self,
        tx: Transaction,
        state: TxState,
        *,
        outcome: Committed | None = None,
        error: TidelockError | None = None,
    ) -> None:
        """Note how a transaction ended, and forget what it has staged.

        Raises:
            InvalidTransitionError: The state that it is in does not allow this end.
        """
        tx.ending.close(state, at=self.clock(), totals=tx.staged.totals, outcome=outcome, error=error)
        if self._live.pop(str(tx.tid), None) is not None:
            self._closed[tx.tid.counter] = pack(tx)
            self._closed_order.append(tx.tid.counter)
            self._forget(len(self._closed) - self.settings.closed_max)
        self.forget_memory(tx)
        self.take_rows(tx)
        tx.staged.stored.clear()
        tx.staged.removed.clear()
        tx.staged.adopted = AdoptedMerges()

    def expired(self, applied: Csn) -> list[Transaction]:
        """Return open transactions whose lease has run out; forget closed ones that were kept long enough.

        A committed one is kept at least until it is applied here: until then nothing else knows its outcome.
        """
        self._applied = applied
        now = self.clock()
        self._forget(len(self._closed), until=now - self.settings.closed_kept_s)
        self._forget(len(self._closed) - self.settings.closed_max)
        return [tx for tx in self._live.values() if tx.leased and now > tx.lease.until]

    def _forget(self, count: int, until: float = float("inf")) -> None:
        """Forget closed transactions, the oldest first, up to ``count`` of those that ended before ``until``.

        A commit that is not applied here ends it: later ones are hardly applied before.
        """
        for _ in range(count):
            counter = self._closed_order[0]
            tx = unpack(self._closed[counter], Tid(CSN_NONE, self.replica, self.boot, counter))
            ended_at, outcome = tx.ending.closed_at, tx.ending.outcome
            if ended_at is None or ended_at >= until or (outcome and outcome.csn > self._applied):
                break
            del self._closed[counter]
            self._closed_order.popleft()
            if tx.key is not None:
                del self._keyed[tx.key]

    def too_old(self) -> list[Transaction]:
        """Return open transactions that are older than ``transaction_age_max_s``, however alive they are."""
        most = self.settings.transaction_age_max_s
        begun_before = self.clock() - most
        return [tx for tx in self._live.values() if most and tx.leased and tx.begun_at < begun_before]

    def dropped(self, table: TableId, name: str, csn: Csn) -> None:
        """Let the open transactions that have used a table accept rollback only: it was dropped."""
        for tx in self._live.values():
            if table in tx.staged.tables:
                tx.ending.fail(
                    TableChangedError(
                        f"table {name}, which {tx.tid} uses, was dropped at CSN {csn}; roll back",
                        table=name,
                        csn=csn,
                        state=TxState.FAILED.value,
                    )
                )

    def live(self) -> list[Transaction]:
        """Return the transactions that have not ended."""
        return list(self._live.values())

    def shown(self) -> list[Transaction]:
        """Return the transactions that have not ended, then the last ``closed_shown_max`` that have."""
        latest = itertools.islice(reversed(self._closed.items()), self.settings.closed_shown_max)
        ended = [
            unpack(packed, Tid(CSN_NONE, self.replica, self.boot, counter)) for counter, packed in latest
        ]
        return [*self._live.values(), *reversed(ended)]

    def oldest_snapshot(self, default: Csn) -> Csn:
        """Return the oldest CSN that an open transaction may read at, or ``default``."""
        return min((tx.reads_from for tx in self._live.values()), default=default)

    def long_snapshots(self) -> list[Csn]:
        """Return the CSNs of transactions that compaction must respect, the oldest first.

        These transactions have been open for ``compaction_heeds_after_s``, keep their CSN, and still take
        statements.
        """
        begun_by = self.clock() - self.settings.compaction_heeds_after_s
        found = {
            tx.tid.snapshot
            for tx in self._live.values()
            if tx.state is TxState.OPEN
            and tx.data_change
            and tx.isolation is not Isolation.READ_COMMITTED
            and tx.begun_at <= begun_by
        }
        return sorted(found)
