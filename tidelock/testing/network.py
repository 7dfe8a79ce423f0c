"""The network between the nodes of a cluster, and what a test does to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidelock.errors import BadRequestError, ConfigError
from tidelock.testing import commands
from tidelock.testing.cuts import CHAINS, CLIENTS, DROP, INTERFACE, Cuts, dropped, held_back

__all__ = ["CLIENTS", "Network"]

#: A slowed node sends so many bytes at once at most, and what has waited longer (ms) is dropped.
_BURST_BYTES_MIN: Final = 32 << 10
_LATENCY_MS: Final = 400


class Network:
    """Cuts and brakes between nodes, by rules in each node's own network namespace.

    The namespace stays while a node is killed and starts again, and so do the rules. A cut drops packets
    without an answer, as a broken switch does: connections stay open and nobody is told. All methods raise
    ConfigError if the cluster has no namespaces, and BadRequestError for an unknown name. Any number of
    threads may use the object.

    Args:
        host: The address under which the nodes see the host; None: the nodes have no namespaces.
        lack: What to do to get namespaces, for the error.
    """

    def __init__(self, host: str | None, *, lack: str = "") -> None:
        self._addresses: dict[str, str] = {} if host is None else {CLIENTS: host}
        self._namespaces: dict[str, Path] = {}
        self._slowed: set[str] = set()
        self._lack = lack
        self._cuts = Cuts()
        self._lock = threading.RLock()

    def attach(self, name: str, address: str, namespace: Path) -> None:
        """Take a node in, whose namespace has no rules yet; the cluster calls this."""
        with self._lock:
            self._addresses[name] = address
            self._namespaces[name] = namespace
            self._run(name, "iptables-restore", "--noflush", given=CHAINS)
            self._change(lambda cuts: cuts)

    def detach(self, name: str) -> None:
        """Leave a node out whose namespace is about to be removed; the cluster calls this."""
        with self._lock:
            del self._addresses[name], self._namespaces[name]

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Drop the packets between two endpoints from now on.

        Args:
            a: Name of a node, or `CLIENTS`.
            b: The other one.
            one_way: Only what `a` sends to `b` is dropped.
        """
        self._require(a, b)
        self._change(lambda cuts: cuts.cut(a, b, one_way=one_way))

    def join(self, a: str, b: str) -> None:
        """End all cuts between two endpoints, in both directions."""
        self._require(a, b)
        self._change(lambda cuts: cuts.join(a, b, self._addresses))

    def isolate(self, name: str) -> None:
        """Cut a node from every other node, from nodes that are added later, and from the clients."""
        self._require_node(name)
        self._change(lambda cuts: cuts.isolate(name))

    def rejoin(self, name: str) -> None:
        """End the isolation of a node; cuts between it and one other node stay."""
        self._require_node(name)
        self._change(lambda cuts: cuts.rejoin(name))

    def slow(self, name: str, bytes_per_s: int) -> None:
        """Let a node send only so many bytes per second, to all others together; 0 ends that."""
        self._require_node(name)
        if bytes_per_s < 0:
            raise BadRequestError(f"expected 0 or more bytes per second, found {bytes_per_s}")
        if bytes_per_s:
            # At 1000 ticks of the kernel per second a bucket must hold what is sent in one of them.
            burst = max(_BURST_BYTES_MIN, bytes_per_s // 100)
            rate = ("rate", f"{8 * bytes_per_s}bit", "burst", str(burst), "latency", f"{_LATENCY_MS}ms")
            self._run(name, "tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *rate)
            self._slowed.add(name)
        elif name in self._slowed:
            self._run(name, "tc", "qdisc", "del", "dev", INTERFACE, "root")
            self._slowed.remove(name)

    def lose(self, name: str, share: float) -> None:
        """Lose a share of the packets that a node gets and sends, drawn one by one; 0 ends that."""
        self._require_node(name)
        if not 0 <= share < 1:
            raise BadRequestError(f"expected a share of 0 or more and less than 1, found {share}")
        self._change(lambda cuts: cuts.lose(name, share))

    def heal(self) -> None:
        """End all cuts and losses, and let all nodes send as fast as they can."""
        self._require()
        self._change(lambda _: Cuts())
        for name in sorted(self._slowed):
            self.slow(name, 0)

    def dropped(self, name: str) -> int:
        """Return how many packets a node's cuts have dropped since its namespace was made.

        A packet between nodes is counted at the one that should have received it, a packet to the clients at
        the node that has sent it.
        """
        self._require_node(name)
        return dropped(self._run(name, "iptables", "-w", "-nvxL", DROP))

    def held_back(self, name: str) -> int:
        """Return how often packets of a node have had to wait since it was slowed; 0 while it is not."""
        self._require_node(name)
        return held_back(self._run(name, "tc", "-s", "qdisc", "show", "dev", INTERFACE))

    def _change(self, changed: Callable[[Cuts], Cuts]) -> None:
        """Change the cuts, and write the rules of all nodes; those of one namespace change at once."""
        with self._lock:  # or a cut that another thread makes at the same time would be forgotten
            self._cuts = changed(self._cuts)
            for name in self._namespaces:
                rules = self._cuts.rules(name, self._addresses)
                self._run(name, "iptables-restore", "--noflush", given=rules)

    def _run(self, name: str, *command: str, given: str = "") -> str:
        return commands.run("nsenter", f"--net={self._namespaces[name]}", *command, given=given)

    def _require(self, *names: str) -> None:
        if not self._addresses:
            raise ConfigError(f"expected nodes with networks of their own, found none; {self._lack}")
        if unknown := [name for name in names if name not in self._addresses]:
            raise BadRequestError(
                f"expected names of {', '.join(self._addresses)}, found {', '.join(unknown)}"
            )

    def _require_node(self, name: str) -> None:
        self._require(name)
        if name == CLIENTS:
            raise BadRequestError(f"expected the name of a node, found {CLIENTS!r}, which is this machine")
