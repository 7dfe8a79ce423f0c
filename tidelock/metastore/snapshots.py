"""The snapshots that the tables of a metastore are read at, each pinned for as long as it is asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelock.client import Database, Snapshot
from tidelock.loopback_names import reachable
from tidelock.read_route import ReadRoute, route_of
from tidelock.wire.tables import TableInfo

#: How long a CSN stays pinned after the last question about it, in seconds. After that the retention of
#: history counts, and what readers of its files pin themselves.
IDLE_S: Final = 900.0
#: How long the list of replicas is used before it is asked for again, in seconds.
_ROUTE_S: Final = 10.0

_PARTITIONS: Final = """
    SELECT partition, rows, bytes FROM system.partitions
    WHERE namespace = ? AND table_name = ? ORDER BY partition
"""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition at a CSN: its path below the table's folder, its rows and bytes."""

    path: str
    rows: int
    bytes: int


@dataclass(slots=True)
class _Known:
    """A pinned CSN with what was asked at it, which never changes."""

    snapshot: Snapshot
    tables: Mapping[str, TableInfo]
    used: float
    namespaces: list[str] | None = None
    partitions: dict[str, list[Partition]] = field(default_factory=dict)


class Snapshots:
    """The tables and partitions at each CSN; for many threads.

    Args:
        db: The cluster. It is closed by its owner.
        replica: The replica that Spark reads from as long as it answers; None: any.
        authority: The name service of the replicas, where Spark's settings have it; None: each table has it.
        idle_s: How long a CSN stays pinned after the last question about it.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        db: Database,
        *,
        replica: str | None = None,
        authority: str | None = None,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._replica = replica
        self._authority = authority
        self._idle_s = idle_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._route: tuple[float, ReadRoute] | None = None

    def newest(self) -> int:
        """Return the newest CSN that a query can read, pinned.

        Raises:
            UnavailableError, StandbyError: As `Database.snapshot`.
        """
        snapshot = self._db.snapshot()
        with self._lock:
            known = self._known.get(snapshot.csn)
            if known is not None:
                known.used = self._clock()
        if known is None:
            self._add(snapshot)
        else:
            snapshot.close()
        return snapshot.csn

    def tag(self, name: str) -> int | None:
        """Return the CSN of a tag, whose case does not count; None if there is none."""
        return next((tag.csn for tag in self._db.tags() if tag.name.lower() == name.lower()), None)

    def tables(self, csn: int) -> Mapping[str, TableInfo]:
        """Return the tables at a CSN, by name.

        Raises:
            NoSuchCsnError, SnapshotTooOldError, StandbyError, UnavailableError: As `Database.snapshot`.
        """
        return self._at(csn).tables

    def namespaces(self, csn: int) -> list[str]:
        """Return the namespaces at a CSN; errors as `tables`."""
        known = self._at(csn)
        if known.namespaces is None:
            known.namespaces = sorted(one.name for one in self._db.namespaces(csn=csn))
        return known.namespaces

    def partitions(self, csn: int, table: str) -> list[Partition]:
        """Return the partitions of a table at a CSN, by path; errors as `tables`."""
        known = self._at(csn)
        if (found := known.partitions.get(table)) is None:
            namespace, _, name = table.rpartition(".")
            rows = known.snapshot.sql(_PARTITIONS, [namespace, name]).to_pylist()
            found = [Partition(row["partition"], row["rows"], row["bytes"]) for row in rows]
            known.partitions[table] = found
        return found

    def route(self) -> ReadRoute:
        """Return the way to the replicas.

        Raises:
            BadRequestError, StandbyError: The preferred replica cannot be read from.
            UnavailableError: No replica answers.
        """
        now = self._clock()
        if self._route is None or now - self._route[0] > _ROUTE_S:
            self._route = now, route_to(self._db, self._replica, self._authority)
        return self._route[1]

    def close(self) -> None:
        """Release all pins."""
        with self._lock:
            known, self._known = list(self._known.values()), {}
        for one in known:
            one.snapshot.close()

    def _at(self, csn: int) -> _Known:
        with self._lock:
            if (known := self._known.get(csn)) is not None:
                known.used = self._clock()
                return known
        return self._add(self._db.snapshot(csn))

    def _add(self, snapshot: Snapshot) -> _Known:
        """Keep a snapshot, and let go those that nobody has asked for."""
        made = _Known(snapshot, {row.name: row for row in snapshot.tables()}, self._clock())
        with self._lock:
            known = self._known.setdefault(snapshot.csn, made)
            idle_since = self._clock() - self._idle_s
            idle = [csn for csn, one in self._known.items() if one.used < idle_since]
            ended = [self._known.pop(csn) for csn in idle]
        if known is not made:  # another thread was faster
            snapshot.close()
        for one in ended:
            one.snapshot.close()
        return known


def route_to(db: Database, replica: str | None, authority: str | None) -> ReadRoute:
    """Return the way to the replicas of a cluster; see `Snapshots`, errors as of `Snapshots.route`."""
    return route_of(db.status(), pinned=replica, rotation=0, reach=reachable, authority=authority)
