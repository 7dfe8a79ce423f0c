"""Connections of a driver's or a task's process to the cluster that the options name."""

from __future__ import annotations

import os
import random
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tidelock import secret_file
from tidelock.client import Database, connect
from tidelock.read_route import Replica, order
from tidelock.spark.source.options import TableTarget
from tidelock.wire.rows import Fields

#: Shared clients that a process keeps open; beyond it the least recently used one is closed.
CLIENTS_KEPT: Final = 8

_lock = threading.Lock()
_clients: OrderedDict[tuple[tuple[str, ...], str | None, str | None], Database] = OrderedDict()


def environment() -> Mapping[str, str]:
    """Return the environment of this process, with the secret of the file that it may name.

    ConfigError if it names one without a secret.
    """
    secret = secret_file.of_environment(os.environ)
    return os.environ if secret is None else {**os.environ, secret_file.VARIABLE: secret}


@contextmanager
def connected(target: TableTarget, *, home: bool = False) -> Iterator[Database]:
    """Connect for the duration of a block; with `home` to the target's replica alone.

    Raises as `tidelock.connect`.
    """
    replica = target.replica if home else None
    with connect(list(target.urls), replica=replica, token=target.token) as db:
        yield db


def shared_client(target: TableTarget) -> Database:
    """Return a client that this process keeps open for its next batches; the caller does not close it.

    If the target names a replica, the client asks that replica alone. Raises as `tidelock.connect`.
    """
    key = (target.urls, target.token, target.replica)
    with _lock:
        if (client := _clients.get(key)) is not None:
            _clients.move_to_end(key)
            return client
    made = connect(list(target.urls), replica=target.replica, token=target.token)
    with _lock:
        kept = _clients.setdefault(key, made)
        _clients.move_to_end(key)
        evicted = _clients.popitem(last=False)[1] if len(_clients) > CLIENTS_KEPT else None
    if kept is not made:
        made.close()
    if evicted is not None:
        evicted.close()
    return kept


def replicas_of(status: Fields, target: TableTarget) -> list[Replica]:
    """Return the replicas in the order in which a task asks them: the target's first, then the others.

    Raises:
        BadRequestError: The target's replica does not exist.
        UnavailableError: No replica has an address yet.
    """
    return order(status["replicas"], pinned=target.replica, rotation=random.randrange(1 << 16))
