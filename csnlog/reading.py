"""Reads of the log that end: one record, the records up to its end in one session, a page for people.

:mod:`tidelock.csnlog.core.follower` reads the log without an end. The shell uses the reads of this module for
barriers, outcomes and batches in doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.follower import number_after
from tidelock.csnlog.core.follower_messages import ABSENT, Absent, ChainQuestion, Finding, Unreadable
from tidelock.csnlog.core.ids import CSN_NONE, Csn, epoch_of
from tidelock.csnlog.core.imprint import missing_record
from tidelock.csnlog.core.model import LogRecord, RecordKind
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.skipped import NO_SKIPS, Skips, advice, passed_over
from tidelock.csnlog.core.store import ANY_VERSION, Check, Store
from tidelock.errors import CorruptError, SnapshotTooOldError, UnavailableError

Watch = Callable[[], None]

#: Reads that are tried at first: a barrier usually finds very few records beyond what was followed.
_FIRST_WINDOW: Final = 2


class BelowTailError(UnavailableError):
    """The requested records are deleted, since every replica that is not struck has them (``tail``)."""


async def read_record(
    store: Store, number: Csn, skips: Skips = NO_SKIPS
) -> LogRecord | Unreadable | Absent | None:
    """Read one record, or an empty one in place of a skipped one; return None when the read failed."""
    match await store.get(tree.record(number)):
        case Ok(value=node):
            try:
                if number in skips:
                    return passed_over(number, node.data, node.created, skips[number])
                return codec.decode_log_record(number, node.data, node.created)
            except CorruptError as error:
                return Unreadable(error.message if number in skips else f"{error.message}; {advice(number)}")
        case Refused(reason=Reason.NO_NODE):
            return ABSENT
    return None


async def read_tail(store: Store) -> Csn | None:
    """Read ``csn/tail``; return None when the read failed. Raises CorruptError when it is not a CSN."""
    result = await store.get(tree.TAIL)
    return codec.decode_csn(result.value.data) if isinstance(result, Ok) else None


async def record_exists(store: Store, number: Csn, *, watch: Watch) -> bool | None:
    """Ask whether a record exists, and watch for its creation; return None when the read failed."""
    result = await store.exists(tree.record(number), watch=watch)
    return result.value is not None if isinstance(result, Ok) else None


async def find_out(
    store: Store, question: ChainQuestion, about: Csn, *, watch: Watch, skips: Skips = NO_SKIPS
) -> Finding | None:
    """Answer a question of the follower; None when a read failed.

    Raises:
        CorruptError: The tail is not a CSN, or there is no log at all.
    """
    match question:
        case ChainQuestion.BARRIER:
            # It changes nothing and checks no version: in a ZooKeeper that was set back the own fence may be
            # lower than it was, and this has to be found out.
            done = await store.multi((Check(tree.CSN, ANY_VERSION),))
            if done == Refused(Reason.NO_NODE):
                raise CorruptError(missing_record(about))
            return isinstance(done, Ok) or None
        case ChainQuestion.RECORD:
            return await read_record(store, about, skips)
        case ChainQuestion.PROBE:
            return await record_exists(store, about, watch=watch)
        case ChainQuestion.TAIL:
            return await read_tail(store)
        case ChainQuestion.COUNT:
            result = await store.exists(tree.epoch_dir(epoch_of(about)))
            if isinstance(result, Ok):
                return result.value.children if result.value is not None else ABSENT
        case ChainQuestion.LIST:
            names = await store.children(tree.epoch_dir(epoch_of(about)))
            if isinstance(names, Ok):
                return numbers_in(names.value)
    return None


def numbers_in(names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the sequence numbers among the names in the directory of an epoch, in no order.

    A znode with any other name is no record; it took a sequence number, which is a gap.
    """
    numbers = []
    for name in names:
        try:
            numbers.append(tree.sequence_of_name(name))
        except ValueError:
            continue
    return tuple(numbers)


async def read_to_end(
    store: Store, start: Csn, *, session: int, read_ahead: int, skips: Skips = NO_SKIPS
) -> tuple[LogRecord, ...] | None:
    """Read all records from number ``start`` on until one does not exist, in this session.

    The answer contains every record that was in the log before this call, as far as the session has seen it.
    It may contain records that are created during the read.

    Returns:
        The records in order, or None when a read failed or the session has changed.

    Raises:
        BelowTailError: The tail has passed ``start``.
        CorruptError: A record cannot be read.
    """
    found: list[LogRecord] = []
    number, window = start, min(_FIRST_WINDOW, read_ahead)
    while True:
        numbers = [Csn(number + step) for step in range(window)]
        records = await asyncio.gather(*(read_record(store, one, skips) for one in numbers))
        if store.session != session or None in records:
            return None
        for one, record in zip(numbers, records, strict=True):
            if isinstance(record, Absent):
                tail = await read_tail(store)
                if tail is None or store.session != session:
                    return None
                if tail > one:
                    raise BelowTailError(
                        f"records from CSN {one} on are deleted, the tail is {tail}", tail=tail
                    )
                return tuple(found)
            if isinstance(record, Unreadable):
                raise CorruptError(f"CSN {one}: {record.reason}", csn=one)
            assert record is not None
            found.append(record)
            number = number_after(one, record.record)
            if record.record.kind is RecordKind.END:
                break
        window = min(2 * window, read_ahead)


async def read_page(
    store: Store, position: Csn, limit: int, *, read_ahead: int, skips: Skips = NO_SKIPS
) -> list[LogRecord]:
    """Read at most ``limit`` records that follow CSN ``position``, for people.

    From CSN 0 on it begins with the first record that is kept.

    Raises:
        SnapshotTooOldError: The record that follows ``position`` is deleted.
        UnavailableError: A read failed.
        CorruptError: A record cannot be read.
    """
    anchor = await read_record(store, position, skips)
    number = number_after(position, anchor.record) if isinstance(anchor, LogRecord) else Csn(position + 1)
    tail = await read_tail(store)
    if anchor is None or tail is None:
        raise UnavailableError("the log cannot be read now: no connection to ZooKeeper")
    if position > CSN_NONE and number < tail:
        raise SnapshotTooOldError(
            f"the log begins at CSN {tail}: older records are deleted, since every replica has applied them; "
            f"begin at CSN {tail}, or at 0",
            min_csn=tail,
        )
    number = max(number, tail)
    page: list[LogRecord] = []
    while len(page) < limit:
        numbers = [Csn(number + step) for step in range(min(read_ahead, limit - len(page)))]
        for one, record in zip(
            numbers, await asyncio.gather(*(read_record(store, one, skips) for one in numbers)), strict=True
        ):
            if isinstance(record, Absent):
                return page
            if isinstance(record, Unreadable):
                raise CorruptError(f"CSN {one}: {record.reason}", csn=one)
            if record is None:
                raise UnavailableError("the log cannot be read now: no connection to ZooKeeper")
            page.append(record)
            number = number_after(one, record.record)
            if record.record.kind is RecordKind.END:
                break
    return page
