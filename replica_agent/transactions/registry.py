"""Open transactions of this replica: states, leases and what each has staged; a restart aborts them all.

A transaction's life (``TxState``): OPEN takes statements; FAILED (a statement was refused) takes rollback
only; SEALED was asked to commit and takes nothing more, its lease no longer counts; COMMITTED and ROLLED_BACK
are final and remembered for ``closed_kept_s``, so that a repeated commit() or rollback() gets the same
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, TableName, Tid
from tidelock.csnlog.core.model import DefineTable
from tidelock.csnlog.core.results import Aborted, Committed, Running
from tidelock.errors import (
    BadRequestError,
    TableChangedError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
    UnsealedWriteError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.pack_writer import StagedBytes
from tidelock.replica_agent.transactions.adopted_merges import AdoptedMerges
from tidelock.replica_agent.transactions.staged_files import TableWrites
from tidelock.replication.core.model import PartMeta
from tidelock.wire.transactions import TransactionInfo


class TxState(Enum):
    """Where a transaction stands."""

    OPEN = "open"
    FAILED = "failed"
    SEALED = "sealed"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class Isolation(Enum):
    """What the statements of a transaction see of others' commits (docs/transactions.md)."""

    #: All of them what was committed when it was begun.
    SNAPSHOT = "snapshot"
    #: Each what was committed when that statement began.
    READ_COMMITTED = "read_committed"
    #: As SNAPSHOT; and it commits only if nothing that it has read was changed since.
    SERIALIZABLE = "serializable"


#: What a transaction has read of a table: None for all of it, else the partitions that it certainly has not.
Excluded = frozenset[str] | None


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction at its home replica.

    Attributes:
        lease_until: Monotonic time at which an open transaction without a sign of life is rolled back.
        tables: Version of each table's definition that the transaction has used; the commit checks them.
        memory: Small parts, not yet on disk.
        stored: Parts whose files and rows are durable here.
        removed: Committed parts that it removes, with their tables; locked, and marked in the catalog.
        adopted: Merges above its CSN whose results it sees in place of what they have replaced: the same
            rows (:mod:`tidelock.csnlog.core.visibility`).
        begun_at: Monotonic time of its beginning.
        batch: Number of the batch where the label is a streaming query's.
        key: What its begin can be repeated by.
        data_change: False for a compaction, which leaves all rows as they are.
        reads: What a serializable transaction has read.
        untold: Queries that have given rows and of which it is not known what they read: those that run, and
            those that the client has given up.
        uploads: Running statements that add or remove; the seal cuts them.
        upload_ended: Set whenever one of them has ended, and has taken back what it is not to keep.
        torn: A statement that removes was cut when it had begun: what is staged is half of a change.
        turn: Held by the running statement that depends on what is there.
        changer: The task of that statement.
        commit_task: The one task that decides the transaction, shared by all who ask for the commit.
        writes: What was written through the file system, by table, and is not sealed.
        closed_at: Monotonic time of the end, None while it lives.
        statement_csn: The CSN of its last statement.
        totals: Rows and parts added and parts removed at its end, when the parts themselves are forgotten.
    """

    tid: Tid
    lease_s: float
    lease_until: float
    label: str | None = None
    meta: dict[str, Any] | None = None
    isolation: Isolation = Isolation.SNAPSHOT
    data_change: bool = True
    state: TxState = TxState.OPEN
    tables: dict[TableName, int] = field(default_factory=dict)
    definitions: list[DefineTable] = field(default_factory=list)
    memory: dict[PartId, StagedBytes] = field(default_factory=dict)
    stored: dict[PartId, PartMeta] = field(default_factory=dict)
    removed: dict[PartId, TableName] = field(default_factory=dict)
    adopted: AdoptedMerges = field(default_factory=AdoptedMerges)
    reads: dict[TableName, Excluded] = field(default_factory=dict)
    untold: int = 0
    statement_csn: Csn = CSN_NONE
    begun_at: float = 0.0
    uploads: set[asyncio.Task[Any]] = field(default_factory=set)
    upload_ended: asyncio.Event = field(default_factory=asyncio.Event)
    torn: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    changer: asyncio.Task[Any] | None = None
    commit_task: asyncio.Task[Committed | None] | None = None
    outcome: Committed | None = None
    error: TidelockError | None = None
    writes: dict[TableName, TableWrites] = field(default_factory=dict)
    closed_at: float | None = None
    totals: tuple[int, int, int] | None = None
    batch: int | None = None
    key: str | None = None

    def take_label(self, label: str, batch: int | None) -> None:
        """Take the label with which the commit is asked for; the one that it has may be repeated.

        Raises:
            BadRequestError: It has another one, or its commit was asked for without any.
        """
        if self.label is None and self.commit_task is None:
            self.label, self.batch = label, batch
        elif (self.label, self.batch) != (label, batch):
            had = "no label" if self.label is None else f"label {self.label!r}, batch {self.batch}"
            msg = f"{self.tid} has {had}: it cannot be committed under {label!r}, batch {batch}"
            raise BadRequestError(msg, tid=str(self.tid), label=self.label, batch=self.batch)

    def use(self, table: TableName, version: int) -> None:
        """Note by which version of a table's definition a statement goes; the commit checks it.

        Raises:
            TableChangedError: An earlier statement went by another one.
        """
        if self.tables.setdefault(table, version) != version:
            raise TableChangedError(
                f"the definition of table {table} has changed since an earlier statement of {self.tid}; roll "
                "back, and begin again",
                table=table,
            )

    def begin_statement(self, reached: Csn) -> Csn:
        """Return the CSN that a statement reads at, which begins when ``reached`` is applied here."""
        if self.isolation is Isolation.READ_COMMITTED:
            self.statement_csn = max(self.statement_csn, reached, self.tid.snapshot)
        else:
            self.statement_csn = self.tid.snapshot
        return self.statement_csn

    def note_reads(self, found: Mapping[TableName, Excluded]) -> None:
        """Note what a statement has read; only a serializable transaction is asked about it later."""
        if self.isolation is not Isolation.SERIALIZABLE:
            return
        for table, excluded in found.items():
            before = self.reads.get(table, excluded)
            self.reads[table] = None if before is None or excluded is None else before & excluded

    @property
    def changes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.memory or self.stored or self.removed or self.definitions)

    @property
    def parts(self) -> Iterator[PartMeta]:
        """Every part that the transaction adds."""
        yield from (staged.meta for staged in self.memory.values())
        yield from self.stored.values()

    def require_sealed(self) -> None:
        """Raise UnsealedWriteError while a job that writes through the file system has not ended well."""
        for table, writes in self.writes.items():
            if why := writes.area.unsealed():
                raise UnsealedWriteError(
                    f"{self.tid} would commit a part of what was to be written to table {table}: {why}; it "
                    "is rolled back. Begin again, and commit when the write has ended",
                    table=table,
                )

    def take_unsealed(self) -> list[str]:
        """Forget what was not sealed, and return the files that lie there for nothing."""
        found = [file for writes in self.writes.values() for file in writes.take(list(writes.files))]
        self.writes.clear()
        return [file.path for file in found if file.location is not None]

    async def cut_uploads(self) -> None:
        """End the running statements; return when each has taken back what it had finished already."""
        for upload in self.uploads:
            upload.cancel()
        while self.uploads:
            self.upload_ended.clear()
            await self.upload_ended.wait()

    def describe(self, now: float) -> TransactionInfo:
        """Return what GET /transactions shows."""
        rows, parts, removed = self.totals or _totals(self)
        leased = self.state in {TxState.OPEN, TxState.FAILED}
        return TransactionInfo(
            tid=str(self.tid),
            state=self.state.value,
            snapshot_csn=self.tid.snapshot,
            statement_csn=max(self.statement_csn, self.tid.snapshot),
            isolation=self.isolation.value,
            label=self.label,
            batch=self.batch,
            tables=sorted(self.tables),
            rows=rows,
            parts=parts,
            removed_parts=removed,
            csn=self.outcome.csn if self.outcome else None,
            error=self.error.message if self.error else None,
            lease_left_s=max(0.0, round(self.lease_until - now, 3)) if leased else None,
        )


def _totals(tx: Transaction) -> tuple[int, int, int]:
    parts = list(tx.parts)
    return sum(part.rows for part in parts), len(parts), len(tx.removed)


class Transactions:
    """The registry: makes tids, finds transactions, watches leases.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(
        self, replica: ReplicaId, boot: int, settings: AgentSettings, clock: Callable[[], float]
    ) -> None:
        """Start with no transaction; counters begin at 1 in each boot."""
        self._replica = replica
        self._boot = boot
        self._settings = settings
        self._clock = clock
        self._counter = 0
        self._live: dict[str, Transaction] = {}
        self._closed: dict[str, Transaction] = {}  # in the order of their ends
        self._keyed: dict[str, Transaction] = {}  # live or closed
        self.memory_bytes = 0

    def begin(
        self,
        snapshot: Csn,
        *,
        lease_s: float | None = None,
        label: str | None = None,
        batch: int | None = None,
        meta: dict[str, Any] | None = None,
        isolation: Isolation = Isolation.SNAPSHOT,
        data_change: bool = True,
        key: str | None = None,
    ) -> Transaction:
        """Make a transaction that reads at ``snapshot``; local, no ZooKeeper operation.

        With a ``key`` that one was begun with, and is remembered, it is that one: as it was begun, its
        snapshot and lease included.

        Raises:
            BadRequestError: The lease is out of range; or the key was given with another label or isolation.
            TransactionClosedError: The one that was begun with this key takes no statements any more.
            UnavailableError: Too many transactions are open.
        """
        if key is not None and (begun := self._keyed.get(key)) is not None:
            self.require_open(begun)
            if (begun.label, begun.batch, begun.isolation) != (label, batch, isolation):
                msg = (
                    f"key {key!r} was given before, with label {begun.label!r}, batch {begun.batch} and "
                    f"isolation {begun.isolation.value}; repeat it with these, or choose another key"
                )
                raise BadRequestError(msg)
            self.touch(begun)
            return begun
        lease = self._settings.lease_s if lease_s is None else lease_s
        if not 0 < lease <= self._settings.lease_max_s:
            msg = (
                f"lease_s={lease} is outside 0..{self._settings.lease_max_s} (lease_max_s); give seconds "
                "above 0, up to that"
            )
            raise BadRequestError(msg)
        if len(self._live) >= self._settings.transactions_max:
            msg = (
                f"{len(self._live)} transactions are open, the limit is "
                f"transactions_max={self._settings.transactions_max}; commit or roll back some"
            )
            raise UnavailableError(msg)
        self._counter += 1
        tid = Tid(snapshot, self._replica, self._boot, self._counter)
        now = self._clock()
        tx = Transaction(
            tid, lease, now + lease, label, meta, isolation, data_change, begun_at=now, batch=batch, key=key
        )
        self._live[str(tid)] = tx
        if key is not None:
            self._keyed[key] = tx
        return tx

    def open_by(self, key: str) -> bool:
        """Tell whether there is a transaction that was begun with this key, and takes statements."""
        tx = self._keyed.get(key)
        return tx is not None and tx.state is TxState.OPEN

    def find(self, tid: str) -> Transaction:
        """Return a transaction, open or recently closed; UnknownTransactionError otherwise."""
        tx = self._live.get(tid) or self._closed.get(tid)
        if tx is None:
            msg = (
                f"replica {self._replica} has no transaction {tid}: it ended long ago, or its home "
                "is another replica; outcome(tid) tells how it ended"
            )
            raise UnknownTransactionError(msg, tid=tid)
        return tx

    def outcome(self, tid: str) -> Committed | Aborted | Running | None:
        """Return what became of a transaction as far as it is remembered here; None if it is not.

        One that was committed and had changed nothing has left nothing, and counts as aborted.
        """
        tx = self._live.get(tid) or self._closed.get(tid)
        if tx is None:
            return None
        if tx.outcome is not None:
            return tx.outcome
        return Running() if tx.closed_at is None else Aborted()

    def is_open(self, tid: str) -> bool:
        """Tell whether a transaction of this replica takes statements."""
        tx = self._live.get(tid)
        return tx is not None and tx.state is TxState.OPEN

    def touch(self, tx: Transaction) -> None:
        """Take a sign of life: the lease begins anew."""
        if tx.state in {TxState.OPEN, TxState.FAILED}:
            tx.lease_until = self._clock() + tx.lease_s

    def require_open(self, tx: Transaction) -> None:
        """Raise unless the transaction takes statements: TransactionClosedError, which says why."""
        if tx.state is TxState.OPEN:
            return
        if isinstance(tx.error, TransactionClosedError):  # its lease ran out, or somebody has killed it
            raise tx.error
        why = f": {tx.error.message}" if tx.error else ""
        hint = "roll it back" if tx.state is TxState.FAILED else "begin a new one"
        msg = f"transaction {tx.tid} is {tx.state.value}{why}; {hint}"
        raise TransactionClosedError(msg, tid=str(tx.tid), state=tx.state.value)

    @contextlib.asynccontextmanager
    async def removing(self, tx: Transaction) -> AsyncIterator[None]:
        """Run a statement that removes, or that depends on what is there: one at a time.

        Of two at once neither would see what the other has added. Whatever ends it in the middle leaves
        rollback only. Inside of such a statement this does nothing.

        Raises:
            TransactionClosedError: The transaction takes no statements, or was ended meanwhile.
        """
        self.require_open(tx)
        task = asyncio.current_task()
        assert task is not None
        if tx.changer is task:
            yield
            return
        inside = task in tx.uploads
        tx.uploads.add(task)
        try:
            async with tx.turn:
                self.require_open(tx)
                tx.changer = task
                try:
                    yield
                except BaseException as error:
                    self._tear(tx, error)
                    raise
                finally:
                    tx.changer = None
        finally:
            if not inside:
                tx.uploads.discard(task)
                tx.upload_ended.set()

    def _tear(self, tx: Transaction, error: BaseException) -> None:
        """A statement was ended in the middle; raises what is more to the point than its cancellation."""
        tx.torn = True
        if isinstance(error, TidelockError):
            self.fail(tx, error)
        elif tx.state is TxState.OPEN:  # the client hung up
            self.fail(tx, BadRequestError("a statement was given up in the middle; roll back"))
        elif isinstance(error, asyncio.CancelledError) and tx.state is not TxState.FAILED:
            self.require_open(tx)

    def fail(self, tx: Transaction, error: TidelockError) -> None:
        """A statement was refused: from now on the transaction accepts rollback only (rule errors)."""
        if tx.state is TxState.OPEN:
            tx.state, tx.error = TxState.FAILED, error

    def add(self, tx: Transaction, staged: StagedBytes) -> None:
        """Keep a small part in memory."""
        tx.memory[staged.meta.part] = staged
        self.memory_bytes += staged.meta.length

    def drop_memory(self, tx: Transaction, part: PartId) -> None:
        """Take a small part back."""
        staged = tx.memory.pop(part, None)
        if staged is not None:
            self.memory_bytes -= staged.meta.length

    def forget_memory(self, tx: Transaction) -> None:
        """The parts in memory are on disk, or not wanted any more."""
        self.memory_bytes -= sum(staged.meta.length for staged in tx.memory.values())
        tx.memory.clear()

    def close(
        self,
        tx: Transaction,
        state: TxState,
        *,
        outcome: Committed | None = None,
        error: TidelockError | None = None,
    ) -> None:
        """Note how a transaction ended."""
        tx.state = state
        tx.outcome = outcome or tx.outcome
        tx.error = error or tx.error
        tx.closed_at = self._clock()
        tx.totals = _totals(tx)
        self.forget_memory(tx)
        tx.stored.clear()
        tx.removed.clear()
        tx.adopted = AdoptedMerges()
        if self._live.pop(str(tx.tid), None) is not None:
            self._closed[str(tx.tid)] = tx

    def expired(self, applied: Csn) -> list[Transaction]:
        """Return open transactions whose lease has run out; forget closed ones that were kept long enough.

        A committed one is kept at least until it is applied here: till then nothing else tells its outcome.
        """
        now = self._clock()
        old: list[str] = []
        for tid, tx in self._closed.items():
            if tx.closed_at is None or now - tx.closed_at <= self._settings.closed_kept_s:
                break
            if tx.outcome is None or tx.outcome.csn <= applied:
                old.append(tid)
        for tid in old:
            forgotten = self._closed.pop(tid)
            if forgotten.key is not None:
                del self._keyed[forgotten.key]
        return [
            tx
            for tx in self._live.values()
            if tx.state in {TxState.OPEN, TxState.FAILED} and now > tx.lease_until
        ]

    def live(self) -> list[Transaction]:
        """Return transactions that have not ended."""
        return list(self._live.values())

    def all(self) -> list[Transaction]:
        """Return every transaction that is still remembered."""
        return [*self._live.values(), *self._closed.values()]

    def oldest_snapshot(self, default: Csn) -> Csn:
        """Return the smallest S in use, or ``default``."""
        return min((tx.tid.snapshot for tx in self._live.values()), default=default)

    def long_snapshots(self) -> list[Csn]:
        """Return the CSNs that transactions read at which compaction is to heed, the oldest first.

        Those that have been open for ``compaction_heeds_after_s``, keep their CSN, and take statements yet.
        """
        begun_by = self._clock() - self._settings.compaction_heeds_after_s
        found = {
            tx.tid.snapshot
            for tx in self._live.values()
            if tx.state is TxState.OPEN
            and tx.data_change
            and tx.isolation is not Isolation.READ_COMMITTED
            and tx.begun_at <= begun_by
        }
        return sorted(found)
