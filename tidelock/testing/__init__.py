"""Clusters of real servers for tests, as processes or containers, with handles to kill, cut and fill them.

    with Cluster.processes(folder, replicas=3, zookeepers=3, isolated=True) as cluster:
        db = cluster.connect()
        cluster.network.cut("r1", "r2")
        cluster.node("r3").kill()

`docs/testing.md` shows a fixture of pytest. Importing this package is cheap; `Cluster.containers` alone needs
the extra `tidelock[testing]` and a container engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelock.testing.cluster import Cluster
    from tidelock.testing.network import CLIENTS, Network
    from tidelock.testing.node import Node
else:
    _MODULES = {"Cluster": "cluster", "CLIENTS": "network", "Network": "network", "Node": "node"}

    def __getattr__(name: str) -> object:
        """Return a name at its first use (PEP 562): the agent in this package needs none of them."""
        if name not in _MODULES:
            raise AttributeError(f"module 'tidelock.testing' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"tidelock.testing.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


__all__ = ["CLIENTS", "Cluster", "Network", "Node"]
