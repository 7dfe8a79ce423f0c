"""The cluster that options name, seen from a driver's or a task's process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tidelock.client import Database, connect
from tidelock.spark.options import Replica, order
from tidelock.spark.source.options import Target


@contextmanager
def connected(target: Target, *, home: bool = False) -> Iterator[Database]:
    """Connect for the time of a block; with `home` to the target's replica alone.

    Raises as `tidelock.connect`.
    """
    replica = target.replica if home else None
    with connect(list(target.urls), replica=replica, token=target.token) as db:
        yield db


def replicas_of(status: Mapping[str, Any], target: Target) -> list[Replica]:
    """Return the replicas in the order in which a task is to ask them: the target's first, then any.

    Raises:
        BadRequestError: There is no such replica.
        UnavailableError: None has an address yet.
    """
    return order(status["replicas"], pinned=target.replica, rotation=random.randrange(1 << 16))
