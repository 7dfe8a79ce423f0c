"""A cluster on one machine, which `tidelock up` starts, and which tests and the demo use from Python.

with LocalCluster.create(Path("data"), replicas=3) as cluster:
    db = tidelock.connect(cluster.urls)
    cluster.kill("r1")
"""

from __future__ import annotations

from tidelock.cluster.local import LocalCluster

__all__ = ["LocalCluster"]
