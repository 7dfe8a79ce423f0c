"""The rules by which members come and go: what a change writes, and when it is refused. Pure.

Every change is one multi under the fence of the replica that makes it. It raises the version of the roster by
compare-and-set, so two changes never pass each other unseen, and no commit counts a copy that a change has
taken away (rule copies). A change that has been made already writes nothing, so a command may be repeated
after a lost answer.

No change leaves fewer than ``copies`` replicas that are *well*: alive, in a state in which copies count, not
draining, and at most ``lag_max`` CSNs behind the end of the log. A timeout alone never lowers ``copies``.

A replica that leaves may hold one of the ``copies`` of a commit, and those that are well need not have it
yet. So it leaves when ``copies`` of them have all that was committed when the change was asked for. Otherwise
two changes, one after the other, take all copies of a commit away. One that is struck leaves when another
one has all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, replica_id
from tidelock.csnlog.core.model import (
    REMOVED,
    STOPPED,
    STRUCK,
    MemberState,
    Progress,
    ReplicaPhase,
    Roster,
    SessionState,
)
from tidelock.csnlog.core.roster import COUNTED, LEFT_OUT, group_of, raised
from tidelock.csnlog.core.store import Check, Create, Node, Op, SetData
from tidelock.errors import MembershipError
from tidelock.replication.core.lag import Epochs, csns_behind

#: A cluster of several replicas must have two copies at least: with one, the loss of one disk loses commits.
_COPIES_MIN: Final = 2


class MemberReading(msgspec.Struct, frozen=True):
    """One replica as it was read behind the roster."""

    member: MemberState
    session: SessionState
    session_version: int
    progress: Progress
    progress_version: int
    alive: bool


class MembersReading(msgspec.Struct, frozen=True):
    """The members as read in one ZooKeeper session, the roster first.

    Attributes:
        node: The znode ``replicas``.
        roster: Its content.
        replicas: All that were ever registered, removed ones included.
        end: The end of the log, read before everything else.
        epochs: The records of the epochs.
        lag_max: CSNs that a replica which is well may be behind ``end``.
        asked: The end of the log when the change was asked for, which is planned perhaps several times.
    """

    node: Node
    roster: Roster
    replicas: Mapping[ReplicaId, MemberReading]
    end: Csn
    epochs: Epochs
    lag_max: int
    asked: Csn = CSN_NONE

    def behind(self, replica: ReplicaId) -> int:
        """Return how many records of the log a replica has not applied."""
        return csns_behind(self.replicas[replica].progress.snapshot, self.end, self.epochs)

    def members(self) -> tuple[ReplicaId, ...]:
        """Return the replicas that are neither struck nor removed."""
        return tuple(
            replica for replica, found in self.replicas.items() if found.session.state not in LEFT_OUT
        )

    def living(self) -> tuple[ReplicaId, ...]:
        """Return the replicas from which others can fetch now; they may drain, or be behind."""
        return tuple(
            replica
            for replica in self.members()
            if self.replicas[replica].alive
            and self.replicas[replica].session.disk
            and self.replicas[replica].session.state in COUNTED
        )

    def well(self) -> tuple[ReplicaId, ...]:
        """Return the replicas that can give a commit a copy now."""
        return tuple(
            replica
            for replica in self.living()
            if replica not in self.roster.draining and self.behind(replica) <= self.lag_max
        )

    def has_all(self, replica: ReplicaId) -> bool:
        """Return whether a replica holds all that was committed when the change was asked for.

        One that starts may show the progress of a clone whose parts it still fetches.
        """
        progress = self.replicas[replica].progress
        return progress.phase is ReplicaPhase.FOLLOWING and progress.snapshot >= self.asked


class AddReplica(msgspec.Struct, frozen=True):
    """A replica is registered; it serves from the end of the log at its registration on."""

    replica: ReplicaId
    rack: str = ""


class RemoveReplica(msgspec.Struct, frozen=True):
    """A replica leaves for good; its id is never used again."""

    replica: ReplicaId


class ReplaceReplica(msgspec.Struct, frozen=True):
    """A replica leaves for good, and another one is registered in the same multi."""

    old: ReplicaId
    new: ReplicaId
    rack: str = ""


class StrikeReplica(msgspec.Struct, frozen=True):
    """A replica holds nothing back any more, and has to clone before it serves again."""

    replica: ReplicaId


class DrainReplica(msgspec.Struct, frozen=True):
    """A replica begins no transactions and its copies do not count; ``undo`` takes that back."""

    replica: ReplicaId
    undo: bool = False


class SetCopies(msgspec.Struct, frozen=True):
    """A commit needs another number of copies, and racks count or not; None keeps what is."""

    copies: int
    racks: bool | None = None


class NotYet(msgspec.Struct, frozen=True):
    """A change that those which stay are not ready for; ``error`` refuses it if that lasts."""

    error: MembershipError


MemberChange = AddReplica | RemoveReplica | ReplaceReplica | StrikeReplica | DrainReplica | SetCopies


def plan(
    change: MemberChange, seen: MembersReading, *, by: ReplicaId, nonce: str
) -> tuple[Op, ...] | NotYet | None:
    """Return the multi of a change, without the check of the own fence; None if the change was made before.

    Args:
        change: The change.
        seen: The members.
        by: The replica that makes it.
        nonce: A text that is unique.

    Raises:
        MembershipError: The change is refused; the message has the next step.
    """
    match change:
        case AddReplica(replica, rack):
            return _added(seen, replica, rack, by)
        case RemoveReplica(replica):
            return _taken_out(seen, replica, REMOVED, by, nonce)
        case StrikeReplica(replica):
            return _taken_out(seen, replica, STRUCK, by, nonce)
        case ReplaceReplica(old, new, rack):
            return _replaced(seen, old, new, rack, by, nonce)
        case DrainReplica(replica, undo):
            return _drained(seen, replica, undo=undo)
        case SetCopies(copies, racks):
            return _counted(seen, copies, racks)


def left_after(seen: MembersReading, leaving: ReplicaId) -> tuple[ReplicaId, ...]:
    """Return the replicas that are well and stay when one leaves, if they are enough for ``copies``.

    Raises:
        MembershipError: They are too few.
    """
    staying = tuple(replica for replica in seen.well() if replica != leaving)
    have, need = _groups(seen, seen.roster, staying), seen.roster.copies
    if have < need:
        raise MembershipError(
            f"expected at least copies={need} replicas that are well without {leaving}, found {have} "
            f"({', '.join(staying) or 'none'}): add a replica and wait until it serves, or lower copies",
            replica=leaving,
            have=have,
            need=need,
        )
    return staying


def _require_all(
    seen: MembersReading, staying: tuple[ReplicaId, ...], leaving: ReplicaId, need: int
) -> NotYet | None:
    """Return why a replica may not leave yet; None if enough of those that stay have all that it has."""
    whole = tuple(replica for replica in staying if seen.has_all(replica))
    have = _groups(seen, seen.roster, whole)
    if have >= need:
        return None
    shown = ", ".join(
        f"{one} at {seen.replicas[one].progress.snapshot}" for one in staying if one not in whole
    )
    return NotYet(
        MembershipError(
            f"expected replicas without {leaving} that have all commits up to CSN {seen.asked}, at least "
            f"{need}, found {have} (behind, or without all parts: {shown or 'none'}): wait until they have "
            "caught up, and ask again",
            replica=leaving,
            have=have,
            need=need,
        )
    )


def _groups(seen: MembersReading, roster: Roster, replicas: tuple[ReplicaId, ...]) -> int:
    return len({group_of(replica, roster, seen.replicas[replica].member) for replica in replicas})


def _found(seen: MembersReading, replica: ReplicaId) -> MemberReading:
    if (found := seen.replicas.get(replica)) is None:
        known = ", ".join(sorted(seen.replicas))
        raise MembershipError(
            f"expected a registered replica, found {replica}: the cluster has {known}", replica=replica
        )
    return found


def _added(seen: MembersReading, replica: ReplicaId, rack: str, by: ReplicaId) -> tuple[Op, ...] | None:
    """Return the registration.

    The locks of removals that all replicas have applied are gone, and the newcomer must not begin where it
    does not know of these removals. Their CSNs were published by all, also by this replica. So the newcomer
    serves from a CSN on that is not below this replica's progress, and the multi checks that the progress is
    unchanged: a lock that was deleted before the registration is below that CSN, and one that is deleted
    later was decided with the newcomer's own progress.
    """
    try:
        replica_id(replica)
    except ValueError as error:
        raise MembershipError(f"{error}; choose another id", replica=replica) from error
    if (found := seen.replicas.get(replica)) is not None:
        if found.session.state in LEFT_OUT:
            raise MembershipError(
                f"expected a new id, found {replica}, which is {found.session.state}: "
                + ("ids are never used again" if found.session.state == REMOVED else "start it: it clones"),
                replica=replica,
            )
        return None
    own = seen.replicas[by]
    never_started = SessionState(boot=0, disk="", nonce="", state=STOPPED)
    told = max(seen.end, own.progress.snapshot)
    return (
        Check(tree.progress(by), own.progress_version),
        Create(tree.replica(replica), codec.encode_member(MemberState(rack=rack))),
        Create(tree.session(replica), codec.encode_session(never_started)),
        Create(tree.progress(replica), codec.encode_progress(Progress(CSN_NONE, CSN_NONE, (), told))),
        raised(seen.node),
    )


def _taken_out(
    seen: MembersReading, replica: ReplicaId, state: str, by: ReplicaId, nonce: str
) -> tuple[Op, ...] | NotYet | None:
    """Return the multi that strikes or removes a replica."""
    found = _found(seen, replica)
    if found.session.state in {state, REMOVED}:
        return None
    if replica == by:
        raise MembershipError(
            f"{replica} cannot take itself out: ask another replica for it", replica=replica
        )
    if found.session.state == STRUCK:
        # Its copies do not count, and may be the last ones all the same: a rebuild strikes all that lag.
        staying, need = tuple(one for one in seen.living() if one != replica), 1
    else:
        staying, need = left_after(seen, replica), seen.roster.copies
    if not_yet := _require_all(seen, staying, replica, need):
        return not_yet
    kept = tuple(one for one in seen.roster.draining if one != replica)
    return (
        _ended(replica, found, state, nonce),
        *(
            Check(tree.session(one), seen.replicas[one].session_version)
            for one in staying
            if one != by  # the check of the own fence is in every multi
        ),
        raised(seen.node, None if kept == seen.roster.draining else _replace(seen.roster, draining=kept)),
    )


def _ended(replica: ReplicaId, found: MemberReading, state: str, nonce: str) -> SetData:
    """Return the write that raises boot and fence of a replica: nothing that it has sent lands any more."""
    session = SessionState(boot=found.session.boot + 1, disk=found.session.disk, nonce=nonce, state=state)
    return SetData(tree.session(replica), codec.encode_session(session), found.session_version)


def _replaced(
    seen: MembersReading, old: ReplicaId, new: ReplicaId, rack: str, by: ReplicaId, nonce: str
) -> tuple[Op, ...] | NotYet | None:
    removal = _taken_out(seen, old, REMOVED, by, nonce)
    addition = _added(seen, new, rack or seen.replicas[old].member.rack, by)
    if removal is None or addition is None or isinstance(removal, NotYet):
        return removal or addition
    return (*(op for op in addition if op.path != tree.REPLICAS), *removal)


def _drained(seen: MembersReading, replica: ReplicaId, *, undo: bool) -> tuple[Op, ...] | None:
    found = _found(seen, replica)
    if (replica in seen.roster.draining) is not undo:
        return None
    if found.session.state in LEFT_OUT:
        raise MembershipError(
            f"expected a member, found {replica}, which is {found.session.state}", replica=replica
        )
    if undo:
        draining = tuple(one for one in seen.roster.draining if one != replica)
    else:
        left_after(seen, replica)
        draining = (*seen.roster.draining, replica)
    return (raised(seen.node, _replace(seen.roster, draining=draining)),)


def _counted(seen: MembersReading, copies: int, racks: bool | None) -> tuple[Op, ...] | None:
    roster = _replace(seen.roster, copies=copies, racks=seen.roster.racks if racks is None else racks)
    if roster == seen.roster:
        return None
    members = seen.members()
    if copies < 1 or (copies < _COPIES_MIN and len(members) > 1):
        raise MembershipError(
            f"expected copies of {min(_COPIES_MIN, len(members))} or more, found {copies}: with one copy the "
            "loss of one disk loses commits",
            copies=copies,
        )
    have = _groups(seen, roster, seen.well())
    if have < copies:
        what = "racks" if roster.racks else "replicas"
        raise MembershipError(
            f"expected at least {copies} {what} that are well, found {have}: add replicas and wait until "
            "they serve, then raise copies",
            have=have,
            need=copies,
        )
    return (raised(seen.node, roster),)


def _replace(roster: Roster, **changes: object) -> Roster:
    return msgspec.structs.replace(roster, **changes)
