"""The client's view of a cluster, with await, and `connect`, which makes it.

**The order of begins.** `Database.begin` without an argument sends nothing, and begins before its *thread*
sends anything else (`tidelock.client.agents.begin_order`). Here the thread that ran a begin runs calls of any
task next, and a task's next call runs in any thread, so that order would mean nothing. A transaction of this
client therefore begins at once: its snapshot is fixed when `begin` has been awaited, for whichever task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, Self

from tidelock import client
from tidelock.aio.reads import AsyncChanges, AsyncScan, AsyncSnapshot, AsyncSubscription
from tidelock.aio.threads import CLOSE_TIMEOUT_S, THREADS_MAX, Threads
from tidelock.aio.transactions import AsyncJoinedTransaction, AsyncTransaction
from tidelock.aio.twins import Opening, Twin, at_once, in_thread, opens
from tidelock.client import Database, Snapshot, Subscription, Transaction
from tidelock.client.membership import Membership

P = ParamSpec("P")


def connect(
    url: str | Path | Sequence[str | Path] | None = None,
    *,
    replica: str | None = None,
    token: str | None = None,
    timeout_s: float = 60.0,
    connect_timeout_s: float = 2.0,
    query_timeout_s: float = 330.0,
    wait_log_s: float = 2.0,
    members_refresh_s: float = 30.0,
    members_file: str | Path | None = None,
    threads_max: int = THREADS_MAX,
    close_timeout_s: float = CLOSE_TIMEOUT_S,
) -> Opening[AsyncDatabase]:
    """Connect to a cluster, at `await` or at the beginning of an `async with` block.

    Args:
        url: As in `tidelock.connect`, and so are the arguments up to `members_file`.
        replica: Work with this replica only, and never switch to another.
        token: The shard's shared secret, if the agents have one.
        timeout_s: How long to wait for the answer of a silent agent, and for the outcome of a commit.
        connect_timeout_s: How long to wait for a connection.
        query_timeout_s: How long to wait for the first rows of a query.
        wait_log_s: From this length on a wait is logged.
        members_refresh_s: After this time the client reads the list of all agents again.
        members_file: A file in which the client keeps the addresses of all agents.
        threads_max: Calls of this client that run at the same time, each in a thread. Further ones wait for
            their turn.
        close_timeout_s: How long `close` waits for calls that run.

    Raises:
        BadRequestError: As in `tidelock.connect`; or a limit is out of range, which is raised at once.
        TidelockError: Other errors, as in `tidelock.connect`.
    """
    threads = Threads(threads_max, close_timeout_s)
    call = functools.partial(
        client.connect,
        url,
        replica=replica,
        token=token,
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        query_timeout_s=query_timeout_s,
        wait_log_s=wait_log_s,
        members_refresh_s=members_refresh_s,
        members_file=members_file,
    )
    return Opening(_connected(threads, call))


async def _connected(threads: Threads, call: Callable[[], Database]) -> AsyncDatabase:
    try:
        return AsyncDatabase(threads, await threads.run(call, undo=Database.close))
    except BaseException:
        threads.end()
        raise


def _begun(begin: Callable[P, Transaction]) -> Callable[P, Transaction]:
    """Return a begin that leaves at once (see the docstring of the module)."""

    @functools.wraps(begin)
    def call(*args: P.args, **named: P.kwargs) -> Transaction:
        tx = begin(*args, **named)
        _ = tx.snapshot_csn  # a look at it begins the transaction
        return tx

    return call


class AsyncMembership(Twin[Membership]):
    """The members of a cluster, for an operator. The twin of `Membership`."""

    add = in_thread(Membership.add)
    remove = in_thread(Membership.remove)
    replace = in_thread(Membership.replace)
    drain = in_thread(Membership.drain)
    strike = in_thread(Membership.strike)
    set_copies = in_thread(Membership.set_copies)
    status_of = in_thread(Membership.status_of)


class AsyncDatabase(Twin[Database]):
    """A cluster as one client sees it; made by `connect`. The twin of `Database`.

    Any number of tasks may use it, also those of several event loops. At most `threads_max` calls run at the
    same time, each in a thread. If a task is cancelled, a call that runs goes on to its end. So a cancelled
    autocommit statement may take effect; `label(...)` tells whether it did if it has a label. `begin` begins
    at once, with and without arguments. After a fork, and pickled, it is a separate client, as `Database` is.
    """

    begin = opens(_begun(Database.begin), AsyncTransaction, undo=Transaction.rollback)
    snapshot = opens(Database.snapshot, AsyncSnapshot, undo=Snapshot.close)
    resume = opens(Database.resume, AsyncTransaction)
    join = at_once(Database.join, AsyncJoinedTransaction)

    read = in_thread(Database.read)
    export = in_thread(Database.export)
    scan = at_once(Database.scan, AsyncScan)
    sql = in_thread(Database.sql)
    changes = at_once(Database.changes, AsyncChanges)
    diff = opens(Database.diff, AsyncChanges)
    subscribe = opens(Database.subscribe, AsyncSubscription, undo=Subscription.close)

    insert = in_thread(Database.insert)
    write = in_thread(Database.write)
    drop_partition = in_thread(Database.drop_partition)
    truncate = in_thread(Database.truncate)
    move_partition = in_thread(Database.move_partition)
    replace_partition = in_thread(Database.replace_partition)
    restore_table = in_thread(Database.restore_table)
    import_files = in_thread(Database.import_files)
    delete = in_thread(Database.delete)
    update = in_thread(Database.update)
    upsert = in_thread(Database.upsert)
    merge = in_thread(Database.merge)
    land = in_thread(Database.land)

    create_table = in_thread(Database.create_table)
    alter_table = in_thread(Database.alter_table)
    rename_table = in_thread(Database.rename_table)
    undrop_table = in_thread(Database.undrop_table)
    namespaces = in_thread(Database.namespaces)
    create_namespace = in_thread(Database.create_namespace)
    drop_namespace = in_thread(Database.drop_namespace)
    clone_table = in_thread(Database.clone_table)
    drop_table = in_thread(Database.drop_table)
    tables = in_thread(Database.tables)
    table = in_thread(Database.table)
    parts = in_thread(Database.parts)

    tag = in_thread(Database.tag)
    tags = in_thread(Database.tags)
    untag = in_thread(Database.untag)

    outcome = in_thread(Database.outcome)
    label = in_thread(Database.label)
    csn_at = in_thread(Database.csn_at)
    time_of = in_thread(Database.time_of)
    last_change = in_thread(Database.last_change)
    in_sync_replicas = in_thread(Database.in_sync_replicas)
    log = in_thread(Database.log)
    history = in_thread(Database.history)
    statistics = in_thread(Database.statistics)
    explain_part = in_thread(Database.explain_part)

    status = in_thread(Database.status)
    transactions = in_thread(Database.transactions)
    kill = in_thread(Database.kill)
    raise_horizon = in_thread(Database.raise_horizon)
    resolve_lost = in_thread(Database.resolve_lost)
    set_switch = in_thread(Database.set_switch)
    optimize = in_thread(Database.optimize)
    explain = in_thread(Database.explain)
    audit = in_thread(Database.audit)

    @property
    def membership(self) -> AsyncMembership:
        """The members of the cluster, to add, remove, replace, drain or strike replicas."""
        return AsyncMembership(self._threads, self._twin.membership)

    @property
    def seen_csn(self) -> int:
        """The highest CSN that this client has committed or read, 0 for none; see `Database.seen_csn`."""
        return self._twin.seen_csn

    async def close(self) -> None:
        """Close the connections, after the calls that run have ended, or `close_timeout_s` has passed.

        Calls that have not begun by then, and all later ones, raise RefusedError. Open transactions and
        snapshots are not renewed any more, and end with the lease.
        """
        try:
            await self._threads.close()
        finally:
            self._twin.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
