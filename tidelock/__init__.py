"""Tidelock: replicated Parquet tables, atomic multi-table transactions, consistent snapshots for Spark.

This package is the users' interface: the client library, the command line and the local cluster. It talks to
replica agents over HTTP only, and contains no part of the protocol, so no code in a user's process can break
the guarantees of the tables. Importing it is cheap and has no side effect: `connect`, `join` and the error
classes are loaded at their first use, and ZooKeeper, Spark and Java are not touched before a call needs them.
The sub-packages csnlog, replication and replica_agent are internal to the agents: their interfaces may
change.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelock.client import connect, join
    from tidelock.errors import *  # noqa: F403 - exactly the names that __getattr__ finds at run time

    __version__: str
else:

    def __getattr__(name: str) -> object:
        """Return `connect`, `join`, `__version__` or an error class, loaded at first use (PEP 562)."""
        if name in {"connect", "join"}:
            value = getattr(importlib.import_module("tidelock.client"), name)
        elif name == "__version__":
            value = importlib.import_module("importlib.metadata").version("tidelock")
        elif (
            name.endswith("Error") and name in (errors := importlib.import_module("tidelock.errors")).__all__
        ):
            value = getattr(errors, name)
        else:
            raise AttributeError(f"module 'tidelock' has no attribute {name!r}")
        globals()[name] = value
        return value


__all__ = ["__version__", "connect", "join"]
