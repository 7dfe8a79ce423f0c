"""The embedded ZooKeeper: one server or three, from the jars of the PySpark wheel, without starting Spark.

It is a real ZooKeeper with real durability (each write is forced to disk before it is answered), for one
machine: every server listens on 127.0.0.1 only, without authentication. Three servers on one machine survive
the death of one process, which tests need; they do not survive the machine. A production cluster uses a
separate ensemble.

The files of the servers are in one folder: `connect` holds the connect string, and is written after all other
files; `server-<n>/` holds configuration, log, pid file and data of one server. Ports are chosen once and
kept, since clients know them. The servers survive the process and the terminal that started them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelock import java, processes
from tidelock.errors import ConfigError, UnavailableError
from tidelock.ports import HOST, free_ports

#: Port of ZooKeeper by its own convention.
PORT: Final = 2181
#: Time that a server may take to answer a four-letter word, in seconds. A slower server is treated as dead.
ANSWER_TIMEOUT_S: Final = 2.0
#: Time between two checks of whether a server serves, in seconds.
POLL_INTERVAL_S: Final = 0.05
#: Time that a server may take to end after SIGTERM, in seconds. SIGKILL could not damage its state.
STOP_GRACE_S: Final = 5.0
LOG_TAIL_LINES: Final = 3

#: The smallest class path that works, and log4j, without which a server does not log why it fails to start.
_JARS: Final = (
    "zookeeper",
    "zookeeper-jute",
    "audience-annotations",
    "commons-cli",
    "commons-io",
    "metrics-core",
    "netty-buffer",
    "netty-common",
    "netty-handler",
    "netty-transport",
    "slf4j-api",
    "snappy-java",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of the servers.

    Attributes:
        tick_time_ms: ZooKeeper's unit of time. The smallest session time-out is two ticks; a leader drops a
            follower from which it has received nothing for ten ticks.
        session_timeout_max_ms: The largest session time-out that a client may request.
        heap_mb: Java heap of one server, in MiB. It holds all znodes: at most `max_records_bytes` and
            `log_keep_bytes` of records (192 MiB), locks and labels; the last 500 requests, three times each
            (1.2 GB if each is as large as `multi_bytes_max`); and room for a snapshot and for garbage.
        snapshots_kept: Number of snapshots that are kept on disk, with their logs; older ones are purged
            every hour.
        log_bytes_max: Largest size of one log file; up to three are kept.
        jvm: Further options of the Java machine of each server.
    """

    tick_time_ms: int = 2_000
    session_timeout_max_ms: int = 60_000
    heap_mb: int = 1536
    snapshots_kept: int = 3
    log_bytes_max: int = 10 << 20
    jvm: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ZooKeeperServer:
    """One server: its folder, and the port and the host for its clients.

    Attributes:
        prefix: Words before its command, of a program that executes it, e.g. in a network of its own.
    """

    folder: Path
    port: int
    host: str = HOST
    prefix: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The address for clients, `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def process(self) -> processes.Identity | None:
        """The process of the last start, running or not; None before the first start."""
        return processes.load(self.folder / "zookeeper.pid")

    @property
    def alive(self) -> bool:
        """Whether the process runs; it may not serve yet."""
        process = self.process
        return process is not None and processes.alive(process)

    def start(self, runtime: java.Java) -> None:
        """Start the server unless it runs; it serves some time later, see `LocalZooKeeper.wait_ready`."""
        with processes.locked(self.folder / "lock"):
            if self.alive:
                return
            command = [
                *self.prefix,
                str(runtime.executable),
                *(self.folder / "jvm.options").read_text(encoding="utf-8").splitlines(),
                "-XX:+UseSerialGC",  # the smallest
                "-XX:+ExitOnOutOfMemoryError",  # the server ends instead of running with failed threads
                "-XX:ErrorFile=./java-error-%p.log",
                "-Dlog4j2.configurationFile=./log4j2.properties",
                "-Dlog4j2.disableJmx=true",
                "-cp",
                ":".join(str(jar) for jar in class_path()),
                _MAIN,
                "./zoo.cfg",
            ]
            processes.start(
                command,
                pid_file=self.folder / "zookeeper.pid",
                log=self.folder / "zookeeper.out",
                folder=self.folder,
            )

    def stop(self) -> None:
        """End the server, by SIGKILL if SIGTERM takes too long; do nothing if it does not run."""
        if process := self.process:
            processes.stop(process, grace_s=STOP_GRACE_S)

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL); do nothing if it does not run."""
        if process := self.process:
            processes.kill(process)

    def ask(self, word: str) -> str | None:
        """Return the answer to a four-letter word, or None if no answer arrives in time."""
        try:
            with socket.create_connection((self.host, self.port), ANSWER_TIMEOUT_S) as connection:
                connection.sendall(word.encode("ascii"))
                with connection.makefile("rb") as answer:
                    return answer.read().decode("utf-8", errors="replace")
        except OSError:
            return None

    def mode(self) -> str | None:
        """Return `standalone`, `leader` or `follower`; None while the server does not serve clients.

        `ruok` is not sufficient: a server that has lost its quorum still answers `imok`.
        """
        for line in (self.ask("srvr") or "").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return None

    def last_words(self) -> str:
        """Return the last lines of the log, of errors if it has any, for an error message."""
        lines: list[str] = []
        for name in ("zookeeper.log", "zookeeper.out"):
            with contextlib.suppress(FileNotFoundError):
                lines += (self.folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        relevant = [line for line in lines if " ERROR " in line or "Exception" in line] or lines
        return " | ".join(line.strip() for line in relevant[-LOG_TAIL_LINES:]) or "its log is empty"


@dataclasses.dataclass(frozen=True)
class LocalZooKeeper:
    """A server, or an ensemble of three, in one folder of this machine."""

    folder: Path
    servers: tuple[ZooKeeperServer, ...]

    @property
    def connect_string(self) -> str:
        """The addresses of all servers, in the form for clients."""
        return ",".join(server.address for server in self.servers)

    def start(self, *, timeout_s: float) -> None:
        """Start the servers that do not run, and wait until all servers serve; errors as in `wait_ready`.

        ConfigError if Java or PySpark is missing.
        """
        runtime = java.find()
        for server in self.servers:
            server.start(runtime)
        self.wait_ready(timeout_s=timeout_s)

    def wait_ready(self, *, timeout_s: float, servers: Sequence[ZooKeeperServer] | None = None) -> None:
        """Wait until the servers (by default all) serve clients, alone or in a quorum.

        UnavailableError if a server has ended, or after the timeout; servers that run keep running.
        """
        deadline = time.monotonic() + timeout_s
        for server in self.servers if servers is None else servers:
            while server.mode() is None:
                if not server.alive:
                    raise UnavailableError(
                        f"the ZooKeeper server in {server.folder} has ended: {server.last_words()}"
                    )
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"the ZooKeeper server in {server.folder} does not serve after {timeout_s:.0f} s: "
                        f"{server.last_words()}"
                    )
                time.sleep(POLL_INTERVAL_S)

    def leader(self) -> ZooKeeperServer | None:
        """Return the leader, or the only server; None during an election."""
        return next((server for server in self.servers if server.mode() in {"leader", "standalone"}), None)

    def stop(self) -> None:
        """End all servers."""
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        """End all servers as a crash of the machine would, except that no write is lost."""
        for server in self.servers:
            server.kill()


def create(
    folder: Path,
    *,
    size: int = 1,
    options: Options | None = None,
    hosts: Sequence[str] = (),
    wanted: Sequence[int] = (),
) -> LocalZooKeeper:
    """Set up an ensemble of `size` servers in a folder, or return the existing one; no server is started.

    An existing ensemble keeps its options, hosts and ports. ConfigError if it has another size.

    Args:
        folder: Folder of the ensemble.
        size: Number of servers.
        options: The settings of the servers.
        hosts: Where each server listens; by default all listen on the loopback address.
        wanted: Ports for the clients of the first servers; a free one replaces each that is not free.
    """
    folder = folder.resolve()
    with processes.locked(folder / "lock"):
        if (existing := load(folder)) is None:
            _write(folder, hosts or [HOST] * size, options or Options(), wanted)
            existing = load(folder)
    if existing is None or len(existing.servers) != size:
        raise ConfigError(
            f"{folder} holds {len(existing.servers) if existing else 'no'} ZooKeeper server(s), not {size}; "
            "use another folder"
        )
    return existing


def load(folder: Path) -> LocalZooKeeper | None:
    """Return the ensemble that was set up in a folder, or None if no ensemble was."""
    folder = folder.resolve()
    try:
        addresses = (folder / "connect").read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return None
    if not addresses:  # the machine crashed during the write of this file, so no client knows the ports
        return None
    servers = []
    for number, address in enumerate(addresses[0].split(","), 1):
        host, _, port = address.rpartition(":")
        servers.append(ZooKeeperServer(folder / f"server-{number}", int(port), host))
    return LocalZooKeeper(folder, tuple(servers))


def class_path() -> list[Path]:
    """Return the jars of a ZooKeeper server, from the PySpark wheel; ConfigError if a jar is missing."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the embedded ZooKeeper needs the PySpark wheel, which is not installed; "
            "install the extra 'tidelock[spark]', or name a ZooKeeper that runs (--zk)"
        )
    folder = Path(spec.origin).parent / "jars"
    jars = {name: sorted(folder.glob(f"{name}-[0-9]*.jar")) for name in _JARS}
    if missing := [name for name, found in jars.items() if not found]:
        raise ConfigError(
            f"the PySpark wheel has no {', '.join(missing)} in {folder}; install pyspark 4.2 or newer, "
            "or name a ZooKeeper that runs (--zk)"
        )
    return [found[-1] for found in jars.values()]


def _write(folder: Path, hosts: Sequence[str], options: Options, wanted: Sequence[int]) -> None:
    """Write the files of all servers, and `connect` last."""
    size = len(hosts)
    ports = free_ports(size * 3, wanted)
    clients, quorum, election = ports[:size], ports[size : 2 * size], ports[2 * size :]
    members = [
        f"server.{number}={host}:{quorum[number - 1]}:{election[number - 1]}"
        for number, host in enumerate(hosts, 1)
    ]
    for number, (host, port) in enumerate(zip(hosts, clients, strict=True), 1):
        server = folder / f"server-{number}"
        (server / "data").mkdir(parents=True, exist_ok=True)
        (server / "data" / "myid").write_text(f"{number}\n", encoding="utf-8")
        (server / "zoo.cfg").write_text(
            _zoo_cfg(options, f"{host}:{port}", members if size > 1 else []), encoding="utf-8"
        )
        (server / "log4j2.properties").write_text(_log4j2(options), encoding="utf-8")
        jvm = "\n".join((f"-Xmx{options.heap_mb}m", *options.jvm))
        (server / "jvm.options").write_text(f"{jvm}\n", encoding="utf-8")
    connect = ",".join(f"{host}:{port}" for host, port in zip(hosts, clients, strict=True))
    (folder / "connect").write_text(f"{connect}\n", encoding="utf-8")


def _zoo_cfg(options: Options, address: str, members: Sequence[str]) -> str:
    # Java reads this file as Latin-1, so it must not contain a path of the user; a server's working directory
    # is its folder.
    host, _, port = address.rpartition(":")
    lines = [
        f"tickTime={options.tick_time_ms}",
        "initLimit=20",
        "syncLimit=10",
        f"maxSessionTimeout={options.session_timeout_max_ms}",
        "dataDir=./data",
        f"clientPort={port}",
        f"clientPortAddress={host}",
        "maxClientCnxns=1000",
        "forceSync=yes",
        f"autopurge.snapRetainCount={options.snapshots_kept}",
        "autopurge.purgeInterval=1",
        "admin.enableServer=false",  # needs a jetty that the PySpark wheel does not have
        "4lw.commands.whitelist=ruok,srvr,mntr,cons",
        *members,
    ]
    return "".join(f"{line}\n" for line in lines)


def _log4j2(options: Options) -> str:
    lines = [
        "status=error",
        "rootLogger.level=info",
        "rootLogger.appenderRef.file.ref=file",
        "appender.file.type=RollingFile",
        "appender.file.name=file",
        "appender.file.fileName=./zookeeper.log",
        "appender.file.filePattern=./zookeeper.log.%i",
        "appender.file.layout.type=PatternLayout",
        "appender.file.layout.pattern=%d{ISO8601} %-5p %c{1} - %m%n",
        "appender.file.policies.type=Policies",
        "appender.file.policies.size.type=SizeBasedTriggeringPolicy",
        f"appender.file.policies.size.size={options.log_bytes_max}",
        "appender.file.strategy.type=DefaultRolloverStrategy",
        "appender.file.strategy.max=2",
    ]
    return "".join(f"{line}\n" for line in lines)
