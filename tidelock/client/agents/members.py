"""The agents that a client knows, and the order in which it sends requests to them.

The order is: the replica that the client was connected to, then the others that are reported alive, then the
rest. A replica that has just failed to answer is last for a while. A client pinned to a replica sends
requests to that replica alone. Addresses are read from any agent's /status. They are read again when an agent
has not answered, and now and then, since members come and go: a client outlives all that it began with.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from tidelock.client.agents import forks, members_file
from tidelock.client.agents.highest_csn import HighestCsn
from tidelock.client.agents.transport import Transport
from tidelock.client.agents.watched import SHOW_S
from tidelock.errors import (
    BadRequestError,
    NoAnswerError,
    NoConnectionError,
    StandbyError,
    TidelockError,
    UnavailableError,
)
from tidelock.wire.cluster import ReplicaStatus, StatusAnswer

T = TypeVar("T")
#: The replica to try before all others, or several replicas in their order.
First = str | tuple[str, ...] | None

#: State of a replica that was taken out for good.
REMOVED: Final = "removed"
#: State of an agent that accepts new work.
_SERVING: Final = "serving"
#: Seconds to wait beyond the waiting bound of an agent before trying another one (rule reader-options).
ANSWER_MARGIN_S = 3.0


@dataclass(frozen=True, slots=True)
class KnownMember:
    """One replica: its id and its addresses (`host:port`).

    Attributes:
        id: Its id.
        api: Address of its API, as this client reaches it.
        data: Address of its snapshot file system.
        published: Address of its API, as the replica publishes it: for processes on other machines.
    """

    id: str
    api: str
    data: str
    published: str


class KnownMembers:
    """The replicas of the cluster as this client sees them; thread-safe.

    Args:
        seeds: Addresses from which the others are learnt, the preferred one first.
        replica: The one replica to work with, or None for any.
        file: The members' file: its addresses are tried when no seed answers, and it is kept up to date.

    Raises:
        UnavailableError: No seed answers, and no address of the file.
        BadRequestError: No replica has that id.
    """

    def __init__(
        self, transport: Transport, seeds: Sequence[str], *, replica: str | None, file: Path | None = None
    ) -> None:
        self._transport = transport
        self._seeds = tuple(seeds)
        self._file = file
        self._stored = members_file.load(file)
        self._pinned = replica
        self._lock = threading.Lock()
        self._members: dict[str, KnownMember] = {}
        self._order: tuple[str, ...] = ()
        self._reached_at: dict[
            str, str
        ] = {}  # by the address that the caller gave, which may differ from the published one
        self._suspect_until_s: dict[str, float] = {}
        self._preferred = replica
        self._cluster_id: str | None = None
        self._learnt_s = 0.0
        self._doubtful = False
        self.wait_bound_s = 0.0
        self.highest_csn = HighestCsn()
        forks.register(self)
        self._learn()
        if replica is not None and replica not in self._members:
            known = ", ".join(sorted(self._members))
            raise BadRequestError(
                f"there is no replica {replica!r}; the cluster has {known}", replica=replica
            )

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    @property
    def pinned(self) -> bool:
        """Return whether the client works with one replica only."""
        return self._pinned is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the known addresses; the others are learnt again."""
        with self._lock:
            known = [self._members[replica].api for replica in self._order if replica in self._members]
        seeds = tuple(dict.fromkeys([*self._seeds, *known]))
        return functools.partial(KnownMembers, replica=self._pinned), (self._transport, seeds)

    @property
    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        return self._cluster_id or ""

    @property
    def others(self) -> bool:
        """Return whether another replica can be tried where one does not answer."""
        return not self.pinned and len(self._members) > 1

    @property
    def patience_s(self) -> float:
        """Return how long to wait for the answer to a small request of an agent that lives.

        One that is frozen is given up earlier where another one can be tried (see `watched`).
        """
        if not self.others:
            return self._transport.timeouts.answer_s
        return min(self._transport.timeouts.answer_s, self.wait_bound_s + ANSWER_MARGIN_S)

    def find(self, replica: str) -> KnownMember:
        """Return a replica by its id; BadRequestError if no replica has it."""
        with self._lock:
            member = self._members.get(replica)
        if member is None:
            raise BadRequestError(f"there is no replica {replica!r} with a known address", replica=replica)
        return member

    def drawn_by(self, text: str) -> tuple[str, ...]:
        """Return the replicas in the order that every client computes from the same text.

        Rendezvous hashing: when a replica is added or removed, the order of the others does not change.
        """
        with self._lock:
            ids = list(self._members)
        return tuple(sorted(ids, key=lambda item: hashlib.sha256(f"{text}\0{item}".encode()).digest()))

    def in_order(self, first: First = None) -> list[KnownMember]:
        """Return the replicas to try, `first` before all others unless it has failed to answer lately.

        One that has failed to answer comes last until it is seen to serve again, with all that this client
        has read and committed meanwhile. That is looked after now and then, in a thread of its own: no
        request has to find out that it is frozen still, has just started, or has much to catch up on.
        """
        now = time.monotonic()
        ranks = {item: rank for rank, item in enumerate((first,) if isinstance(first, str) else first or ())}
        with self._lock:
            ids = (
                [self._pinned]
                if self._pinned is not None
                else sorted(self._order, key=lambda item: ranks.get(item, len(ranks)))
            )
            ids.sort(key=lambda item: item in self._suspect_until_s)
            found = [self._members[item] for item in ids if item in self._members]
            again = [item for item in found if self._suspect_until_s.get(item.id, now) < now]
            for member in again:
                self._suspect_until_s[member.id] = now + self._transport.timeouts.suspect_s
        if self.others:
            for member in again:
                threading.Thread(
                    target=self._look_again, args=(member,), name="tidelock-look", daemon=True
                ).start()
        return found

    def is_silent(self, member: KnownMember) -> bool:
        """Return whether a replica has not answered lately, and has not been seen to serve since."""
        with self._lock:
            return member.id in self._suspect_until_s

    def _look_again(self, member: KnownMember) -> None:
        seen = self.highest_csn.at_least(None) or 0
        with contextlib.suppress(TidelockError):
            found = self._transport.call(member.api, "GET", "/status", answer=StatusAnswer, timeout_s=SHOW_S)
            if found.state == _SERVING and found.snapshot_csn >= seen:
                self.note(member, None)

    def ask(self, call: Callable[[KnownMember], T], *, first: First = None) -> T:
        """Return the first answer; after a replica that is unavailable or behind the next one is tried.

        If no replica can answer, and some have only been given up since they showed no life in time, these
        are tried once more, with patience: they may all be slow. Only for calls that may run twice.

        Raises:
            StandbyError: All replicas that answer are behind.
            UnavailableError: No replica can answer.
            TidelockError: The error of the first replica that could decide.
        """
        failed: dict[str, UnavailableError] = {}
        tried: set[KnownMember] = set()
        while True:
            for member in self.in_order(first):
                if member in tried:
                    continue
                tried.add(member)
                try:
                    answer = call(member)
                except UnavailableError as error:
                    failed[member.id] = error
                    self.note(member, error)
                    continue
                self.note(member, None)
                self._refresh(member)
                return answer
            if not self._learn_again(tried):
                break
        slow = {item for item, error in failed.items() if error.details.get("silent")}
        with self._transport.patiently():
            for member in self.in_order(first) if self.others else []:
                if member.id not in slow:
                    continue
                try:
                    answer = call(member)
                except UnavailableError as error:
                    failed[member.id] = error
                else:
                    self.note(member, None)
                    return answer
        raise _summary(failed)

    def note(self, member: KnownMember, error: UnavailableError | None) -> None:
        """Record whether a replica answered; a replica that did not answer is tried last for a while."""
        silent = isinstance(error, NoConnectionError | NoAnswerError)
        with self._lock:
            if silent:
                self._doubtful = True
                self._suspect_until_s[member.id] = time.monotonic() + self._transport.timeouts.suspect_s
            else:
                self._suspect_until_s.pop(member.id, None)

    def _refresh(self, member: KnownMember) -> None:
        """Read the list from an agent that has just answered, if it may have changed since it was read."""
        now = time.monotonic()
        with self._lock:
            old = now - self._learnt_s > self._transport.timeouts.members_s
            if self.pinned or not (old or self._doubtful):
                return
            self._learnt_s, self._doubtful = now, False  # so other threads do not ask as well
        with contextlib.suppress(UnavailableError):
            self._ask_for_list(member.api, elsewhere=True)

    def _learn_again(self, tried: set[KnownMember]) -> bool:
        """Read the addresses again; return whether a replica is now known that was not tried."""
        try:
            self._learn()
        except UnavailableError:
            return False
        return any(member not in tried for member in self.in_order())

    def _learn(self) -> None:
        """Read the member list from the first address that answers; UnavailableError when no address does."""
        known = [member.api for member in self._members.values()]
        stored = self._stored.api if self._stored else []
        failed: dict[str, UnavailableError] = {}
        addresses = list(dict.fromkeys((*self._seeds, *known, *stored)))
        for address in addresses:
            try:
                self._ask_for_list(address, elsewhere=len(addresses) > 1)
            except UnavailableError as error:
                failed[address] = error
            else:
                return
        raise _summary(failed)

    def _ask_for_list(self, address: str, *, elsewhere: bool = False) -> None:
        """Read the member list from one address; UnavailableError without a usable answer."""
        status = self._transport.call(
            address,
            "GET",
            "/status",
            answer=StatusAnswer,
            timeout_s=self._status_patience_s(),
            elsewhere=elsewhere,
        )
        if self._cluster_of(address) not in {None, status.cluster_id}:
            raise UnavailableError(f"{address} is now an agent of another cluster")
        self._take(address, status)
        api = [member.api for member in self._members.values()]
        members_file.store(self._file, members_file.StoredMembers(status.cluster_id, api))

    def _cluster_of(self, address: str) -> str | None:
        """Return the cluster that an agent at an address must belong to; None: any."""
        if self._cluster_id is None and self._stored is not None and address not in self._seeds:
            return self._stored.cluster_id
        return self._cluster_id

    def _status_patience_s(self) -> float:
        if self._members or (len(self._seeds) == 1 and self._stored is None):
            return self.patience_s
        # Nothing is known of the cluster yet, but other seeds remain to be tried.
        return min(self._transport.timeouts.answer_s, 2 * ANSWER_MARGIN_S)

    def _take(self, address: str, status: StatusAnswer) -> None:
        with self._lock:
            replica = status.id
            self._cluster_id = status.cluster_id
            self._learnt_s = time.monotonic()
            if address in self._seeds:
                self._reached_at[replica] = address
            if self._preferred is None:
                self._preferred = replica
            rows = [
                row
                for row in status.replicas
                # A removed replica never comes back: nothing is asked of it, and an audit does not miss it.
                if (row.api or row.id in self._reached_at) and row.member != REMOVED
            ]
            self._members = {row.id: self._member(row) for row in rows}
            rows.sort(key=lambda row: (row.id != self._preferred, not row.alive))
            self._order = tuple(row.id for row in rows)
            self.wait_bound_s = status.wait_bound_s

    def _member(self, row: ReplicaStatus) -> KnownMember:
        reached = self._reached_at.get(row.id, row.api)
        return KnownMember(row.id, reached, row.data, row.api or reached)


def _summary(failed: Mapping[str, UnavailableError]) -> UnavailableError:
    """Return one error for a request that no replica answered."""
    if len(failed) == 1:
        return next(iter(failed.values()))
    if failed and all(isinstance(error, NoConnectionError) for error in failed.values()):
        addresses = ", ".join(str(error.details["address"]) for error in failed.values())
        causes = ", ".join(dict.fromkeys(str(error.details["cause"]) for error in failed.values()))
        return NoConnectionError(
            f"no connection to an agent at {addresses} ({causes}); start the agents, or check the addresses",
            address=addresses,
            cause=causes,
        )
    reasons = "; ".join(f"{name}: {error.message}" for name, error in failed.items()) or "no address is known"
    behind = [error for error in failed.values() if isinstance(error, StandbyError)]
    if behind:
        csn = max((int(error.details.get("snapshot_csn", 0)) for error in behind), default=0)
        return StandbyError(f"no replica can serve this now ({reasons})", snapshot_csn=csn)
    return UnavailableError(f"no replica could answer ({reasons})")
