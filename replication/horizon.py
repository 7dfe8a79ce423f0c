"""How the horizon is raised: the reads, their order, and the multi that is refused when it is too late.

The rules are in :mod:`tidelock.replication.core.horizon_rules`. The order of the reads is part of the
protocol:

* The version of ``pins`` is read before the pins are listed, all in one session, and is checked in the multi
  that sets the horizon: a pin that the list lacks was made after that version, so the multi is refused
  (F6). So are the tags: the multi of a tag sets ``pins`` too (rule tags).
* The progress of the replicas is read after the list of the pins: a replica that returns takes a pin first,
  and releases it when its progress is published. In the opposite order both could be missed.

All other reads go beside each other. Any pin that is taken between the version and the multi refuses it, so
each answer that is waited for makes a move less likely where many clients take pins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from tidelock.csnlog.cluster.replica_progress import (
    Fenced,
    ReplicaProgress,
    read_members,
    read_published,
)
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, Delete, Node, SetData, Store
from tidelock.replication.core.horizon_rules import PinWatch

_NO_NODE: Final = Refused(Reason.NO_NODE)
#: Deletes a pin at any version: its id is never used again.
_ANY_VERSION: Final = -1


class HorizonReading(msgspec.Struct, frozen=True):
    """The result of one read, in one session and in the order that matters.

    Attributes:
        at: When it began, by the clock of the observer.
        horizon: ``csn/horizon``, and its version.
        pins_version: Version of ``pins``, read before the list, and before the tags.
        tags: The CSNs of the tags.
        replicas: The progress of the replicas, read after the pins.
    """

    at: float
    horizon: Csn
    horizon_version: int
    pins_version: int
    tags: Mapping[str, Csn]
    replicas: ReplicaProgress


async def read_horizon(store: Store, watch: PinWatch, clock: Callable[[], float]) -> HorizonReading | None:
    """Read what decides the horizon; None when a read failed, or the session has changed meanwhile."""
    session, begun = store.session, clock()
    horizon, (pins, names, tags), members = await asyncio.gather(
        store.get(tree.HORIZON), _list_pins(store), read_members(store)
    )
    if not (isinstance(horizon, Ok) and isinstance(pins, Ok) and isinstance(names, Ok)) or members is None:
        return None
    if tags is None:
        return None
    are_read, replicas = await asyncio.gather(
        _read_pins(store, watch, watch.listed(names.value, begun), clock), read_published(store, members)
    )
    if not are_read or replicas is None or store.session != session:
        return None
    return HorizonReading(
        begun, codec.decode_csn(horizon.value.data), horizon.value.version, pins.value.version, tags, replicas
    )


async def _list_pins(
    store: Store,
) -> tuple[Ok[Node] | Refused | Unknown, Ok[tuple[str, ...]] | Refused | Unknown, Mapping[str, Csn] | None]:
    """Read the version of the pins, then their list and the tags."""
    pins = await store.get(tree.PINS)
    names, tags = await asyncio.gather(store.children(tree.PINS), read_tags(store))
    return pins, names, tags


async def read_tags(store: Store) -> Mapping[str, Csn] | None:
    """Read the CSNs of the tags; None when the read failed.

    Raises:
        CorruptError: This version cannot read them.
    """
    node = await store.get(tree.TAGS)
    if node == _NO_NODE:
        return {}
    return codec.decode_tags(node.value.data) if isinstance(node, Ok) else None


async def read_pins(store: Store, watch: PinWatch, clock: Callable[[], float]) -> bool:
    """List the pins, and read those that are new or due to be read; return False when a read failed."""
    begun = clock()
    names = await store.children(tree.PINS)
    if not isinstance(names, Ok):
        return False
    return await _read_pins(store, watch, watch.listed(names.value, begun), clock)


async def _read_pins(
    store: Store, watch: PinWatch, to_read: Sequence[str], clock: Callable[[], float]
) -> bool:
    for pin, node in zip(to_read, await asyncio.gather(*map(store.get, map(tree.pin, to_read))), strict=True):
        if isinstance(node, Ok):
            watch.read(pin, node.value, clock())
        elif node == _NO_NODE:
            watch.gone(pin)
        else:
            return False
    return True


async def end_expired(fenced: Fenced, watch: PinWatch, now: float) -> None:
    """Delete the pins that are not renewed.

    Raises:
        FencedError: Another replica has raised the own fence.
        UnavailableError: The log has ended on this replica.
    """
    for pin, version in watch.expired(now).items():
        await _delete(fenced, watch, pin, version)


async def end_below(fenced: Fenced, watch: PinWatch, horizon: Csn) -> None:
    """Delete all pins below a CSN, by order of an operator; errors as :func:`end_expired`."""
    for pin, csn in watch.csns.items():
        if csn < horizon:
            await _delete(fenced, watch, pin, _ANY_VERSION)


async def _delete(fenced: Fenced, watch: PinWatch, pin: str, version: int) -> None:
    result = await fenced((Delete(tree.pin(pin), version),))
    if isinstance(result, Ok) or result == _NO_NODE:
        watch.gone(pin)


async def raise_horizon(fenced: Fenced, seen: HorizonReading, to: Csn) -> Csn | None:
    """Set the horizon, which must be at most what :func:`bounds` allows; return None when it was refused.

    Raises:
        FencedError: Another replica has raised the own fence.
        UnavailableError: The log has ended on this replica.
    """
    if to <= seen.horizon:
        return seen.horizon
    result = await fenced(
        (
            Check(tree.PINS, seen.pins_version),
            *seen.replicas.unchanged,
            SetData(tree.HORIZON, codec.encode_csn(to), seen.horizon_version),
        )
    )
    return to if isinstance(result, Ok) else None
