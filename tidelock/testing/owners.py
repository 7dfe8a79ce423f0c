"""The owner of what a test starts: the process that ends it, and after whose death anybody may remove it.

Everything carries the owner: containers, networks and volumes as a label, namespaces and mounts in their
names, processes in their environment. An owner names a process forever, so a later process with its pid has
another.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final, Self

from tidelock import processes
from tidelock.processes import Identity

#: Label of containers, networks and volumes; its value is the owner.
LABEL: Final = "tidelock.owner"
#: Variable of processes; its value is the name of the cluster.
VARIABLE: Final = "TIDELOCK_TESTING_CLUSTER"
_PREFIX: Final = "tidelock"
_numbers: Final = itertools.count(1)


def owner_of(process: Identity) -> str:
    """Return the owner that stands for a process: no later process has the same."""
    return f"{process.pid}@{process.start_ticks}@{process.boot_id}"


def ownerless(owner: str) -> bool:
    """Return whether an owner is a process that has ended; False for a text of another form."""
    pid, _, rest = owner.partition("@")
    ticks, _, boot = rest.partition("@")
    if not (pid.isdecimal() and ticks.isdecimal() and boot):
        return False
    return not processes.alive(Identity(int(pid), int(ticks), boot))


@dataclass(frozen=True, slots=True)
class ClusterName:
    """The name of a cluster: its owner, and its number among the clusters of that process."""

    owner: str
    number: int

    @classmethod
    def fresh(cls) -> Self:
        """Return the name of another cluster of this process."""
        return cls(owner_of(processes.me()), next(_numbers))

    def __str__(self) -> str:
        return f"{_PREFIX}.{self.owner}.{self.number}"

    @property
    def short(self) -> str:
        """A name for what allows few characters; only a cluster of a dead owner may have the same."""
        return f"{_PREFIX}-{self.owner.partition('@')[0]}-{self.number}"

    @property
    def interface(self) -> str:
        """The name of the machine's end of a wire to the cluster: 15 characters at most."""
        return f"tl{self.owner.partition('@')[0]}-{self.number % 10_000}"

    def of(self, node: str) -> str:
        """Return the name of what belongs to one node of the cluster."""
        return f"{self}.{node}"


def left_behind(name: str) -> bool:
    """Return whether a name is that of a cluster whose owner has ended, or of a part of such a cluster."""
    prefix, _, rest = name.partition(".")
    return prefix == _PREFIX and ownerless(rest.partition(".")[0])
