"""The aiohttp application of the protocol process."""

from __future__ import annotations

from aiohttp import web

from tidelock.replica_agent.api.administration import AdministrationRoutes
from tidelock.replica_agent.api.bearer import Bearers
from tidelock.replica_agent.api.changes import ChangeRoutes
from tidelock.replica_agent.api.channel import ChannelRoutes
from tidelock.replica_agent.api.history import HistoryRoutes
from tidelock.replica_agent.api.http import Damage, authentication, errors, plain_bodies
from tidelock.replica_agent.api.members import MembersRoutes
from tidelock.replica_agent.api.namespaces import NamespaceRoutes
from tidelock.replica_agent.api.peer import PeerRoutes
from tidelock.replica_agent.api.reading import ReadingRoutes
from tidelock.replica_agent.api.routes import OPENED, DescriptionRoutes, definitions
from tidelock.replica_agent.api.statements import StatementRoutes
from tidelock.replica_agent.api.status import StatusRoutes
from tidelock.replica_agent.api.tables import TableRoutes
from tidelock.replica_agent.api.tags import TagRoutes
from tidelock.replica_agent.api.transactions import TransactionRoutes
from tidelock.replica_agent.api.uploads import OPEN_ROUTE, WriteRoutes
from tidelock.replica_agent.readers.webhdfs import no_content_type
from tidelock.replica_agent.services.bundle import Services
from tidelock.replica_agent.services.peers import push_bytes_max


def application(services: Services, damage: Damage) -> web.Application:
    """Return the application with all routes; each group of routes sees one service.

    Args:
        services: The services.
        damage: Called with each error of a request.
    """
    settings = services.settings
    guard = authentication(
        settings.secret,
        open_routes=frozenset({OPEN_ROUTE}),
        admit=Bearers(services.uploads, OPENED).admit,
    )
    app = web.Application(
        middlewares=[errors(damage), guard, plain_bodies(services.transactions.refused)],
        client_max_size=push_bytes_max(settings),
    )
    app.on_response_prepare.append(no_content_type)
    transactions, peers = TransactionRoutes(services.transactions), PeerRoutes(services.peers)
    channels = ChannelRoutes.of(transactions, peers, services.status, damage)
    app.on_shutdown.append(channels.close)
    for group in (
        transactions,
        StatementRoutes(services.transactions),
        WriteRoutes(services.uploads),
        TableRoutes(services.administration, services.definitions),
        NamespaceRoutes(services.administration, services.definitions),
        TagRoutes(services.tags),
        ReadingRoutes(services.reads),
        ChangeRoutes(services.reads),
        HistoryRoutes(services.history),
        StatusRoutes(services.status),
        AdministrationRoutes(services.administration),
        MembersRoutes(services.members),
        peers,
        channels,
        DescriptionRoutes(),
    ):
        app.add_routes(definitions(group))
    return app
