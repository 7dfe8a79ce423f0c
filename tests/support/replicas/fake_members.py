"""The members of a `FakeCluster`: POST /admin/members by docs/protocol.md, without a rule that needs a log.

What is refused because of other replicas is planned by a test (`FakeAgent.plan`). Bodies are read as an agent
reads them, so that a field that no agent knows is refused here, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidelock.errors import BadRequestError, MembershipError
from tidelock.wire.members import MembersAnswer, MembersRequest


@dataclass
class FakeMembers:
    """The states of all replicas that were ever registered, and what counts as a copy."""

    states: dict[str, str]
    racks_of: dict[str, str] = field(default_factory=dict)
    draining: list[str] = field(default_factory=list)
    copies: int = 2
    racks: bool = False

    def change(self, body: bytes) -> Any:
        """Make a change and return the answer of an agent."""
        try:
            asked = msgspec.json.decode(body, type=MembersRequest)
        except ValueError as error:
            raise BadRequestError(f"expected a change of the members, found {error}") from error
        before = self._shown()
        self._make(asked)
        shown = self._shown()
        return msgspec.to_builtins(MembersAnswer(changed=shown != before, **shown))

    def row(self, replica: str) -> dict[str, Any]:
        """Return what a status says of a replica as a member."""
        return {
            "rack": self.racks_of.get(replica, ""),
            "member": self.states.get(replica, "serving"),  # tests add agents, too
            "draining": replica in self.draining,
        }

    def _shown(self) -> dict[str, Any]:
        shown = {"draining": list(self.draining), "states": dict(sorted(self.states.items()))}
        return {"copies": self.copies, "racks": self.racks, **shown}

    def _make(self, asked: MembersRequest) -> None:
        replica = asked.replica
        if asked.change == "copies":
            self.copies = asked.copies
            self.racks = self.racks if asked.racks is None else asked.racks
            return
        if asked.change != "add" and replica not in self.states:
            raise MembershipError(
                f"expected a registered replica, found {replica}: the cluster has {', '.join(self.states)}",
                replica=replica,
            )
        match asked.change:
            case "add":
                self._register(replica, asked.rack)
            case "remove" | "replace":
                self._leave(replica, "removed")
                if asked.new:
                    self._register(asked.new, asked.rack)
            case "strike":
                self._leave(replica, "struck")
            case "drain":
                kept = [one for one in self.draining if one != replica]
                self.draining = kept if asked.undo else [*kept, replica]

    def _register(self, replica: str, rack: str) -> None:
        if replica not in self.states:
            self.states[replica] = "stopped"
            self.racks_of[replica] = rack

    def _leave(self, replica: str, state: str) -> None:
        self.states[replica] = state
        self.draining = [one for one in self.draining if one != replica]
