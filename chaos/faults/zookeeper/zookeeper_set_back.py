"""ZooKeeper is set back to an older state, as by a restored backup."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import LogSince, status
from chaos.watching.waiting import NOTICE_TIMEOUT_S, until
from chaos.world import World
from tidelock.errors import UnavailableError
from tidelock.testing import commands

#: The folder of a server's data that has its state; beside it is the server's number, which stays.
STATE: Final = "version-2"
#: Commits that every replica must have applied since the backup: less could be missed.
COMMITS: Final = 20
#: The words of a replica that has found out.
WORDS: Final = ("ZooKeeper holds an older state", "ZooKeeper holds another history")
COMMAND_TIMEOUT_S: Final = 120.0


class ZooKeeperSetBack(Fault):
    """All servers of ZooKeeper lose what was written since a backup that is some commits old.

    Every replica has seen more: it stops, or suspends itself, and says why. No commit is acknowledged. Then
    the operator brings the newest state back, or makes the tree again out of the catalogs, as the handbook
    says. Nothing is lost either way, but the log that is made again begins after the last commit.
    """

    kind: ClassVar[str] = "ZooKeeper set back"
    aim: ClassVar[Aim] = Aim.ALL
    halts: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    last: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del targets
        cluster = world.cluster
        rebuilds = chosen.random() < 0.5  # noqa: PLR2004 - one half
        logs = {replica: LogSince(cluster.node(replica)) for replica in cluster.replicas}

        def stopped() -> str | None:
            states = {replica: (status(world, replica) or {}).get("state", "down") for replica in logs}
            said = all(any(words in log.text() for words in WORDS) for log in logs.values())
            if not said or "serving" in states.values():
                return None
            return f"all replicas have found that ZooKeeper was set back, and are {states}"

        with tempfile.TemporaryDirectory() as folder:
            backup, newest = Path(folder, "backup"), Path(folder, "newest")
            _copy(world, backup)
            _await_commits(world)
            try:
                for server in cluster.zookeepers:
                    cluster.node(server).kill()
                _copy(world, newest)
                _put(world, backup)
                yield shown(Signs(stopped))
            finally:
                if rebuilds:
                    _rebuild(world)
                else:
                    _put(world, newest)
                serve_again(world, *cluster.replicas)


def _copy(world: World, folder: Path) -> None:
    """Copy the state of all servers, which may run: what is cut in the middle at the end was not answered."""
    for server in world.cluster.zookeepers:
        target = folder / server
        target.mkdir(parents=True)
        commands.run("cp", "-a", str(world.cluster.node(server).data_dir / STATE), str(target))


def _put(world: World, folder: Path) -> None:
    """End all servers, give them a state, and start them."""
    nodes = {server: world.cluster.node(server) for server in world.cluster.zookeepers}
    for server, node in nodes.items():
        node.kill()
        commands.run("rm", "-r", str(node.data_dir / STATE))
        commands.run("cp", "-a", str(folder / server / STATE), str(node.data_dir))
    serve_again(world, *nodes)


def _await_commits(world: World) -> None:
    """Wait until every replica has applied commits that the backup does not have."""

    def applied() -> list[int]:
        found = (status(world, replica) for replica in world.cluster.replicas)
        return [int(one["snapshot_csn"]) if one else 0 for one in found]

    wanted, what = max(applied()) + COMMITS, f"{COMMITS} commits after a backup"
    until(lambda: min(applied()) >= wanted, what=what, timeout_s=NOTICE_TIMEOUT_S)


def _rebuild(world: World) -> None:
    """Make the tree again out of the catalogs of all replicas: look at the report, then confirm it."""
    for replica in world.cluster.replicas:
        world.cluster.node(replica).stop()
    report = _command(world)
    _command(world, "--confirm", report["cluster_id"])


def _command(world: World, *more: str) -> dict[str, Any]:
    folders = [str(world.cluster.node(replica).data_dir) for replica in world.cluster.replicas]
    sources = [word for folder in folders for word in ("--from", folder)]
    command = [sys.executable, "-m", "tidelock.cli", "admin", "rebuild-zookeeper", "--json", *sources]
    command += ["--zk", world.cluster.zk, "--copies", str(world.copies), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"the tree was not made again: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
