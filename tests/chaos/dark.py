"""A cluster in which one replica loses its power in the middle of its work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import disks
from tests.chaos.disks import Disk
from tests.chaos.lab import Power
from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults import ability
from tests.support.faults.lab import Gates
from tests.support.histories.evidence import require_clean_audit
from tidelock.cluster import LocalCluster


@dataclass(frozen=True)
class World:
    """The cluster; made by `world_of`.

    Attributes:
        cluster: The cluster.
        gates: The gates of the victim, which pauses at its fault points.
        power: The power of the victim's disk.
        victim: The replica that loses its power.
    """

    cluster: LocalCluster
    gates: Gates
    power: Power
    victim: str

    @contextlib.contextmanager
    def dark(self, begin: Callable[[], object]) -> Iterator[None]:
        """Begin some work, and cut the power when the victim pauses in it; the victim stays down."""
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(begin)
            yield
            wrong = self.power.cut(self.victim)
            asked.result()
        assert not wrong, "; ".join(wrong)


@contextlib.contextmanager
def world_of(
    factory: ClusterFactory,
    folder: Path,
    victim: str,
    points: Sequence[str],
    settings: Mapping[str, Any],
    *,
    replicas: int = 3,
) -> Iterator[World]:
    """Run a cluster, and audit every byte at its end. The test is skipped if the machine is not able to.

    Args:
        factory: Makes the cluster.
        folder: The folder for gates, journals and the disk.
        victim: The replica that has a disk of its own.
        points: The points at which it can pause.
        settings: Settings of all agents.
        replicas: Their number.
    """
    ability.require(disks.unable())
    gates = Gates(folder / "gates", {victim: dict.fromkeys(points, "pause")})
    environment = {victim: gates.environment(victim)}
    cluster = factory(replicas=replicas, settings=settings, environment_of=environment, start=False)
    disk = Disk(folder / "victim.img", cluster.data_dir(victim))
    try:
        cluster.up()
        yield World(cluster, gates, Power(cluster, {victim: disk}, folder), victim)
        cluster.up()
        require_clean_audit(cluster, deep=True)
    finally:
        for replica in cluster.replicas:
            cluster.kill(replica)
        disk.close()
