"""The aiohttp application of the protocol process."""

from __future__ import annotations

from aiohttp import web

from tidelock.replica_agent.api.admin import AdminRoutes
from tidelock.replica_agent.api.audit import AuditRoutes
from tidelock.replica_agent.api.bearer import Bearers
from tidelock.replica_agent.api.changes import ChangeRoutes
from tidelock.replica_agent.api.http import authentication, errors
from tidelock.replica_agent.api.mutations import MutationRoutes
from tidelock.replica_agent.api.peer import PeerRoutes
from tidelock.replica_agent.api.reading import ReadingRoutes
from tidelock.replica_agent.api.removals import RemovalRoutes
from tidelock.replica_agent.api.status import StatusRoutes
from tidelock.replica_agent.api.tables import TableRoutes
from tidelock.replica_agent.api.transactions import TransactionRoutes
from tidelock.replica_agent.api.uploads import OPEN_ROUTE, WriteRoutes
from tidelock.replica_agent.readers.webhdfs import no_content_type
from tidelock.replica_agent.services.bundle import Services
from tidelock.replica_agent.services.peers import push_bytes_max

#: What a merge does stands in the query string, since its body is rows.
REQUEST_LINE_BYTES_MAX = 64 << 10


def application(services: Services) -> web.Application:
    """Return the application with all routes; each group of routes sees one service."""
    settings = services.settings
    guard = authentication(
        settings.secret, open_routes=frozenset({OPEN_ROUTE}), admit=Bearers(services.uploads).admit
    )
    app = web.Application(middlewares=[errors, guard], client_max_size=push_bytes_max(settings))
    app.on_response_prepare.append(no_content_type)
    app.add_routes(TransactionRoutes(services.transactions).routes())
    app.add_routes(RemovalRoutes(services.transactions).routes())
    app.add_routes(MutationRoutes(services.transactions).routes())
    app.add_routes(WriteRoutes(services.uploads).routes())
    app.add_routes(TableRoutes(services.administration).routes())
    app.add_routes(ReadingRoutes(services.reads).routes())
    app.add_routes(ChangeRoutes(services.reads).routes())
    app.add_routes(StatusRoutes(services.status).routes())
    app.add_routes(AuditRoutes(services.administration).routes())
    app.add_routes(AdminRoutes(services.administration).routes())
    app.add_routes(PeerRoutes(services.peers).routes())
    return app
