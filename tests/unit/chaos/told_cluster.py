"""A cluster as the runner sees it: names, addresses, and replicas that tell a status over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ToldCluster:
    """Replicas r1 to r3 and servers z1 to z3.

    Attributes:
        replicas: The members, which a test may change.
        told: The status of each replica; one that is taken away answers an error.
    """

    secret = None

    def __init__(self, port: int) -> None:
        self.replicas = ["r1", "r2", "r3"]
        self.zookeepers = ["z1", "z2", "z3"]
        self.told: dict[str, dict[str, Any]] = {
            replica: {"state": "serving", "snapshot_csn": 7, "end_csn": 7} for replica in self.replicas
        }
        self._port = port

    def url(self, replica: str) -> str:
        """Return the address of a replica."""
        return f"http://127.0.0.1:{self._port}/{replica}"


@contextmanager
def told_cluster() -> Iterator[ToldCluster]:
    """Yield such a cluster, and end it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            replica = self.path.split("/")[1]
            body = json.dumps(cluster.told.get(replica, {})).encode()
            self.send_response(200 if replica in cluster.told else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cluster = ToldCluster(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
