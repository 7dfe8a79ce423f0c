"""Rows that land: those of many clients depart in one transaction of this home, and are answered early.

A landing has no transaction of its own. Its rows wait for the next departure; all rows of one departure are
encoded into one part for each table and partition, in a transaction that the home begins for them. They are
acknowledged when these parts are durable on `copies` replicas, before the log knows of them. From then on
somebody commits them for certain (rule landing): this home, as long as its boot lives, and after its end each
replica that holds the parts, under a label, so that they count once (:mod:`.rescue`).

Two landings have no order. So a table with a unique key, in which the last row of a key wins, is written by
:mod:`.upserts`, which answers when the rows are visible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, TableId, Tid
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import Proposal
from tidelock.errors import (
    CommitUnknownError,
    RefusedError,
    TableChangedError,
    TidelockError,
    TooLargeError,
    UnavailableError,
)
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.landing.upserts import LandingUpserts
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.row_streams import CheckedRows
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.transactions.ending.commit import Commits
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.back_pressure import BackPressure
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import StagedChanges, Transaction
from tidelock.replication.backoff import wait_s
from tidelock.wire.writes import LandAnswer

#: The commit of rows that are acknowledged.
LANDED = faults.step("agent.landed")
#: Pause after a commit that was refused, before it is tried again (seconds).
_PAUSE_S = 0.2

_log = structlog.get_logger("landing")


class _Boarding(msgspec.Struct, frozen=True, eq=False):
    """Checked rows of one landing, a CSN at which their table had their columns, and the answer."""

    rows: CheckedRows
    at: Csn
    done: asyncio.Future[LandAnswer]

    def refuse(self, error: BaseException) -> None:
        """Answer with an error, unless there is an answer."""
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Landings:
    """Takes rows of landing tables.

    Attributes:
        upserts: Writes those with a unique key.
        rescue: Commits the rows of a departure that the log refuses, without those of dropped tables; returns
            whether that is settled (:meth:`.rescue.Rescue.settle`).
    """

    settings: AgentSettings
    transactions: Transactions
    tables: Tables
    waiters: CsnWaiters
    pressure: BackPressure
    staging: RowStaging
    commits: Commits
    upserts: LandingUpserts
    rescue: Callable[[Tid], Awaitable[bool]]
    metrics: Metrics
    _boarding: list[_Boarding] = field(default_factory=list, init=False)
    _waiting_bytes: int = field(default=0, init=False)
    #: A departure waits, and has not taken its rows.
    _departing: bool = field(default=False, init=False)
    _departures: set[asyncio.Task[Committed | None]] = field(default_factory=set, init=False)
    _ahead: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Make room for ``landing_ahead_max`` departures."""
        self._ahead = asyncio.Semaphore(self.settings.landing_ahead_max)

    async def land(self, table: str, stream: bytes, deadline: float) -> LandAnswer:
        """Return when the rows of a complete Arrow IPC stream count as written.

        Args:
            table: The name of a landing table.
            stream: The rows.
            deadline: Monotonic time until which to wait for that.

        Raises:
            CommitUnknownError: They may or may not become visible.
            RefusedError: They do not fit the table, or a limit was passed; nothing is written. Also
                TableModeError: It is no landing table.
            UnavailableError: Nothing is written; try again, or at another replica.
        """
        at = self.waiters.reached
        version, schema = self.tables.named(full_name(table), at)
        schema.require_mode(lands=True)
        _require_small(len(stream), self.settings.inline_part_bytes_max, "inline_part_bytes_max")
        await self.commits.require_followers(deadline)
        rows = await self.staging.checked(version, schema, stream)
        _require_small(rows.nbytes, self.settings.staged_memory_bytes_max, "staged_memory_bytes_max")
        for path in rows.by_path:
            await self.pressure.admit(StagedChanges(), schema, path)
        if not rows.count:
            return LandAnswer(0, None, None)
        if schema.unique_key:
            return await self.upserts.land(schema, stream, deadline)
        return await self._board(rows, at, deadline)

    async def _board(self, rows: CheckedRows, at: Csn, deadline: float) -> LandAnswer:
        if self._waiting_bytes + rows.nbytes > (limit := self.settings.staged_memory_bytes_max):
            raise UnavailableError(
                f"rows of {self._waiting_bytes} bytes wait for their departure, the limit is "
                f"staged_memory_bytes_max={limit}; try again, or at another replica"
            )
        one = _Boarding(rows, at, asyncio.get_running_loop().create_future())
        self._boarding.append(one)
        self._waiting_bytes += rows.nbytes
        self._start()
        await asyncio.wait({one.done}, timeout=max(0.0, deadline - self.commits.clock()))
        if one.done.done():
            return one.done.result()
        if one in self._boarding:
            self._leave(one)
            raise UnavailableError(
                "the rows have waited too long for departures before them, of which at most "
                f"landing_ahead_max={self.settings.landing_ahead_max} may be uncommitted; nothing is "
                "written: try again, or at another replica"
            )
        raise CommitUnknownError("the rows are on their way, and not durable in time")

    def _leave(self, one: _Boarding) -> None:
        self._boarding.remove(one)
        self._waiting_bytes -= one.rows.nbytes

    def _start(self) -> None:
        """Begin a departure, unless one has not taken its rows yet."""
        if self._departing:
            return
        self._departing = True
        task = asyncio.create_task(self._depart(), name="departure of landings")
        self._departures.add(task)
        task.add_done_callback(self._departures.discard)

    async def _depart(self) -> Committed | None:
        """Write what waits, answer it, and commit it."""
        async with self._ahead:
            going: list[_Boarding] = []
            try:
                async with self.commits.gate.batch():
                    going = self._take()
                    written = await self._write(going)
            finally:
                for one in going:  # only if this task was cancelled, with its agent
                    one.done.cancel()
            return None if written is None else await self._commit(*written)

    def _take(self) -> list[_Boarding]:
        """Return what departs now: what one transaction may have; the rest gets the next departure.

        A transaction has rows of one version of each table.
        """
        self._departing = False
        going: list[_Boarding] = []
        size = 0
        versions: dict[TableId, int] = {}
        while self._boarding:
            rows = self._boarding[0].rows
            size += rows.nbytes
            another = versions.setdefault(rows.schema.id, rows.version) != rows.version
            if going and (another or size > self.settings.shared_parts_bytes_max):
                self._start()
                break
            going.append(self._boarding[0])
            self._leave(self._boarding[0])
        return going

    async def _write(self, going: list[_Boarding]) -> tuple[Transaction, Proposal] | None:
        """Make the parts and their copies, and answer; None if that failed, or nobody waits any more."""
        going = self._without_dropped(going)
        if not going:
            return None
        try:
            tx = self.transactions.begin(self.waiters.reached)
        except TidelockError as error:
            for one in going:
                one.refuse(error)
            return None
        tx.lands = True
        tx.ending.seal()
        tx.ending.commit_task = asyncio.current_task()
        pushed = False
        try:
            for one in going:
                tx.use(one.rows.schema.id, one.rows.version)
                self.transactions.keep(tx, one.rows)
            await self.staging.encode(tx, [tx], landed={one.rows.schema.id: one.at for one in going})
            pushed = True
            proposal = await self.commits.settlement.proposals.build(tx, self.settings.commit_timeout_s)
            self.commits.settlement.require_following()  # another replica may have raised the fence
        except Exception as error:
            await self.commits.closer.roll_back(
                tx, error if isinstance(error, TidelockError) else None, pushed=pushed
            )
            for one in going:
                one.refuse(_unknown(tx, error) if pushed else error)
            return None
        for one in going:
            self.metrics.landing.rows.inc(one.rows.count)
            if not one.done.done():
                one.done.set_result(LandAnswer(one.rows.count, str(tx.tid), None))
        return tx, proposal

    def _without_dropped(self, going: Sequence[_Boarding]) -> list[_Boarding]:
        """Refuse the rows of tables that were dropped while they waited: they would go with the table."""
        kept: list[_Boarding] = []
        for one in going:
            schema = one.rows.schema
            if self.tables.version_since(schema.id, one.at, self.waiters.reached) is None:
                error = TableChangedError(
                    f"table {schema.name} was dropped while the rows waited; nothing is written",
                    table=schema.name,
                )
                one.refuse(error)
            else:
                kept.append(one)
        return kept

    async def _commit(self, tx: Transaction, proposal: Proposal) -> Committed | None:
        """Commit rows that are acknowledged; give up only when the log has ended for this boot."""
        settlement, clock = self.commits.settlement, self.commits.clock
        while settlement.log_lives():
            try:
                await LANDED.before()
                done = await settlement.propose(tx, proposal, clock() + self.settings.commit_timeout_s)
                await LANDED.after()
            except TableChangedError as error:
                if (again := self._again(tx, proposal)) is None:
                    if await self._bring_the_rest(tx, error):
                        return None
                    break
                proposal = again
                await asyncio.sleep(_PAUSE_S)
            except Exception as error:
                _log.warning("landing_waits", tid=str(tx.tid), reason=str(error))
                await asyncio.sleep(_PAUSE_S)
            else:
                await self.commits.closer.commit(tx, done)
                return done
        _log.warning("landing_left", tid=str(tx.tid), reason="this boot has ended; a holder commits it")
        return None

    async def _bring_the_rest(self, tx: Transaction, error: TableChangedError) -> bool:
        """Commit the rows of the tables that are left in another transaction; the log refuses this one.

        Return False if the log has ended for this boot before that.
        """
        failures = 0
        while self.commits.settlement.log_lives():
            if await self.rescue(tx.tid):
                _log.warning("landing_dropped", tid=str(tx.tid), reason="tables of it were dropped")
                await self.commits.closer.roll_back(tx, error, pushed=True)
                return True
            failures += 1
            await asyncio.sleep(wait_s(failures, self.settings.retry_wait_max_s))
        return False

    def _again(self, tx: Transaction, proposal: Proposal) -> Proposal | None:
        """Return a proposal for the definitions that are applied here; None if a table was dropped."""
        at = self.waiters.reached
        since = {part.table: part.columns_csn for part in tx.staged.parts if part.columns_csn is not None}
        found = {table: self.tables.version_since(table, since[table], at) for table in proposal.tables}
        tables = {table: version for table, version in found.items() if version is not None}
        return msgspec.structs.replace(proposal, tables=tables) if len(tables) == len(found) else None


def _require_small(found: int, limit: int, setting: str) -> None:
    if found > limit:
        raise TooLargeError(
            f"the rows have {found} bytes; land() takes up to {limit} at once ({setting}): send them in "
            "several calls, which may depart together",
            limit=limit,
            found=found,
        )


def _unknown(tx: Transaction, error: Exception) -> TidelockError:
    """Return the answer to a landing whose parts have left this replica, and got too few copies."""
    if not isinstance(error, RefusedError | UnavailableError):
        return CommitUnknownError(f"unforeseen: {error!r}; see the agent's log", tid=str(tx.tid))
    return CommitUnknownError(
        f"the rows are not durable on enough replicas ({error.message}), and may become visible nevertheless",
        tid=str(tx.tid),
    )
