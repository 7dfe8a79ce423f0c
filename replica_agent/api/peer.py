"""Routes for the other agents of the shard (docs/protocol.md#peer-routes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import web

from tidelock.csnlog.core.ids import PartId, ReplicaId, TableName
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.api.transactions import parse_tid
from tidelock.replica_agent.services.peers import PeerService
from tidelock.replication.core.model import PartMeta, bytes_alone
from tidelock.replication.peers import word_of


class ForgetBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /peer/v1/forget: transactions that were rolled back; parts that others took back."""

    tids: list[str] = []
    parts: list[PartId] = []


class HintBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /peer/v1/hint."""

    tid: str
    holder: ReplicaId
    parts: list[PartMeta]


class UploadBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /peer/v1/uploads."""

    grant: str
    replica: ReplicaId


class UploadedBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /peer/v1/uploads/{part}."""

    tid: str
    table: TableName
    replica: ReplicaId
    length: Annotated[int, msgspec.Meta(ge=0)]
    checksum: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class FailedUploadBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /peer/v1/uploads/{part}/failed."""

    tid: str
    table: TableName
    replica: ReplicaId


@dataclass(slots=True, eq=False, repr=False)
class PeerRoutes:
    """Handlers below /peer/v1."""

    service: PeerService

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/peer/v1/stage", self.stage),
            web.post("/peer/v1/forget", self.forget),
            web.post("/peer/v1/hint", self.hint),
            web.post("/peer/v1/uploads", self.begin_upload),
            web.post("/peer/v1/uploads/{part}", self.end_upload),
            web.post("/peer/v1/uploads/{part}/failed", self.fail_upload),
            web.get("/peer/v1/outcome/{tid}", self.outcome),
            web.get("/peer/v1/status", self.status),
        ]

    async def stage(self, request: web.Request) -> web.Response:
        """Make pushed parts durable and say so; a replica that cannot vouch for itself says "not now"."""
        self.service.admit_push(request.content_length)
        return answer(await self.service.stage(await request.read()))

    async def forget(self, request: web.Request) -> web.Response:
        """Drop what a home has rolled back, or taken back."""
        asked = await body(request, ForgetBody)
        await self.service.forget([parse_tid(tid) for tid in asked.tids], asked.parts)
        return answer({})

    async def hint(self, request: web.Request) -> web.Response:
        """Fetch parts early."""
        asked = await body(request, HintBody)
        self.service.hint(parse_tid(asked.tid), asked.holder, asked.parts)
        return answer({})

    async def begin_upload(self, request: web.Request) -> web.Response:
        """Let another replica take a file of a transaction of this home."""
        self.service.admit_upload()
        asked = await body(request, UploadBody)
        return answer(await self.service.begin_upload(asked.grant, asked.replica))

    async def end_upload(self, request: web.Request) -> web.Response:
        """Take note of a file that another replica has taken."""
        self.service.admit_upload()
        asked, part = await body(request, UploadedBody), PartId(request.match_info["part"])
        meta = bytes_alone(part, asked.length, asked.checksum)
        await self.service.end_upload(parse_tid(asked.tid), asked.table, asked.replica, meta)
        return answer({})

    async def fail_upload(self, request: web.Request) -> web.Response:
        """Give up a file that another replica was to take."""
        asked, part = await body(request, FailedUploadBody), PartId(request.match_info["part"])
        await self.service.fail_upload(parse_tid(asked.tid), asked.table, asked.replica, part)
        return answer({})

    async def outcome(self, request: web.Request) -> web.Response:
        """Tell what this home knows of its own transaction."""
        found = self.service.own_outcome(parse_tid(request.match_info["tid"]))
        return answer({"outcome": word_of(found)})

    async def status(self, _request: web.Request) -> web.Response:
        """Tell how far this replica is."""
        return answer(self.service.status())
