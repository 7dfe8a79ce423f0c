"""The application of the log: accepts records in order, has missing parts fetched, moves the snapshot CSN.

This is the shell around :class:`tidelock.replication.core.prefix.Prefix`. One loop looks up, decides and
applies, one after the other, so that the result of a look-up is still true when the machine gets it. While a
batch is being applied the next records and parts collect; thus a replica that is behind applies in large
batches (F14).

Failure model: a catalog transaction that fails now is tried again; a part that turns out to be damaged is
fetched again; any other failure (a gap in the log, a record of a newer version, a contradiction) ends
:meth:`Applier.run` with its error, and the agent stops serving (I15).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

import structlog
from msgspec.structs import replace

from tidelock.csnlog import faults
from tidelock.csnlog.core.codec import decode_entries
from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.csnlog.core.model import AddPart, LogRecord
from tidelock.csnlog.core.skipped import advice
from tidelock.errors import (
    CorruptError,
    DiskFullError,
    TidelockError,
    UnavailableError,
    UpgradeNeededError,
)
from tidelock.replication.backoff import wait_s
from tidelock.replication.core import messages as msg
from tidelock.replication.core.model import ResolvedRecord, Wanted
from tidelock.replication.core.prefix import Prefix
from tidelock.replication.fetch import Fetcher
from tidelock.replication.ports import CatalogPort

APPLY = faults.step("replication.apply")
_log = structlog.get_logger("apply")


class Applier:
    """The component that follows the log on this replica.

    Args:
        catalog: The catalog.
        fetcher: Gets missing parts; its ``on_held`` is :meth:`part_held`.
        applied: The snapshot CSN that the catalog has now.
        time_ms: The effective time of that CSN.
        apply_records_max: Most records of one catalog transaction.
        ahead_records: Records that may wait: enough to fetch ahead, bounded for a replica that is stuck.
        missing_parts_max: Missing parts at which no more records are accepted.
        retry_wait_max_s: Longest pause after a catalog transaction that failed.
        on_applied: Called in the event loop with each batch once it is durable and the snapshot CSN has
            moved.
        thorough: Check all invariants of the machine after every step.
    """

    def __init__(
        self,
        catalog: CatalogPort,
        fetcher: Fetcher,
        *,
        applied: Csn,
        time_ms: int,
        apply_records_max: int,
        ahead_records: int,
        missing_parts_max: int,
        retry_wait_max_s: float,
        on_applied: Callable[[Sequence[ResolvedRecord]], None],
        thorough: bool = True,
    ) -> None:
        self._catalog, self._fetcher, self._on_applied = catalog, fetcher, on_applied
        self._prefix = Prefix(applied, time_ms, apply_records_max=apply_records_max, thorough=thorough)
        self._waiting_max, self._missing_max = ahead_records, missing_parts_max
        self._retry_wait_max_s = retry_wait_max_s
        self._records: deque[LogRecord] = deque()
        self._looking: Sequence[LogRecord] = ()  # taken from _records, not yet in the machine
        self._parts: deque[msg.PartHeld | msg.PartLost] = deque()
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._trouble: TidelockError | None = None
        self._failures = 0

    @property
    def snapshot_csn(self) -> Csn:
        """The largest CSN up to which everything is applied here."""
        return self._prefix.applied

    @property
    def blocked(self) -> msg.Blocked | None:
        """The part, tid and CSN that hold this replica back, and the reason; None when nothing does."""
        blocked = self._prefix.blocked
        trouble = None if blocked is None else self._fetcher.trouble(blocked.part)
        if blocked is None or trouble is None:
            return blocked
        return replace(blocked, reason=f"{blocked.reason}; {trouble}")

    def taken(self, tid: str) -> Csn | None:
        """Return the CSN of a transaction in records that were delivered and are not applied yet, or None."""
        for item in (*self._records, *self._looking):
            if any(found.tid == tid for found in item.record.tids):
                return item.csn
        return self._prefix.find(tid)

    @property
    def trouble(self) -> str | None:
        """The reason why the catalog could not apply the last batch; None when it did."""
        return None if self._trouble is None else self._trouble.message

    @property
    def waiting(self) -> int:
        """Number of records that were delivered and are not applied."""
        return len(self._records) + len(self._looking) + self._prefix.waiting

    @property
    def no_room(self) -> bool:
        """Whether the next record waits for room on the own disk."""
        blocked = self._prefix.blocked
        lacks_room = blocked is not None and self._fetcher.no_room(blocked.part)
        return lacks_room or isinstance(self._trouble, DiskFullError)

    def movement(self) -> tuple[Csn, int, int]:
        """Return values of which one changes whenever this replica comes closer to its next record.

        They are the snapshot CSN, the number of parts that the next record lacks, and the received bytes of
        the part that :attr:`blocked` names.
        """
        blocked = self._prefix.blocked
        received = 0 if blocked is None else self._fetcher.came((blocked.part,))
        return self._prefix.applied, self._prefix.lacking, received

    async def deliver(self, record: LogRecord) -> None:
        """Accept the next record of the log; wait while too many are waiting, which slows the follower."""
        while self._full:
            self._room.clear()
            await self._room.wait()
        self._records.append(record)
        self._wake.set()

    def part_held(self, part: PartId) -> None:
        """Note that a part is durable here now: pushed, fetched or found again."""
        self._fetcher.arrived(part)
        self._parts.append(msg.PartHeld(part))
        self._wake.set()

    def part_lost(self, part: PartId) -> None:
        """Note that a part was quarantined: records that are not applied yet wait for it again."""
        self._parts.append(msg.PartLost(part))
        self._wake.set()

    async def run(self) -> None:
        """Apply the log until cancelled.

        Raises:
            CorruptError: This replica cannot go on without contradicting the log.
            InvariantError: The machine contradicts itself.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            records = [*self._records]
            self._records.clear()
            self._looking = records
            events: list[msg.PrefixEvent] = [*await self._looked_up(records)]
            # Parts that arrived during the look-up follow the records, which then know that they need them.
            events += self._parts
            self._parts.clear()
            instructions = self._prefix.step(*events)
            self._looking = ()
            await self._carry_out(instructions)
            if not self._full:
                self._room.set()

    @property
    def _full(self) -> bool:
        waiting = len(self._records) + self._prefix.waiting
        return waiting >= self._waiting_max or self._prefix.missing >= self._missing_max

    async def _looked_up(self, records: Sequence[LogRecord]) -> list[msg.RecordRead]:
        tids = [tid for item in records for tid in item.record.tids]
        if not tids:
            return [msg.RecordRead(item, frozenset(), frozenset()) for item in records]
        parts = {entry.part for tid in tids for entry in tid.entries if isinstance(entry, AddPart)}
        parts |= {tid.manifest.part for tid in tids if tid.manifest is not None}
        held = frozenset(await self._catalog.held(parts)) if parts else frozenset()
        known = frozenset(await self._catalog.known_tids([tid.tid for tid in tids]))
        return [msg.RecordRead(item, held, known) for item in records]

    async def _carry_out(self, instructions: Sequence[msg.PrefixInstruction]) -> None:
        todo = deque(instructions)
        while todo:
            if wanted := [item.wanted for item in todo if isinstance(item, msg.FetchPart)]:
                todo = deque(item for item in todo if not isinstance(item, msg.FetchPart))
                await self._fetch(wanted)
                continue
            instruction = todo.popleft()
            match instruction:
                case msg.ReadManifest(part):
                    todo += self._prefix.step(await self._read_manifest(part))
                case msg.Apply(records):
                    todo += await self._apply(records)
                case msg.Blocked() | msg.Unblocked():
                    pass  # `blocked` asks the machine
                case msg.FetchPart():
                    raise AssertionError("fetched with the others above")
                case _:
                    assert_never(instruction)

    async def _fetch(self, wanted: Sequence[Wanted]) -> None:
        while True:
            try:
                await self._catalog.want(wanted)
            except (UnavailableError, DiskFullError) as error:
                await self._pause(error)
            else:
                break
        self._recovered()
        for item in wanted:
            self._fetcher.want(item)

    async def _read_manifest(self, part: PartId) -> msg.PrefixEvent:
        try:
            entries = decode_entries(await self._manifest(part))
        except UpgradeNeededError as error:
            raise _unappliable(error, self._prefix.csn_of(part)) from error
        except CorruptError as error:
            _log.error("manifest_damaged", part=part, reason=error.message)
            return msg.PartLost(part)
        parts = {entry.part for entry in entries if isinstance(entry, AddPart)}
        return msg.ManifestRead(part, entries, frozenset(await self._catalog.held(parts)))

    async def _manifest(self, part: PartId) -> bytes:
        while True:
            try:
                data = await self._catalog.read(part)
            except UnavailableError as error:
                await self._pause(error)
            else:
                self._recovered()
                return data

    async def _apply(self, records: tuple[ResolvedRecord, ...]) -> list[msg.PrefixInstruction]:
        try:
            await APPLY.before()
            await self._catalog.apply(records)
            await APPLY.after()
        except (UnavailableError, DiskFullError) as error:
            await self._pause(error)
            return [*self._prefix.step(msg.NotApplied())]
        except CorruptError as error:
            # A part may have been found damaged since it was looked up: then it is fetched again.
            part = PartId(str(error.details.get("part")))
            done = self._prefix.step(msg.PartLost(part), msg.NotApplied())
            if not any(isinstance(said, msg.FetchPart) for said in done):
                raise _unappliable(error, records[0].csn) from error
            _log.error("part_lost", part=part, csn=records[-1].csn, reason=error.message)
            return [*done]
        self._recovered()
        following = [*self._prefix.step(msg.Applied(records[-1].csn))]
        self._on_applied(records)
        return following

    def _recovered(self) -> None:
        self._failures, self._trouble = 0, None

    async def _pause(self, error: UnavailableError | DiskFullError) -> None:
        self._failures += 1
        self._trouble = error
        if self._failures == 1:
            _log.error("catalog_not_written", reason=error.message)
        await asyncio.sleep(wait_s(self._failures, self._retry_wait_max_s))


def _unappliable(error: CorruptError, csn: Csn) -> CorruptError:
    """Return the error of a record that this replica cannot apply, with the next step of an operator."""
    at = Csn(int(error.details.get("csn", csn)))
    return type(error)(f"{error.message}; {advice(at)}", **{**error.details, "csn": at})
