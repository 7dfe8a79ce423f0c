"""Connections that a Python process of Spark keeps: it serves one batch after the other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from tidelock.client import Database, connect
from tidelock.spark.source.options import Target

#: Clients that a process keeps; the one that was used longest ago goes.
KEPT: Final = 8

_lock = threading.Lock()
_links: OrderedDict[tuple[tuple[str, ...], str | None, str | None], Database] = OrderedDict()


def link(target: Target) -> Database:
    """Return a client that this process keeps; nobody closes it. With a `replica` it asks that one alone.

    Raises as `tidelock.connect`.
    """
    key = (target.urls, target.token, target.replica)
    with _lock:
        if (found := _links.get(key)) is not None:
            _links.move_to_end(key)
            return found
    made = connect(list(target.urls), replica=target.replica, token=target.token)
    with _lock:
        kept = _links.setdefault(key, made)
        _links.move_to_end(key)
        over = _links.popitem(last=False)[1] if len(_links) > KEPT else None
    if kept is not made:
        made.close()
    if over is not None:
        over.close()
    return kept
