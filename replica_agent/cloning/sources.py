"""The choice of the peer that sends its catalog, and whether its catalog can be used."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidelock.csnlog.cluster.members import MemberView
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.model import SERVING


class ClonePeer(msgspec.Struct, frozen=True):
    """A peer that may send its catalog.

    Attributes:
        replica: Its id.
        api: Address (``host:port``) of its API.
    """

    replica: ReplicaId
    api: str


def peers_to_ask(view: Mapping[ReplicaId, MemberView], own: ReplicaId, tried: int) -> list[ClonePeer]:
    """Return the peers to ask for their catalog, the one that has applied most first.

    A peer that is struck, fenced or itself cloning is not asked: nobody waits for it, so it may be older than
    the log is long.

    Args:
        view: The registered replicas.
        own: This replica.
        tried: How many rounds over all peers have failed; each begins with another peer.
    """
    found = sorted(
        (-(one.progress.snapshot if one.progress else CSN_NONE), replica, one.member.api)
        for replica, one in view.items()
        if replica != own
        and one.alive
        and one.member.api
        and one.session is not None
        and one.session.state == SERVING
    )
    peers = [ClonePeer(replica, api) for _, replica, api in found]
    turn = tried % len(peers) if peers else 0
    return peers[turn:] + peers[:turn]


def is_usable(csn: Csn, tail: Csn, horizon: Csn) -> bool:
    """Return whether a replica can go on from a catalog at ``csn``; tail and horizon are read after it.

    Records that follow it are below the tail otherwise, and parts that they add may be collected.
    """
    return csn >= tail and csn >= horizon
