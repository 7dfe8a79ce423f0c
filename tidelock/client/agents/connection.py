"""The connection that the database, transactions and snapshots of one client share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tidelock.client.agents.highest_csn import HighestCsn
from tidelock.client.agents.leases import Leases
from tidelock.client.agents.members import First, KnownMember, KnownMembers
from tidelock.client.agents.transport import Transport

T = TypeVar("T")


class Connection:
    """Transport, members, heartbeat and the highest CSN of one client."""

    def __init__(self, transport: Transport, members: KnownMembers) -> None:
        self.transport = transport
        self.members = members
        self.leases = Leases()

    @property
    def highest_csn(self) -> HighestCsn:
        """The highest CSN that this client has committed or read."""
        return self.members.highest_csn

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for another process; open transactions and snapshots remain with this one."""
        return _restored, (self.transport, self.members, self.highest_csn.at_least(None))

    def ask(self, method: str, path: str, *, answer: type[T], first: First = None, **options: Any) -> T:
        """Send a small, repeatable request to one replica after the other; return the first answer."""
        call = self.small(method, path, answer=answer, elsewhere=self.members.others, **options)
        return self.members.ask(call, first=first)

    def ask_and_tell(
        self, method: str, path: str, *, answer: type[T], first: First = None, **options: Any
    ) -> tuple[KnownMember, T]:
        """Like `ask`; also return which replica answered."""
        call = self.small(method, path, answer=answer, elsewhere=self.members.others, **options)
        return self.members.ask(lambda member: (member, call(member)), first=first)

    def small(
        self, method: str, path: str, *, answer: type[T], timeout_s: float | None = None, **options: Any
    ) -> Callable[[KnownMember], T]:
        """Return a request that an agent answers at once, after its waiting bound or within `timeout_s`."""
        return lambda member: self.transport.call(
            member.api,
            method,
            path,
            answer=answer,
            timeout_s=timeout_s or self.members.patience_s,
            **options,
        )

    def close(self) -> None:
        """End the heartbeat and the connections."""
        self.leases.clear()
        self.transport.close()


def _restored(transport: Transport, members: KnownMembers, seen_csn: int | None) -> Connection:
    connection = Connection(transport, members)
    connection.highest_csn.note(seen_csn)
    return connection
