"""What clients and peers can ask of an agent, above its parts: each question touches several of them.

The HTTP handlers call this and nothing below it but plain look-ups. Whether the agent's state allows an
action is decided here, by :mod:`tidelock.replica_agent.config.states`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableName, Tid
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import CsnLog
from tidelock.errors import (
    CorruptError,
    NoSuchCsnError,
    SnapshotTooOldError,
    StandbyError,
    TableExistsError,
    TidelockError,
    TooLargeError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.replica_agent.audit.auditor import Auditor
from tidelock.replica_agent.compaction.compactor import Compactor
from tidelock.replica_agent.compaction.optimize import Optimized
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import Action, AgentState, require
from tidelock.replica_agent.readers.verdict import ReadAvailability
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.snapshots.change_feed import ChangeFeed
from tidelock.replica_agent.snapshots.horizon import HorizonMover, Moved
from tidelock.replica_agent.snapshots.implicit_pins import ImplicitPins
from tidelock.replica_agent.snapshots.pinned import Pin, Snapshots
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.tables.partitions import path_in
from tidelock.replica_agent.tables.schema import TableSchema, full_name
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.ending.labels import Labels
from tidelock.replica_agent.transactions.outcomes.resolver import OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import CLIENT
from tidelock.replica_agent.transactions.registry import Isolation, Transaction, Transactions
from tidelock.replica_agent.transactions.statements.derived import DerivedTables
from tidelock.replica_agent.transactions.statements.inserts import Inserts
from tidelock.replica_agent.transactions.statements.mutations import Mutations
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.uploads.peer_uploads import PeerUploads
from tidelock.replica_agent.uploads.redirect import UploadRedirector
from tidelock.replica_agent.uploads.uploads import Uploads
from tidelock.replication.apply import Applier
from tidelock.replication.locks.removal_locks import Locks


@dataclass(slots=True)
class Condition:
    """The state of the agent at the moment, shared by all who ask."""

    state: AgentState = AgentState.STARTING
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class Operations:
    """The parts of a running agent, and what they do together."""

    settings: AgentSettings
    replica: ReplicaId
    session: OwnSession
    clock: Callable[[], float]
    condition: Condition
    metrics: Metrics
    catalog: Catalog
    waiters: CsnWaiters
    log: CsnLog
    membership: Membership
    transactions: Transactions
    inserts: Inserts
    removals: Removals
    mutations: Mutations
    derived: DerivedTables
    writes: Uploads
    spread: UploadRedirector
    foreign: PeerUploads
    locks: Locks
    commits: Commits
    outcomes: OutcomeResolver
    labels: Labels
    snapshots: Snapshots
    read_pins: ImplicitPins
    changes: ChangeFeed
    history: HorizonMover
    auditor: Auditor
    acceptor: PushReceiver
    applier: Applier
    sql: SqlPool
    compactor: Compactor
    #: Called with a part whose bytes are wrong here, and with what was found.
    damaged: Callable[[PartId, str], None]

    def require(self, action: Action) -> None:
        """Raise unless the agent's state allows ``action``."""
        require(self.condition.state, action, self.replica, self.condition.reason)

    # -- transactions ---------------------------------------------------------------------------------------

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
        key: str | None = None,
    ) -> Transaction:
        """Begin a transaction at S = what is applied here.

        Waits for ``min_csn`` before, or for the end of the log (``fresh``). A repetition with the same
        ``key`` gives the transaction that the first one has begun, as long as that is open.

        Raises:
            BadRequestError, TooLargeError: The label, the metadata or the key.
            LabelExistsError: The label was committed before, as far as is known at once.
            TransactionClosedError: The one of this key takes no statements any more.
            StandbyError: ``min_csn`` was not reached in time.
            UnavailableError: The agent takes no new transactions now.
        """
        self.require(Action.BEGIN)
        self.labels.require_form(label, batch)
        self._bounded("meta", len(msgspec.json.encode(meta or {})), self.settings.meta_bytes_max)
        self._bounded("key", len((key or "").encode()), self.settings.label_bytes_max, "label_bytes_max")
        if label is not None and not (key and self.transactions.open_by(key)):
            await self.labels.refuse_repeated(label, batch)
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
            isolation=isolation,
            key=key,
        )

    @staticmethod
    def _bounded(what: str, found: int, limit: int, setting: str | None = None) -> None:
        if found > limit:
            msg = (
                f"{what} has {found} bytes, the limit is {setting or f'{what}_bytes_max'}={limit}; shorten it"
            )
            raise TooLargeError(msg, limit=limit, found=found)

    async def create_table(self, schema: TableSchema) -> Committed:
        """Create a table in a transaction of its own.

        Raises:
            TableExistsError: There is one of this name.
            Others as :meth:`DerivedTables.defining`, and as any commit.
        """
        self.require(Action.BEGIN)
        if self.catalog.reader.table(schema.name, self.waiters.reached):
            msg = f"table {schema.name} exists already; use it, or choose another name"
            raise TableExistsError(msg, table=schema.name)
        definitions = await self.derived.defining(schema, self.waiters.reached)
        tx = self.transactions.begin(self.waiters.reached)
        tx.definitions += definitions
        done = await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
        assert done is not None, "a definition is a change"
        return done

    async def optimize(
        self, table: str, partition: Mapping[str, Any] | None, *, timeout_s: float, min_csn: Csn | None
    ) -> Optimized:
        """Merge the parts of a table, or of one partition, to the end; see :meth:`Optimizer.run`.

        Raises:
            UnknownTableError, BadRequestError: No such table, or the values do not name a partition.
            StandbyError: ``min_csn`` was not reached in time.
        """
        self.require(Action.BEGIN)
        if min_csn is not None:
            await self.snapshots.reach(min_csn)
        name = full_name(table)
        _, schema = self.inserts.schema(name, self.waiters.reached)
        path = None if partition is None else path_in(schema, partition)
        return await self.compactor.optimizer.run(name, path, timeout_s)

    # -- reading --------------------------------------------------------------------------------------------

    async def require_read(self, csn: Csn, table: TableName | None = None) -> None:
        """Return when this replica can serve ``csn``, of one table or of all.

        Errors as :meth:`Snapshots.require`. The CSN stays readable for a while.
        """
        self.require(Action.READ if csn <= self.waiters.reached else Action.LATEST)
        await self.snapshots.require(csn, table)
        self.read_pins.read(csn)

    async def require_query(self, csn: Csn, table: str | None) -> None:
        """As :meth:`require_read`, for a query of one table, or of any: it is judged by what it reads."""
        begins = self.catalog.reader.table_horizons()
        longest = min(begins, key=lambda name: begins[name], default=None)
        await self.require_read(csn, full_name(table) if table is not None else longest)

    async def force_horizon(self, csn: Csn | None, *, drop_pins: bool) -> Moved:
        """Raise the horizon by order of an operator; see :meth:`HorizonMover.force`."""
        self.require(Action.COLLECT)
        moved = await self.history.force(csn, drop_pins=drop_pins)
        if drop_pins:
            await self.snapshots.forget_ended()
        return moved

    async def open_snapshot(
        self, *, csn: Csn | None, at_ms: int | None, min_csn: Csn | None, ttl_s: float | None
    ) -> Pin:
        """Choose or check a CSN and pin it."""
        self.require(Action.LATEST)
        return await self.snapshots.open(csn=csn, at_ms=at_ms, min_csn=min_csn, ttl_s=ttl_s)

    @contextlib.contextmanager
    def reading(self, tid: str | None) -> Iterator[None]:
        """Run a query of a transaction (None = of no one): one that fails leaves it rollback only.

        Only the answer "not now" does not: the same query may be repeated. A part that is damaged here is
        fetched again; outside a transaction the answer is "standby", since another replica has it.
        """
        try:
            yield
        except UnavailableError:
            raise
        except TidelockError as error:
            if isinstance(error, CorruptError) and (part := error.details.get("part")) is not None:
                self.damaged(part, error.message)
                if tid is None:
                    raise StandbyError(error.message, part=part) from error
            if tid is not None:
                with contextlib.suppress(UnknownTransactionError):
                    self.transactions.fail(self.transactions.find(tid), error)
            raise

    async def prepare_own_read(self, tid: str, *, sign_of_life: bool = True) -> tuple[Csn, tuple[str, ...]]:
        """Make a transaction's own rows readable by a query.

        Args:
            tid: The transaction.
            sign_of_life: Whether that keeps it alive.

        Returns:
            The CSN that the query reads at, and the merges above it that the transaction has adopted.
        """
        tx = self.transactions.find(tid)
        if sign_of_life:
            self.transactions.touch(tx)
        async with tx.turn:  # no statement is half done
            self.transactions.require_open(tx)
            await self.inserts.write_out(tx)
        return tx.begin_statement(self.waiters.reached), tuple(tx.adopted.tids)

    async def verdict(self, csn: Csn) -> ReadAvailability:
        """Tell a reader process whether ``csn`` can be served here."""
        try:
            await self.require_read(csn)
        except SnapshotTooOldError as error:
            return ReadAvailability("too_old", error.message)
        except NoSuchCsnError as error:
            return ReadAvailability("beyond", error.message)
        except TidelockError as error:
            return ReadAvailability("standby", error.message)
        return ReadAvailability("ready")

    # -- looking --------------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """Return what GET /status shows."""
        await self.membership.ask()
        replicas = [
            {
                "id": replica,
                "api": found.member.api,
                "data": found.member.data,
                "rack": found.member.rack,
                "alive": found.alive,
                "state": self.condition.state.value if replica == self.replica else _life(found.alive),
                "snapshot_csn": self.membership.snapshot_of(replica, found),
                "oldest": found.progress.oldest if found.progress else None,
                "open": list(found.progress.open) if found.progress else [],
            }
            for replica, found in sorted(self.membership.view.items())
        ]
        blocked = self.applier.blocked
        return {
            "id": self.replica,
            "cluster_id": self.session.cluster.cluster_id,
            "state": self.condition.state.value,
            "reason": self.condition.reason,
            "boot": self.session.boot,
            "snapshot_csn": self.waiters.reached,
            "end_csn": max(self.log.end, self.waiters.reached),
            "cluster_csn": self.membership.cluster_csn(),
            "waiting_for": asdict(blocked) if blocked else None,
            "replicas": replicas,
            "tables": len(self.catalog.reader.tables(self.waiters.reached)),
            "copies": self.session.cluster.copies,
            "wait_bound_s": self.settings.wait_bound_s,
            "open_transactions": len(self.transactions.live()),
            "horizon": self.catalog.reader.horizon(),
            "tail": self.catalog.reader.meta("tail"),
            **self.history.describe(),
        }

    async def explain(self, tid: Tid) -> dict[str, Any]:
        """Tell the story of a transaction.

        What it is here, how it ended, where its parts lie, what it waits for.
        """
        outcome = await self.outcomes.outcome(tid, CLIENT)
        live = [tx.describe(self.clock()) for tx in self.transactions.all() if tx.tid == tid]
        blocked = self.applier.blocked
        return {
            "tid": str(tid),
            "home": tid.home,
            "snapshot_csn": tid.snapshot,
            "outcome": type(outcome).__name__.lower(),
            "csn": outcome.csn if isinstance(outcome, Committed) else None,
            "asked": self.replica,
            "here": live[0] if live else None,
            "parts": [
                {
                    "part": p.part,
                    "table": p.table,
                    "path": p.path,
                    "rows": p.rows,
                    "length": p.length,
                    "state": p.state,
                    "file": p.file,
                    "csn": p.creation_csn,
                }
                for p in self.catalog.reader.parts_of(str(tid))
            ],
            "replicas": {
                replica: self.membership.snapshot_of(replica, found)
                for replica, found in self.membership.view.items()
            },
            "waiting_for": asdict(blocked) if blocked else None,
        }


def _life(alive: bool) -> str:
    return "alive" if alive else "silent"
