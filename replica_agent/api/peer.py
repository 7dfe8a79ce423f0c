"""Routes for the other agents of the shard (docs/protocol.md#peer-routes)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body, number
from tidelock.replica_agent.api.transactions import parse_tid
from tidelock.replica_agent.services.peers import PeerService
from tidelock.replication.core.model import bytes_alone
from tidelock.replication.peers import word_of
from tidelock.wire.peers import (
    FailedUploadRequest,
    ForgetRequest,
    Held,
    HintRequest,
    Nothing,
    PeerOutcome,
    UploadedRequest,
    UploadRequest,
)

#: Media type of the bytes of a catalog.
BYTES: Final = "application/octet-stream"
#: The name of a clone becomes a file name.
_CLONE_NAME: Final = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)


def _clone_name(request: web.Request) -> str:
    name = request.match_info["name"]
    if not _CLONE_NAME.fullmatch(name):
        raise BadRequestError(f"{name!a} names no clone; expected at most 64 of a-z, 0-9, _ and -")
    return name


@dataclass(slots=True, eq=False, repr=False)
class PeerRoutes:
    """Handlers below /peer/v1."""

    service: PeerService

    async def stage(self, request: web.Request) -> web.Response:
        """Make pushed parts durable and confirm them, or answer "not now" if the replica may not vouch."""
        self.service.admit_push(request.content_length)
        return answer(await self.service.stage(await request.read()))

    async def answer_stage(self, raw: bytes) -> Held:
        """Make pushed parts durable, and return the answer of POST /stage."""
        self.service.admit_push(len(raw))
        return await self.service.stage(raw)

    async def forget(self, request: web.Request) -> web.Response:
        """Delete the parts that a home has rolled back or withdrawn."""
        asked = await body(request, ForgetRequest)
        await self.service.forget([parse_tid(tid) for tid in asked.tids], asked.parts)
        return answer(Nothing())

    async def hint(self, request: web.Request) -> web.Response:
        """Fetch parts early."""
        asked = await body(request, HintRequest)
        self.service.receiver.hint(parse_tid(asked.tid), asked.holder, asked.parts)
        return answer(Nothing())

    async def part(self, request: web.Request) -> web.Response:
        """Say whether this replica holds a part."""
        return answer(await self.service.holds(PartId(request.match_info["part"])))

    async def begin_upload(self, request: web.Request) -> web.Response:
        """Let another replica receive a file of a transaction of this home."""
        self.service.admit_upload()
        asked = await body(request, UploadRequest)
        return answer(await self.service.redirector.begin(asked.grant, asked.replica))

    async def end_upload(self, request: web.Request) -> web.Response:
        """Record a file that another replica has received."""
        self.service.admit_upload()
        asked, part = await body(request, UploadedRequest), PartId(request.match_info["part"])
        meta = bytes_alone(part, asked.length, asked.checksum)
        await self.service.redirector.end(parse_tid(asked.tid), asked.table, asked.replica, meta)
        return answer(Nothing())

    async def fail_upload(self, request: web.Request) -> web.Response:
        """Give up a file that another replica was to receive."""
        asked, part = await body(request, FailedUploadRequest), PartId(request.match_info["part"])
        await self.service.redirector.fail(parse_tid(asked.tid), asked.table, asked.replica, part)
        return answer(Nothing())

    async def outcome(self, request: web.Request) -> web.Response:
        """Return what this home knows about a transaction of its own."""
        found = self.service.outcomes.own(parse_tid(request.match_info["tid"]))
        return answer(PeerOutcome(word_of(found)))

    async def clone(self, request: web.Request) -> web.Response:
        """Write the catalog for a replica that clones; repeat the request until it is written."""
        return answer(await self.service.clone(_clone_name(request)))

    async def read_clone(self, request: web.Request) -> web.Response:
        """Return the next bytes of the written catalog."""
        start = number(request.query, "from") or 0
        data = await self.service.manifests.read(_clone_name(request), start)
        return web.Response(body=data, content_type=BYTES)

    async def end_clone(self, request: web.Request) -> web.Response:
        """Delete the written catalog."""
        await self.service.manifests.end(_clone_name(request))
        return answer(Nothing())

    async def digest(self, request: web.Request) -> web.Response:
        """Return the digest of what this replica shows at a CSN."""
        csn = number(request.match_info, "csn") or CSN_NONE
        return answer(await self.service.digest(Csn(csn)))

    async def status(self, _request: web.Request) -> web.Response:
        """Return the progress of this replica."""
        return answer(self.service.status())
