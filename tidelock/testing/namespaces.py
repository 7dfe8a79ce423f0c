"""Network namespaces of nodes that are processes, wired to one switch.

The switch is a bridge in a namespace of its own. In the machine's namespace its packets would pass the rules
that a container engine or a firewall has made there: `net.bridge.bridge-nf-call-iptables` hands them over.
The machine has one end of a wire to it, with the first address of the network. That end disappears with the
switch.

Named namespaces stay when no process is left in them. Their names say which cluster they belong to.
"""

from __future__ import annotations

import contextlib
import tempfile
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from tidelock import processes
from tidelock.errors import UnavailableError
from tidelock.testing import commands, subnets
from tidelock.testing.cuts import INTERFACE
from tidelock.testing.owners import ClusterName, left_behind

#: Where `ip netns` keeps the names.
_FOLDER: Final = Path("/run/netns")
_SWITCH: Final = "switch"
_BRIDGE: Final = "bridge"
#: Held from the choice of a network until the machine has its route, by all processes that choose.
_LOCK: Final = Path(tempfile.gettempdir()) / "tidelock-testing-networks.lock"


class Wiring:
    """The switch of a cluster, and the namespaces of its nodes. ConfigError where that is not possible.

    Attributes:
        host: The address under which the nodes see the host.
    """

    def __init__(self, name: ClusterName) -> None:
        commands.require("isolated=True")
        self._name = name
        self._switch = name.of(_SWITCH)
        self._made = 0
        with processes.locked(_LOCK):
            self._network = _free_network()
            self.host = self._next_address()
            self._make_switch()

    def add(self, node: str) -> str:
        """Make the namespace of a node, wire it to the switch, and return its address."""
        namespace, address = self._name.of(node), self._next_address()
        # The name of an interface has 15 characters at most, and that of a node may have more.
        port = f"port{self._made}"
        commands.run("ip", "netns", "add", namespace)
        wire = ("link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", self._switch)
        commands.run("ip", "-n", namespace, *wire)
        commands.run("ip", "-n", self._switch, "link", "set", port, "master", _BRIDGE, "up")
        commands.run("ip", "-n", namespace, "addr", "add", self._in_network(address), "dev", INTERFACE)
        for interface in ("lo", INTERFACE):
            commands.run("ip", "-n", namespace, "link", "set", interface, "up")
        return address

    def remove(self, node: str) -> None:
        """Remove the namespace of a node that was never started."""
        remove([self._name.of(node)])

    def path(self, node: str) -> Path:
        """Return the file of a node's namespace, which nsenter(1) takes."""
        return _FOLDER / self._name.of(node)

    def close(self) -> None:
        """Remove all namespaces, which no process may use any more."""
        remove([name for name in names() if name.startswith(f"{self._name}.")])

    def _make_switch(self) -> None:
        end = self._name.interface
        commands.run("ip", "netns", "add", self._switch)
        commands.run("ip", "-n", self._switch, "link", "add", _BRIDGE, "type", "bridge")
        commands.run("ip", "-n", self._switch, "link", "set", _BRIDGE, "up")
        commands.run("ip", "link", "add", end, "type", "veth", "peer", "name", "host", "netns", self._switch)
        commands.run("ip", "-n", self._switch, "link", "set", "host", "master", _BRIDGE, "up")
        commands.run("ip", "addr", "add", self._in_network(self.host), "dev", end)
        commands.run("ip", "link", "set", end, "up")

    def _next_address(self) -> str:
        self._made += 1
        address = self._network.network_address + self._made
        if address >= self._network.broadcast_address:
            raise UnavailableError(f"{self._network} has no address left; use another cluster")
        return str(IPv4Address(address))

    def _in_network(self, address: str) -> str:
        return f"{address}/{self._network.prefixlen}"


def names() -> list[str]:
    """Return the names of all namespaces of this machine."""
    try:
        return sorted(file.name for file in _FOLDER.iterdir())
    except FileNotFoundError:
        return []


def remove(namespaces: list[str]) -> None:
    """Remove namespaces; nothing happens to one that somebody else has removed meanwhile."""
    for namespace in namespaces:
        with contextlib.suppress(UnavailableError):
            commands.run("ip", "netns", "del", namespace)


def sweep() -> None:
    """Remove the namespaces that dead owners have left behind; their processes are dead already."""
    remove([name for name in names() if left_behind(name)])


def _free_network() -> IPv4Network:
    routes = commands.run("ip", "-json", "-4", "route", "show", "table", "all")
    network = subnets.free(subnets.used(routes))
    if network is None:
        raise UnavailableError(
            "expected a free network for a cluster, found routes to all of them; end other clusters"
        )
    return network
