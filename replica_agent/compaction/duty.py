"""The planner of a table's compaction: one agent, the same for all agents that see the same members. Pure.

Rendezvous hashing: each table goes to the replica with the highest hash. So the tables spread evenly, and if
a replica joins or leaves, only its own tables change their planner. While views differ two agents may plan
one table; their transactions meet at the locks of the parts, and one yields.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from tidelock.csnlog.core.ids import ReplicaId, TableName


def planner_of(table: TableName, replicas: Iterable[ReplicaId]) -> ReplicaId | None:
    """Return the replica that plans a table, of those that can; None if no replica can."""
    return max(replicas, key=lambda replica: (_weight(table, replica), replica), default=None)


def _weight(table: TableName, replica: ReplicaId) -> int:
    return xxhash.xxh3_64_intdigest(f"{replica}/{table}".encode())
