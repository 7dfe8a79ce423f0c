"""Routes for people and monitoring: status, log, explain, metrics, health."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from tidelock.csnlog.core.model import (
    AddPart,
    DefineTable,
    EndTag,
    Entry,
    LogRecord,
    RemovePart,
    SkipPart,
    TagCsn,
    TidRecord,
)
from tidelock.replica_agent.api.http import answer, number
from tidelock.replica_agent.api.transactions import parse_tid
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.services.status import StatusService, skipped_record
from tidelock.wire.cluster import Health
from tidelock.wire.log import (
    AddedPart,
    LogEntry,
    LoggedEntry,
    LoggedTable,
    LoggedTag,
    LoggedTagEnd,
    LoggedTransaction,
    ManifestInfo,
    RemovedPart,
    SkippedPart,
)


def _shown(item: LogRecord) -> LogEntry:
    record = item.record
    tids = [_shown_tid(tid) for tid in record.tids]
    skipped = None if item.skip is None else skipped_record(item.skip)
    return LogEntry(item.csn, record.kind.value, record.home, record.time_ms, tids, skipped)


def _shown_tid(tid: TidRecord) -> LoggedTransaction:
    return LoggedTransaction(
        tid=tid.tid,
        entries=[_shown_entry(entry) for entry in tid.entries],
        manifest=ManifestInfo(**msgspec.structs.asdict(tid.manifest)) if tid.manifest else None,
        holders=list(tid.holders),
        label=tid.label,
        data_change=tid.data_change,
        meta=tid.meta,
        batch=tid.batch,
        progress=tid.progress,
        carrier=tid.carrier,
        rows=None if tid.rows is None else {str(table): count for table, count in tid.rows.items()},
    )


def _shown_entry(entry: Entry) -> LoggedEntry:
    fields = msgspec.structs.asdict(entry)
    match entry:
        case AddPart():
            return AddedPart(**fields)
        case RemovePart():
            return RemovedPart(**fields)
        case DefineTable():
            return LoggedTable(**fields)
        case SkipPart():
            return SkippedPart(**fields)
        case TagCsn():
            return LoggedTag(**fields)
        case EndTag():
            return LoggedTagEnd(**fields)


@dataclass(slots=True, eq=False, repr=False)
class StatusRoutes:
    """Handlers that only read."""

    service: StatusService

    async def status(self, _request: web.Request) -> web.Response:
        """Show this replica and what it knows about the other replicas."""
        return answer(await self.service.status())

    async def log(self, request: web.Request) -> web.Response:
        """Show records of the CSN log, read from ZooKeeper."""
        after = number(request.query, "from_csn")
        limit = number(request.query, "limit")
        return answer([_shown(item) for item in await self.service.records(after, limit)])

    async def explain(self, request: web.Request) -> web.Response:
        """Return the history of a transaction."""
        return answer(await self.service.explain(parse_tid(request.match_info["tid"])))

    async def metrics(self, _request: web.Request) -> web.Response:
        """Return the metrics in the format of Prometheus."""
        return web.Response(body=self.service.metrics_text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(self, _request: web.Request) -> web.Response:
        """Return 200 unless the process has stopped permanently."""
        state = self.service.condition.state
        return answer(
            Health(state.value, self.service.condition.reason),
            503 if state is AgentState.STOPPED else 200,
        )

    async def ready(self, _request: web.Request) -> web.Response:
        """Return 200 only while the agent serves, that is while it accepts new work."""
        state = self.service.condition.state
        return answer(
            Health(state.value, self.service.condition.reason),
            200 if state is AgentState.SERVING else 503,
        )
