"""A cluster on one machine: N agents and, unless one is named, an embedded ZooKeeper, all in one folder.

Everything that has to last is in the folder, so the cluster survives the program and the terminal that
started it, and any other program may go on with it:

    cluster.json          replicas and ports, chosen once and kept, because clients know them
    zookeeper/            see tidelock.zookeeper
    <replica>/data/       the agent's data directory
    <replica>/agent.log   what it says
    <replica>/agent.pid   the process, by pid and start time, so that a pid used again is never signalled

It is for trying out, for tests and for one machine; its agents listen on 127.0.0.1 only. A cluster over
several machines runs `tidelock agent` under whatever starts services there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import urllib3

from tidelock import processes, zookeeper
from tidelock.client import Database, connect
from tidelock.cluster import process_groups
from tidelock.cluster.agent_log import last_error
from tidelock.cluster.layout import ClusterLayout, ReplicaPorts
from tidelock.errors import BadRequestError, ConfigError, UnavailableError
from tidelock.ports import HOST

#: How long one agent or ZooKeeper may take to be ready, in seconds. They need one or two on a quiet machine.
READY_TIMEOUT_S: Final = 60.0
#: How long an agent may drain after SIGTERM before it is killed: its own `drain_s` (10 s) and some more.
STOP_GRACE_S: Final = 20.0
#: How long an agent may take to tell its status before it counts as silent.
ANSWER_TIMEOUT_S: Final = 2.0
POLL_INTERVAL_S: Final = 0.05

#: Called with what has just become ready, e.g. "ZooKeeper" or "r1".
Ready = Callable[[str], None]


class LocalCluster:
    """A cluster in a folder; nothing runs before `up`. As a context manager: `up`, and `down` at the end.

    Args:
        folder: Of the cluster.
        layout: What runs there.
        environment: Variables for all agents, besides those of this process.
        environment_of: Variables for single agents, by their ids.
    """

    def __init__(
        self,
        folder: Path,
        layout: ClusterLayout,
        *,
        environment: Mapping[str, str] | None = None,
        environment_of: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.layout = layout
        self.environment = dict(environment or {})
        self.environment_of = {replica: dict(items) for replica, items in (environment_of or {}).items()}

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        replicas: int | None = None,
        copies: int | None = None,
        zk: str | None = None,
        epoch_limit: int | None = None,
        environment: Mapping[str, str] | None = None,
        environment_of: Mapping[str, Mapping[str, str]] | None = None,
    ) -> LocalCluster:
        """Set up a cluster, or open the one that is there.

        Args:
            folder: Made if it does not exist.
            replicas: How many; default 3, or what is there.
            copies: Durable copies of a commit; default 2 (1 with a single replica), or what is there.
            zk: Connect string with root of a ZooKeeper that runs; default: an embedded one.
            epoch_limit: Records of an epoch; default: the agents'.
            environment: See the class.
            environment_of: See the class.

        Raises:
            ConfigError: A cluster is there, and it is not as asked for.
        """
        folder = folder.resolve()
        with processes.locked(folder / "lock"):
            layout = ClusterLayout.load(folder)
            if layout is None:
                layout = ClusterLayout.choose(
                    replicas=replicas, copies=copies, zk=zk, epoch_limit=epoch_limit
                )
                layout.save(folder)
        layout.require(folder, replicas=replicas, copies=copies, zk=zk, epoch_limit=epoch_limit)
        return cls(folder, layout, environment=environment, environment_of=environment_of)

    @classmethod
    def open(cls, folder: Path) -> LocalCluster:
        """Open the cluster in a folder; ConfigError when there is none."""
        layout = ClusterLayout.load(folder)
        if layout is None:
            raise ConfigError(
                f"there is no cluster in {folder}; make one with `tidelock up --data-dir {folder}`, "
                "or name another folder (--data-dir), an agent (--url) or a ZooKeeper (--zk)"
            )
        return cls(folder, layout)

    # -- what is there
    # ----------------------------------------------------------------------------------------

    @property
    def replicas(self) -> list[str]:
        """The ids of all replicas."""
        return [replica.id for replica in self.layout.replicas]

    @property
    def urls(self) -> list[str]:
        """The API addresses of all agents, in the order of their ids."""
        return [self.url(replica) for replica in self.replicas]

    @property
    def zk(self) -> str:
        """ZooKeeper's connect string with the cluster's root; UnavailableError before the first `up`."""
        if self.layout.zk is not None:
            return self.layout.zk
        servers = self.zookeeper
        if servers is None:
            raise UnavailableError(
                f"the cluster in {self.folder} was never started; start it with `tidelock up`"
            )
        return f"{servers.connect_string}/tidelock"

    @property
    def zookeeper(self) -> zookeeper.LocalZooKeeper | None:
        """The embedded ZooKeeper; None for a cluster that uses another one, and before the first `up`."""
        return zookeeper.load(self.folder / "zookeeper") if self.layout.zk is None else None

    def url(self, replica: str) -> str:
        """The address of an agent's API."""
        return f"http://{HOST}:{self._ports(replica).api}"

    def log(self, replica: str) -> Path:
        """The file with what an agent says."""
        return self.folder / replica / "agent.log"

    def data_dir(self, replica: str) -> Path:
        """The data directory of an agent."""
        return self.folder / replica / "data"

    def process(self, replica: str) -> processes.Identity | None:
        """The process that was started last for a replica, whether it runs or not."""
        self._ports(replica)
        return processes.load(self.folder / replica / "agent.pid")

    def pid(self, replica: str) -> int | None:
        """The pid of a replica's agent; None when it does not run."""
        process = self.process(replica)
        return process.pid if process is not None and processes.alive(process) else None

    def connect(self, replica: str | None = None) -> Database:
        """Connect to the cluster, or to one replica alone; errors as in `tidelock.connect`."""
        urls = self.urls if replica is None else [self.url(replica)]
        return connect(urls, replica=replica, token=self._secret)

    @property
    def _secret(self) -> str | None:
        return self.environment.get("TIDELOCK_SECRET") or os.environ.get("TIDELOCK_SECRET")

    def _ports(self, replica: str) -> ReplicaPorts:
        for ports in self.layout.replicas:
            if ports.id == replica:
                return ports
        raise BadRequestError(f"there is no replica {replica!r}; the cluster has {', '.join(self.replicas)}")

    # -- start and end
    # ----------------------------------------------------------------------------------------

    def up(self, *, timeout_s: float = READY_TIMEOUT_S, ready: Ready | None = None) -> None:
        """Start what does not run, and wait until everything is ready; what runs is left alone.

        Raises:
            ConfigError: No Java, or no jars, for the embedded ZooKeeper.
            UnavailableError: Something did not become ready in time; the message has its last error. What was
                started keeps running.
        """
        report = ready or (lambda _: None)
        if self.layout.zk is None:
            zookeeper.create(self.folder / "zookeeper").start(timeout_s=timeout_s)
            report("ZooKeeper")
        begun = {replica: self._log_size(replica) for replica in self.replicas}
        for replica in self.replicas:
            self._start(replica)
        self._wait_ready(begun, timeout_s, report)

    def start(self, replica: str, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start one agent, unless it runs, and wait until it is ready; errors as in `up`."""
        begun = {replica: self._log_size(replica)}
        self._start(replica)
        self._wait_ready(begun, timeout_s, lambda _: None)

    def kill(self, replica: str, signum: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to an agent and all its workers; after SIGKILL they are gone. False if none runs."""
        process = self.process(replica)
        if process is None:
            return False
        sent = process_groups.send(process, signum)
        if signum is signal.SIGKILL:
            process_groups.kill(process)
        return sent

    def stop(self, replica: str, *, grace_s: float = STOP_GRACE_S) -> None:
        """End one agent: it drains, and is killed with its workers if that takes longer than `grace_s`."""
        if process := self.process(replica):
            process_groups.stop(process, grace_s=grace_s)

    def down(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End all agents at once, then ZooKeeper. The data stays; `up` goes on with it."""
        with ThreadPoolExecutor(len(self.replicas)) as executor:
            list(executor.map(lambda replica: self.stop(replica, grace_s=grace_s), self.replicas))
        if servers := self.zookeeper:
            servers.stop()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _start(self, replica: str) -> None:
        folder = self.folder / replica
        with processes.locked(folder / "lock"):
            if self.pid(replica) is not None:
                return
            if process := self.process(replica):
                process_groups.kill(process)  # workers that a crash has left behind hold its ports
            environment = {**os.environ, **self.environment, **self.environment_of.get(replica, {})}
            self._launch(replica, self._command(replica), environment)

    def _launch(self, replica: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        folder = self.folder / replica
        processes.start(
            command,
            pid_file=folder / "agent.pid",
            log=folder / "agent.log",
            folder=folder,
            env=environment,
        )

    def _command(self, replica: str) -> Sequence[str]:
        ports = self._ports(replica)
        limit = self.layout.epoch_limit
        return [
            sys.executable,
            *("-m", "tidelock.replica_agent.main"),
            *("--replica", replica),
            *("--data-dir", str(self.data_dir(replica))),
            *("--zk", self.zk),
            *("--bind", HOST),
            *("--api-port", str(ports.api)),
            *("--data-port", str(ports.data)),
            *("--bootstrap", ",".join(self.replicas)),
            *("--copies", str(self.layout.copies)),
            *(() if limit is None else ("--epoch-limit", str(limit))),
        ]

    # -- ready and status
    # -------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return what runs: `replicas` and `zookeeper`.

        A replica has `id`, `url`, `data` (host:port), `state`, `snapshot_csn` and `pid`. The state is the
        agent's own word, or "down" (no process), or "silent" (a process that does not answer).
        """
        with ThreadPoolExecutor(len(self.replicas)) as executor:
            replicas = list(executor.map(self._status_of, self.replicas))
        return {"replicas": replicas, "zookeeper": self._zookeeper_status()}

    def _status_of(self, replica: str) -> dict[str, Any]:
        ports, pid = self._ports(replica), self.pid(replica)
        answer = self._get(replica, "/api/v1/status") if pid is not None else None
        told = answer.json() if answer is not None and answer.status == 200 else {}  # noqa: PLR2004 - HTTP's
        return {
            "id": replica,
            "url": self.url(replica),
            "data": f"{HOST}:{ports.data}",
            "state": told.get("state", "down" if pid is None else "silent"),
            "snapshot_csn": told.get("snapshot_csn"),
            "pid": pid,
        }

    def _zookeeper_status(self) -> dict[str, Any]:
        if self.layout.zk is not None:
            return {"connect": self.layout.zk, "embedded": False}
        servers = self.zookeeper
        server = servers.servers[0] if servers else None
        return {
            "connect": self.zk if servers else None,
            "embedded": True,
            "state": (server.mode() if server else None) or "down",
            "pid": server.process.pid if server and server.process and server.alive else None,
        }

    def _wait_ready(self, begun: Mapping[str, int], timeout_s: float, report: Ready) -> None:
        """Wait for agents; `begun` has the sizes of their logs before they were started."""
        deadline = time.monotonic() + timeout_s
        waiting = list(begun)
        while waiting:
            for replica in list(waiting):
                answer = self._get(replica, "/readyz")
                if answer is not None and answer.status == 200:  # noqa: PLR2004 - HTTP's own number
                    waiting.remove(replica)
                    report(replica)
                elif self.pid(replica) is None:
                    raise self._not_ready(replica, "has ended", begun[replica])
                elif time.monotonic() > deadline:
                    raise self._not_ready(replica, f"is not ready after {timeout_s:.0f} s", begun[replica])
            if waiting:
                time.sleep(POLL_INTERVAL_S)

    def _not_ready(self, replica: str, what: str, log_begin: int) -> UnavailableError:
        log = self.log(replica)
        said = last_error(log, log_begin)
        return UnavailableError(
            f"the agent of {replica} {what}: {said or 'it said nothing'}; its log is {log}", replica=replica
        )

    def _log_size(self, replica: str) -> int:
        log = self.log(replica)
        return log.stat().st_size if log.exists() else 0

    def _get(self, replica: str, path: str) -> urllib3.BaseHTTPResponse | None:
        """The answer of an agent, or None."""
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        try:
            return urllib3.request(
                "GET", self.url(replica) + path, headers=headers, timeout=ANSWER_TIMEOUT_S, retries=False
            )
        except urllib3.exceptions.HTTPError:
            return None
