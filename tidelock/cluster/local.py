"""A cluster on one machine: N agents and, unless a ZooKeeper is named, an embedded one, all in one folder.

All state is in the folder, so the cluster survives the program and the terminal that started it, and any
other program can use it:

    cluster.json          replicas and ports, chosen once and kept, since clients know them
    zookeeper/            see tidelock.zookeeper
    <replica>/data/       the agent's data directory
    <replica>/agent.log   the agent's log
    <replica>/agent.pid   the process, by pid and start time, so that a pid used again is never signalled

Such a cluster is for trials, for tests and for one machine; its agents listen on 127.0.0.1 only. On several
machines the service manager of each machine runs `tidelock agent`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

import urllib3

from tidelock import processes, secret_file, zookeeper
from tidelock.client import Database, connect
from tidelock.client.agents.discovery import members
from tidelock.cluster import process_groups
from tidelock.cluster.agent_log import last_error
from tidelock.cluster_layout import ClusterLayout, ReplicaPorts, pid_file
from tidelock.errors import BadRequestError, ConfigError, NoConnectionError, UnavailableError
from tidelock.ports import HOST, in_use

#: Time that an agent or ZooKeeper may take to be ready, in seconds. On a quiet machine it takes one or two.
READY_TIMEOUT_S: Final = 60.0
#: How long the port of a server that is to start may be taken by processes that are about to end, in seconds.
PORT_TIMEOUT_S: Final = 5.0
#: Time that an agent may drain after SIGTERM before it is killed, in seconds: `drain_s` (10 s) and a margin.
STOP_GRACE_S: Final = 20.0
#: Time that an agent may take to return its status, in seconds; then its state is "silent".
ANSWER_TIMEOUT_S: Final = 2.0
POLL_INTERVAL_S: Final = 0.05

#: A function that is called with the name of the part that is ready, e.g. "ZooKeeper" or "r1".
Ready = Callable[[str], None]


class LocalCluster:
    """A cluster in a folder; nothing runs before `up`. A `with` block calls `up`, and `down` at its end.

    Args:
        folder: Folder of the cluster.
        layout: Layout of the cluster.
        environment: Variables for all agents, in addition to those of this process.
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
        base_port: int | None = None,
        environment: Mapping[str, str] | None = None,
        environment_of: Mapping[str, Mapping[str, str]] | None = None,
    ) -> LocalCluster:
        """Set up a cluster, or open the existing one.

        Args:
            folder: Folder of the cluster; made if it does not exist.
            replicas: Number of replicas; default 3, or as the existing cluster.
            copies: Durable copies of a commit; default 2 (1 with a single replica), or as the existing
                cluster.
            zk: Connect string with root of a ZooKeeper that runs; default: an embedded one.
            epoch_limit: Records of an epoch; default: the agents' default.
            base_port: First port of the APIs (see `ClusterLayout.choose`); the embedded ZooKeeper takes 2181
                then, if that is free. 0: any free ports. Default: 0, or as the existing cluster.
            environment: See the class.
            environment_of: See the class.

        Raises:
            ConfigError: The existing cluster has other values, or no cluster can have them.
        """
        folder = folder.resolve()
        with processes.locked(folder / "lock"):
            layout = ClusterLayout.load(folder)
            if layout is None:
                layout = ClusterLayout.choose(
                    replicas=replicas, copies=copies, zk=zk, epoch_limit=epoch_limit, base_port=base_port
                )
                layout.save(folder)
        layout.require(
            folder, replicas=replicas, copies=copies, zk=zk, epoch_limit=epoch_limit, base_port=base_port
        )
        return cls(folder, layout, environment=environment, environment_of=environment_of)

    @classmethod
    def open(cls, folder: Path) -> LocalCluster:
        """Open the cluster in a folder; ConfigError if the folder has no cluster."""
        return cls(folder, ClusterLayout.open(folder))

    # -- names, addresses and files -------------------------------------------------------------------------

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
        """The embedded ZooKeeper; None if the cluster uses a separate one, and before the first `up`."""
        return zookeeper.load(self.folder / "zookeeper") if self.layout.zk is None else None

    def url(self, replica: str) -> str:
        """Return the address of an agent's API."""
        return f"http://{self._ports(replica).address}"

    def data_address(self, replica: str) -> str:
        """Return the address of an agent's snapshot file system, `host:port`."""
        ports = self._ports(replica)
        return f"{ports.host}:{ports.data}"

    def log(self, replica: str) -> Path:
        """Return the log file of an agent."""
        return self.folder / replica / "agent.log"

    def data_dir(self, replica: str) -> Path:
        """Return the data directory of an agent."""
        return self.folder / replica / "data"

    def process(self, replica: str) -> processes.Identity | None:
        """Return the process of a replica's last start, running or not; None before the first start."""
        self._ports(replica)
        return processes.load(pid_file(self.folder, replica))

    def pid(self, replica: str) -> int | None:
        """Return the pid of a replica's agent; None if it does not run."""
        process = self.process(replica)
        return process.pid if process is not None and processes.alive(process) else None

    def connect(self, replica: str | None = None) -> Database:
        """Connect to the cluster, or to one replica alone; errors as in `tidelock.connect`."""
        if replica is None:
            return connect(self.folder, token=self._secret)
        if self.pid(replica) is None:
            raise NoConnectionError(
                f"the agent of {replica} does not run; start it with `tidelock up --data-dir {self.folder}`",
                address=self._ports(replica).address,
            )
        return connect(self.url(replica), replica=replica, token=self._secret)

    @property
    def _secret(self) -> str | None:
        return secret_file.of_environment({**os.environ, **self.environment})

    def _ports(self, replica: str) -> ReplicaPorts:
        for ports in self.layout.replicas:
            if ports.id == replica:
                return ports
        raise BadRequestError(f"there is no replica {replica!r}; the cluster has {', '.join(self.replicas)}")

    # -- start and end --------------------------------------------------------------------------------------

    def up(
        self,
        *,
        timeout_s: float = READY_TIMEOUT_S,
        ready: Ready | None = None,
        replace_disks: Collection[str] = (),
    ) -> None:
        """Start ZooKeeper and the agents unless they run, and wait until all are ready.

        Args:
            timeout_s: Longest time for ZooKeeper, and for the agents.
            ready: Called with "ZooKeeper" and with each replica that is ready.
            replace_disks: Replicas whose data is lost: their empty folders take the ids over.

        Raises:
            ConfigError: Java or the jars for the embedded ZooKeeper are missing; or the folder is new, and
                the root in the named ZooKeeper has a cluster.
            UnavailableError: A process did not become ready in time; the message has its last error. Or the
                port of one is taken by now. Started processes keep running.
        """
        report = ready or (lambda _: None)
        if self.layout.zk is None:
            self._start_zookeeper(timeout_s)
            report("ZooKeeper")
        elif not any(self.data_dir(replica).exists() for replica in self.replicas):
            self._require_free_root(self.layout.zk, timeout_s)
        log_begins = {replica: self._log_size(replica) for replica in self.replicas}
        launched = {
            replica
            for replica in self.replicas
            if self._start(replica, *(["--replace-disk"] if replica in replace_disks else []))
        }
        self._wait_ready(log_begins, launched, timeout_s, report)

    def _start_zookeeper(self, timeout_s: float) -> None:
        wanted = [zookeeper.PORT] if self.layout.base_port else []
        servers = zookeeper.create(self.folder / "zookeeper", wanted=wanted)
        for server in servers.servers:
            if not server.alive:
                self._require_free("ZooKeeper", server.host, server.port)
        servers.start(timeout_s=timeout_s)

    def _require_free(self, what: str, host: str, *ports: int) -> None:
        """Raise UnavailableError if a port is taken: the server there would be held for the one to start.

        The processes of an agent that was killed may need a moment to end.
        """
        until = time.monotonic() + PORT_TIMEOUT_S
        for port in ports:
            while taken := in_use(host, port):
                if time.monotonic() > until:
                    break
                time.sleep(0.02)
            if taken:
                raise UnavailableError(
                    f"expected port {port} to be free for {what} of the cluster in {self.folder}, found "
                    "another server that listens there; stop that one (`tidelock down --data-dir` of its "
                    "cluster), or make a new cluster on other ports (--base-port)"
                )

    def _require_free_root(self, zk: str, timeout_s: float) -> None:
        """Raise ConfigError if there is a cluster: agents with empty disks would take over its ids."""
        if there := members(zk, timeout_s=timeout_s):
            raise ConfigError(
                f"a cluster of {', '.join(there)} is at {zk}, and {self.folder} has none of its data: name "
                "another root (--zk) for a new cluster, or the folder of that one (--data-dir); "
                "docs/operations.md says how a replica is added"
            )

    def start(self, replica: str, *, timeout_s: float = READY_TIMEOUT_S, wait: bool = True) -> None:
        """Start one agent unless it runs, and wait until it is ready if `wait`; errors as in `up`."""
        log_begins = {replica: self._log_size(replica)}
        launched = {replica} if self._start(replica) else set()
        if wait:
            self._wait_ready(log_begins, launched, timeout_s, lambda _: None)

    def ready(self, replica: str) -> bool:
        """Return whether an agent says that it is ready."""
        answer = self._get(replica, "/readyz")
        return answer is not None and answer.status == 200  # noqa: PLR2004 - HTTP's own number

    def add_replica(self, replica: str, *, host: str = HOST) -> None:
        """Register a replica in the cluster, which must run, and lay it out in the folder; then `start` it.

        Raises:
            ConfigError: The folder has a replica of this id.
            MembershipError: The cluster refuses it.
        """
        with processes.locked(self.folder / "lock"):
            layout = self.layout.with_replica(replica, host=host)
            with self.connect() as db:
                db.membership.add(replica)
            layout.save(self.folder)
            self.layout = layout

    def replace_replica(self, dead: str, fresh: str, *, host: str = HOST) -> None:
        """Replace a dead member by a fresh one; then `start` it. Errors as in `add_replica`."""
        with processes.locked(self.folder / "lock"):
            layout = self.layout.without(dead).with_replica(fresh, host=host)
            with self.connect() as db:
                db.membership.replace(dead, fresh)
            layout.save(self.folder)
            self.layout = layout

    def forget(self, replica: str) -> None:
        """Take a replica that was removed from the cluster out of the folder's layout; its data stays."""
        with processes.locked(self.folder / "lock"):
            self._ports(replica)
            self.layout = self.layout.without(replica)
            self.layout.save(self.folder)

    def kill(self, replica: str, signum: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to an agent and its workers; return False if none runs.

        After SIGKILL the call returns when all of them have ended.
        """
        process = self.process(replica)
        if process is None:
            return False
        sent = process_groups.send(process, signum)
        if signum is signal.SIGKILL:
            process_groups.kill(process)
        return sent

    def stop(self, replica: str, *, grace_s: float = STOP_GRACE_S) -> None:
        """End one agent: it drains, and after `grace_s` it is killed with its workers."""
        if process := self.process(replica):
            process_groups.stop(process, grace_s=grace_s)

    def down(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End all agents in parallel, then ZooKeeper. The data is kept, and `up` uses it again."""
        with ThreadPoolExecutor(len(self.replicas)) as executor:
            list(executor.map(lambda replica: self.stop(replica, grace_s=grace_s), self.replicas))
        if servers := self.zookeeper:
            servers.stop()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _start(self, replica: str, *options: str) -> bool:
        """Start an agent unless it runs; return whether it was started."""
        folder = self.folder / replica
        with processes.locked(folder / "lock"):
            if self.pid(replica) is not None:
                return False
            if process := self.process(replica):
                process_groups.kill(process)  # workers that survived a crash of the agent occupy its ports
            ports = self._ports(replica)
            self._require_free(replica, ports.host, ports.api, ports.data)
            environment = {**os.environ, **self.environment, **self.environment_of.get(replica, {})}
            self._launch(replica, [*self._command(replica), *options], environment)
            return True

    def _launch(self, replica: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        folder = self.folder / replica
        processes.start(
            command,
            pid_file=pid_file(self.folder, replica),
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
            *("--bind", ports.host),
            *(() if ports.host == HOST else ("--advertise", ports.host)),
            *("--api-port", str(ports.api)),
            *("--data-port", str(ports.data)),
            *self._first_start(ports),
            *(() if limit is None else ("--epoch-limit", str(limit))),
        ]

    def _first_start(self, ports: ReplicaPorts) -> Sequence[str]:
        """Return the settings by which an agent makes the cluster, or joins it."""
        if ports.joins:
            return ("--join",)
        made = [one.id for one in self.layout.replicas if not one.joins]
        return ("--bootstrap", ",".join(made), "--copies", str(self.layout.copies))

    # -- readiness and status -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the status of the processes: `replicas` and `zookeeper`.

        A replica has `id`, `url`, `data` (host:port), `state`, `snapshot_csn` and `pid`. The state is the one
        that the agent reports, or "down" (no process), or "silent" (a process that does not answer).
        """
        with ThreadPoolExecutor(len(self.replicas)) as executor:
            replicas = list(executor.map(self._status_of, self.replicas))
        return {"replicas": replicas, "zookeeper": self._zookeeper_status()}

    def _status_of(self, replica: str) -> dict[str, Any]:
        pid = self.pid(replica)
        answer = self._get(replica, "/api/v1/status") if pid is not None else None
        reported = answer.json() if answer is not None and answer.status == 200 else {}  # noqa: PLR2004 - HTTP's
        return {
            "id": replica,
            "url": self.url(replica),
            "data": self.data_address(replica),
            "state": reported.get("state", "down" if pid is None else "silent"),
            "snapshot_csn": reported.get("snapshot_csn"),
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

    def _wait_ready(
        self, log_begins: Mapping[str, int], launched: set[str], timeout_s: float, report: Ready
    ) -> None:
        """Wait until agents are ready.

        An agent that ran already may have been about to end, for example by a kill: then it is started too.

        Args:
            log_begins: The sizes of their logs before their start.
            launched: The agents that were started for this call.
            timeout_s: Longest time for all.
            report: Called with each replica that is ready.
        """
        deadline = time.monotonic() + timeout_s
        waiting = list(log_begins)
        while waiting:
            for replica in list(waiting):
                if self.ready(replica):
                    waiting.remove(replica)
                    report(replica)
                elif self.pid(replica) is None:
                    if replica in launched:
                        raise self._not_ready(replica, "has ended", log_begins[replica])
                    if self._start(replica):
                        launched.add(replica)
                elif time.monotonic() > deadline:
                    fault = f"is not ready after {timeout_s:.0f} s"
                    raise self._not_ready(replica, fault, log_begins[replica])
            if waiting:
                time.sleep(POLL_INTERVAL_S)

    def _not_ready(self, replica: str, fault: str, log_begin: int) -> UnavailableError:
        log = self.log(replica)
        error = last_error(log, log_begin)
        return UnavailableError(
            f"the agent of {replica} {fault}: {error or 'it has logged nothing'}; its log is {log}",
            replica=replica,
        )

    def _log_size(self, replica: str) -> int:
        log = self.log(replica)
        return log.stat().st_size if log.exists() else 0

    def _get(self, replica: str, path: str) -> urllib3.BaseHTTPResponse | None:
        """Return the answer of an agent, or None if it does not answer."""
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        try:
            return urllib3.request(
                "GET", self.url(replica) + path, headers=headers, timeout=ANSWER_TIMEOUT_S, retries=False
            )
        except urllib3.exceptions.HTTPError:
            return None
