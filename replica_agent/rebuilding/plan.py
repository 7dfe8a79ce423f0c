"""The plan of a tree that is made again, and what cannot be proved about it.

All replicas apply the same records in the same order, so the catalog that has applied most has all that the
others have. It decides what the tree says. The others are compared with it, and clone from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from tidelock.csnlog.cluster.start_check import FORMAT_VERSION
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId
from tidelock.csnlog.core.model import REMOVED, STOPPED, STRUCK, ClusterState, Progress, SessionState
from tidelock.csnlog.core.skipped import shown_instead
from tidelock.csnlog.tree_maker import Seat, TreePlan
from tidelock.errors import ClusterMismatchError, ConfigError
from tidelock.replica_agent.rebuilding.facts import CatalogFacts, UndecidedFacts


class Doubts(msgspec.Struct, frozen=True):
    """The limits of what the catalogs prove; an operator has to accept them.

    Attributes:
        absent: Replicas that these catalogs name and whose own catalogs were not given.
        undecided: Transactions that some replica has sealed or received, without an outcome. They count as
            aborted. A client may have been told that one of them is committed.
        suspect: Replicas that would serve from catalogs which they were about to replace by clones, and why.
        lost: Visible parts that no given replica holds.
    """

    absent: tuple[ReplicaId, ...]
    undecided: tuple[UndecidedFacts, ...]
    suspect: Mapping[ReplicaId, str]
    lost: tuple[PartId, ...]


def newest(catalogs: Sequence[CatalogFacts]) -> CatalogFacts:
    """Return the catalog that has applied most; of several the first by the id of its replica."""
    return min(catalogs, key=lambda one: (-one.csn, one.replica))


def require_one_history(catalogs: Sequence[CatalogFacts]) -> None:
    """Raise unless the catalogs belong together.

    Raises:
        ConfigError: None is given, or one replica twice.
        ClusterMismatchError: They are of several clusters or trees, or have applied different records at one
            CSN.
    """
    if not catalogs:
        raise ConfigError("expected at least one data directory (--from), found none")
    names = [one.replica for one in catalogs]
    if len(set(names)) != len(names):
        raise ConfigError(f"expected one data directory of each replica, found {', '.join(sorted(names))}")
    first = newest(catalogs)
    for one in sorted(catalogs, key=lambda other: other.replica):
        for what, here, there in (
            ("cluster", first.cluster_id, one.cluster_id),
            ("incarnation", first.incarnation, one.incarnation),
        ):
            if here != there:
                raise ClusterMismatchError(
                    f"expected replicas of one {what}, found {here} at {first.replica} and {there} at "
                    f"{one.replica}: leave one of them out",
                    expected=here,
                    found=there,
                )
        shown = shown_instead(one.csn, one.skipped.keys(), first.skipped)
        if shown is None:
            shown = shown_instead(first.csn, first.skipped.keys(), one.skipped)
        if shown is not None:
            raise ClusterMismatchError(
                f"one of {first.replica} and {one.replica} has applied the record of CSN {shown}, which an "
                "operator has had skipped, and the other one has passed over it: leave out the one that has "
                "applied it (`tidelock audit` of the other one names the record)",
                csn=shown,
            )
        both = first.zxids.keys() & one.zxids.keys()
        if forks := [csn for csn in sorted(both) if first.zxids[csn] != one.zxids[csn]]:
            raise ClusterMismatchError(
                f"{first.replica} and {one.replica} have applied different records from CSN {forks[0]} on: "
                "ZooKeeper was set back between them. Decide whose commits shall stay, and leave the other "
                "replica out",
                csn=forks[0],
            )


def doubts(catalogs: Sequence[CatalogFacts], *, decided: Collection[str], held: Collection[PartId]) -> Doubts:
    """Return what these catalogs do not prove.

    Args:
        catalogs: See :func:`require_one_history`.
        decided: Transactions among the undecided ones whose commit the newest catalog has applied.
        held: Parts among those that the newest catalog lacks which another given replica holds.
    """
    base = newest(catalogs)
    named = {name for one in catalogs for name in one.boots}
    undecided = {one.tid: one for catalog in catalogs for one in catalog.undecided if one.tid not in decided}
    return Doubts(
        absent=tuple(sorted(named - {one.replica for one in catalogs})),
        undecided=tuple(undecided[tid] for tid in sorted(undecided)),
        suspect={one.replica: one.clone for one in catalogs if one.clone and one.csn == base.csn},
        lost=tuple(part for part in base.lacking if part not in held),
    )


def plan(
    catalogs: Sequence[CatalogFacts], *, copies: int, epoch_limit: int, incarnation: str, time_ms: int
) -> TreePlan:
    """Return the plan of the tree.

    Replicas whose catalogs are behind get the state ``struck``, so that they clone. Ids that are named and
    not given are removed for good: nobody knows how many boots they had.

    Args:
        catalogs: See :func:`require_one_history`.
        copies: Durable copies that a commit needs.
        epoch_limit: Records of an epoch before the log rolls over.
        incarnation: A text that is unique.
        time_ms: The present wall time (Unix, ms).

    Raises:
        ConfigError: There are fewer replicas than ``copies``.
    """
    if copies > len(catalogs):
        raise ConfigError(
            f"expected at least as many replicas as copies of a commit ({copies}), found {len(catalogs)}: "
            "give more data directories, or a lower number with --copies"
        )
    base = newest(catalogs)
    boots: dict[ReplicaId, int] = {}
    for one in catalogs:
        for name, boot in one.boots.items():
            boots[name] = max(boot, boots.get(name, 0))
    seats = {name: _removed(boot) for name, boot in boots.items()}
    for one in catalogs:
        state = STOPPED if one.csn == base.csn else STRUCK
        session = SessionState(boot=boots[one.replica], disk=one.disk, nonce="", state=state)
        seats[one.replica] = Seat(session, Progress(one.csn, one.csn))
    return TreePlan(
        cluster=ClusterState(
            base.cluster_id,
            FORMAT_VERSION,
            copies,
            epoch_limit,
            incarnation,
            {one.disk: one.csn for one in catalogs},
        ),
        end=base.csn,
        # A replica that was about to clone has noted a horizon behind its own position. It has collected only
        # what it had applied.
        horizon=Csn(max(min(one.horizon, one.csn) for one in catalogs)),
        home=base.replica,
        time_ms=time_ms,
        seats=seats,
        tables={name: _definitions(versions) for name, versions in base.tables.items()},
        labels=base.labels,
        skips=base.skips,
        skipped=tuple(base.skipped.values()),
        tags=base.tags,
    )


def _removed(boot: int) -> Seat:
    return Seat(SessionState(boot=boot, disk="", nonce="", state=REMOVED), Progress(CSN_NONE, CSN_NONE))


def _definitions(versions: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the definitions from version 0 on; a version that is forgotten is filled by the next one."""
    return [versions[min(known for known in versions if known >= one)] for one in range(max(versions) + 1)]


def csns_behind(catalogs: Sequence[CatalogFacts]) -> dict[ReplicaId, Csn]:
    """Return the replicas that will clone, and the CSNs that they have applied."""
    base = newest(catalogs)
    return {one.replica: one.csn for one in catalogs if one.csn < base.csn}
