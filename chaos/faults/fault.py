"""The interface of a fault: it happens to nodes of a cluster, is proven to have happened, and heals."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import ClassVar

from chaos.world import World


class Aim(StrEnum):
    """The target of a fault; a plan draws it."""

    REPLICA = "one replica"
    PAIR = "two replicas"
    ZOOKEEPER = "one server of ZooKeeper"
    ALL = "the whole cluster"
    CLIENT = "sessions of Spark"


class NotPossibleError(Exception):
    """A fault finds nothing to harm, as no session of Spark that runs a job; nothing was done."""


class Proof(ABC):
    """Says whether a fault has had its effect."""

    @abstractmethod
    def seen(self) -> str | None:
        """Return what proves the effect, in a few words; None as long as nothing does.

        It is asked again and again while the fault acts, and once more after it was healed.
        """


class Fault(ABC):
    """One kind of fault. It holds no state: each call of `inject` is a fault of its own."""

    #: Its name, in plans, reports, and on the command line.
    kind: ClassVar[str]
    aim: ClassVar[Aim]
    #: Whether its targets cannot be counted as well while it acts, for tolerance and demand of commits.
    harms: ClassVar[bool] = True
    #: Whether no commit can be demanded while it acts, for lack of servers of ZooKeeper or of copies.
    halts: ClassVar[bool] = False
    #: Whether no other fault may act at the same time.
    alone: ClassVar[bool] = False
    #: Whether the data of its targets is lost: every commit must be on `copies` others before.
    loses_disk: ClassVar[bool] = False
    #: Whether the disk of its targets fails or is full, and no data is lost: its agent may stop for it.
    hurts_disk: ClassVar[bool] = False
    #: Whether bytes of its targets become others: it may show other rows until they are mended.
    flips_bits: ClassVar[bool] = False
    #: Whether a run ends with it: what it leaves is well, but the log before it cannot be read any more.
    last: ClassVar[bool] = False
    #: Seconds that it acts, at least and at most, of which the plan draws one.
    lasts_s: ClassVar[tuple[float, float]] = (2.0, 12.0)
    #: Where it can be injected: processes, containers.
    places: ClassVar[frozenset[str]] = frozenset({"processes", "containers"})

    @classmethod
    def lack(cls) -> str:
        """Return what this machine lacks for it; "" = nothing. It is asked before a run begins."""
        return ""

    @abstractmethod
    def inject(
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> AbstractContextManager[Proof]:
        """Do the harm; the block is left when the plan says so, and then it is healed.

        Args:
            world: The run.
            targets: The nodes, as `aim` says.
            chosen: The source of what is drawn besides.

        Raises:
            NotPossibleError: There is nothing to harm: the fault is left out.
            TidelockError, OSError: It could not be injected, or not healed: the run fails.
        """
