"""The service for transactions of this home, and for the outcome of any transaction."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from tidelock.csnlog.core.ids import Csn, Tid
from tidelock.csnlog.core.results import Aborted, Committed, Outcome
from tidelock.csnlog.core.skipped import Skips, may_hide
from tidelock.csnlog.log import CsnLog
from tidelock.errors import (
    BadRequestError,
    DeclaredLostError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnknownTransactionError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.landing.landings import Landings
from tidelock.replica_agent.services.failures import QueryFailures
from tidelock.replica_agent.services.points import PastPoints
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.replica_agent.sql.mutation import DeleteRows, MergeRows, UpdateRows
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.ending.labels import Labels
from tidelock.replica_agent.transactions.outcomes.resolver import OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import CLIENT
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.insert import Inserts
from tidelock.replica_agent.transactions.statements.mutations import Mutations
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.statements.restores import Restores
from tidelock.replica_agent.transactions.transaction import Isolation, Transaction, TxState
from tidelock.wire.statements import ChangeResult, RemoveResult, RestoreRequest, RestoreResult
from tidelock.wire.transactions import TransactionInfo
from tidelock.wire.writes import LandAnswer

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TransactionService:
    """Begins transactions, runs their statements, ends them, and returns their outcomes."""

    settings: AgentSettings
    condition: Condition
    clock: Callable[[], float]
    log: CsnLog
    waiters: CsnWaiters
    snapshots: Snapshots
    transactions: Transactions
    inserts: Inserts
    removals: Removals
    restores: Restores
    points: PastPoints
    mutations: Mutations
    landings: Landings
    commits: Commits
    labels: Labels
    outcomes: OutcomeResolver
    reader: CatalogReader
    skips: Skips
    failures: QueryFailures

    # -- begin, show, keep alive -----------------------------------------------------------------------------

    async def begin(
        self,
        *,
        label: str | None,
        min_csn: Csn | None,
        fresh: bool,
        lease_s: float | None,
        meta: dict[str, Any] | None,
        isolation: Isolation = Isolation.SNAPSHOT,
        batch: int | None = None,
        progress: str | None = None,
        key: str | None = None,
    ) -> Transaction:
        """Begin a transaction at S = the CSN that is applied here.

        Waits first for ``min_csn``, or for the end of the log (``fresh``). A repetition with the same ``key``
        returns the transaction of the first request, as long as it is open.

        Raises:
            BadRequestError, TooLargeError: The label, the metadata or the key is invalid.
            LabelExistsError: The label is already committed, as far as this replica knows without a wait.
            TransactionClosedError: The transaction of this key accepts no statements any more.
            StandbyError: ``min_csn`` was not reached in time.
            UnavailableError: The agent accepts no new transactions now.
        """
        self.condition.require(AgentAction.BEGIN)
        _require_short("key", len((key or "").encode()), self.settings.label_bytes_max, "label_bytes_max")
        repeats = bool(key and self.transactions.open_by(key))
        await self._require_begin(label, batch, meta, progress, repeats=repeats)
        if fresh:
            min_csn = max(min_csn or Csn(0), await self.log.barrier())
        if min_csn is not None:
            await self.snapshots.reach(min_csn)
        return self.transactions.begin(
            self.waiters.reached,
            lease_s=lease_s,
            label=label,
            batch=batch,
            meta=meta,
            progress=progress,
            isolation=isolation,
            key=key,
        )

    async def _require_begin(
        self,
        label: str | None,
        batch: int | None,
        meta: dict[str, Any] | None,
        progress: str | None,
        *,
        repeats: bool = False,
    ) -> None:
        """Refuse wrong arguments, and a label that is known to be committed unless a begin ``repeats``."""
        self.labels.require_own(label, batch, progress)
        if progress is not None and label is None:
            raise BadRequestError("progress without a label; give the label that it is kept with")
        _require_short("meta", len(msgspec.json.encode(meta or {})), self.settings.meta_bytes_max)
        if label is not None and not repeats:
            await self.labels.refuse_repeated(label, batch)

    def reserve(self, count: int) -> Tid:
        """Reserve tids for :meth:`write`; return the first one; errors as :meth:`Transactions.reserve`."""
        self.condition.require(AgentAction.BEGIN)
        return self.transactions.reserve(self.waiters.reached, count)

    def describe_all(self) -> list[TransactionInfo]:
        """Return the descriptions of the open and recently ended transactions of this home."""
        now = self.clock()
        return [tx.describe(now) for tx in self.transactions.shown()]

    def describe(self, tid: str) -> TransactionInfo:
        """Return the description of one transaction; UnknownTransactionError if it does not exist."""
        return self.transactions.find(tid).describe(self.clock())

    # -- statements ------------------------------------------------------------------------------------------

    def find_for_statement(self, tid: str, *, sign_of_life: bool = True) -> Transaction:
        """Return the transaction of a statement.

        The agent's state is checked for an open transaction only. For a transaction that accepts no
        statements, the error of the statement itself says more than the state of the agent does.

        Raises:
            UnknownTransactionError: It does not exist.
            UnavailableError: It is open, and the agent accepts no statements now.
        """
        tx = self.transactions.find(tid, sign_of_life=sign_of_life)
        if tx.state is TxState.OPEN:
            self.condition.require(AgentAction.INSERT)
        return tx

    async def insert(
        self,
        tx: Transaction,
        table: str,
        content: AsyncIterable[bytes],
        length: int | None,
        *,
        partition: Mapping[str, Any] | None = None,
    ) -> tuple[int, int]:
        """Insert rows; see :meth:`Inserts.insert`. Its end is a sign of life if the caller says so."""
        with self.failures.noted(str(tx.tid), f"the insert into {table}"):
            return await self.inserts.insert(tx, table, content, length, partition=partition)

    def refused(self, tid: str, error: TidelockError) -> None:
        """Leave a transaction rollback only: a request of it was refused before it became a statement."""
        with suppress(UnknownTransactionError):
            self.transactions.find(tid).ending.fail(error)

    async def delete(self, tx: Transaction, table: str, action: DeleteRows) -> ChangeResult:
        """Delete rows; see :meth:`Mutations.delete`."""
        return await self._change(tx, f"the delete in {table}", self.mutations.delete(tx, table, action))

    async def update(self, tx: Transaction, table: str, action: UpdateRows) -> ChangeResult:
        """Give columns new values; see :meth:`Mutations.update`."""
        return await self._change(tx, f"the update of {table}", self.mutations.update(tx, table, action))

    async def merge(
        self, tx: Transaction, table: str, action: MergeRows, body: AsyncIterable[bytes], length: int | None
    ) -> ChangeResult:
        """Merge rows by key; see :meth:`Mutations.merge`."""
        return await self._change(
            tx, f"the merge into {table}", self.mutations.merge(tx, table, action, body, length)
        )

    async def _change(self, tx: Transaction, subject: str, work: Awaitable[ChangeResult]) -> ChangeResult:
        with self.failures.noted(str(tx.tid), subject):
            return await self._keep_alive(tx, work)

    async def drop_partition(self, tx: Transaction, table: str, values: Mapping[str, Any]) -> RemoveResult:
        """Remove one partition; see :meth:`Removals.drop_partition`."""
        return await self._keep_alive(tx, self.removals.drop_partition(tx, table, values))

    async def truncate(self, tx: Transaction, table: str) -> RemoveResult:
        """Remove all rows; see :meth:`Removals.truncate`."""
        return await self._keep_alive(tx, self.removals.truncate(tx, table))

    async def move_partition(
        self, tx: Transaction, source: str, target: str, values: Mapping[str, Any]
    ) -> RemoveResult:
        """Move one partition; see :meth:`Removals.move_partition`."""
        return await self._keep_alive(tx, self.removals.move_partition(tx, source, target, values))

    async def restore(self, tx: Transaction, table: str, asked: RestoreRequest) -> RestoreResult:
        """Make a table, or one partition, again as it was; see :meth:`Restores.restore`.

        Its CSN is pinned meanwhile, so that no part that comes back is collected.
        """
        async with self.points.held(asked) as csn:
            return await self._keep_alive(tx, self.restores.restore(tx, table, csn, asked.partition))

    async def _keep_alive(self, tx: Transaction, work: Awaitable[_T]) -> _T:
        """Return the result of a statement; its successful end is a sign of life."""
        done = await work
        self.transactions.touch(tx)
        return done

    # -- the end ---------------------------------------------------------------------------------------------

    async def commit(
        self,
        tid: Tid,
        *,
        wait: WaitFor,
        timeout_s: float | None,
        label: str | None = None,
        batch: int | None = None,
        progress: str | None = None,
    ) -> Committed | None:
        """Commit, or repeat the answer of a commit in any state; see :meth:`Commits.commit`."""
        if self.transactions.is_open(str(tid)):
            self.condition.require(AgentAction.COMMIT)
        else:
            self._refuse_lost(tid)
        if (label, batch, progress) != (None, None, None):
            self.labels.require_own(label, batch, progress)
        return await self.commits.commit(
            tid, wait=wait, timeout_s=timeout_s, label=label, batch=batch, progress=progress
        )

    async def write(
        self,
        tid: Tid,
        rows: Sequence[tuple[str, bytes]],
        *,
        label: str | None,
        batch: int | None,
        meta: dict[str, Any] | None,
        progress: str | None,
        min_csn: Csn | None,
        wait: WaitFor,
        timeout_s: float | None,
    ) -> Committed | None:
        """Begin a transaction under a reserved tid, insert rows, and commit it.

        A repetition gets the answer of the first request, as a repeated commit does.

        Args:
            tid: A reserved tid.
            rows: Tables, and the Arrow IPC streams of their new rows.
            label: As in :meth:`begin`; also ``batch``, ``meta``, ``progress`` and ``min_csn``.
            batch: As in :meth:`begin`.
            meta: As in :meth:`begin`.
            progress: As in :meth:`begin`.
            min_csn: As in :meth:`begin`.
            wait: As in :meth:`commit`; also ``timeout_s``.
            timeout_s: As in :meth:`commit`.

        Raises:
            UnknownTransactionError: The tid is not reserved any more, and nothing is known of it here.
            Others as :meth:`begin`, :meth:`insert` and :meth:`commit`.
        """
        if self.transactions.reserved.holds(tid):
            self.condition.require(AgentAction.BEGIN)
            await self._require_begin(label, batch, meta, progress)
            if min_csn is not None:
                await self.snapshots.reach(min_csn)
        if not self.transactions.reserved.holds(tid):  # the same request may have come twice
            return await self.commit(tid, wait=wait, timeout_s=timeout_s)
        tx = self.transactions.begin_reserved(
            tid, self.waiters.reached, label=label, batch=batch, meta=meta, progress=progress
        )
        return await self.commits.write(
            tx, functools.partial(self._insert_all, tx, rows), wait=wait, timeout_s=timeout_s
        )

    async def _insert_all(self, tx: Transaction, rows: Sequence[tuple[str, bytes]]) -> None:
        for table, stream in rows:
            with self.failures.noted(str(tx.tid), f"the insert into {table}"):
                await self.inserts.insert_whole(tx, table, stream)

    async def land(
        self, table: str, stream: bytes, *, min_csn: Csn | None, timeout_s: float | None
    ) -> LandAnswer:
        """Take rows of a landing table; see :meth:`Landings.land`.

        Args:
            table: The name of the table.
            stream: The rows, as one Arrow IPC stream.
            min_csn: The definition of the table must be at least as new as this CSN.
            timeout_s: How long they may take to count as written; None: twice ``commit_timeout_s``.
        """
        limit_s = self.settings.commit_timeout_s * 2 if timeout_s is None else timeout_s
        deadline = self.clock() + limit_s
        self.condition.require(AgentAction.BEGIN)
        if min_csn is not None:
            await self.snapshots.reach(min_csn, wait_s=min(limit_s, self.settings.wait_bound_s))
        return await self.landings.land(table, stream, deadline)

    async def kill(self, tid: str) -> Transaction:
        """Roll back a transaction of any client; this does not renew its lease, and its owner is notified."""
        tx = self.transactions.find(tid)
        killed = TransactionClosedError(
            f"transaction {tx.tid} was killed by a client and rolled back; begin a new one",
            tid=str(tx.tid),
            state=TxState.ROLLED_BACK.value,
        )
        await self.commits.roll_back(tx, killed)
        return tx

    async def outcome(self, tid: Tid, *, wait: WaitFor | None, timeout_s: float | None) -> Outcome:
        """Return the outcome of a transaction; of a committed one once applied as ``wait`` requires.

        Raises:
            DeclaredLostError: It committed, and an operator has declared parts of it lost, or has had its
                record skipped; or nobody can tell whether it is in a damaged record that was skipped.
            CommitUnknownError: It committed, but was not applied there within ``timeout_s``.
            Others as :meth:`OutcomeResolver.outcome`.
        """
        self._refuse_lost(tid)
        found = await self.outcomes.outcome(tid, CLIENT)
        if isinstance(found, Aborted):
            self._refuse_hidden(tid)
        if wait is None or not isinstance(found, Committed):
            return found
        return await self.commits.applied.wait(tid, found, wait, timeout_s or self.settings.wait_bound_s)

    def _refuse_hidden(self, tid: Tid) -> None:
        word = next((word for word in self.skips.values() if may_hide(word, tid)), None)
        if word is not None:
            raise DeclaredLostError(
                f"{tid} is in no record that can be read, and may be in the damaged one of CSN {word.csn}, "
                f"which {word.by} has had skipped ({word.why}): its home may have answered that it is "
                "committed, but none of its changes count; write them again in a new transaction",
                tid=str(tid),
                csn=word.csn,
                parts=[],
                by=word.by,
                why=word.why,
            )

    def _refuse_lost(self, tid: Tid) -> None:
        for word in self.skips.values():
            if str(tid) in word.tids:
                raise DeclaredLostError(
                    f"{tid} is in the record of CSN {word.csn}, which {word.by} has had skipped "
                    f"({word.why}): none of its changes count, whatever its home has answered; write them "
                    "again in a new transaction",
                    tid=str(tid),
                    csn=word.csn,
                    parts=[],
                    by=word.by,
                    why=word.why,
                )
        lost = self.reader.skipped(str(tid))
        if not lost:
            return
        first = lost[0]
        parts = [one.part for one in lost]
        raise DeclaredLostError(
            f"{tid} is committed at CSN {first.csn}, and {first.by} has declared {', '.join(parts)} of it "
            f"lost ({first.why}): no replica shows these rows; write them again in a new transaction",
            tid=str(tid),
            csn=first.csn,
            parts=parts,
            by=first.by,
            why=first.why,
        )


def _require_short(what: str, found: int, limit: int, setting: str | None = None) -> None:
    if found > limit:
        msg = f"{what} has {found} bytes, the limit is {setting or f'{what}_bytes_max'}={limit}; shorten it"
        raise TooLargeError(msg, limit=limit, found=found)
