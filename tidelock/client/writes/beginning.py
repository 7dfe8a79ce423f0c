"""The begin of a transaction: at once, at a replica that becomes its home, or later."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.writes.definitions import Definitions
from tidelock.client.writes.whole_writes import ReservedBlocks
from tidelock.errors import LabelExistsError
from tidelock.wire.transactions import BeginRequest, Begun


@dataclass(frozen=True, slots=True)
class Later:
    """The means of a transaction that does not begin at once: tids, and the definitions of tables."""

    tids: ReservedBlocks
    definitions: Definitions


def begin_at_home(connection: Connection, request: BeginRequest) -> tuple[KnownMember, Begun]:
    """Begin a transaction and return its home; errors as `Database.begin`."""
    highest, key = connection.highest_csn, request.key
    body = msgspec.structs.replace(request, min_csn=highest.at_least(request.min_csn))
    first = None if key is None else connection.members.drawn_by(request.label or key)
    try:
        return connection.ask_and_tell("POST", "/transactions", answer=Begun, first=first, body=body)
    except LabelExistsError as error:
        highest.note(error.details.get("csn"))  # the caller treats it as its own
        raise
