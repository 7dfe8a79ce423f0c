"""Routes of tags: their handlers, and their lines in the table of routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import (
    CommitUnknownError,
    FencedError,
    NoSuchCsnError,
    NotCommittedError,
    SnapshotTooOldError,
    StandbyError,
    TagExistsError,
    TagsMovedError,
    TooLargeError,
    UnknownTagError,
)
from tidelock.replica_agent.api.http import answer, body, number
from tidelock.replica_agent.api.route import ApiRoute, Parameter
from tidelock.replica_agent.config.states import AgentAction
from tidelock.replica_agent.services.tags import TagService
from tidelock.wire.tags import EndedTag, TagInfo, TagRequest


@dataclass(slots=True, eq=False, repr=False)
class TagRoutes:
    """Handlers below /api/v1/tags."""

    service: TagService

    async def make(self, request: web.Request) -> web.Response:
        """Give a CSN a name that keeps its history, or move a name to another CSN."""
        return answer(await self.service.make(await body(request, TagRequest)), 201)

    async def list(self, _request: web.Request) -> web.Response:
        """List all tags."""
        return answer(self.service.list())

    async def show(self, request: web.Request) -> web.Response:
        """Show one tag."""
        min_csn = number(request.query, "min_csn")
        found = await self.service.find(request.match_info["name"], None if min_csn is None else Csn(min_csn))
        return answer(found)

    async def end(self, request: web.Request) -> web.Response:
        """End a tag, so that its history may be forgotten."""
        return answer(await self.service.end(request.match_info["name"]))


_PATH: Final = "/api/v1/tags"
_COMMIT: Final = (CommitUnknownError, FencedError, NotCommittedError, TagsMovedError)

ROUTES: Final = (
    ApiRoute(
        method="POST", path=_PATH, handler=TagRoutes.make, subject="history", request=TagRequest,
        response=TagInfo, status=201, action=AgentAction.BEGIN,
        errors=(
            *_COMMIT, NoSuchCsnError, SnapshotTooOldError, StandbyError, TagExistsError, TooLargeError,
        ),
    ),
    ApiRoute(
        method="GET", path=_PATH, handler=TagRoutes.list, subject="history", response=list[TagInfo],
        action=AgentAction.READ,
    ),
    ApiRoute(
        method="GET", path=f"{_PATH}/{{name}}", handler=TagRoutes.show, subject="history", response=TagInfo,
        errors=(NoSuchCsnError, StandbyError, UnknownTagError), action=AgentAction.READ,
        query=(
            Parameter(
                name="min_csn", kind="integer",
                meaning="Tags up to this CSN are known; default: those that are applied here.",
            ),
        ),
    ),
    ApiRoute(
        method="DELETE", path=f"{_PATH}/{{name}}", handler=TagRoutes.end, subject="history",
        response=EndedTag, errors=(*_COMMIT, UnknownTagError), action=AgentAction.BEGIN,
    ),
)  # fmt: skip
