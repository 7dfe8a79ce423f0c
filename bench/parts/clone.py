"""The time until a replica whose disk was lost has everything again, and the commits of the others meanwhile.

Beside it: cp and sync of the same part files, one copy. All replicas are on one disk. The part files of the
second replica are links to those of the first; those of the clone are its own.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.parts.commits import create_tables, within
from bench.parts.load import program
from bench.tools.machine import cpu_s
from bench.tools.part_files import fill, fill_packs
from bench.tools.workload import BenchClients, ClientPace, open_tidelock
from tidelock.cluster import LocalCluster

_TABLE: Final = "default.cloned"
_CLIENTS: Final = 8
_TIMEOUT_S: Final = 3600.0
#: Of the rows of a small part; the file has a little more.
_SMALL_BYTES: Final = 16


def run(folder: Path, parts: int, mb: int, pace: ClientPace) -> dict[str, Any]:
    """Measure the clone of so many parts of so many MB in all, alone and beside commits."""
    own_files = {"TIDELOCK_INLINE_PART_BYTES_MAX": "1"}
    with LocalCluster.create(folder / "clone", replicas=3, environment=own_files) as cluster:
        r1, r2, lost = cluster.replicas
        _one_part(cluster, mb * 1_000_000 // parts)
        for replica in cluster.replicas:
            cluster.stop(replica)
        fill(cluster.data_dir(r1), _TABLE, r1, parts)
        fill(cluster.data_dir(r2), _TABLE, r1, parts, like=cluster.data_dir(r1))
        cluster.environment.clear()
        for replica in (r1, r2):
            cluster.start(replica)
        copy_s = _copied(cluster.data_dir(r1), folder / "copy")
        clone_s = _cloned(cluster, lost)
        whole = _commits(cluster, [r1, r2], pace)
        cluster.kill(lost)
        with ThreadPoolExecutor(1) as executor:
            cloning = executor.submit(_cloned, cluster, lost)
            meanwhile = _commits(cluster, [r1, r2], pace)
            lasted = not cloning.done()
            busy_clone_s = cloning.result()
        with cluster.connect(lost) as db:
            found = db.table(_TABLE)
    if found["parts"] != parts:
        raise RuntimeError(f"{parts} parts were made, the clone has {found['parts']}")
    found_mb = found["bytes"] / 1e6
    return {
        "parts": parts,
        "mb": round(found_mb, 1),
        "copy_s": round(copy_s, 2),
        "copy_mb_per_s": round(found_mb / copy_s, 1),
        "clone_s": round(clone_s, 2),
        "clone_mb_per_s": round(found_mb / clone_s, 1),
        "ratio": round(clone_s / copy_s, 2),
        "busy_clone_s": round(busy_clone_s, 2),
        "clients": _CLIENTS,
        "commits_per_s": whole,
        "commits_per_s_meanwhile": meanwhile,
        "commits_ratio": round(meanwhile / whole, 2),
        "lasted": lasted,
    }


def run_small(folder: Path, parts: int) -> dict[str, Any]:
    """Measure the clone of so many parts of some hundred bytes: what each of them costs.

    Most of a short clone is the start of two processes and the change of the catalog, so that of one part is
    measured too.
    """
    with LocalCluster.create(folder / "clone_small", replicas=3) as cluster:
        r1, r2, lost = cluster.replicas
        _one_part(cluster, _SMALL_BYTES)
        bare_s, bare_cpu_s = _cloned_cpu(cluster, lost)
        for replica in cluster.replicas:
            cluster.stop(replica)
        for replica in (r1, r2):
            fill_packs(cluster.data_dir(replica), _TABLE, r1, parts)
            cluster.start(replica)
        clone_s, clone_cpu_s = _cloned_cpu(cluster, lost)
        with cluster.connect(lost) as db:
            found = db.table(_TABLE)
    if found["parts"] != parts:
        raise RuntimeError(f"{parts} parts were made, the clone has {found['parts']}")
    return {
        "parts": parts,
        "bytes_per_part": found["bytes"] // parts,
        "bare_s": round(bare_s, 2),
        "clone_s": round(clone_s, 2),
        "parts_per_s": round(parts / max(clone_s - bare_s, 0.001), 1),
        "cpu_ms_per_part": round(1000 * (clone_cpu_s - bare_cpu_s) / parts, 3),
    }


def _one_part(cluster: LocalCluster, size: int) -> None:
    """Make the tables; one has a part of about so many bytes on all replicas."""
    create_tables(cluster)
    schema = pa.schema([("block", pa.binary())])
    rows = pa.table({"block": [os.urandom(size)]}, schema=schema)
    with cluster.connect() as db:
        db.create_table(_TABLE, schema, properties={"compaction": "off"})
        db.insert(_TABLE, rows, wait="all")


def _copied(data_dir: Path, target: Path) -> float:
    """Copy all part files of a replica and force them to disk; return the seconds."""
    begun = time.monotonic()
    subprocess.run([program("cp"), "-r", str(data_dir / "parts"), str(target)], check=True)
    subprocess.run([program("sync"), "--file-system", str(target)], check=True)
    taken = time.monotonic() - begun
    shutil.rmtree(target)
    return taken


def _cloned(cluster: LocalCluster, replica: str) -> float:
    """Start a replica on an empty disk; return the seconds until it serves with all parts.

    It is struck before. Otherwise it would follow the log from its begin, which is all there.
    """
    cluster.kill(replica)
    with cluster.connect(next(one for one in cluster.replicas if one != replica)) as db:
        db.membership.strike(replica)
    shutil.rmtree(cluster.data_dir(replica))
    begun = time.monotonic()
    cluster.up(replace_disks=(replica,), timeout_s=_TIMEOUT_S)
    return time.monotonic() - begun


def _cloned_cpu(cluster: LocalCluster, replica: str) -> tuple[float, float]:
    """As :func:`_cloned`; return also the processor seconds of all agents meanwhile."""
    before = cpu_s(cluster, without=replica)
    taken = _cloned(cluster, replica)
    return taken, cpu_s(cluster) - before


def _commits(cluster: LocalCluster, homes: list[str], pace: ClientPace) -> float:
    """Return the commits per second of clients at these homes."""
    opener = functools.partial(open_tidelock, urls=[cluster.url(home) for home in homes], replicas=homes)
    running = BenchClients(opener, _CLIENTS, pace)
    zero = running.begin()
    return round(len(within(running.results().done, zero, pace.run_s)) / pace.run_s, 1)
