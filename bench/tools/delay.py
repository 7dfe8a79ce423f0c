"""A round trip between Spark and the agents: a proxy with delay in front of each snapshot file system.

The proxies run in a process of their own, so that they take nothing from Spark's driver but the processor.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.faults.proxy import Direction, Proxy
from tidelock.cluster import LocalCluster


@contextlib.contextmanager
def proxies(cluster: LocalCluster, round_trip_s: float) -> Iterator[None]:
    """Have every agent advertise a proxy instead of its data port; the agents are restarted twice."""
    context = multiprocessing.get_context("spawn")
    ports, end = context.Queue(), context.Event()
    targets = {replica.id: f"127.0.0.1:{replica.data}" for replica in cluster.layout.replicas}
    process = context.Process(target=_serve, args=(targets, round_trip_s, ports, end), daemon=True)
    process.start()
    before = cluster.environment_of
    try:
        advertised: Mapping[str, int] = ports.get(timeout=60)
        cluster.environment_of = {
            replica: {**before.get(replica, {}), "TIDELOCK_ADVERTISE_DATA_PORT": str(port)}
            for replica, port in advertised.items()
        }
        _restart(cluster)
        yield
    finally:
        cluster.environment_of = before
        end.set()
        process.join()
    _restart(cluster)


def _restart(cluster: LocalCluster) -> None:
    for replica in cluster.replicas:
        cluster.stop(replica)
        cluster.start(replica)


def _serve(targets: Mapping[str, str], round_trip_s: float, ports: Any, end: Any) -> None:
    with contextlib.ExitStack() as stack:
        opened = {replica: stack.enter_context(Proxy(target)) for replica, target in targets.items()}
        for proxy in opened.values():
            # In one direction: the event loop sleeps in whole milliseconds.
            proxy.delay(Direction.TO_CLIENT, round_trip_s)
        ports.put({replica: int(proxy.address.rpartition(":")[2]) for replica, proxy in opened.items()})
        end.wait()
