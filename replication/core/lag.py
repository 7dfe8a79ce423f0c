"""The delay of commits while replicas lag behind, and when they are refused instead (rule apply). Pure.

A home that commits faster than the others apply would leave them behind without a bound (F14), so it delays
its commits: the more, the further the slowest replica is behind, up to a longest delay. It waits only for
replicas that follow the log. A replica that is starting, blocked or full does not get faster by waiting, so
it delays no one, as long as ``copies`` replicas make progress. If fewer do, a stuck replica is one that the
shard needs, and commits are refused before the log grows without a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, epoch_of, sequence_of
from tidelock.csnlog.core.model import ClusterState, ReplicaPhase
from tidelock.replication.core.model import Peer

#: The phases of a replica that needs an operator, or room on its disk.
STUCK: Final = frozenset({ReplicaPhase.BLOCKED, ReplicaPhase.FULL})


class Epochs(msgspec.Struct, frozen=True):
    """The records of the epochs of a log.

    Attributes:
        limit: Records of an epoch.
        closed: The last record of the epoch that a rebuild of the tree has closed before its limit (rule
            rebuild); CSN_NONE: none was.
    """

    limit: int
    closed: Csn = CSN_NONE


class LagLimits(msgspec.Struct, frozen=True):
    """The bounds of :class:`LagWatch`.

    Attributes:
        max_lag: CSNs that a replica may be behind before commits are delayed.
        delay_max_s: Longest delay of a commit, reached at twice ``max_lag``.
        stalled_after_s: A lagging replica that has applied nothing for so long is not waited for, whatever
            it has published.
        epochs: The records of the epochs.
    """

    max_lag: int
    delay_max_s: float
    stalled_after_s: float
    epochs: Epochs


class LagVerdict(msgspec.Struct, frozen=True):
    """The consequence of the present lags for a commit.

    Attributes:
        delay_s: How long it waits in all, counted from its request.
        behind: The replicas that it waits for, furthest behind first.
        far: All live replicas that are more than ``max_lag`` behind, also those that it does not wait for.
        stuck: Replicas that live, apply nothing, and are more than ``max_lag`` behind.
        refused: Fewer than ``copies`` replicas make progress, and one that is needed is stuck.
    """

    delay_s: float = 0.0
    behind: tuple[ReplicaId, ...] = ()
    far: frozenset[ReplicaId] = frozenset()
    stuck: tuple[ReplicaId, ...] = ()
    refused: bool = False


class LagWatch:
    """Judges the lags of the other replicas at each commit of a home."""

    __slots__ = ("_limits", "_seen")

    def __init__(self, limits: LagLimits) -> None:
        self._limits = limits
        #: The snapshot CSN at which each lagging replica was first seen, and when.
        self._seen: dict[ReplicaId, tuple[Csn, float]] = {}

    def judge(self, peers: Iterable[Peer], own: Csn, now_s: float, copies: int) -> LagVerdict:
        """Return the verdict of a home at snapshot CSN ``own``; a commit needs ``copies``.

        ``now_s`` is in monotonic seconds.
        """
        limits = self._limits
        behind: list[tuple[int, ReplicaId]] = []
        stuck: list[ReplicaId] = []
        far: set[ReplicaId] = set()
        progressing = 1
        for peer in peers:
            if not peer.alive or peer.struck:
                continue
            lag = csns_behind(peer.snapshot, own, limits.epochs)
            stalled = self._is_stalled(peer, lag, now_s)
            # A full disk may still take what is committed, in what it keeps in reserve.
            stopped = peer.phase is ReplicaPhase.BLOCKED or (peer.phase is ReplicaPhase.FULL and stalled)
            progressing += not stopped
            if lag <= limits.max_lag:
                continue
            far.add(peer.replica)
            if stopped:
                stuck.append(peer.replica)
            elif peer.phase is ReplicaPhase.FOLLOWING and not stalled:
                behind.append((lag, peer.replica))
        behind.sort(reverse=True)
        worst = behind[0][0] if behind else 0
        return LagVerdict(
            delay_s=delay_s(worst, limits.max_lag, limits.delay_max_s),
            behind=tuple(replica for _, replica in behind),
            far=frozenset(far),
            stuck=tuple(stuck),
            refused=bool(stuck) and progressing < copies,
        )

    def _is_stalled(self, peer: Peer, lag: int, now_s: float) -> bool:
        """Return whether a lagging replica has applied nothing for a while, by the clock of this home."""
        if lag <= self._limits.max_lag:
            self._seen.pop(peer.replica, None)
            return False
        before = self._seen.get(peer.replica)
        if before is None or before[0] != peer.snapshot:
            self._seen[peer.replica] = (peer.snapshot, now_s)
            return False
        return now_s - before[1] >= self._limits.stalled_after_s


def delay_s(lag: int, max_lag: int, longest_s: float) -> float:
    """Return the delay of a commit: it grows linearly from 0 at ``max_lag`` to the longest at twice that."""
    return longest_s * min(1.0, max(0, lag - max_lag) / max_lag)


def csns_behind(csn: Csn, end: Csn, epochs: Epochs) -> int:
    """Return how many records ``csn`` is behind ``end``, at least 0."""
    first, last, closed = epoch_of(csn), epoch_of(end), epochs.closed
    found = (last - first) * epochs.limit + sequence_of(end) - sequence_of(csn)
    if closed and first <= epoch_of(closed) < last:
        found -= epochs.limit - 1 - sequence_of(closed)
    return max(0, found)


def epochs_of(cluster: ClusterState) -> Epochs:
    """Return the records of the epochs of a cluster."""
    return Epochs(cluster.epoch_limit, cluster.closed)
