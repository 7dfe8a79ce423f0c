"""Creation of a cluster, registration of a replica, and the start of an agent's boot in ZooKeeper.

Each of these happens once in the life of a cluster, a replica or a boot, so the code favours few rules over
few requests. An unknown outcome of a request decides nothing: the state is read again behind a write barrier
and the request is repeated. Every write is such that its repetition does no harm.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from tidelock.csnlog import faults
from tidelock.csnlog.cluster.start_check import (
    FORMAT_VERSION,
    ClusterReading,
    KnownState,
    check,
    check_startable,
    clone_reason,
    cluster_state,
    has_other_folder,
    read_cluster,
)
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.disks import cloned_disk
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, replica_id
from tidelock.csnlog.core.model import (
    CLONING,
    SERVING,
    STOPPED,
    ClusterState,
    MemberState,
    Progress,
    Record,
    RecordKind,
    ReplicaPhase,
    SessionState,
)
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.roster import raised as raised_roster
from tidelock.csnlog.core.roster import takes_copies
from tidelock.csnlog.core.skipped import NO_SKIPS, Skips
from tidelock.csnlog.core.store import Check, Create, Delete, LinkState, Op, SetData, Store
from tidelock.errors import ConfigError, UnavailableError

__all__ = ["KnownState", "OwnSession", "bootstrap", "keep_alive", "open_session", "register"]

#: The raise of boot and fence, with which the boot of an agent begins.
BEGIN: Final = faults.step("csnlog.begin")
#: Pause before a request is repeated.
_RETRY_S = 0.02


class OwnSession(msgspec.Struct, frozen=True):
    """A boot of an agent that has begun: its number, its fence, and what ZooKeeper held at that moment."""

    replica: ReplicaId
    boot: int
    disk: str
    nonce: str
    fence: int
    cluster: ClusterState
    tail: Csn
    horizon: Csn
    #: The largest snapshot CSN that former boots have published for the replica, whatever disk they had.
    published_max: Csn = CSN_NONE
    #: Why this boot has to replace the catalog by that of a peer, "" if it serves.
    clone: str = ""
    #: The records that operators have skipped. A later word fences this boot.
    skips: Skips = msgspec.field(default_factory=lambda: NO_SKIPS)

    @property
    def state(self) -> SessionState:
        """The data of the session znode at version ``fence``."""
        state = CLONING if self.clone else SERVING
        return SessionState(boot=self.boot, disk=self.disk, nonce=self.nonce, state=state)


async def bootstrap(
    store: Store,
    *,
    replicas: Sequence[ReplicaId],
    copies: int,
    epoch_limit: int,
    new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    time_ms: int | None = None,
    timeout_s: float = 30.0,
) -> ClusterState:
    """Create the cluster with one multi unless it exists, and return the cluster that exists then.

    Of several callers that do this at once one wins. The others get the cluster that the winner made; their
    own settings have no effect.

    Args:
        store: A store whose root is that of the cluster.
        replicas: The replicas to register.
        copies: Durable copies that a commit needs.
        epoch_limit: Records of an epoch before the log rolls over.
        new_id: Returns a text that is unique: the cluster's id, and the incarnation of its tree.
        time_ms: Wall time (Unix, ms) of the log's first records; None = now.
        timeout_s: How long ZooKeeper may take.

    Raises:
        ConfigError: The settings contradict each other, or the root holds something else than a cluster.
        UpgradeNeededError: The existing cluster was made by a newer version.
        UnavailableError: ZooKeeper did not answer in time; the cluster was made completely or not at all.
    """
    _check_settings(replicas, copies)
    cluster = ClusterState(
        new_id(), FORMAT_VERSION, copies, epoch_limit, new_id(), founders=tuple(sorted(replicas))
    )
    ops = _cluster_ops(cluster, replicas, time.time_ns() // 1_000_000 if time_ms is None else time_ms)
    async with _bounded(timeout_s, "make the cluster"):
        while True:
            node = await store.get(tree.CLUSTER)
            if isinstance(node, Ok):
                return cluster_state(node.value)
            if isinstance(node, Refused) and node.reason is Reason.NO_NODE:
                made = await store.multi(ops)
                if isinstance(made, Refused) and made.reason is Reason.NODE_EXISTS and made.index > 0:
                    raise ConfigError(
                        f"the root in ZooKeeper already holds {ops[made.index].path!r} but no cluster; "
                        "name a root that is empty or does not exist"
                    )
                if isinstance(made, Refused) and made.reason in {Reason.TOO_LARGE, Reason.DENIED}:
                    raise ConfigError(f"the cluster cannot be created in ZooKeeper: {made.reason.value}")
            await asyncio.sleep(_RETRY_S)


async def register(
    store: Store, replica: ReplicaId, *, member: MemberState | None = None, timeout_s: float = 30.0
) -> bool:
    """Register a replica by order of an operator; return False if it was registered before.

    Raises:
        ConfigError: There is no cluster, or the id belonged to a replica that was removed.
        UnavailableError: ZooKeeper did not answer in time; the replica may be registered.
    """
    ops = (Check(tree.CLUSTER, 0), *_replica_ops(replica, member or MemberState()))
    sent = False
    async with _bounded(timeout_s, f"register replica {replica}"):
        while True:
            made = await store.multi(ops)
            match made:
                case Ok():
                    return True
                case Refused(reason=Reason.NO_NODE):
                    raise ConfigError("there is no cluster in ZooKeeper below this root; check the root")
                case Refused(reason=Reason.NODE_EXISTS):
                    session = await store.get(tree.session(replica))
                    if isinstance(session, Ok):
                        check_startable(replica, codec.decode_session(session.value.data))
                        # After a lost answer it is not known whether this call registered the replica. The
                        # caller asked for it, so the answer is that it did.
                        return sent
                case Unknown():
                    sent = True
            await asyncio.sleep(_RETRY_S)


async def open_session(
    store: Store,
    *,
    replica: ReplicaId,
    member: MemberState,
    disk: str,
    known: KnownState,
    nonce: Callable[[], str],
    suffix: Callable[[], str] = lambda: secrets.token_hex(8),
    replace_disk: bool = False,
    timeout_s: float = 30.0,
) -> OwnSession:
    """Begin a boot of this replica: check that ZooKeeper is the right one, raise boot number and fence.

    The raise fences every former boot of this replica, whether its process has ended or not. Nothing is
    written before all checks have passed.

    A boot without a usable catalog sets its progress to the present tail and horizon in the multi of the
    raise, which holds them there. If it clones, the state is ``cloning`` and the disk a new one of the same
    folder.

    Args:
        store: A connected store.
        replica: The own id.
        member: The addresses to publish. If it has no labels, the labels that an operator has set stay.
        disk: Id of the data directory, made together with the directory.
        known: What the catalog remembers.
        nonce: Returns a text that is unique.
        suffix: Returns a text that is unique: it tells the disk id of a clone from the former one.
        replace_disk: Take the id over from another data folder, if this one never had it.
        timeout_s: How long ZooKeeper may take.

    Raises:
        ClusterMismatchError: ZooKeeper holds another cluster, or an older state than this replica has seen.
        ConfigError: There is no cluster, the replica is not registered, it must not start, or another data
            folder has its id.
        UpgradeNeededError: The cluster was made by a newer version.
        UnavailableError: ZooKeeper did not answer in time.
    """
    mine, clone = nonce(), ""
    ordered: str | None = None
    async with _bounded(timeout_s, f"begin the session of replica {replica}"):
        while True:
            reading = await read_cluster(store, replica, known)
            if reading is None:
                await asyncio.sleep(_RETRY_S)
                continue
            state = check(replica, reading, known)
            if state.nonce == mine:
                own = _begun(replica, reading, state, clone)
                await _show_alive(store, own)
                return own
            if replace_disk and ordered is None:
                ordered = state.disk
            if has_other_folder(state, known, disk=disk, ordered=ordered):
                raise await _taken(store, replica, reading, state.disk, known, disk)
            clone = clone_reason(reading, known)
            raised = SessionState(
                boot=state.boot + 1,
                disk=cloned_disk(disk, suffix()) if clone else disk,
                nonce=mine,
                state=CLONING if clone else SERVING,
            )
            # The only write without a check of the fence: it is the compare-and-set of the fence. The next
            # read tells by the nonce whether it was applied. Over all iterations at most one write is
            # applied.
            begin = _begin_ops(reading, replica, state, raised, _shown(member, reading.member))
            await _raise(store, (*begin, *_from_the_start(replica, reading, known, clone)))


async def _raise(store: Store, ops: tuple[Op, ...]) -> None:
    """Send the multi of the raise; its answer does not matter."""
    await BEGIN.before()
    await store.multi(ops)
    await BEGIN.after()


def _begin_ops(
    reading: ClusterReading,
    replica: ReplicaId,
    before: SessionState,
    raised: SessionState,
    shown: MemberState,
) -> tuple[Op, ...]:
    """Return the multi that begins a boot; it raises the roster where copies may be gone (rule copies)."""
    ops: list[Op] = [
        SetData(tree.session(replica), codec.encode_session(raised), reading.version),
        SetData(tree.replica(replica), codec.encode_member(shown)),
    ]
    if takes_copies(before, raised) or shown.rack != reading.member.rack:
        ops.append(raised_roster(reading.roster))
    return tuple(ops)


async def _taken(
    store: Store, replica: ReplicaId, reading: ClusterReading, there: str, known: KnownState, here: str
) -> ConfigError:
    """Return the error of a start whose id another data folder has."""
    found = await store.exists(tree.alive(replica))
    lives = isinstance(found, Ok) and found.value is not None
    step = (
        "It has taken the id over, and this folder never gets it back: give this agent another id, or empty "
        "its data folder (the folder parts may stay), and start it with --replace-disk to take the id over"
        if known.boot > 0
        else "Give this agent another id or its own data folder; or, if that disk is lost, start it with "
        "--replace-disk to take the id over: it gets its data from the other replicas"
    )
    return ConfigError(
        f"expected no other data folder under the id {replica}, found one on disk {there} at "
        f"{reading.member.api}, whose agent {'lives' if lives else 'shows no sign of life'}; this data "
        f"folder is disk {here}. {step}",
        disk=there,
        api=reading.member.api,
    )


def _begun(replica: ReplicaId, reading: ClusterReading, state: SessionState, clone: str) -> OwnSession:
    """Return the boot whose raise of the fence was applied."""
    return OwnSession(
        replica=replica,
        boot=state.boot,
        disk=state.disk,
        nonce=state.nonce,
        fence=reading.version,
        cluster=reading.cluster,
        tail=reading.tail,
        horizon=reading.horizon,
        published_max=reading.published,
        clone=clone if state.state == CLONING else "",
        skips=reading.skips,
    )


def _from_the_start(
    replica: ReplicaId, reading: ClusterReading, known: KnownState, clone: str
) -> tuple[Op, ...]:
    """Return the part of the raise that holds tail and horizon for a boot without a usable catalog."""
    if not clone and known.last_csn > CSN_NONE:
        return ()
    held = Progress(
        reading.tail, reading.horizon, published_max=reading.published, phase=ReplicaPhase.STARTING
    )
    return *reading.unmoved, SetData(tree.progress(replica), codec.encode_progress(held))


def _shown(member: MemberState, before: MemberState) -> MemberState:
    """Return what a replica publishes of itself, with the labels that an operator has set."""
    return msgspec.structs.replace(member, labels=member.labels or before.labels)


async def keep_alive(store: Store, own: OwnSession) -> bool:
    """Create ``replicas/<id>/alive`` in the present ZooKeeper session; to be called in each new session.

    A znode that is left of a former session is replaced, since it would be deleted with that session. The
    replacement is safe: every write checks the version of the session znode, and the boot in that znode says
    that no later boot has begun. So the znode was made by this boot in another session, or by a former boot,
    which is fenced.

    Returns:
        False if the znode is not there: this boot is fenced, or the link broke and the caller has to wait for
        its next change.
    """
    session = store.session
    while store.session == session and store.link is LinkState.CONNECTED:
        fence = await store.get(tree.session(own.replica))
        if fence == Refused(Reason.NO_NODE):
            return False
        if isinstance(fence, Ok):
            if codec.decode_session(fence.value.data).boot != own.boot:
                return False
            if await _put_alive(store, own, Check(tree.session(own.replica), fence.value.version)):
                return store.session == session
        await asyncio.sleep(_RETRY_S)
    return False


async def _show_alive(store: Store, own: OwnSession) -> None:
    """Create the first sign of life. If this boot is fenced already, its agent finds that out by itself."""
    while not await keep_alive(store, own):
        fence = await store.get(tree.session(own.replica))
        if isinstance(fence, Ok) and codec.decode_session(fence.value.data).boot != own.boot:
            return
        await asyncio.sleep(_RETRY_S)


async def _put_alive(store: Store, own: OwnSession, fenced: Check) -> bool:
    path = tree.alive(own.replica)
    session = store.session
    node = await store.get(path)
    if isinstance(node, Ok):
        if node.value.owner_session == session:
            return True
        # Not in one multi with the create: a multi should touch a path once (ZOOKEEPER-4695).
        await store.multi((fenced, Delete(path, node.value.version)))
    created = await store.multi((fenced, Create(path, str(own.boot).encode(), ephemeral=True)))
    return isinstance(created, Ok)


def _check_settings(replicas: Sequence[ReplicaId], copies: int) -> None:
    for replica in replicas:
        try:
            replica_id(replica)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if len(set(replicas)) != len(replicas):
        raise ConfigError(f"a replica is named twice: {', '.join(replicas)}")
    if not 1 <= copies <= len(replicas):
        raise ConfigError(f"{copies} copies cannot be reached with {len(replicas)} replicas")
    if copies == 1 and len(replicas) > 1:
        raise ConfigError("one copy is for a single replica; with more replicas a commit needs at least two")


def _cluster_ops(cluster: ClusterState, replicas: Sequence[ReplicaId], time_ms: int) -> tuple[Op, ...]:
    genesis = codec.encode_record(Record(RecordKind.GENESIS, replicas[0], time_ms, witnesses=()))
    return (
        Create(tree.CLUSTER, codec.encode_cluster(cluster)),
        Create(tree.CSN),
        Create(tree.EPOCH, codec.encode_epoch(0)),
        Create(tree.epoch_dir(0)),
        # CSN 0 means "nothing" and CSN 1 is the CSN of imported parts; so the first commit has CSN 2.
        Create(tree.record_prefix(0), genesis, sequential=True),
        Create(tree.record_prefix(0), genesis, sequential=True),
        Create(tree.HEAD),
        Create(tree.TAIL, codec.encode_csn(CSN_NONE)),
        Create(tree.HORIZON, codec.encode_csn(CSN_NONE)),
        Create(tree.REPLICAS),
        *(op for replica in replicas for op in _replica_ops(replica, MemberState())),
        Create(tree.TABLES),
        Create(tree.LOCKS),
        Create(tree.LABELS),
        Create(tree.PINS),
    )


def _replica_ops(replica: ReplicaId, member: MemberState) -> tuple[Op, ...]:
    never_started = SessionState(boot=0, disk="", nonce="", state=STOPPED)
    return (
        Create(tree.replica(replica), codec.encode_member(member)),
        Create(tree.session(replica), codec.encode_session(never_started)),
        Create(tree.progress(replica), codec.encode_progress(Progress(CSN_NONE, CSN_NONE))),
    )


@asynccontextmanager
async def _bounded(timeout_s: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise UnavailableError(
            f"ZooKeeper did not let this process {what} within {timeout_s:g} s; check that it has a quorum"
        ) from None
