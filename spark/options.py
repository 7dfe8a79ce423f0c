"""How a DataFrame reaches the replicas: one name service of Hadoop's client, given as reader options. Pure.

Everything is an option of the one DataFrame, so it works on a session of any kind that has started long ago,
changes nothing for other reads, and beats what the session is configured to (rule reader-options).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelock.errors import BadRequestError, UnavailableError

#: Time to connect before the next replica is tried, in seconds.
CONNECT_TIMEOUT_S = 2.0
#: The client's patience beyond an agent's own waiting bound, in seconds: an agent that says nothing by then
#: is frozen.
READ_MARGIN_S = 3.0
#: How often a request is tried for each replica before it fails. The waiting is done by the agents, not
#: between the tries. Like the others here it follows from how Hadoop's client behaves and has no use for a
#: user: what may be tuned is the agents' `wait_bound_s`.
ROUNDS = 4
#: Length of the list of addresses, see `_addresses`. One JVM that runs more tasks than this may meet a
#: replica that it has given up a second time.
ADDRESSES = 32

_PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"

#: Options that keep rows from being wrong or missing, whatever the session says, and reads from being slow.
READER_OPTIONS: Mapping[str, str] = {
    # A part that cannot be read must fail the job, not shrink its result. Both are widely set to true in
    # production.
    "ignoremissingfiles": "false",
    "ignorecorruptfiles": "false",
    # The schema is the table's. Merging would read every footer to find it.
    "mergeschema": "false",
    # Parts hold proleptic Gregorian dates. A session set to LEGACY would shift those before 1582.
    "datetimerebasemode": "CORRECTED",
    # Hadoop's WebHDFS client has no vectored reads; emulated, each short read opens the file again.
    "parquet.hadoop.vectored.io.enabled": "false",
}

#: States of a replica that may never serve this snapshot; its refusal would fail a job that others can
#: finish.
_EXCLUDED = frozenset({"struck", "removed"})


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: its id and the ``host:port`` of its snapshot file system."""

    id: str
    data: str


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach the replicas.

    Attributes:
        authority: Name of the service in ``webhdfs://<authority>/snapshots/...``. It names the configuration,
            since Hadoop's client keeps one file system per authority for the life of its process, with the
            options it had first.
        options: Reader options of a DataFrame; all names in lower case, as Spark passes them on.
    """

    authority: str
    options: Mapping[str, str]


def order(rows: Iterable[Mapping[str, Any]], *, pinned: str | None, rotation: int) -> list[Replica]:
    """Return the replicas in the order in which they are to be tried.

    The pinned one comes first. The others follow in an order rotated by ``rotation``, so that readers spread
    over them; those that show no sign of life come last.

    Args:
        rows: ``replicas`` of an agent's status.
        pinned: A replica's id, or None.
        rotation: Any number.

    Raises:
        BadRequestError: There is no replica ``pinned``.
        UnavailableError: No replica has an address.
    """
    known = [row for row in rows if row.get("data") and row.get("state") not in _EXCLUDED]
    if pinned is not None and pinned not in {row["id"] for row in known}:
        names = ", ".join(row["id"] for row in known) or "none"
        raise BadRequestError(
            f"there is no replica {pinned!r} to read from; there are: {names}", replica=pinned
        )
    if not known:
        raise UnavailableError(
            "no replica has an address of its snapshot file system yet; see `tidelock status`"
        )
    start = rotation % len(known)
    rotated = known[start:] + known[:start]
    rotated.sort(
        key=lambda row: (row["id"] != pinned, not row.get("alive", True))
    )  # stable: the rotation stays
    return [Replica(row["id"], row["data"]) for row in rotated]


def route(
    replicas: Sequence[Replica], *, wait_bound_s: float, failover: bool, name_services: Iterable[str] = ()
) -> Route:
    """Return how to reach ``replicas`` in this order.

    Args:
        replicas: At least one; without ``failover`` only the first is used.
        wait_bound_s: The agents' setting: how long they wait for a CSN before they send a reader on.
        failover: Go on to the next replica when one is dead, frozen, behind or has a damaged part.
        name_services: What the session knows already under ``dfs.nameservices``; kept, since it may be the
            cluster's own HDFS.
    """
    used = list(replicas if failover else replicas[:1])
    tries = ROUNDS * len(used) if failover else 1
    connection = {
        "dfs.webhdfs.socket.connect-timeout": _milliseconds(CONNECT_TIMEOUT_S),
        "dfs.webhdfs.socket.read-timeout": _milliseconds(wait_bound_s + READ_MARGIN_S),
        "dfs.http.client.retry.max.attempts": str(tries - 1),
        "dfs.http.client.failover.max.attempts": str(tries - 1),
    }
    told = repr((used, sorted(connection.items())))
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    # An underscore is allowed in a replica's id and not in a host name; Java then finds no host at all.
    authority = f"tidelock-{used[0].id.replace('_', '-')}-{digest}"
    addresses = _addresses(used)
    service = {
        "dfs.nameservices": ",".join([*(name for name in name_services if name != authority), authority]),
        f"dfs.client.failover.proxy.provider.{authority}": _PROVIDER,
        f"dfs.ha.namenodes.{authority}": ",".join(addresses),
    }
    service |= {f"dfs.namenode.http-address.{authority}.{name}": data for name, data in addresses.items()}
    return Route(authority, {**READER_OPTIONS, **connection, **service})


def _addresses(replicas: Sequence[Replica]) -> dict[str, str]:
    """The addresses to try, by names of their own: the first replica once, then the others again and again.

    Hadoop's client has one place in this list for all tasks of a JVM, and each task that fails moves it on by
    one. With every replica listed once, two tasks that meet a frozen replica at the same time move it on and
    straight back to that replica (seen: 54 s instead of 6 s for a job on two replicas).
    """
    first, *others = replicas
    found = {first.id: first.data}
    if others:
        for number in range(ADDRESSES - 1):
            replica = others[number % len(others)]
            found[f"{replica.id}-{number}"] = replica.data
    return found


def _milliseconds(duration_s: float) -> str:
    return f"{round(duration_s * 1000)}ms"
