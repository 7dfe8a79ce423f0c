"""The system tables of what only the running agent knows: the log, locks, pins, replicas and settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from tidelock.csnlog.core.ids import TableId
from tidelock.csnlog.core.model import AddPart, DefineTable, LogRecord, RemovePart, SkipPart, TidRecord
from tidelock.replica_agent.system_tables.catalog_tables import TABLE
from tidelock.replica_agent.system_tables.definition import (
    COUNT,
    FLAG,
    SECONDS,
    TEXT,
    TEXTS,
    TIME,
    Column,
    Moment,
    Place,
    SystemTable,
)
from tidelock.replica_agent.system_tables.live import LiveSource
from tidelock.replication.core.lock_rules import KeyRange, LockInfo, OnePart, OnePartition, Scope, WholeTable
from tidelock.wire.ids import TableName

# -- log -----------------------------------------------------------------------------------------------------


async def _log(source: LiveSource) -> list[tuple[Any, ...]]:
    names = source.names()
    return [row for record in await source.log_records() for row in _logged(record, names)]


def _logged(record: LogRecord, names: Mapping[TableId, TableName]) -> list[tuple[Any, ...]]:
    said = record.record
    begin = (record.csn, said.kind.value, said.home, said.time_ms * 1000)
    by = None if record.skip is None else record.skip.by
    if not said.tids:
        return [(*begin, *(None,) * 12, by)]
    return [(*begin, *_logged_tid(tid, names), by) for tid in said.tids]


def _logged_tid(tid: TidRecord, names: Mapping[TableId, TableName]) -> tuple[Any, ...]:
    rows = Counter(tid.rows or {})
    tables = {entry.table for entry in tid.entries} | rows.keys()
    for entry in tid.entries:
        if isinstance(entry, AddPart):
            rows[entry.table] += entry.rows
    manifest = tid.manifest
    return (
        tid.tid,
        tid.label,
        tid.batch,
        tid.data_change,
        tid.carrier,
        [*tid.holders],
        None
        if manifest is not None
        else sorted(names.get(table, TableName(table)) for table in tables if table),
        None if manifest is not None else rows.total(),
        None if manifest is not None else sum(isinstance(entry, AddPart) for entry in tid.entries),
        None
        if manifest is not None
        else sum(isinstance(entry, RemovePart | SkipPart) for entry in tid.entries),
        sum(isinstance(entry, DefineTable) for entry in tid.entries),
        None if tid.meta is None else json.dumps(tid.meta, ensure_ascii=False),
    )


LOG: Final = SystemTable(
    name="log",
    doc=(
        "The newest records of the CSN log in ZooKeeper, one row for each transaction in them; a record "
        "without transactions (a tick, the end of an epoch) has one row."
    ),
    place=Place.CLUSTER,
    moment=Moment.NOW,
    columns=(
        Column("csn", COUNT, "CSN of the record."),
        Column("kind", TEXT, "`commit`; `end` closes an epoch; `genesis` begins the log."),
        Column("home", TEXT, "Replica that wrote it."),
        Column("time", TIME, "Time by the clock of that replica."),
        Column("tid", TEXT, "The transaction; null in a record without any."),
        Column("label", TEXT, "Its label."),
        Column("batch", COUNT, "Number of the batch of a streaming query."),
        Column("data_change", FLAG, "False for compaction: no row is different after it."),
        Column("carrier", TEXT, "Transaction of the same record whose parts have its rows too."),
        Column("holders", TEXTS, "Replicas that had durable copies when the record was written."),
        Column("tables", TEXTS, "Full names of the tables that it changes; null if they are in a manifest."),
        Column("rows_added", COUNT, "Rows of the parts that it adds; null if they are in a manifest."),
        Column("parts_added", COUNT, "Parts that it adds, likewise."),
        Column("parts_removed", COUNT, "Parts that it removes or declares lost, likewise."),
        Column("definitions", COUNT, "Definitions of tables in it."),
        Column("meta", TEXT, "The user's own data (`begin(meta=...)`), as JSON."),
        Column("skipped_by", TEXT, "Operator who has had the record skipped."),
    ),
    cost="Each query that names it reads the last `log_answer_records_max` records from ZooKeeper.",
    live=_log,
)

# -- locks and pins ------------------------------------------------------------------------------------------


async def _locks(source: LiveSource) -> list[tuple[Any, ...]]:
    names = source.names()
    return [_lock(lock, names) for lock in await source.locks()]


def _lock(lock: LockInfo, names: Mapping[TableId, TableName]) -> tuple[Any, ...]:
    namespace, _, name = names.get(lock.table, TableName(lock.table)).rpartition(".")
    kind, part, path, low, high = _scope(lock.scope)
    return (namespace, name, kind, part, path, low, high, str(lock.tid), lock.tid.home, lock.merge)


def _scope(scope: Scope) -> tuple[str, str | None, str | None, str | None, str | None]:
    """Return the kind of a lock with its part, its partition, and the bounds of its keys."""
    match scope:
        case OnePart():
            return "part", scope.part, scope.path, None, None
        case OnePartition():
            return "partition", None, scope.path, None, None
        case KeyRange():
            return "keys", None, None, _json(scope.low), _json(scope.high)
        case WholeTable():
            return "table", None, None, None, None
        case _:
            assert_never(scope)


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


LOCKS: Final = SystemTable(
    name="locks",
    doc=(
        "The removal locks in ZooKeeper: what transactions remove or check, so that of two that meet the "
        "second one fails. Those of committed removals stay until all replicas have applied them."
    ),
    place=Place.CLUSTER,
    moment=Moment.NOW,
    columns=(
        *TABLE,
        Column("kind", TEXT, "`part`, `partition`, `table`, or `keys`: a range of unique keys."),
        Column("part", TEXT, "The part."),
        Column("partition", TEXT, "Path of the partition, or its first folders."),
        Column("low", TEXT, "Smallest key of the range as JSON; null: no bound."),
        Column("high", TEXT, "Largest key of the range as JSON; null: no bound."),
        Column("tid", TEXT, "Transaction that holds it."),
        Column("home", TEXT, "Replica of that transaction."),
        Column("merge", FLAG, "Whether compaction holds it, for which statements of users wait a little."),
    ),
    cost="Each query that names it reads all locks from ZooKeeper.",
    live=_locks,
)


async def _pins(source: LiveSource) -> list[tuple[Any, ...]]:
    return [
        (pin, state.csn, state.owner, state.ttl_s) for pin, state in sorted((await source.pins()).items())
    ]


PINS: Final = SystemTable(
    name="pins",
    doc="The pins in ZooKeeper: CSNs that readers of all replicas hold readable.",
    place=Place.CLUSTER,
    moment=Moment.NOW,
    columns=(
        Column("pin", TEXT, "Its id."),
        Column("csn", COUNT, "The CSN that it holds readable."),
        Column("replica", TEXT, "Replica whose client holds it."),
        Column("ttl_s", SECONDS, "Seconds after which it ends without a renewal."),
    ),
    cost="Each query that names it reads all pins from ZooKeeper.",
    live=_pins,
)

# -- replicas and settings -----------------------------------------------------------------------------------


async def _replicas(source: LiveSource) -> list[tuple[Any, ...]]:
    return [
        (
            one.id,
            one.api,
            one.data,
            one.rack,
            one.state,
            one.alive,
            one.member,
            one.snapshot_csn,
            one.oldest,
            one.phase,
            None if one.phase_since_ms is None else one.phase_since_ms * 1000,
            one.blocked_by.csn if one.blocked_by else None,
            one.blocked_by.part if one.blocked_by else None,
            one.draining,
            one.disk,
            one.held_records,
            one.held_bytes,
        )
        for one in await source.replicas()
    ]


REPLICAS: Final = SystemTable(
    name="replicas",
    doc="The replicas of the cluster, as the one that answers sees them.",
    place=Place.REPLICA,
    moment=Moment.NOW,
    columns=(
        Column("replica", TEXT, "Its id."),
        Column("api", TEXT, "Address of its API."),
        Column("data", TEXT, "Address of its snapshot file system."),
        Column("rack", TEXT, "Rack of its host."),
        Column("state", TEXT, "State of the agent that answers; of the others `alive` or `silent`."),
        Column("alive", FLAG, "Whether it shows a sign of life."),
        Column("member", TEXT, "State of its session, such as `serving`, `struck` or `cloning`."),
        Column("snapshot_csn", COUNT, "CSN up to which it has applied the log, as far as is known."),
        Column("oldest_csn", COUNT, "Oldest CSN in use there."),
        Column("phase", TEXT, "How it follows the log: `starting`, `following`, `blocked` or `full`."),
        Column("phase_since", TIME, "Since when, by its own clock."),
        Column("blocked_csn", COUNT, "CSN of the record that it cannot apply."),
        Column("blocked_part", TEXT, "Part that it lacks for that record."),
        Column("draining", FLAG, "Whether an operator has it drained."),
        Column("disk", TEXT, "Id of its data directory."),
        Column("held_records", COUNT, "Records that it holds back in ZooKeeper."),
        Column("held_bytes", COUNT, "Memory of ZooKeeper for them, as estimated."),
    ),
    cost="One request to each live replica.",
    live=_replicas,
)


async def _settings(source: LiveSource) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.value, one.default, one.is_default, one.is_secret, one.description)
        for one in source.settings()
    ]


SETTINGS: Final = SystemTable(
    name="settings",
    doc="The settings of the replica that answers. Secrets have no value here.",
    place=Place.REPLICA,
    moment=Moment.NOW,
    columns=(
        Column("name", TEXT, "Its name, as in the configuration."),
        Column("value", TEXT, "Its value; null for a secret, and for a setting that is empty."),
        Column("default_value", TEXT, "Its default, likewise."),
        Column("is_default", FLAG, "Whether it has its default."),
        Column("is_secret", FLAG, "Whether its value is kept from this table."),
        Column("description", TEXT, "Its meaning."),
    ),
    cost="One row for each setting.",
    live=_settings,
)


#: In the order in which the documentation shows them.
LIVE_TABLES: Final[Sequence[SystemTable]] = (LOG, LOCKS, PINS, REPLICAS, SETTINGS)
