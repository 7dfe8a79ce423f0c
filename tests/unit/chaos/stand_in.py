"""A cluster whose handles do nothing: whatever a fault asks of it, all of its nodes stay well.

Its replicas answer over HTTP, its ZooKeeper answers the words and the few requests that faults send, each
replica has a catalog with two parts, and one process stands for all. So a proof that is seen here is none.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import sqlite3
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import xxhash

from chaos.record.journal import Journal
from chaos.world import World
from tidelock.replica_agent.storage.catalog_schema import SCHEMA
from tidelock.testing.cluster import Cluster
from tidelock.testing.network import Network
from tidelock.testing.node import Node

REPLICAS: Final = ["r1", "r2", "r3"]
#: The session of every sign of life.
SESSION: Final = 0x100002AD5C70001
_DESCRIPTION: Final = b"{" + b" " * 300_000 + b"}"


class IdleNode(Node):
    """A node that runs and is ready, whatever is done to it.

    Args:
        name: Its name.
        data_dir: The folder of its data.
        pid: A process that runs.
    """

    def __init__(self, name: str, data_dir: Path, pid: int) -> None:
        super().__init__(name, "127.0.0.1", data_dir)
        self._pid = pid

    @property
    def pid(self) -> int | None:
        """Its process."""
        return self._pid

    def log(self) -> str:
        """Return one line."""
        return json.dumps({"event": "started", "state": "serving"}) + "\n"

    def kill(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def start(self, *, timeout_s: float = 0.0, wait: bool = True) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def replace(self, *, start: bool = True) -> None:
        """Do nothing."""

    def set_clock(self, offset_s: float) -> None:
        """Do nothing."""

    def full_disk(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return contextlib.nullcontext()

    def ready(self) -> bool:
        """Return that it is."""
        return True


class IdleNetwork(Network):
    """A network that delivers all packets."""

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Do nothing."""

    def join(self, a: str, b: str) -> None:
        """Do nothing."""

    def isolate(self, name: str) -> None:
        """Do nothing."""

    def rejoin(self, name: str) -> None:
        """Do nothing."""

    def slow(self, name: str, bytes_per_s: int) -> None:
        """Do nothing."""

    def lose(self, name: str, share: float) -> None:
        """Do nothing."""

    def held_back(self, name: str) -> int:
        """Return that no packet had to wait."""
        return 0

    def dropped(self, name: str) -> int:
        """Return that no packet was dropped."""
        return 0


class IdleCluster(Cluster):
    """Three replicas and three servers of ZooKeeper that nothing ever happens to; a context manager.

    Args:
        folder: Gets the data of the replicas.
    """

    kind = "processes"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            replicas=len(REPLICAS),
            copies=2,
            zookeepers=3,
            spark_workers=0,
            settings={},
            environment={},
            secret=None,
        )
        self.network = IdleNetwork(None)
        self._open = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._members = [*REPLICAS]
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Agent)  # its threads are daemons
        self._words = [_Words(("127.0.0.1", 0), _Server) for _ in self.zookeepers]

    @property
    def replicas(self) -> list[str]:
        """The members."""
        return [*self._members]

    @property
    def spark_master(self) -> str | None:
        """There is none."""
        return None

    def url(self, replica: str) -> str:
        """Return the address of an agent: all of them are at one server."""
        return f"http://127.0.0.1:{self._http.server_port}/{replica}"

    def data_address(self, replica: str) -> str:
        """No fault asks for it."""
        raise NotImplementedError(replica)

    @property
    def zk(self) -> str:
        """The connect string."""
        places = (self._place(server) for server in self._words)
        return f"{','.join(f'{host}:{port}' for host, port in places)}/tidelock"

    def leader(self) -> str | None:
        """Return the server that always leads."""
        return "z1"

    def add(self, replica: str) -> Node:
        """Lay a member out that the cluster does not know."""
        self._members.append(replica)
        return self._lay_out(replica)

    def replace_member(self, dead: str, fresh: str) -> Node:
        """Lay a member out, and leave the dead one where it is."""
        del dead
        return self.add(fresh)

    def forget(self, replica: str) -> None:
        """Do nothing."""

    def start(self, *, timeout_s: float = 0.0) -> None:
        """Start the servers and the processes."""
        del timeout_s
        for server in (self._http, *self._words):
            thread = threading.Thread(target=partial(server.serve_forever, 0.01), daemon=True)
            thread.start()
            self._open.callback(thread.join)
            self._open.callback(server.server_close)
            self._open.callback(server.shutdown)
        self._process = self._open.enter_context(subprocess.Popen(["/bin/sleep", "600"]))
        self._open.callback(self._process.kill)
        for name in (*REPLICAS, *self.zookeepers):
            self._lay_out(name)
        # A connection of this network namespace, which agents share: to the first server.
        self._open.enter_context(socket.create_connection(self._place(self._words[0])))

    def close(self) -> None:
        """End them."""
        self._open.close()

    @staticmethod
    def _place(server: socketserver.TCPServer) -> tuple[str, int]:
        return "127.0.0.1", int(server.server_address[1])

    def _lay_out(self, name: str) -> Node:
        folder = self.folder / name
        folder.mkdir(parents=True)
        write_catalog(folder)
        assert self._process is not None
        self._nodes[name] = node = IdleNode(name, folder, self._process.pid)
        return node


@contextlib.contextmanager
def idle_world(folder: Path) -> Iterator[World]:
    """Yield a run on an idle cluster."""
    with IdleCluster(folder / "cluster") as cluster, Journal(folder / "journal") as journal:
        yield World(cluster, folder, journal, seed=1, copies=2)


def write_catalog(folder: Path) -> None:
    """Write a catalog with a part in a file of its own and a part in a pack, and their files."""
    with contextlib.closing(sqlite3.connect(folder / "catalog.db")) as db, db:
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(SCHEMA)
        for name, file, offset in (("r1-1-1", "parts/00/r1-1-1.parquet", 0), ("r1-1-2", "packs/00/p", 100)):
            data = name.encode() * 100
            path = folder / file
            path.parent.mkdir(parents=True)
            path.write_bytes(bytes(offset) + data + bytes(100))
            db.execute(
                "INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, "
                "creation_csn, file, offset, kind, state) "
                "VALUES (?, 't', '', 1, ?, ?, 'tid', 1, ?, ?, 'part', 'held')",
                (name, len(data), xxhash.xxh3_128_hexdigest(data), file, offset),
            )


def status(replica: str) -> dict[str, Any]:
    """Return the status of a replica that is well."""
    rows = [
        {"id": one, "alive": True, "phase": "following", "member": "serving", "disk": "d"} for one in REPLICAS
    ]
    ahead_s = {one: 0.0 for one in REPLICAS if one != replica}
    return {
        "id": replica,
        "cluster_id": "idle",
        "state": "serving",
        "reason": "",
        "boot": 1,
        "snapshot_csn": 1,
        "open_transactions": 0,
        "clock": {"off": False, "ahead_s": ahead_s},
        "replicas": rows,
    }


class _Agent(BaseHTTPRequestHandler):
    """Answers for all agents; the first name of a path is the agent."""

    def do_GET(self) -> None:
        """Answer as a replica that is well."""
        replica, _, path = self.path.lstrip("/").partition("/")
        match path:
            case "api/v1/csns/0/replicas":
                self._answer(json.dumps({"csn": 0, "replicas": REPLICAS}).encode())
            case "api/v1/openapi.json":
                self._answer(_DESCRIPTION)
            case _:
                self._answer(json.dumps(status(replica)).encode())

    def do_POST(self) -> None:
        """Answer that the members are as wanted."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        states = dict.fromkeys(REPLICAS, "serving")
        members = {"changed": False, "copies": 2, "racks": False, "draining": [], "states": states}
        self._answer(json.dumps(members).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """Keep quiet."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Words(socketserver.ThreadingTCPServer):
    daemon_threads = True


class _Server(socketserver.StreamRequestHandler):
    """A server of ZooKeeper: it serves, sessions are opened, and each znode is of one session."""

    def handle(self) -> None:
        """Answer a word, or the requests of a session."""
        begin = self._read()
        if begin == b"srvr":
            self.wfile.write(b"Mode: follower\n")
            return
        while len(begin) == 4:
            frame = self.rfile.read(struct.unpack("!i", begin)[0])
            # The znode's owner comes after xid, zxid, error, four times and three versions.
            body = frame[:4] + bytes(12) + bytes(44) + struct.pack("!q", SESSION) + bytes(16)
            self.wfile.write(struct.pack("!i", len(body)) + body)
            begin = self._read()

    def _read(self) -> bytes:
        """Read four bytes; fewer if the client has gone."""
        try:
            return self.rfile.read(4)
        except ConnectionError:
            return b""
