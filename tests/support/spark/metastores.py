"""A metastore that serves in a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from thriftpy2.rpc import client_context

from tidelock.metastore.calls import Calls
from tidelock.metastore.idl import hive
from tidelock.metastore.server import MetastoreServer


@contextlib.contextmanager
def serving(calls: Calls, connections_max: int = 10) -> Iterator[MetastoreServer]:
    """Serve calls at a free port."""
    with MetastoreServer(("127.0.0.1", 0), calls, connections_max=connections_max) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def client_of(port: int) -> Any:
    """A client of the protocol, as a context."""
    return client_context(
        hive.ThriftHiveMetastore, "127.0.0.1", port, socket_timeout=20_000, connect_timeout=20_000
    )
