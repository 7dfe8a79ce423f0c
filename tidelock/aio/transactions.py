"""Transactions with await.

A cancelled statement may be half done: its thread goes on, and its rows are staged or not. So it leaves the
transaction for rollback only, as an interrupted statement of the synchronous client does: no later commit can
take part of it along. A cancelled commit goes on to its end; nothing is guessed about it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tidelock import client
from tidelock.aio.reads import AsyncScan
from tidelock.aio.threads import CLOSE_TIMEOUT_S, THREADS_MAX, Threads
from tidelock.aio.twins import Twin, at_once, in_thread
from tidelock.client import JoinedTransaction, Transaction, TransactionState
from tidelock.errors import RefusedError

P = ParamSpec("P")
R = TypeVar("R")


def _statement(
    method: Callable[Concatenate[Transaction, P], R],
) -> Callable[Concatenate[Twin[Transaction], P], Coroutine[Any, Any, R]]:
    """Return a method that runs a statement in a thread; if it is cancelled, only a rollback is left."""
    run = in_thread(method)

    @functools.wraps(method)
    async def call(self: Twin[Transaction], /, *args: P.args, **named: P.kwargs) -> R:
        try:
            return await run(self, *args, **named)
        except asyncio.CancelledError:
            self._twin.fail(
                RefusedError(f"{method.__name__}() was cancelled before its answer, and may be half done")
            )
            raise

    return call


class AsyncTransaction(Twin[Transaction]):
    """An open transaction; made by `AsyncDatabase.begin`. The twin of `Transaction`.

    As a context manager it commits at the end of the block, and rolls back when the block raises, also when
    its task is cancelled. A cancelled statement leaves it for rollback only, also one of `sql`, which may
    insert; a cancelled read does not. After a cancelled commit, `commit()` or `AsyncDatabase.outcome(tx.tid)`
    tells its outcome. Any number of tasks may use it.
    """

    @property
    def csn(self) -> int | None:
        """CSN of the commit; None before the commit, and for a transaction that changed nothing."""
        return self._twin.csn

    @property
    def tid(self) -> str:
        """Its id, unique forever."""
        return self._twin.tid

    @property
    def snapshot_csn(self) -> int:
        """The CSN at which it reads."""
        return self._twin.snapshot_csn

    @property
    def lease_s(self) -> float:
        """How long its home waits for a sign of life."""
        return self._twin.lease_s

    @property
    def state(self) -> TransactionState:
        """The state of the transaction, as far as this client knows."""
        return self._twin.state

    @property
    def holder(self) -> str:
        """Its home: the replica where it was begun, the only one that can commit it."""
        return self._twin.holder

    @property
    def url(self) -> str:
        """Address by which this client reaches the home, for `tidelock.join`."""
        return self._twin.url

    @property
    def published_url(self) -> str:
        """Address of the home as it publishes it, for `tidelock.join` in processes on other machines."""
        return self._twin.published_url

    read = in_thread(Transaction.read)
    scan = at_once(Transaction.scan, AsyncScan)
    sql = _statement(Transaction.sql)
    insert = _statement(Transaction.insert)
    drop_partition = _statement(Transaction.drop_partition)
    truncate = _statement(Transaction.truncate)
    move_partition = _statement(Transaction.move_partition)
    replace_partition = _statement(Transaction.replace_partition)
    restore_table = _statement(Transaction.restore_table)
    import_files = _statement(Transaction.import_files)
    delete = _statement(Transaction.delete)
    update = _statement(Transaction.update)
    upsert = _statement(Transaction.upsert)
    merge = _statement(Transaction.merge)
    seal = _statement(Transaction.seal)
    settle = _statement(Transaction.settle)
    replace_files = _statement(Transaction.replace_files)
    seal_change = _statement(Transaction.seal_change)
    confirm = in_thread(Transaction.confirm)
    path = in_thread(Transaction.path)
    token = in_thread(Transaction.token)
    definition = in_thread(Transaction.definition)
    status = in_thread(Transaction.status)
    create_table = _statement(Transaction.create_table)
    drop_table = _statement(Transaction.drop_table)
    undrop_table = _statement(Transaction.undrop_table)
    create_namespace = _statement(Transaction.create_namespace)
    drop_namespace = _statement(Transaction.drop_namespace)
    clone_table = _statement(Transaction.clone_table)
    rename_table = _statement(Transaction.rename_table)
    alter_table = _statement(Transaction.alter_table)
    heartbeat = in_thread(Transaction.heartbeat)
    commit = in_thread(Transaction.commit)
    rollback = in_thread(Transaction.rollback, keep=True)

    def fail(self, error: BaseException) -> None:
        """Accept rollback() only from now on, as `Transaction.fail`; nothing is sent."""
        self._twin.fail(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._threads.run(functools.partial(self._twin.__exit__, kind, error, trace), keep=True)


def join(
    url: str,
    token: str,
    *,
    timeout_s: float = 60.0,
    connect_timeout_s: float = 2.0,
    threads_max: int = THREADS_MAX,
    close_timeout_s: float = CLOSE_TIMEOUT_S,
) -> AsyncJoinedTransaction:
    """Join a transaction by its token, as `tidelock.join`; nothing is sent yet.

    Args:
        url: Address of its home.
        token: From `AsyncTransaction.token`.
        timeout_s: How long to wait for an answer, and for the outcome of a commit.
        connect_timeout_s: How long to wait for a connection.
        threads_max: As in `tidelock.aio.connect`.
        close_timeout_s: As in `tidelock.aio.connect`.

    Raises:
        BadRequestError: `url` has another form, or a limit is out of range.
        TokenForgedError: The text is no token. Only the first request shows whether a token is valid.
    """
    threads = Threads(threads_max, close_timeout_s)
    joined = client.join(url, token, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
    return AsyncJoinedTransaction(threads, joined, own_threads=True)


class AsyncJoinedTransaction(Twin[JoinedTransaction]):
    """A transaction of another process; made by `join` and `AsyncDatabase.join`.

    The twin of `JoinedTransaction`. A cancelled `insert` is as one whose answer is lost: its rows may be
    staged, so the transaction must be rolled back.
    """

    def __init__(self, threads: Threads, twin: JoinedTransaction, *, own_threads: bool = False) -> None:
        super().__init__(threads, twin)
        self._own_threads = own_threads

    @property
    def tid(self) -> str:
        """The transaction."""
        return self._twin.tid

    read = in_thread(JoinedTransaction.read)
    scan = at_once(JoinedTransaction.scan, AsyncScan)
    sql = in_thread(JoinedTransaction.sql)
    insert = in_thread(JoinedTransaction.insert)
    definition = in_thread(JoinedTransaction.definition)
    heartbeat = in_thread(JoinedTransaction.heartbeat)
    commit = in_thread(JoinedTransaction.commit)
    rollback = in_thread(JoinedTransaction.rollback, keep=True)

    async def close(self) -> None:
        """Close the connections; the transaction goes on without this process."""
        try:
            if self._own_threads:
                await self._threads.close()
        finally:
            self._twin.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
