"""The route of a DataFrame to the replicas: a name service of Hadoop's client, as reader options. Pure.

All settings are options of one DataFrame. So they work on a session of any kind that has started long ago,
change nothing for other reads, and override the configuration of the session (rule reader-options).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelock.errors import BadRequestError, StandbyError, TidelockError, UnavailableError
from tidelock.wire.rows import Fields

#: How long a reader that can ask another replica waits for a connection, and for the next byte of an answer,
#: in seconds. A replica that works on an answer says so every `SIGN_S` (`replica_agent/readers/signs.py`), so
#: one that is silent for this long is frozen, or gone. Hadoop's client waits twice where a replica freezes in
#: the middle of a file: it asks the same one again before it goes on (see docs/spark-settings.md). Both
#: together stay below 3 s.
SILENCE_S = 1.25
#: How long a reader waits that has one replica only, in seconds: for a connection, and beyond the agents'
#: `read_wait_s` for the next byte. To leave it early wins nothing.
LONE_CONNECT_S = 2.0
LONE_READ_MARGIN_S = 7.0
#: Number of tries of a request for each replica before it fails, also of the data source. The agents wait,
#: not the client between the tries. Like the other constants here, this one follows from the behaviour of
#: Hadoop's client and is no setting; users tune the agents' `read_wait_s`.
ROUNDS = 8
#: Length of the list of addresses, see `_addresses`. A JVM that runs more tasks than this may try a replica
#: again that it has given up.
ADDRESSES = 32

_PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"

#: Options that keep rows from being wrong or missing, whatever the session says, and reads from being slow.
READER_OPTIONS: Mapping[str, str] = {
    # A part that cannot be read must fail the job, not shrink its result. Production sessions often set both
    # to true.
    "ignoremissingfiles": "false",
    "ignorecorruptfiles": "false",
    # The schema comes from the table's definition. Merging would read every footer to find it.
    "mergeschema": "false",
    # Parts hold proleptic Gregorian dates. A session set to LEGACY would shift those before 1582.
    "datetimerebasemode": "CORRECTED",
    # Hadoop's WebHDFS client has no vectored reads; emulated, each short read opens the file again.
    "parquet.hadoop.vectored.io.enabled": "false",
}

#: States of a replica that may never serve this snapshot. Its refusal would fail a job that other replicas
#: can finish.
_EXCLUDED = frozenset({"struck", "removed"})


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: its id and the ``host:port`` of its snapshot file system."""

    id: str
    data: str


@dataclass(frozen=True, slots=True)
class ReadRoute:
    """How to reach the replicas.

    Attributes:
        authority: Name of the service in ``webhdfs://<authority>/snapshots/...``. It contains a digest of the
            configuration, since Hadoop's client keeps one file system per authority until its process ends,
            with the options of the first use.
        options: Reader options of a DataFrame; all names in lower case, as Spark passes them on.
    """

    authority: str
    options: Mapping[str, str]

    def folder(self, csn: int, namespace: str, table: str | None = None) -> str:
        """Return the folder of a namespace at a CSN, or of a table of it."""
        path = f"webhdfs://{self.authority}/snapshots/{csn}/{namespace}"
        return path if table is None else f"{path}/{table}"


def order(rows: Iterable[Fields], *, pinned: str | None, rotation: int) -> list[Replica]:
    """Return the replicas in the order in which a reader tries them.

    The pinned replica comes first. The others follow in an order rotated by ``rotation``, so that readers
    spread over them; silent replicas come last.

    Args:
        rows: ``replicas`` of an agent's status.
        pinned: Id of the preferred replica, or None.
        rotation: Any number.

    Raises:
        BadRequestError: The replica ``pinned`` does not exist, or was removed.
        StandbyError: It is a member, and cannot be read now: it joins, or it is struck.
        UnavailableError: No replica has an address.
    """
    known = list(rows)
    readable = [row for row in known if row.get("data") and row.get("state") not in _EXCLUDED]
    if pinned is not None and pinned not in {row["id"] for row in readable}:
        raise _not_readable(pinned, known, ", ".join(row["id"] for row in readable) or "none")
    if not readable:
        raise UnavailableError(
            "no replica has published the address of its snapshot file system yet; see `tidelock status`"
        )
    start = rotation % len(readable)
    rotated = readable[start:] + readable[:start]
    rotated.sort(
        key=lambda row: (row["id"] != pinned, not row.get("alive", True))
    )  # stable: the rotation stays
    return [Replica(row["id"], row["data"]) for row in rotated]


def _not_readable(pinned: str, known: Iterable[Fields], names: str) -> TidelockError:
    states = {row["id"]: row.get("state") or "joining" for row in known}
    if states.get(pinned, "removed") == "removed":
        return BadRequestError(
            f"there is no replica {pinned!r} to read from; readable replicas: {names}", replica=pinned
        )
    return StandbyError(
        f"replica {pinned!r} cannot be read now, it is {states[pinned]}; try again later, or read from "
        f"one of: {names}",
        replica=pinned,
    )


def timeouts_s(status: Fields, replicas: int) -> tuple[float, float]:
    """Return how long a reader that can ask so many replicas waits for one, in seconds.

    First for a connection, then for the next byte of an answer.

    Args:
        status: An agent's status.
        replicas: The number of replicas.
    """
    if replicas > 1:
        return SILENCE_S, SILENCE_S
    return LONE_CONNECT_S, float(status["read_wait_s"]) + LONE_READ_MARGIN_S


def route(
    replicas: Sequence[Replica],
    status: Fields,
    *,
    failover: bool,
    name_services: Iterable[str] = (),
    authority: str | None = None,
) -> ReadRoute:
    """Return the route to ``replicas``, tried in this order.

    Args:
        replicas: At least one; without ``failover`` only the first is used.
        status: An agent's status, which says how long agents wait for a CSN before they refuse a read of it.
        failover: Go on to the next replica when one is dead, frozen, behind or has a damaged part.
        name_services: The session's values of ``dfs.nameservices``; kept, since they may name the HDFS of
            the user's cluster.
        authority: The name of the service, where processes know it from their settings; None: one that no
            other configuration has.
    """
    used = list(replicas if failover else replicas[:1])
    tries = ROUNDS * len(used) if failover else 1
    connect_s, read_s = timeouts_s(status, len(used))
    connection = {
        "dfs.webhdfs.socket.connect-timeout": _milliseconds(connect_s),
        "dfs.webhdfs.socket.read-timeout": _milliseconds(read_s),
        "dfs.http.client.retry.max.attempts": str(tries - 1),
        "dfs.http.client.failover.max.attempts": str(tries - 1),
    }
    if authority is None:
        configuration = repr((used, sorted(connection.items())))
        digest = hashlib.sha256(configuration.encode()).hexdigest()[:8]
        # A replica's id may contain an underscore, a host name may not: Java would find no host at all.
        authority = f"tidelock-{used[0].id.replace('_', '-')}-{digest}"
    addresses = _addresses(used)
    service = {
        "dfs.nameservices": ",".join([*(name for name in name_services if name != authority), authority]),
        f"dfs.client.failover.proxy.provider.{authority}": _PROVIDER,
        f"dfs.ha.namenodes.{authority}": ",".join(addresses),
    }
    service |= {f"dfs.namenode.http-address.{authority}.{name}": data for name, data in addresses.items()}
    return ReadRoute(authority, {**READER_OPTIONS, **connection, **service})


def route_of(
    status: Fields,
    *,
    pinned: str | None,
    rotation: int,
    reach: Callable[[str], str],
    failover: bool = True,
    name_services: Iterable[str] = (),
    authority: str | None = None,
) -> ReadRoute:
    """Return the route to the replicas of a cluster.

    Args:
        status: An agent's status.
        pinned: As of `order`.
        rotation: As of `order`.
        reach: Returns the address by which this machine reaches a published one.
        failover: As of `route`.
        name_services: As of `route`.
        authority: As of `route`.

    Raises as `order`.
    """
    replicas = order(status["replicas"], pinned=pinned, rotation=rotation)
    near = [replace(one, data=reach(one.data)) for one in replicas]
    return route(near, status, failover=failover, name_services=name_services, authority=authority)


def _addresses(replicas: Sequence[Replica]) -> dict[str, str]:
    """Return the addresses to try, by unique names: the first replica once, then the others repeatedly.

    Hadoop's client has one position in this list for all tasks of a JVM, and each task that fails advances it
    by one. If every replica were listed once, two tasks that meet a frozen replica at the same time would
    advance the position past the other replica and back to the frozen one (observed: 54 s instead of 6 s for
    a job on two replicas).
    """
    first, *others = replicas
    addresses = {first.id: first.data}
    if others:
        for number in range(ADDRESSES - 1):
            replica = others[number % len(others)]
            addresses[f"{replica.id}-{number}"] = replica.data
    return addresses


def _milliseconds(duration_s: float) -> str:
    return f"{round(duration_s * 1000)}ms"
