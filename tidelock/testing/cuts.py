"""The packets that are dropped, as rules of iptables in the namespaces of the nodes. Pure.

A packet between two nodes is dropped where it arrives, one to the clients where it is sent: the machine
itself gets no rules. All cuts of a namespace jump to one chain, whose only rule drops and counts. The chains
of cuts are written again with each change, and that one is kept, so its counter never goes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

#: The interface of a node in its namespace.
INTERFACE: Final = "eth0"
#: The endpoint name of everything that runs on the host.
CLIENTS: Final = "clients"
DROP: Final = "TIDELOCK-DROP"
_ARRIVING: Final = "TIDELOCK-IN"
_LEAVING: Final = "TIDELOCK-OUT"

#: Input of iptables-restore that makes all chains in a namespace without rules.
CHAINS: Final = f"""\
*filter
:{DROP} - [0:0]
:{_ARRIVING} - [0:0]
:{_LEAVING} - [0:0]
-A {DROP} -j DROP
-I INPUT -j {_ARRIVING}
-I OUTPUT -j {_LEAVING}
COMMIT
"""


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts that are wanted.

    Attributes:
        ways: Pairs of names: what the first one sends to the second one is dropped.
        alone: The names that are isolated, also from nodes that are added later.
        lossy: Names, each with the share of its packets that is lost.
    """

    ways: frozenset[tuple[str, str]] = frozenset()
    alone: frozenset[str] = frozenset()
    lossy: frozenset[tuple[str, float]] = frozenset()

    def cut(self, a: str, b: str, *, one_way: bool) -> Cuts:
        """Return the cuts with one more: both ways, or only what `a` sends to `b`."""
        return replace(self, ways=self.ways | ({(a, b)} if one_way else {(a, b), (b, a)}))

    def isolate(self, name: str) -> Cuts:
        """Return the cuts with a node that is isolated."""
        return replace(self, alone=self.alone | {name})

    def rejoin(self, name: str) -> Cuts:
        """Return the cuts without the isolation of a node; cuts between it and one other stay."""
        return replace(self, alone=self.alone - {name})

    def join(self, a: str, b: str, everybody: Iterable[str]) -> Cuts:
        """Return the cuts without those between `a` and `b`; an isolated one stays cut from all others."""
        ways, names = set(self.ways), {*everybody}
        for name in self.alone & {a, b}:
            ways |= {way for other in names - {name} for way in ((name, other), (other, name))}
        return replace(self, ways=frozenset(ways - {(a, b), (b, a)}), alone=self.alone - {a, b})

    def lose(self, name: str, share: float) -> Cuts:
        """Return the cuts with a node that loses a share of its packets; 0: with one that loses none."""
        others = frozenset(loss for loss in self.lossy if loss[0] != name)
        return replace(self, lossy=others | {(name, share)} if share else others)

    def between(self, sender: str, receiver: str) -> bool:
        """Return whether what the one sends to the other is dropped."""
        return (sender, receiver) in self.ways or bool(self.alone & {sender, receiver})

    def rules(self, name: str, addresses: Mapping[str, str]) -> str:
        """Return the input of `iptables-restore --noflush` for the namespace of a node.

        Args:
            name: The node.
            addresses: The address of each node and of `CLIENTS`.
        """
        others = [other for other in sorted(addresses) if other != name]
        arriving = [
            f"-A {_ARRIVING} -s {addresses[other]} -j {DROP}" for other in others if self.between(other, name)
        ]
        leaving = [f"-A {_LEAVING} -d {addresses[CLIENTS]} -j {DROP}"] if self.between(name, CLIENTS) else []
        # Packets of a node to itself do not pass the interface, so none of them is lost.
        lost = [
            f"-A {chain} {side} {INTERFACE} -m statistic --mode random --probability {share} -j {DROP}"
            for loser, share in sorted(self.lossy)
            if loser == name
            for chain, side in ((_ARRIVING, "-i"), (_LEAVING, "-o"))
        ]
        rules = [*arriving, *leaving, *lost]
        lines = ["*filter", f":{_ARRIVING} - [0:0]", f":{_LEAVING} - [0:0]", *rules, "COMMIT"]
        return "".join(f"{line}\n" for line in lines)


def dropped(listing: str) -> int:
    """Return the number of packets that `iptables -nvxL TIDELOCK-DROP` shows."""
    for line in listing.splitlines():
        fields = line.split()
        if fields[2:3] == ["DROP"]:
            return int(fields[0])
    raise ValueError(f"expected the rule of chain {DROP}, found: {listing!r}")


def held_back(listing: str) -> int:
    """Return how often a packet had to wait for its turn, as `tc -s qdisc show` says."""
    return sum(int(count) for count in re.findall(r"\boverlimits (\d+)\b", listing))
