"""The tail of the log: below it records are deleted, since every replica has them in its catalog.

A replica's snapshot CSN moves only when everything up to it is durable in its catalog. So ``csn/tail`` may
move past the records that every replica which is not struck has applied. Live transactions and pins do not
hold the tail: they need parts, not records (F9). The last ``keep`` records are kept in addition, so that a
replica that starts again finds its position, and people can read them.

``csn/tail`` is moved by compare-and-set before the first record is deleted. A replica that misses a record
reads the tail next, and learns whether the record was deleted or never existed. No replica needs the records
below the tail, so a deletion may end anywhere; the next one lists the remaining records and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelock.csnlog.cluster.replica_progress import Fenced, read_progress
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, csn, epoch_of, sequence_of
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Delete, SetData, Store
from tidelock.csnlog.reading import numbers_in

#: Records that are deleted with one request.
DELETES_MAX: Final = 500
#: The tail is moved when it can pass this share of the records that are kept, so a quiet log costs no writes.
_STEP_SHARE: Final = 0.01
#: A record is written once; its znode keeps its first version.
_FIRST_VERSION: Final = 0
#: Deletes a directory at any version: an epoch is never created again.
_ANY_VERSION: Final = -1


def tail_after(applied: Csn, keep: int, present: Csn, last_of: Mapping[int, int]) -> Csn:
    """Return the position to which the tail may move; it is never below the present one.

    Args:
        applied: The largest CSN that every replica which holds the tail has applied; it is at least 1.
        keep: Number of records to keep up to ``applied``, which is included; at least 1.
        present: The present tail.
        last_of: Number of the END record of each former epoch, as far as they are needed.
    """
    epoch, last, wanted = epoch_of(applied), sequence_of(applied), keep
    while wanted > last + 1:
        wanted -= last + 1
        epoch -= 1
        if epoch < epoch_of(present) or epoch not in last_of:
            return present
        last = last_of[epoch]
    return max(present, csn(epoch, last + 1 - wanted))


async def move_tail(store: Store, fenced: Fenced, keep: int) -> Csn | None:
    """Move ``csn/tail`` as far as it may; return its position then, None when that is not known now.

    Raises:
        FencedError: Another replica has raised the own fence.
        UnavailableError: The log has ended on this replica.
    """
    session = store.session
    replicas = await read_progress(store)
    found = await store.get(tree.TAIL)
    if replicas is None or not isinstance(found, Ok):
        return None
    present = codec.decode_csn(found.value.data)
    last_of = await _last_of(store, replicas.applied, keep, present)
    if last_of is None or store.session != session:
        return None
    tail = tail_after(replicas.applied, keep, present, last_of)
    if tail - present < max(1, int(keep * _STEP_SHARE)):
        return present
    change = SetData(tree.TAIL, codec.encode_csn(tail), found.value.version)
    return tail if isinstance(await fenced((*replicas.unchanged, change)), Ok) else None


async def _last_of(store: Store, applied: Csn, keep: int, present: Csn) -> dict[int, int] | None:
    """Return the last numbers of the closed epochs that ``keep`` records before ``applied`` reach into."""
    found: dict[int, int] = {}
    epoch, counted = epoch_of(applied), sequence_of(applied) + 1
    while counted < keep and epoch > epoch_of(present):
        epoch -= 1
        names = await store.children(tree.epoch_dir(epoch))
        if not isinstance(names, Ok):
            return None
        numbers = numbers_in(names.value)
        if not numbers:
            break
        found[epoch] = max(numbers)
        counted += found[epoch] + 1
    return found


async def delete_below(store: Store, fenced: Fenced, tail: Csn) -> bool:
    """Delete all records below a tail that is in ZooKeeper, and the empty directories of former epochs.

    Returns:
        Whether all are deleted; if not, another replica was faster, or a request failed: call it again later.

    Raises:
        FencedError: Another replica has raised the own fence.
        UnavailableError: The log has ended on this replica.
    """
    epochs = await store.children(tree.CSN)
    if not isinstance(epochs, Ok):
        return False
    for epoch in sorted(int(name) for name in epochs.value if name.isdecimal()):
        if epoch > epoch_of(tail):
            break
        names = await store.children(tree.epoch_dir(epoch))
        if not isinstance(names, Ok):
            return False
        numbers = (csn(epoch, number) for number in numbers_in(names.value))
        below = sorted(number for number in numbers if number < tail)
        for begin in range(0, len(below), DELETES_MAX):
            some = below[begin : begin + DELETES_MAX]
            deletes = tuple(Delete(tree.record(number), _FIRST_VERSION) for number in some)
            if not isinstance(await fenced(deletes), Ok):
                return False
        if epoch < epoch_of(tail) and len(below) == len(names.value):
            await fenced((Delete(tree.epoch_dir(epoch), _ANY_VERSION),))
    return True
