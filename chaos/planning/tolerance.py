"""The rule of which faults may act at the same time without asking for more than is promised. Pure.

A cluster promises commits as long as `copies` replicas are well and can reach each other, and a majority of
ZooKeeper's servers is there. It promises that nothing is lost as long as fewer than `copies` disks are lost
before their commits are on others again. So faults may be combined as anybody likes, but for what breaks one
of the two promises; and no two of them act on the same node, since the end of one would heal the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from chaos.faults.fault import Aim, Fault

#: Aims that name replicas.
OF_REPLICAS = frozenset({Aim.REPLICA, Aim.PAIR})


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster, as far as tolerance depends on it.

    Attributes:
        replicas: The members.
        zookeepers: The servers of ZooKeeper.
        copies: Durable copies of a commit.
    """

    replicas: tuple[str, ...]
    zookeepers: tuple[str, ...]
    copies: int


@dataclass(frozen=True, slots=True)
class Act:
    """A fault that acts, by what it does; the fields are those of `Fault`."""

    kind: str
    aim: Aim
    targets: tuple[str, ...]
    harms: bool = True
    halts: bool = False
    alone: bool = False
    loses_disk: bool = False

    @classmethod
    def of(cls, fault: type[Fault], targets: Iterable[str]) -> Act:
        """Return what a kind of fault does to these targets."""
        return cls(
            fault.kind,
            fault.aim,
            tuple(targets),
            harms=fault.harms,
            halts=fault.halts,
            alone=fault.alone,
            loses_disk=fault.loses_disk,
        )


def choices(shape: Shape, aim: Aim) -> list[tuple[str, ...]]:
    """Return everything that a fault with an aim can be aimed at."""
    match aim:
        case Aim.REPLICA:
            return [(replica,) for replica in shape.replicas]
        case Aim.PAIR:
            return list(itertools.permutations(shape.replicas, 2))
        case Aim.ZOOKEEPER:
            return [(server,) for server in shape.zookeepers]
        case Aim.ALL:
            return [(*shape.replicas, *shape.zookeepers)]
        case Aim.CLIENT:
            return [()]


def unharmed(shape: Shape, acts: Collection[Act]) -> tuple[str, ...]:
    """Return the replicas that no fault has harmed as a whole.

    A fault of the whole cluster that harms leaves none: which replica it harms when is not known.
    """
    if any(act.aim is Aim.ALL and act.harms for act in acts):
        return ()
    harmed = {target for act in acts if act.harms and act.aim is Aim.REPLICA for target in act.targets}
    return tuple(replica for replica in shape.replicas if replica not in harmed)


def well(shape: Shape, acts: Collection[Act]) -> frozenset[str]:
    """Return the replicas that can commit: each reaches `copies` unharmed ones, itself included.

    Two replicas that are cut from each other, even one way only, confirm nothing to each other; a third one
    confirms to both. The rule of copies asks how many confirm, not which (docs/design/protocol-rules.md).
    """
    if not zookeeper_is_there(shape, acts):
        return frozenset()
    standing = unharmed(shape, acts)
    cuts = {frozenset(act.targets) for act in acts if act.aim is Aim.PAIR and act.harms}
    return frozenset(
        one
        for one in standing
        if sum(one == other or frozenset({one, other}) not in cuts for other in standing) >= shape.copies
    )


def zookeeper_is_there(shape: Shape, acts: Collection[Act]) -> bool:
    """Return whether a majority of ZooKeeper's servers is there."""
    absent = _absent(shape, acts)
    return not any(act.halts for act in acts) and 2 * len(absent) < len(shape.zookeepers)


def demands_commits(shape: Shape, acts: Collection[Act]) -> bool:
    """Return whether commits are promised while these faults act."""
    return len(well(shape, acts)) >= shape.copies


def refusal(shape: Shape, acts: Sequence[Act], fresh: Act) -> str | None:
    """Return why a fault may not begin while others act; None if it may."""
    if fresh.alone and acts:
        return f"{fresh.kind} is alone, and {acts[0].kind} acts"
    if blocking := [act.kind for act in acts if act.alone]:
        return f"{blocking[0]} is alone"
    if any(act.kind == fresh.kind for act in acts):
        return f"{fresh.kind} acts"
    if fresh.aim in OF_REPLICAS and not set(fresh.targets) <= {*shape.replicas, *shape.zookeepers}:
        return f"{', '.join(fresh.targets)}: not all of them are there"
    taken = {target for act in acts if act.aim is not Aim.ALL for target in act.targets}
    if fresh.aim is not Aim.ALL and (both := taken & {*fresh.targets}):
        return f"{min(both)} is the target of another fault"
    if fresh.halts or any(act.halts for act in acts):
        return _beside_a_halt(acts, fresh)
    together = [*acts, fresh]
    if not zookeeper_is_there(shape, together):
        return "no majority of ZooKeeper would be left"
    whole = [act for act in together if act.aim is Aim.ALL and act.harms]
    if whole and len([act for act in together if act.harms]) > 1:
        return f"{whole[0].kind} touches every replica"
    if not whole and not demands_commits(shape, together):
        return f"fewer than {shape.copies} replicas would be well"
    if fresh.loses_disk and 1 + sum(act.loses_disk for act in acts) >= shape.copies:
        return "a commit might lose its last copy"
    return None


def _beside_a_halt(acts: Sequence[Act], fresh: Act) -> str | None:
    """Nothing commits, so any replica may suffer; but the other servers are left alone, and all disks."""
    several = [*acts, fresh]
    if sum(act.halts for act in several) > 1:
        return "commits are halted by one fault at a time"
    for act in several:
        if act.loses_disk:
            return "no disk is lost while commits are halted"
        if not act.halts and act.harms and act.aim not in {Aim.REPLICA, Aim.PAIR, Aim.CLIENT}:
            return f"{act.kind} is not beside a fault that halts commits"
    return None


def _absent(shape: Shape, acts: Collection[Act]) -> set[str]:
    """Return the servers that are away, or may be: also a harmless fault may pick one of them to die."""
    down = {target for act in acts if act.aim is Aim.ZOOKEEPER for target in act.targets}
    return down & set(shape.zookeepers)
