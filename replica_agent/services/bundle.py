"""The services of one agent, as they are passed to the routes."""

from __future__ import annotations

import msgspec

from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import Condition
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.services.definitions import DefinitionService
from tidelock.replica_agent.services.history import HistoryService
from tidelock.replica_agent.services.members import MembersService
from tidelock.replica_agent.services.peers import PeerService
from tidelock.replica_agent.services.reads import ReadService
from tidelock.replica_agent.services.status import StatusService
from tidelock.replica_agent.services.tags import TagService
from tidelock.replica_agent.services.transactions import TransactionService
from tidelock.replica_agent.services.uploads import UploadService


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """All services, one for each kind of caller."""

    settings: AgentSettings
    condition: Condition
    transactions: TransactionService
    reads: ReadService
    history: HistoryService
    uploads: UploadService
    peers: PeerService
    administration: AdministrationService
    definitions: DefinitionService
    members: MembersService
    status: StatusService
    tags: TagService
