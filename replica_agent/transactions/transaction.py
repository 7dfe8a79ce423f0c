"""A transaction at its home: its identity, its lease, its staged changes, its statements, and its end.

The states (:class:`TxState`): OPEN takes statements. FAILED takes only the rollback: a statement was refused.
SEALED takes nothing more, since its commit was requested; its lease no longer counts. COMMITTED and
ROLLED_BACK are final.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, TableId, Tid
from tidelock.csnlog.core.model import DefineTable, EndTag, SkipPart, TagCsn
from tidelock.csnlog.core.results import Committed
from tidelock.errors import (
    BadRequestError,
    TableChangedError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnsealedWriteError,
    UnsupportedInTransactionError,
)
from tidelock.replica_agent.storage.pack_writer import StagedBytes
from tidelock.replica_agent.storage.row_streams import CheckedRows
from tidelock.replica_agent.transactions.adopted_merges import AdoptedMerges
from tidelock.replica_agent.transactions.staged_files import TableWrites
from tidelock.replication.core.model import PartMeta
from tidelock.wire.ids import TableName
from tidelock.wire.transactions import TransactionInfo


class TxState(Enum):
    """The state of a transaction."""

    OPEN = "open"
    FAILED = "failed"
    SEALED = "sealed"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


#: The states that may follow each state.
TRANSITIONS: Final[Mapping[TxState, frozenset[TxState]]] = {
    TxState.OPEN: frozenset({TxState.FAILED, TxState.SEALED, TxState.ROLLED_BACK}),
    TxState.FAILED: frozenset({TxState.ROLLED_BACK}),
    TxState.SEALED: frozenset({TxState.COMMITTED, TxState.ROLLED_BACK}),
    TxState.COMMITTED: frozenset(),
    TxState.ROLLED_BACK: frozenset(),
}
#: States in which the lease counts, and a rollback is accepted.
_LEASED: Final = frozenset({TxState.OPEN, TxState.FAILED})


class InvalidTransitionError(RuntimeError):
    """A transaction was to enter a state that may not follow its own: a bug of this program."""


class Isolation(Enum):
    """How the statements of a transaction see the commits of others (docs/transactions.md)."""

    #: Each statement sees what was committed when the transaction was begun.
    SNAPSHOT = "snapshot"
    #: Each statement sees what was committed when that statement began.
    READ_COMMITTED = "read_committed"
    #: As SNAPSHOT; and the transaction commits only if nothing that it has read was changed since.
    SERIALIZABLE = "serializable"


#: The reads of a table by a transaction: None for all of it, else the partitions that it did certainly not
#: read.
Excluded = frozenset[str] | None


@dataclass(slots=True, kw_only=True)
class TransactionLease:
    """How long a transaction stays open without a sign of life.

    Attributes:
        seconds: Time from each sign of life to the rollback.
        until: Monotonic time at which the transaction is rolled back.
    """

    seconds: float
    until: float

    def renew(self, now: float) -> None:
        """Begin the lease again."""
        self.until = now + self.seconds


class StagedTag(msgspec.Struct, frozen=True):
    """A change of tags (rule tags).

    Attributes:
        entry: Its entry in the log.
        tags: All tags after it.
        version: The version of ``tags`` before it; the commit checks it.
        horizon: The version of ``csn/horizon`` at which the CSN was not below it; None for a tag that ends.
    """

    entry: TagCsn | EndTag
    tags: Mapping[str, Csn]
    version: int
    horizon: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class StagedChanges:
    """The changes that a transaction would make if it were committed now.

    Attributes:
        tables: Version of each table's definition that its statements have used; the commit checks them.
        definitions: Tables that it creates, changes and drops, in the order of its statements.
        defined_at: The version of ``tables`` at which these are right; None: the commit finds one.
        skip: A part that an operator declares lost.
        tag: A tag that it makes, moves or ends; it has nothing else then.
        rows: Small inserts of a transaction of one request, not yet encoded; it has nothing else then.
        memory: Small parts, not yet on disk.
        stored: Parts whose files and rows are durable here.
        removed: Committed parts that it removes, with their tables; locked, and marked in the catalog.
        adopted: Merges above its CSN whose results it sees in place of the parts that they replaced: the same
            rows (:mod:`tidelock.csnlog.core.visibility`).
        writes: What was written through the file system and is not sealed, by table.
    """

    tables: dict[TableId, int] = field(default_factory=dict)
    definitions: list[DefineTable] = field(default_factory=list)
    defined_at: int | None = None
    skip: SkipPart | None = None
    tag: StagedTag | None = None
    rows: list[CheckedRows] = field(default_factory=list)
    memory: dict[PartId, StagedBytes] = field(default_factory=dict)
    stored: dict[PartId, PartMeta] = field(default_factory=dict)
    removed: dict[PartId, TableId] = field(default_factory=dict)
    adopted: AdoptedMerges = field(default_factory=AdoptedMerges)
    writes: dict[TableId, TableWrites] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Return whether there is anything to commit."""
        rows = self.rows or self.memory or self.stored or self.removed
        return bool(rows or self.definitions or self.skip or self.tag)

    @property
    def parts(self) -> Iterator[PartMeta]:
        """Yield every part that the transaction adds."""
        yield from (staged.meta for staged in self.memory.values())
        yield from self.stored.values()

    @property
    def touched(self) -> list[str]:
        """Return the tables that the transaction uses or defines."""
        return sorted({*self.tables, *(made.table for made in self.definitions)})

    @property
    def totals(self) -> tuple[int, int, int]:
        """Return the numbers of added rows, added parts and removed parts.

        Parts that it shares with other transactions count, too.
        """
        parts = list(self.parts)
        rows = sum(part.rows for part in parts) + sum(one.count for one in self.rows)
        return rows, len(parts) + sum(len(one.by_path) for one in self.rows), len(self.removed)

    def take_unsealed(self) -> list[str]:
        """Forget what was not sealed, and return its files, which nothing needs."""
        found = [file for writes in self.writes.values() for file in writes.take(list(writes.files))]
        self.writes.clear()
        return [file.path for file in found if file.location is not None]


@dataclass(slots=True, kw_only=True, eq=False)
class StatementControl:
    """The statements of a transaction: those that run, the one that runs alone, and what they have read.

    Attributes:
        running: Tasks of statements that add or remove; the seal cuts them.
        ended: Set whenever one of them has ended, and has taken back what the transaction is not to keep.
        statement_lock: Held by the running statement that depends on the existing rows.
        statement_task: The task of that statement.
        half_applied: A statement that removes was cut after it had begun: half of a change is staged.
        statement_csn: The CSN of the last statement.
        reads: What its commit depends on: all that a serializable transaction has read; of any other one the
            tables whose rows it has all written again, of which none may come or go.
        names: The tables that had the names which its definitions have looked up, at its snapshot.
        unrecorded_reads: Queries that have returned rows and whose reads are not known: those that run, and
            those that the client has given up.
    """

    running: set[asyncio.Task[Any]] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    statement_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    statement_task: asyncio.Task[Any] | None = None
    half_applied: bool = False
    statement_csn: Csn = CSN_NONE
    reads: dict[TableId, Excluded] = field(default_factory=dict)
    names: dict[TableName, TableId | None] = field(default_factory=dict)
    unrecorded_reads: int = 0

    @contextlib.contextmanager
    def cuttable(self) -> Iterator[asyncio.Task[Any]]:
        """Run the current task as a statement that the seal cuts; nested inside another this changes nothing.

        The block has to take back what the transaction is not to keep before it ends.
        """
        task = asyncio.current_task()
        assert task is not None
        inside = task in self.running
        self.running.add(task)
        try:
            yield task
        finally:
            if not inside:
                self.running.discard(task)
                self.ended.set()

    async def cut(self) -> None:
        """End the running statements; return when each has taken back what it had finished already."""
        for task in self.running:
            task.cancel()
        while self.running:
            self.ended.clear()
            await self.ended.wait()


@dataclass(slots=True, kw_only=True, eq=False)
class TransactionEnding:
    """The progress of a transaction towards its end, and how it ended.

    Attributes:
        state: Changed by the methods of this class alone, as :data:`TRANSITIONS` allows.
        commit_task: The one task that decides the transaction, shared by all requests for the commit.
        commit_asked: The commit was requested.
        called_off: A client does not want the commit any more; it ends as rolled back unless it is too late.
        carrier: The transaction that commits for it, while it rides on one.
        wait: The wait of the commit that a call-off ends at once.
        outcome: The commit, if it has changed something.
        error: Why the transaction takes no more statements.
        closed_at: Monotonic time of the end, None before it.
        totals: Rows and parts added and parts removed, noted at the end, when the parts are forgotten.
    """

    state: TxState = field(default=TxState.OPEN, init=False)
    commit_task: asyncio.Task[Committed | None] | None = None
    commit_asked: bool = field(default=False, init=False)
    called_off: bool = False
    outcome: Committed | None = None
    error: TidelockError | None = None
    closed_at: float | None = None
    totals: tuple[int, int, int] | None = None
    carrier: Tid | None = field(default=None, init=False)
    wait: asyncio.Timeout | None = field(default=None, init=False)

    def fail(self, error: TidelockError) -> None:
        """Accept rollback only, for this reason; without effect unless the transaction is open."""
        if self.state is TxState.OPEN:
            self._enter(TxState.FAILED)
            self.error = error

    @contextlib.contextmanager
    def failing(
        self, subject: str, *, spared: type[Exception] | tuple[type[Exception], ...]
    ) -> Iterator[None]:
        """Accept rollback only if the block raises an error.

        Args:
            subject: The statement, as messages name it.
            spared: Errors of these classes change nothing: the same call may be repeated.

        Raises:
            TooLargeError: The block ran out of memory.
        """
        try:
            yield
        except spared:
            raise
        except TidelockError as error:
            self.fail(error)
            raise
        except MemoryError as error:
            refusal = TooLargeError(
                f"{subject} needs more memory than there is; nothing was kept: roll back, and send "
                "smaller batches"
            )
            self.fail(refusal)
            raise refusal from error
        except Exception as error:
            self.fail(TidelockError(f"{subject} ended with an unforeseen error ({error!r}); roll back"))
            raise

    def seal(self) -> None:
        """Accept no more statements: the commit was requested."""
        self._enter(TxState.SEALED)
        self.commit_asked = True

    def call_off(self) -> None:
        """Note that the commit is not wanted any more, and end the wait that it is in."""
        if not self.called_off:
            self.called_off = True
            if self.wait is not None:
                self.wait.reschedule(asyncio.get_running_loop().time())

    def close(
        self,
        state: TxState,
        *,
        at: float,
        totals: tuple[int, int, int],
        outcome: Committed | None,
        error: TidelockError | None,
    ) -> None:
        """Enter a final state."""
        self._enter(state)
        self.outcome, self.error = outcome or self.outcome, error or self.error
        self.closed_at, self.totals = at, totals

    def _enter(self, state: TxState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransitionError(f"a transaction that is {self.state.value} becomes {state.value}")
        self.state = state


@dataclass(slots=True, kw_only=True, eq=False)
class Transaction:
    """One transaction at its home replica.

    Attributes:
        reads_from: No statement reads below this CSN; the history from it on is held.
        begun_at: Monotonic time of its beginning.
        label: The label under which its commit may be repeated.
        batch: Number of the batch if the label is a streaming query's.
        key: The key with which its begin can be repeated.
        meta: Free data from its client.
        progress: Text from its client that its commit keeps with the label.
        ended_progress: CRC-32 of the progress of an ended transaction, whose text is not kept.
        data_change: False for a compaction, which leaves all rows as they are.
        lands: It has rows that their clients take for written before it commits, so it is never given up.
    """

    tid: Tid
    reads_from: Csn
    begun_at: float
    lease: TransactionLease
    label: str | None = None
    batch: int | None = None
    key: str | None = None
    meta: dict[str, Any] | None = None
    progress: str | None = None
    ended_progress: int | None = None
    isolation: Isolation = Isolation.SNAPSHOT
    data_change: bool = True
    lands: bool = False
    staged: StagedChanges = field(default_factory=StagedChanges)
    statements: StatementControl = field(default_factory=StatementControl)
    ending: TransactionEnding = field(default_factory=TransactionEnding)

    @property
    def state(self) -> TxState:
        """Return the state of the transaction."""
        return self.ending.state

    @property
    def leased(self) -> bool:
        """Return whether its lease counts: it takes statements, or only the rollback."""
        return self.state in _LEASED

    def take_label(self, label: str, batch: int | None) -> None:
        """Accept the label of the request to commit; the label that it already has may be repeated.

        Raises:
            BadRequestError: It has another label, or its commit was already requested without a label.
        """
        if self.label is None and not self.ending.commit_asked:
            self.label, self.batch = label, batch
        elif (self.label, self.batch) != (label, batch):
            had = "no label" if self.label is None else f"label {self.label!r}, batch {self.batch}"
            msg = f"{self.tid} has {had}: it cannot be committed under {label!r}, batch {batch}"
            raise BadRequestError(msg, tid=str(self.tid), label=self.label, batch=self.batch)

    @property
    def progress_digest(self) -> int | None:
        """Return the CRC-32 of its progress, or None."""
        return self.ended_progress if self.progress is None else _digest(self.progress)

    def take_progress(self, progress: str) -> None:
        """Accept the progress of the request to commit; that which it already has may be repeated.

        Raises:
            BadRequestError: It has no label, or other progress; or its commit was already requested without.
        """
        if self.label is None:
            raise BadRequestError(
                f"{self.tid} has no label, with which its progress would be kept; give a label",
                tid=str(self.tid),
            )
        if self.progress_digest is None and not self.ending.commit_asked:
            self.progress = progress
        elif self.progress_digest != _digest(progress):
            raise BadRequestError(
                f"the commit of {self.tid} was requested with other progress, or without; repeat it so",
                tid=str(self.tid),
                label=self.label,
            )

    def called_off_error(self) -> TransactionClosedError:
        """Return the answer to the commit of a transaction that was called off in time."""
        return TransactionClosedError(
            f"the commit of {self.tid} was called off before it had a CSN, and it is rolled back; begin a "
            "new transaction",
            tid=str(self.tid),
            state=TxState.ROLLED_BACK.value,
        )

    def require_wanted(self) -> None:
        """Raise TransactionClosedError if the commit was called off."""
        if self.ending.called_off:
            raise self.called_off_error()

    @contextlib.asynccontextmanager
    async def cuttable_wait(self) -> AsyncIterator[None]:
        """Run a wait of the commit that a call-off may cut at any point; errors as :meth:`require_wanted`."""
        self.require_wanted()
        try:
            async with asyncio.timeout(None) as self.ending.wait:
                yield
        except TimeoutError:
            self.require_wanted()
            raise
        finally:
            self.ending.wait = None

    def use(self, table: TableId, version: int) -> None:
        """Note the version of a table's definition that a statement uses; the commit checks it.

        Raises:
            TableChangedError: An earlier statement used another version; or one that ran at the same time has
                defined the table.
        """
        own = [made.version for made in self.staged.definitions if made.table == table]
        used = own[-1] if own else self.staged.tables.setdefault(table, version)
        if used != version:
            raise TableChangedError(
                f"the definition of table {table} has changed since an earlier statement of {self.tid}; roll "
                "back, and begin again",
                table=table,
            )

    @property
    def read_csn(self) -> Csn:
        """The CSN at which its newest statement reads: its snapshot before the first one."""
        return max(self.statements.statement_csn, self.tid.snapshot)

    def begin_statement(self, reached: Csn) -> Csn:
        """Return the CSN at which a statement reads that begins when ``reached`` is applied here."""
        statements = self.statements
        if self.isolation is Isolation.READ_COMMITTED:
            statements.statement_csn = max(self.read_csn, reached)
        else:
            statements.statement_csn = self.tid.snapshot
        return statements.statement_csn

    def note_reads(self, found: Mapping[TableId, Excluded]) -> None:
        """Note what a statement has read; only the commit of a serializable transaction uses it."""
        if self.isolation is not Isolation.SERIALIZABLE:
            return
        reads = self.statements.reads
        for table, excluded in found.items():
            before = reads.get(table, excluded)
            reads[table] = None if before is None or excluded is None else before & excluded

    def depend_on_rows(self, table: TableId) -> None:
        """Let the commit be refused if others have added or removed rows of a table since the snapshot."""
        self.statements.reads[table] = None

    @property
    def depends_on_reads(self) -> bool:
        """Whether its commit needs that what it has read is unchanged."""
        return self.isolation is Isolation.SERIALIZABLE or bool(self.statements.reads)

    def require_whole(self, table: TableId | None = None) -> None:
        """Raise UnsupportedInTransactionError while a job changes rows of a table (None: of any table).

        Its rows are in no part then.
        """
        for name, writes in self.staged.writes.items():
            if writes.taken is not None and table in {None, name}:
                raise UnsupportedInTransactionError(
                    f"rows of table {name} are being changed by a job of {self.tid}, which has taken them; "
                    "wait for its end",
                    table=name,
                )

    def require_sealed(self) -> None:
        """Raise UnsealedWriteError while a job that writes through the file system has not ended well."""
        for table, writes in self.staged.writes.items():
            if why := writes.area.unsealed():
                raise UnsealedWriteError(
                    f"{self.tid} would commit a part of what was to be written to table {table}: {why}; it "
                    "is rolled back. Begin again, and commit when the write has ended",
                    table=table,
                )
            if writes.unconfirmed:
                raise UnsealedWriteError(
                    f"{self.tid} would commit the rows of a job that writes to table {table} and was "
                    "reported as failed, or whose session has ended; it is rolled back. Begin again",
                    table=table,
                )
            if writes.taken is not None:
                raise UnsealedWriteError(
                    f"{self.tid} would commit a change of table {table} without the rows that remain: "
                    f"{len(writes.taken.parts)} parts were taken, and the job that replaces their "
                    f"{writes.taken.rows} rows has not ended; it is rolled back. Begin again, and commit "
                    "when the change has ended",
                    table=table,
                )

    def describe(self, now: float) -> TransactionInfo:
        """Return the answer of GET /transactions for this transaction."""
        ending = self.ending
        rows, parts, removed = ending.totals or self.staged.totals
        return TransactionInfo(
            tid=str(self.tid),
            state=self.state.value,
            snapshot_csn=self.tid.snapshot,
            statement_csn=self.read_csn,
            isolation=self.isolation.value,
            label=self.label,
            batch=self.batch,
            tables=self.staged.touched,
            rows=rows,
            parts=parts,
            removed_parts=removed,
            csn=ending.outcome.csn if ending.outcome else None,
            error=ending.error.message if ending.error else None,
            lease_left_s=max(0.0, round(self.lease.until - now, 3)) if self.leased else None,
            meta=self.meta,
        )


def _digest(progress: str) -> int:
    return zlib.crc32(progress.encode())
