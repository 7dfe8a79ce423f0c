"""The executed prefix of the log: the records that may be applied here, and the missing parts. Pure.

A machine (:mod:`tidelock.csnlog.core.machine`); its messages are in
:mod:`tidelock.replication.core.messages`.

**Promises.** Records are applied in the order of the log without a gap, each only when every part that it
adds is held here (I2, I9). A tid counts once, at its first record (I1). Effective times follow one rule
(:mod:`tidelock.csnlog.core.log_time`). A
record that cannot be applied holds back all later ones, and ``Blocked`` names the part, tid and CSN that are
the reason.

**State.** :class:`PrefixState`: the snapshot CSN with its time, and the records that were read and are not
applied, each with the parts that are missing and the manifests that are not read.

**Events.** Commands: a record of the log, a part that is held or lost. Answers: a manifest that was read, a
batch that was applied or not. The held parts, and the tids that the catalog knows, arrive as data with the
events: the shell looks them up and must not apply anything between that look-up and the step.
**Instructions.** Parts to fetch, manifests to read, one batch at a time to apply, and whether something holds
the log back.

**Invariants.** The records that wait follow the snapshot CSN in the order of the log. Every part that a
record misses is awaited. The first record that waits is being applied, or misses a part or manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, TableId, Tid, epoch_of, sequence_of
from tidelock.csnlog.core.ids import csn as make_csn
from tidelock.csnlog.core.log_time import Clocking, clocking
from tidelock.csnlog.core.machine import Machine
from tidelock.csnlog.core.model import AddPart, Entry, LogRecord, RecordKind, TidRecord
from tidelock.errors import CorruptError
from tidelock.replication.core import messages as msg
from tidelock.replication.core.model import PartMeta, ResolvedRecord, Wanted


@dataclass(slots=True)
class _Waiting:
    """A record that is not applied yet. ``missing`` and ``unread`` are ordered as the record is."""

    record: LogRecord
    tids: list[TidRecord]
    missing: dict[PartId, Wanted]
    unread: dict[PartId, str]

    @property
    def executed(self) -> bool:
        return not self.missing and not self.unread


class WaitingState(msgspec.Struct, frozen=True):
    """A record that was read and is not applied.

    Attributes:
        record: The record.
        tids: Those of its transactions that count, with the entries of the manifests that were read.
        missing: Parts and manifests that are not held.
        unread: Manifests whose entries are not known, each with its tid.
    """

    record: LogRecord
    tids: tuple[TidRecord, ...]
    missing: tuple[Wanted, ...]
    unread: tuple[tuple[PartId, str], ...]


class PrefixState(msgspec.Struct, frozen=True):
    """The whole state of a :class:`Prefix`.

    Attributes:
        applied: The snapshot CSN.
        time_ms: Its effective time.
        read: The last record that was read.
        at_end: Whether that was an END record; None until the first record is read.
        waiting: The records that were read and are not applied, in their order.
        applying: The batch that is being applied.
        blocked: The last report of what holds the log back.
    """

    applied: Csn
    time_ms: int
    read: Csn
    at_end: bool | None
    waiting: tuple[WaitingState, ...]
    applying: msg.Applied | None
    blocked: msg.Blocked | None


class Prefix(Machine[msg.PrefixEvent, msg.PrefixInstruction, PrefixState]):
    """The machine that turns records and parts, in whatever order they arrive, into batches to apply.

    Args:
        applied: The snapshot CSN of this replica.
        time_ms: The effective time of that CSN.
        apply_records_max: Most records of one batch.
        thorough: Check all invariants after every step.
    """

    __slots__ = (
        *("applied", "time_ms", "blocked", "_apply_records_max", "_read", "_at_end", "_waiting"),
        *("_csn_of", "_tids", "_applying"),
    )

    def __init__(self, applied: Csn, time_ms: int, *, apply_records_max: int, thorough: bool = True) -> None:
        super().__init__(thorough=thorough)
        self.applied = applied
        self.time_ms = time_ms
        self.blocked: msg.Blocked | None = None
        self._apply_records_max = apply_records_max
        self._read = applied
        self._at_end: bool | None = None
        self._waiting: dict[Csn, _Waiting] = {}
        #: The record that misses each part; derived from the waiting records.
        self._csn_of: dict[PartId, Csn] = {}
        #: The tids that wait; derived from the waiting records.
        self._tids: set[str] = set()
        self._applying: msg.Applied | None = None

    @property
    def waiting(self) -> int:
        """Number of records that were read and are not applied."""
        return len(self._waiting)

    @property
    def missing(self) -> int:
        """Number of parts that these records miss."""
        return len(self._csn_of)

    @property
    def lacking(self) -> int:
        """Number of parts and manifests that the first of these records waits for."""
        item = next(iter(self._waiting.values()), None)
        return 0 if item is None else len(item.missing.keys() | item.unread.keys())

    def find(self, tid: str) -> Csn | None:
        """Return the CSN of a transaction in records that were read and are not applied, or None."""
        if tid not in self._tids:
            return None
        return next(
            (csn for csn, item in self._waiting.items() if any(t.tid == tid for t in item.tids)), None
        )

    def csn_of(self, manifest: PartId) -> Csn:
        """Return the CSN of the record whose manifest is being read."""
        return next(csn for csn, item in self._waiting.items() if manifest in item.unread)

    def snapshot(self) -> PrefixState:
        """Return the whole state."""
        waiting = tuple(
            WaitingState(
                item.record, tuple(item.tids), tuple(item.missing.values()), tuple(item.unread.items())
            )
            for item in self._waiting.values()
        )
        return PrefixState(
            self.applied, self.time_ms, self._read, self._at_end, waiting, self._applying, self.blocked
        )

    def restore(self, state: PrefixState) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""
        self.applied, self.time_ms, self.blocked = state.applied, state.time_ms, state.blocked
        self._read, self._at_end, self._applying = state.read, state.at_end, state.applying
        self._waiting = {
            item.record.csn: _Waiting(
                item.record,
                list(item.tids),
                {wanted.meta.part: wanted for wanted in item.missing},
                dict(item.unread),
            )
            for item in state.waiting
        }
        self._csn_of = {part: csn for csn, item in self._waiting.items() for part in item.missing}
        self._tids = {tid.tid for item in state.waiting for tid in item.tids}

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is one that no correct history leads to."""
        self._check_step()
        csns = list(self._waiting)
        assert csns == sorted(csns), f"records wait out of order: {csns}"
        lacking = {part: csn for csn, item in self._waiting.items() for part in item.missing}
        assert lacking == self._csn_of, f"missing are {lacking}, awaited are {self._csn_of}"
        tids = [tid.tid for item in self._waiting.values() for tid in item.tids]
        assert sorted(tids) == sorted(self._tids), f"{tids} wait, {sorted(self._tids)} are known to wait"

    def _check_step(self) -> None:
        read, applied = self._read, self.applied
        if not self._waiting:
            assert read == applied, f"read to {read}, applied to {applied}, and nothing waits"
            assert self._applying is None, f"{self._applying} is applied, and nothing waits"
            assert self.blocked is None, f"{self.blocked} is held back, and nothing waits"
            return
        csn, head = next(iter(self._waiting.items()))
        assert applied < csn <= read, f"{csn} waits, applied to {applied}, read to {read}"
        assert next(reversed(self._waiting)) == read, f"read to {read}, which does not wait"
        if self._applying is not None:
            assert self._applying.csn in self._waiting, f"{self._applying} does not wait"
        else:
            assert not head.executed, f"{csn} could be applied, and is not"
        assert self.blocked is None or self.blocked.csn in self._waiting, f"{self.blocked} does not wait"

    def _react(self, events: tuple[msg.PrefixEvent, ...]) -> tuple[msg.PrefixInstruction, ...]:
        """Process the events; the batch to apply is decided after the last of them.

        Raises:
            CorruptError: A record is missing from the log; the agent stops and never skips it (I15).
        """
        done = [said for event in events for said in self._take(event)]
        return (*done, *self._next())

    # -- events --------------------------------------------------------------------------------------------

    def _take(self, event: msg.PrefixEvent) -> tuple[msg.PrefixInstruction, ...]:
        match event:
            case msg.RecordRead(record, held, known):
                return self._record_read(record, held, known)
            case msg.PartHeld(part):
                return self._part_held(part)
            case msg.PartLost(part):
                return self._part_lost(part)
            case msg.ManifestRead(part, entries, held):
                return self._manifest_read(part, entries, held)
            case msg.Applied(csn):
                return self._applied(csn)
            case msg.NotApplied():
                self._applying = None
                return ()
            case _:
                assert_never(event)

    def _record_read(
        self, read: LogRecord, held: frozenset[PartId], known: frozenset[str]
    ) -> tuple[msg.PrefixInstruction, ...]:
        if read.csn <= self._read:
            return ()  # delivered twice
        self._check_next(read.csn)
        self._read, self._at_end = read.csn, read.record.kind is RecordKind.END
        item = _Waiting(read, [], {}, {})
        self._waiting[read.csn] = item
        done: list[msg.PrefixInstruction] = []
        for tid in read.record.tids:
            if tid.tid in known or tid.tid in self._tids:
                continue  # the first occurrence was the commit
            self._tids.add(tid.tid)
            item.tids.append(tid)
            if tid.manifest is None:
                done += self._need(item, tid, tid.entries, held)
                continue
            part = tid.manifest.part
            item.unread[part] = tid.tid
            if part in held:
                done.append(msg.ReadManifest(part))
            else:
                done.append(self._lack(item, tid, _manifest_meta(tid)))
        return tuple(done)

    def _check_next(self, csn: Csn) -> None:
        here, end = self._read, self._at_end
        successor = make_csn(epoch_of(here), sequence_of(here) + 1)
        of_next_epoch = make_csn(epoch_of(here) + 1, 0)
        expected = {True: (of_next_epoch,), False: (successor,), None: (successor, of_next_epoch)}[end]
        if csn not in expected:
            raise CorruptError(
                f"the log goes from CSN {here} to {csn}; expected {' or '.join(map(str, expected))}: a record"
                " is missing, so this replica stops at its CSN instead of skipping it",
                csn=here,
                found=csn,
            )

    def _part_held(self, part: PartId) -> tuple[msg.PrefixInstruction, ...]:
        csn = self._csn_of.pop(part, None)
        if csn is None:
            return ()
        item = self._waiting[csn]
        del item.missing[part]
        return (msg.ReadManifest(part),) if part in item.unread else ()

    def _part_lost(self, part: PartId) -> tuple[msg.PrefixInstruction, ...]:
        for item in self._waiting.values():
            for tid in item.tids:
                if tid.manifest is not None and tid.manifest.part == part and part in item.unread:
                    return (self._lack(item, tid, _manifest_meta(tid)),)
                for entry in tid.entries:
                    if isinstance(entry, AddPart) and entry.part == part:
                        return (self._lack(item, tid, _meta(entry)),)
        return ()

    def _manifest_read(
        self, part: PartId, entries: tuple[Entry, ...], held: frozenset[PartId]
    ) -> tuple[msg.PrefixInstruction, ...]:
        for item in self._waiting.values():
            if item.unread.pop(part, None) is None:
                continue
            for index, tid in enumerate(item.tids):
                if tid.manifest is not None and tid.manifest.part == part:
                    both = (*tid.entries, *entries)
                    item.tids[index] = msgspec.structs.replace(tid, entries=both)
                    return self._need(item, tid, entries, held)
        return ()

    def _applied(self, csn: Csn) -> tuple[msg.PrefixInstruction, ...]:
        assert self._applying == msg.Applied(csn), f"CSN {csn} was applied, {self._applying} was expected"
        for done in [number for number in self._waiting if number <= csn]:
            item = self._waiting.pop(done)
            self._tids.difference_update(tid.tid for tid in item.tids)
            # Found damaged after the record was made visible: the part is repaired, not waited for.
            for part in item.missing:
                del self._csn_of[part]
            self.time_ms = _clocking(item.record).after(self.time_ms)
        self.applied, self._applying = csn, None
        return ()

    # -- what follows from an event -----------------------------------------------------------------------

    def _need(
        self, item: _Waiting, tid: TidRecord, entries: Iterable[Entry], held: frozenset[PartId]
    ) -> tuple[msg.PrefixInstruction, ...]:
        added = (entry for entry in entries if isinstance(entry, AddPart))
        return tuple(self._lack(item, tid, _meta(entry)) for entry in added if entry.part not in held)

    def _lack(self, item: _Waiting, tid: TidRecord, meta: PartMeta) -> msg.FetchPart:
        wanted = Wanted(meta, Tid.parse(tid.tid), item.record.csn, tid.holders)
        item.missing[meta.part] = wanted
        self._csn_of[meta.part] = item.record.csn
        return msg.FetchPart(wanted)

    def _next(self) -> Iterator[msg.PrefixInstruction]:
        if self._applying is None and (batch := self._executed()):
            self._applying = msg.Applied(batch[-1].csn)
            yield msg.Apply(batch)
        blocked = self._why_blocked() if self._applying is None else None
        if blocked != self.blocked:
            self.blocked = blocked
            yield msg.Unblocked() if blocked is None else blocked

    def _executed(self) -> tuple[ResolvedRecord, ...]:
        batch: list[ResolvedRecord] = []
        time_ms = self.time_ms
        for csn, item in self._waiting.items():
            if not item.executed or len(batch) == self._apply_records_max:
                break
            read, said = item.record, _clocking(item.record)
            time_ms = said.after(time_ms)
            batch.append(
                ResolvedRecord(
                    csn, read.record.kind, read.record.home, time_ms, tuple(item.tids), read.stamp,
                    read.digest, said.time_ms, read.skip,
                )
            )  # fmt: skip
        return tuple(batch)

    def _why_blocked(self) -> msg.Blocked | None:
        for csn, item in self._waiting.items():
            for part, wanted in item.missing.items():
                holders = ", ".join(wanted.holders)
                reason = (
                    f"this {wanted.meta.kind} is not held here; it was committed with copies on {holders}"
                )
                return msg.Blocked(csn, str(wanted.tid), part, reason)
            for part, tid in item.unread.items():
                return msg.Blocked(csn, tid, part, "this manifest is being read")
        return None


def _clocking(read: LogRecord) -> Clocking:
    return clocking(read.record, read.stamp.time_ms)


def _meta(entry: AddPart) -> PartMeta:
    source, columns_csn = entry.shared
    return PartMeta(
        entry.part, entry.table, entry.path, entry.rows, entry.length, entry.checksum,
        source=source, columns_csn=columns_csn,
    )  # fmt: skip


def _manifest_meta(tid: TidRecord) -> PartMeta:
    assert tid.manifest is not None
    manifest = tid.manifest
    return PartMeta(manifest.part, TableId(""), "", 0, manifest.length, manifest.checksum, kind="manifest")
