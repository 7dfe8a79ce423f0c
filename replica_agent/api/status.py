"""Routes for people and monitoring: status, log, explain, metrics, health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from tidelock.csnlog.core.model import LogRecord, TidRecord
from tidelock.replica_agent.api.http import answer, number
from tidelock.replica_agent.api.transactions import parse_tid
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.services.status import StatusService


def _describe(item: LogRecord) -> dict[str, Any]:
    record = item.record
    return {
        "csn": item.csn,
        "kind": record.kind.value,
        "home": record.home,
        "time_ms": record.time_ms,
        "tids": [_describe_tid(tid) for tid in record.tids],
    }


def _describe_tid(tid: TidRecord) -> dict[str, Any]:
    shown = msgspec.structs.asdict(tid)
    shown["entries"] = [
        {"action": type(entry).__name__, **msgspec.structs.asdict(entry)} for entry in tid.entries
    ]
    shown["manifest"] = msgspec.structs.asdict(tid.manifest) if tid.manifest else None
    return shown


@dataclass(slots=True, eq=False, repr=False)
class StatusRoutes:
    """Handlers that only look."""

    service: StatusService

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/api/v1/status", self.status),
            web.get("/api/v1/log", self.log),
            web.get("/api/v1/explain/{tid}", self.explain),
            web.get("/metrics", self.metrics),
            web.get("/healthz", self.health),
            web.get("/readyz", self.ready),
        ]

    async def status(self, _request: web.Request) -> web.Response:
        """Show this replica and what it knows of the others."""
        return answer(await self.service.status())

    async def log(self, request: web.Request) -> web.Response:
        """Show records of the CSN log, read from ZooKeeper."""
        after = number(request, "from_csn")
        limit = number(request, "limit")
        records = await self.service.records(after, limit)
        return answer([_describe(item) for item in records])

    async def explain(self, request: web.Request) -> web.Response:
        """Tell the story of a transaction."""
        story: dict[str, Any] = await self.service.explain(parse_tid(request.match_info["tid"]))
        return answer(story)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Answer Prometheus."""
        return web.Response(body=self.service.metrics_text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(self, _request: web.Request) -> web.Response:
        """Tell that the process answers: 200 unless it has stopped for good."""
        state = self.service.condition.state
        return answer(
            {"state": state.value, "reason": self.service.condition.reason},
            503 if state is AgentState.STOPPED else 200,
        )

    async def ready(self, _request: web.Request) -> web.Response:
        """Tell whether new work is taken: 200 only while serving."""
        state = self.service.condition.state
        return answer(
            {"state": state.value, "reason": self.service.condition.reason},
            200 if state is AgentState.SERVING else 503,
        )
