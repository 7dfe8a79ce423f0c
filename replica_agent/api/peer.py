"""Routes for the other agents of the shard (docs/protocol.md#peer-routes)."""

from __future__ import annotations

from aiohttp import web

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import TooLargeError
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.api.operations import Operations
from tidelock.replica_agent.api.transactions import parse_tid
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import Action
from tidelock.replication.core.model import bytes_alone
from tidelock.replication.core.wire import HEADER_BYTES_MAX
from tidelock.replication.peers import word_of
from tidelock.wire.peers import (
    FailedUploadRequest,
    ForgetRequest,
    HintRequest,
    Nothing,
    PeerOutcome,
    PeerStatus,
    UploadedRequest,
    UploadRequest,
)


def body_limit(settings: AgentSettings) -> int:
    """Return the largest push in bytes: what a peer with the same settings puts into one, and its header."""
    return settings.push_bytes_max + settings.inline_part_bytes_max + HEADER_BYTES_MAX


class PeerRoutes:
    """Handlers below /peer/v1."""

    def __init__(self, agent: Operations) -> None:
        """Serve ``agent``."""
        self._agent = agent

    async def stage(self, request: web.Request) -> web.Response:
        """Make pushed parts durable and say so; a replica that cannot vouch for itself says "not now"."""
        self._agent.require(Action.ACK)
        limit = body_limit(self._agent.settings)
        if (request.content_length or 0) > limit:
            msg = (
                f"the push has {request.content_length} bytes, expected at most {limit}: "
                "push_bytes_max differs between the replicas"
            )
            raise TooLargeError(msg, limit=limit, found=request.content_length)
        held = await self._agent.acceptor.stage(await request.read())
        self._agent.require(Action.ACK)  # it may have lost ZooKeeper meanwhile, or been fenced
        return answer(held)

    async def forget(self, request: web.Request) -> web.Response:
        """Drop what a home has rolled back, or taken back."""
        asked = await body(request, ForgetRequest)
        if asked.tids:
            await self._agent.acceptor.forget([parse_tid(tid) for tid in asked.tids])
        if asked.parts:
            await self._agent.acceptor.drop(asked.parts)
        return answer(Nothing())

    async def hint(self, request: web.Request) -> web.Response:
        """Fetch parts early."""
        asked = await body(request, HintRequest)
        self._agent.acceptor.hint(parse_tid(asked.tid), asked.holder, asked.parts)
        return answer(Nothing())

    async def begin_upload(self, request: web.Request) -> web.Response:
        """Let another replica take a file of a transaction of this home."""
        self._agent.require(Action.INSERT)
        asked = await body(request, UploadRequest)
        return answer(await self._agent.spread.begin(asked.grant, asked.replica))

    async def end_upload(self, request: web.Request) -> web.Response:
        """Take note of a file that another replica has taken."""
        self._agent.require(Action.INSERT)
        asked, part = await body(request, UploadedRequest), PartId(request.match_info["part"])
        meta = bytes_alone(part, asked.length, asked.checksum)
        await self._agent.spread.end(parse_tid(asked.tid), asked.table, asked.replica, meta)
        return answer(Nothing())

    async def fail_upload(self, request: web.Request) -> web.Response:
        """Give up a file that another replica was to take."""
        asked, part = await body(request, FailedUploadRequest), PartId(request.match_info["part"])
        await self._agent.spread.fail(parse_tid(asked.tid), asked.table, asked.replica, part)
        return answer(Nothing())

    async def outcome(self, request: web.Request) -> web.Response:
        """Tell what this home knows of its own transaction."""
        found = self._agent.outcomes.own(parse_tid(request.match_info["tid"]))
        return answer(PeerOutcome(word_of(found)))

    async def status(self, _request: web.Request) -> web.Response:
        """Tell how far this replica is."""
        agent = self._agent
        return answer(
            PeerStatus(
                id=agent.replica,
                disk=agent.session.disk,
                boot=agent.session.boot,
                state=agent.condition.state.value,
                snapshot_csn=agent.waiters.reached,
                free_bytes=agent.inserts.files.room(),
            )
        )
