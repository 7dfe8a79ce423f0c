"""The check at the start of an agent that ZooKeeper is the right one, and as new as it was.

An ensemble that was restored from a backup, was emptied, or is another one altogether looks healthy. The
difference shows in what the catalog of the replica remembers (rule restart; F19).
"""

from __future__ import annotations

import asyncio

import msgspec

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.disks import folder_of, names_folder
from tidelock.csnlog.core.ids import CSN_IMPORT, CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.imprint import NEXT_STEP, UNKNOWN, Imprint, another_record
from tidelock.csnlog.core.model import (
    CLONING,
    REMOVED,
    STRUCK,
    ClusterState,
    MemberState,
    SessionState,
)
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.skipped import NO_SKIPS, Skips, shown_instead
from tidelock.csnlog.core.store import Check, Node, Store
from tidelock.errors import ClusterMismatchError, ConfigError, CorruptError, UpgradeNeededError

#: Version of the tree in ZooKeeper as a whole; the data of each znode has a separate version.
FORMAT_VERSION = 1


class KnownState(msgspec.Struct, frozen=True):
    """The state of ZooKeeper that the catalog of this replica remembers; the defaults mean an empty catalog.

    Attributes:
        cluster_id: The cluster that the data directory belongs to, None while it belongs to none.
        boot: Number of the last boot.
        fence: Last version of the own session znode that was read.
        tail: Last ``csn/tail`` that was read.
        last_csn: CSN of the last applied record; CSN_NONE: the catalog is empty.
        horizon: Last ``csn/horizon`` that was read.
        disk: Id of the data directory.
        clone: Why this replica has to clone, noted by a former boot; "" if nothing was noted.
        incarnation: The incarnation of the tree that the data directory belongs to, None while it belongs to
            none.
        last: The imprint of the last applied record.
        passed: The records that it has passed over, since an operator has had them skipped.
    """

    cluster_id: str | None = None
    boot: int = 0
    fence: int = -1
    tail: Csn = CSN_NONE
    last_csn: Csn = CSN_NONE
    horizon: Csn = CSN_NONE
    disk: str = ""
    clone: str = ""
    incarnation: str | None = None
    last: Imprint = UNKNOWN
    passed: frozenset[Csn] = frozenset()


class ClusterReading(msgspec.Struct, frozen=True):
    """The result of one read, in one ZooKeeper session and behind a write barrier."""

    cluster: ClusterState
    registered: tuple[str, ...]
    #: None when the replica is not registered.
    session: SessionState | None
    version: int
    member: MemberState
    #: The znode ``replicas``: the roster.
    roster: Node
    tail: Csn
    horizon: Csn
    #: Checks that tail and horizon have not moved since.
    unmoved: tuple[Check, ...]
    #: The imprint of the record at the CSN that was applied last, None if ZooKeeper has no record there.
    last: Imprint | None
    #: The largest snapshot CSN that was ever published for the replica.
    published: Csn
    #: The records that operators have skipped.
    skips: Skips


async def read_cluster(store: Store, replica: ReplicaId, known: KnownState) -> ClusterReading | None:
    """Read what decides the start, in one session and behind a barrier; return None if that was not possible.

    The barrier is a write: without it a server that lags behind would look like a restored ensemble.
    """
    session = store.session
    barrier = await store.multi((Check(tree.CLUSTER, 0),))
    if barrier == Refused(Reason.NO_NODE):
        raise _no_cluster(replica, known)
    if isinstance(barrier, Refused) and barrier.reason is Reason.BAD_VERSION:
        raise CorruptError(f"the znode {tree.CLUSTER!r} was changed, which nothing in Tidelock ever does")
    if not isinstance(barrier, Ok):
        return None
    cluster, roster, tail, horizon, own, member, progress = await asyncio.gather(
        store.get(tree.CLUSTER),
        store.get(tree.REPLICAS),
        store.get(tree.TAIL),
        store.get(tree.HORIZON),
        store.get(tree.session(replica)),
        store.get(tree.replica(replica)),
        store.get(tree.progress(replica)),
    )
    registered, last, skips = await asyncio.gather(
        store.children(tree.REPLICAS), store.get(tree.record(known.last_csn)), _read_skips(store)
    )
    if (
        store.session != session
        or not (isinstance(own, Ok) or own == Refused(Reason.NO_NODE))
        or not (isinstance(member, Ok) or member == Refused(Reason.NO_NODE))
        or not (isinstance(progress, Ok) or progress == Refused(Reason.NO_NODE))
        or not isinstance(cluster, Ok)
        or not isinstance(roster, Ok)
        or not isinstance(tail, Ok)
        or not isinstance(horizon, Ok)
        or not isinstance(registered, Ok)
        or not (isinstance(last, Ok) or last == Refused(Reason.NO_NODE))
        or skips is None
    ):
        return None
    return ClusterReading(
        cluster=cluster_state(cluster.value),
        registered=tuple(sorted(registered.value)),
        session=codec.decode_session(own.value.data) if isinstance(own, Ok) else None,
        version=own.value.version if isinstance(own, Ok) else -1,
        member=codec.decode_member(member.value.data) if isinstance(member, Ok) else MemberState(),
        roster=roster.value,
        tail=codec.decode_csn(tail.value.data),
        horizon=codec.decode_csn(horizon.value.data),
        unmoved=(Check(tree.TAIL, tail.value.version), Check(tree.HORIZON, horizon.value.version)),
        last=_imprint(last.value) if isinstance(last, Ok) else None,
        published=codec.decode_progress(progress.value.data).most if isinstance(progress, Ok) else CSN_NONE,
        skips=skips,
    )


async def _read_skips(store: Store) -> Skips | None:
    """Return the records that operators have skipped, None if they could not be read."""
    names = await store.children(tree.SKIPPED_RECORDS)
    if names == Refused(Reason.NO_NODE):
        return NO_SKIPS
    if not isinstance(names, Ok):
        return None
    paths = [f"{tree.SKIPPED_RECORDS}/{name}" for name in names.value]
    words = [
        codec.decode_skipped(node.value.data)
        for node in await asyncio.gather(*map(store.get, paths))
        if isinstance(node, Ok)
    ]
    return {word.csn: word for word in words} if len(words) == len(paths) else None


def _imprint(node: Node) -> Imprint:
    """Return the imprint of a record's znode, whose bytes need not be readable here."""
    return Imprint(node.created.zxid, codec.digest(node.data))


def cluster_state(node: Node) -> ClusterState:
    """Decode ``cluster``; raise UpgradeNeededError if the whole tree has a newer format."""
    cluster = codec.decode_cluster(node.data)
    if cluster.format_version > FORMAT_VERSION:
        raise UpgradeNeededError(
            f"the cluster in ZooKeeper has format {cluster.format_version}, this agent knows up to "
            f"{FORMAT_VERSION}: upgrade this replica"
        )
    return cluster


def check(replica: ReplicaId, reading: ClusterReading, known: KnownState) -> SessionState:
    """Raise unless this is the right cluster, as new as it was, and contains this replica."""
    if known.cluster_id not in {None, reading.cluster.cluster_id}:
        raise ClusterMismatchError(
            f"the data directory of {replica} belongs to cluster {known.cluster_id}, but ZooKeeper holds "
            f"{reading.cluster.cluster_id}; check the connect string and the data directory",
            expected=known.cluster_id,
            found=reading.cluster.cluster_id,
        )
    remade = is_remade(reading.cluster, known)
    if known.incarnation not in {None, reading.cluster.incarnation} and not remade:
        raise ClusterMismatchError(
            f"the data directory of {replica} belongs to incarnation {known.incarnation or '(none)'} of the "
            f"cluster, but ZooKeeper holds {reading.cluster.incarnation or '(none)'}: its tree was made "
            "again without this replica, whose last commits may not be in it. Keep the directory aside, and "
            "give the replica an empty one with --replace-disk (under a new id if this one is removed)",
            expected=known.incarnation,
            found=reading.cluster.incarnation,
        )
    if reading.session is None and known.fence >= 0 and not remade:
        raise _older(replica, f"it has no session of {replica}")
    if reading.session is None:
        raise ConfigError(
            f"replica {replica} is not registered in cluster {reading.cluster.cluster_id}, which has "
            f"{', '.join(reading.registered) or 'none'}; use one of those ids, or register it first"
        )
    lower = [
        f"{name} is {there} and was {here}"
        for name, there, here in (
            ("boot", reading.session.boot, known.boot),
            ("fence", reading.version, -1 if remade else known.fence),
            ("tail", reading.tail, CSN_NONE if remade else known.tail),
            ("horizon", reading.horizon, CSN_NONE if remade else known.horizon),
        )
        if there < here
    ]
    # Below the tail records are deleted in the normal course of things.
    if reading.last is None and known.last_csn >= reading.tail:
        lower.append(f"the record of CSN {known.last_csn} does not exist")
    gone = sorted(known.passed - reading.skips.keys())
    if gone and not remade:
        lower.append(f"it does not say that the record of CSN {gone[0]} is skipped")
    if lower:
        raise _older(replica, ", ".join(lower))
    if reading.last is not None and known.last.differs(reading.last):
        raise ClusterMismatchError(
            f"replica {replica} must not be started: "
            + another_record(known.last_csn, here=known.last, there=reading.last)
        )
    shown = shown_instead(known.last_csn, known.passed, reading.skips)
    if shown is not None:
        word = reading.skips[shown]
        raise ClusterMismatchError(
            f"replica {replica} must not be started: it has applied the record of CSN {shown}, which "
            f"{word.by} has had skipped on all replicas ({word.why}), so its tables differ from theirs; "
            "nothing was changed. Keep its data directory aside if its rows are wanted, and start it with "
            "an empty one and --replace-disk: it clones",
            csn=shown,
        )
    check_startable(replica, reading.session)
    return reading.session


def has_other_folder(session: SessionState, known: KnownState, *, disk: str, ordered: str | None) -> bool:
    """Return whether another data folder has the id of this replica, and keeps it (rule restart).

    A folder that never had the id takes it by order alone. One that had it, and has lost it to another
    folder, never gets it back: else two folders could take it from each other in turn.

    Args:
        session: The session of the replica.
        known: What the catalog remembers.
        disk: Id of this data directory.
        ordered: The disk that this start was ordered to replace; None without such an order.
    """
    if session.disk == "" or folder_of(session.disk) == folder_of(disk):
        return False
    if known.boot == 0:
        return ordered is None or folder_of(ordered) != folder_of(session.disk)
    # Versions before gave the disk of a clone an id that does not tell its folder.
    return names_folder(session.disk) or session.state not in {CLONING, STRUCK}


def is_remade(cluster: ClusterState, known: KnownState) -> bool:
    """Return whether this tree was made again out of this very data directory, in its present state.

    What the catalog remembers of ZooKeeper is then about the tree before (rule rebuild): versions and stamps,
    and also tail and horizon. A replica that was about to clone has noted those of a log that it had not
    applied.
    """
    return (
        known.incarnation not in {None, cluster.incarnation}
        and cluster.made_of.get(known.disk) == known.last_csn
    )


def check_startable(replica: ReplicaId, session: SessionState) -> None:
    """Raise ConfigError if the state of a replica forbids a start; the error says what to do."""
    if session.state == REMOVED:
        raise ConfigError(
            f"replica {replica} must not be started: it was removed from the cluster, and ids are never used "
            "again; register another id",
            state=session.state,
        )


def clone_reason(reading: ClusterReading, known: KnownState) -> str:
    """Return why the catalog has to be replaced by that of a peer, "" if this replica can follow the log.

    An empty catalog can follow a log that is whole, as in a new cluster: nothing was collected, so every part
    that a record adds exists. Otherwise the log names parts that are nowhere any more, and records are gone.
    """
    session = reading.session
    assert session is not None, "check() refuses a replica without a session"
    if session.state == STRUCK:
        return "it was struck"
    if session.state == CLONING and session.disk != known.disk:
        return "its last clone did not end"
    if known.clone and not is_remade(reading.cluster, known):
        return known.clone
    if known.last_csn == CSN_NONE and (reading.tail > CSN_NONE or reading.horizon > CSN_IMPORT):
        return (
            f"its catalog is empty, and the log is whole only from CSN {max(reading.tail, reading.horizon)}"
        )
    return ""


def _no_cluster(replica: ReplicaId, known: KnownState) -> ConfigError:
    if known.cluster_id is not None:
        return _older(replica, f"it holds no cluster, and {known.cluster_id} is expected")
    return ConfigError(
        "there is no cluster in ZooKeeper below this root; check the root, or name all replicas at the first "
        "start (--bootstrap) to make one"
    )


def _older(replica: ReplicaId, what: str) -> ClusterMismatchError:
    return ClusterMismatchError(
        f"ZooKeeper is older than what replica {replica} has seen: {what}. It was restored from a backup, "
        f"emptied, or is the wrong one; nothing was changed. {NEXT_STEP}"
    )
