"""The route by which operators change the members: its handler, and its line in the table of routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidelock.errors import FencedError, MembershipError
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.api.route import ApiRoute
from tidelock.replica_agent.config.states import AgentAction
from tidelock.replica_agent.services.members import MembersService
from tidelock.wire.members import MembersAnswer, MembersRequest


@dataclass(slots=True, eq=False, repr=False)
class MembersRoutes:
    """The handler of /api/v1/admin/members."""

    service: MembersService

    async def change(self, request: web.Request) -> web.Response:
        """Add, remove, replace, drain or strike a replica, or set the number of copies.

        A request may be repeated: a change that was made before is answered with ``changed`` false.
        """
        changed = await self.service.change(await body(request, MembersRequest))
        seen = await self.service.read()
        return answer(
            MembersAnswer(
                changed=changed,
                copies=seen.roster.copies,
                racks=seen.roster.racks,
                draining=list(seen.roster.draining),
                states={replica: found.session.state for replica, found in sorted(seen.replicas.items())},
            )
        )


ROUTES: Final = (
    ApiRoute(
        method="POST", path="/api/v1/admin/members", handler=MembersRoutes.change, subject="admin",
        request=MembersRequest, response=MembersAnswer, errors=(FencedError, MembershipError),
        action=AgentAction.LATEST,
    ),
)  # fmt: skip
