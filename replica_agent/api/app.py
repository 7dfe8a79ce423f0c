"""The aiohttp application of the protocol process."""

from __future__ import annotations

from aiohttp import web

from tidelock.replica_agent.api.admin import AdminRoutes
from tidelock.replica_agent.api.audit import AuditRoutes
from tidelock.replica_agent.api.bearer import Bearers
from tidelock.replica_agent.api.changes import ChangeRoutes
from tidelock.replica_agent.api.http import authentication, errors
from tidelock.replica_agent.api.mutations import MutationRoutes
from tidelock.replica_agent.api.operations import Operations
from tidelock.replica_agent.api.peer import PeerRoutes, body_limit
from tidelock.replica_agent.api.reading import ReadingRoutes
from tidelock.replica_agent.api.removals import RemovalRoutes
from tidelock.replica_agent.api.routes import OPENED, DescriptionRoutes, definitions
from tidelock.replica_agent.api.status import StatusRoutes
from tidelock.replica_agent.api.tables import TableRoutes
from tidelock.replica_agent.api.transactions import TransactionRoutes
from tidelock.replica_agent.api.uploads import OPEN_ROUTE, WriteRoutes
from tidelock.replica_agent.readers.webhdfs import no_content_type

#: What a merge does stands in the query string, since its body is rows.
REQUEST_LINE_BYTES_MAX = 64 << 10


def application(agent: Operations) -> web.Application:
    """Return the application with all routes."""
    settings = agent.settings
    guard = authentication(
        settings.secret, open_routes=frozenset({OPEN_ROUTE}), admit=Bearers(agent, OPENED).admit
    )
    app = web.Application(
        middlewares=[errors, guard],
        client_max_size=body_limit(settings),
    )
    app.on_response_prepare.append(no_content_type)
    for group in (
        TransactionRoutes(agent),
        RemovalRoutes(agent),
        MutationRoutes(agent),
        WriteRoutes(agent),
        TableRoutes(agent),
        ReadingRoutes(agent),
        ChangeRoutes(agent),
        StatusRoutes(agent),
        AuditRoutes(agent),
        AdminRoutes(agent),
        PeerRoutes(agent),
        DescriptionRoutes(),
    ):
        app.add_routes(definitions(group))
    return app
