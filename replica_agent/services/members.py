"""The service for changes of the members: replicas that come and go, and the number of copies."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from tidelock.csnlog.core.ids import ReplicaId
from tidelock.errors import BadRequestError, UnavailableError
from tidelock.replication.core.membership_rules import (
    AddReplica,
    DrainReplica,
    MemberChange,
    MembersReading,
    RemoveReplica,
    ReplaceReplica,
    SetCopies,
    StrikeReplica,
)
from tidelock.replication.membership import MemberChanges
from tidelock.wire.members import MembersRequest

_log = structlog.get_logger("members")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MembersService:
    """Changes the members by order of an operator."""

    replica: ReplicaId
    changes: MemberChanges

    async def change(self, asked: MembersRequest) -> bool:
        """Make a change; return False if it was made before.

        Raises:
            BadRequestError: The request lacks a value.
            MembershipError: The change is refused, and nothing was written.
            UnavailableError: Another replica has to do it, or ZooKeeper does not answer; ask again.
        """
        change = change_of(asked)
        if isinstance(change, RemoveReplica | StrikeReplica | ReplaceReplica):
            leaving = change.old if isinstance(change, ReplaceReplica) else change.replica
            if leaving == self.replica:
                raise UnavailableError(
                    f"{leaving} cannot take itself out; ask another replica", replica=leaving
                )
        made = await self.changes.make(change)
        _log.warning("members_changed" if made else "members_unchanged", change=repr(change))
        return made

    async def read(self) -> MembersReading:
        """Return the members; UnavailableError if ZooKeeper does not answer."""
        seen = await self.changes.read()
        if seen is None:
            raise UnavailableError("the members could not be read from ZooKeeper now; try again")
        return seen


def change_of(asked: MembersRequest) -> MemberChange:
    """Return the change that a request asks for; BadRequestError if it lacks a value."""
    if asked.change == "copies":
        if asked.copies < 1:
            raise BadRequestError(f"expected copies of 1 or more, found {asked.copies}; name a number")
        return SetCopies(asked.copies, asked.racks)
    if not asked.replica:
        raise BadRequestError(f"{asked.change} needs a replica, found none; name its id")
    replica = ReplicaId(asked.replica)
    match asked.change:
        case "add":
            return AddReplica(replica, asked.rack)
        case "remove":
            return RemoveReplica(replica)
        case "drain":
            return DrainReplica(replica, asked.undo)
        case "strike":
            return StrikeReplica(replica)
        case "replace":
            if not asked.new:
                raise BadRequestError(
                    "replace needs a new replica, found none; name an id that was never used"
                )
            return ReplaceReplica(replica, ReplicaId(asked.new), asked.rack)
