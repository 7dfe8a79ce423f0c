"""Changes of the members of a cluster: replicas that come and go, and the number of copies."""

from __future__ import annotations

from typing import Any

from tidelock.client.agents.connection import Connection
from tidelock.errors import UnavailableError
from tidelock.wire.cluster import StatusAnswer
from tidelock.wire.members import MembersAnswer, MembersRequest


class Membership:
    """The members of a cluster, for an operator.

    Each method returns the members after the change; `changed` is False if it was made before, so a call may
    be repeated.

    Raises:
        MembershipError: The change is refused, and nothing was written; the message has the next step.
        UnavailableError: No replica could do it now; repeat the call.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, replica: str, *, rack: str = "") -> MembersAnswer:
        """Register a replica; start its agent afterwards. It serves once it has all that existed by then."""
        return self._change(MembersRequest(change="add", replica=replica, rack=rack))

    def remove(self, replica: str) -> MembersAnswer:
        """Take a replica out for good: its transactions are aborted, and its id is never used again."""
        return self._leave(MembersRequest(change="remove", replica=replica))

    def replace(self, old: str, new: str, *, rack: str = "") -> MembersAnswer:
        """Take a replica out for good and register another one in its place, in one step."""
        return self._leave(MembersRequest(change="replace", replica=old, new=new, rack=rack))

    def drain(self, replica: str, *, undo: bool = False) -> MembersAnswer:
        """Have a replica begin no transactions, and count no copies on it, so that it can be stopped."""
        return self._change(MembersRequest(change="drain", replica=replica, undo=undo))

    def strike(self, replica: str) -> MembersAnswer:
        """Have a replica hold nothing back any more; it clones before it serves again."""
        return self._leave(MembersRequest(change="strike", replica=replica))

    def set_copies(self, copies: int, *, racks: bool | None = None) -> MembersAnswer:
        """Set how many durable copies a commit needs, and whether the copies of one rack count as one."""
        return self._change(MembersRequest(change="copies", copies=copies, racks=racks))

    def status_of(self, replica: str) -> StatusAnswer:
        """Return the status of one replica as that replica itself tells it."""
        for member in self._connection.members.in_order():
            if member.id == replica:
                return self._connection.small("GET", "/status", answer=StatusAnswer)(member)
        raise UnavailableError(f"expected a replica {replica}, found none that can be asked", replica=replica)

    def _leave(self, asked: MembersRequest) -> MembersAnswer:
        """Have a replica leave: the agent waits for those that stay before it does it or refuses it."""
        return self._change(asked, timeout_s=self._connection.transport.timeouts.answer_s, working=True)

    def _change(self, asked: MembersRequest, **options: Any) -> MembersAnswer:
        return self._connection.ask("POST", "/admin/members", answer=MembersAnswer, body=asked, **options)
