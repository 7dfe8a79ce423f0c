"""The executed prefix of the log: which records may be applied here, and what is missing. Pure.

Events in, instructions out, as in :mod:`tidelock.replication.core.copies`. It promises that records are
applied in the order of the log without a gap, each only when every part that it adds is held here (I2, I9);
that a tid counts once, at its first record (I1); and that effective times never decrease. A record that
cannot be applied holds back all later ones, and :class:`Blocked` says which part of which tid of which CSN is
the reason.

What is held, and which tids the catalog knows, comes as data with the events: the shell looks it up and
must not apply anything between that look and the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, TableName, Tid, epoch_of, sequence_of
from tidelock.csnlog.core.ids import csn as make_csn
from tidelock.csnlog.core.model import AddPart, Entry, Kind, LogRecord, TidRecord
from tidelock.errors import CorruptError
from tidelock.replication.core.model import PartMeta, ResolvedRecord, Wanted


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The next record of the log, with those of its parts that are held and of its tids that are applied."""

    record: LogRecord
    held: frozenset[PartId]
    known: frozenset[str]


@dataclass(frozen=True, slots=True)
class PartHeld:
    """A part or manifest is durable and verified here now, however it came."""

    part: PartId


@dataclass(frozen=True, slots=True)
class PartLost:
    """A part or manifest was found damaged or gone."""

    part: PartId


@dataclass(frozen=True, slots=True)
class ManifestRead:
    """The entries that a held manifest holds. ``held``: those of their parts that are held."""

    part: PartId
    entries: tuple[Entry, ...]
    held: frozenset[PartId]


@dataclass(frozen=True, slots=True)
class Applied:
    """The batch of the last :class:`Apply` is durable and visible; ``csn`` is its last."""

    csn: Csn


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The batch of the last :class:`Apply` could not be made durable; nothing of it is visible."""


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Get this part (or manifest) from any replica that has it."""

    wanted: Wanted


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """Read the entries out of this held manifest and come back with :class:`ManifestRead`."""

    part: PartId


@dataclass(frozen=True, slots=True)
class Apply:
    """Make these contiguous, executed records visible in one durable transaction."""

    records: tuple[ResolvedRecord, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """The next record cannot be applied: ``part`` of ``tid`` is missing, for ``reason``."""

    csn: Csn
    tid: str
    part: PartId
    reason: str


@dataclass(frozen=True, slots=True)
class Unblocked:
    """Nothing that has been read is held back any more."""


PrefixEvent = RecordRead | PartHeld | PartLost | ManifestRead | Applied | NotApplied
PrefixInstruction = FetchPart | ReadManifest | Apply | Blocked | Unblocked


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


class Prefix:
    """Turns records and parts, in whatever order they come, into batches to apply.

    Args:
        applied: The snapshot CSN of this replica.
        time_ms: The effective time of that CSN.
        apply_records_max: Most records of one batch.
    """

    def __init__(self, applied: Csn, time_ms: int, *, apply_records_max: int) -> None:
        self.applied = applied
        self.time_ms = time_ms
        self.blocked: Blocked | None = None
        self._apply_records_max = apply_records_max
        self._read = applied
        #: Whether the last record read was an END; unknown until the first one is read.
        self._at_end: bool | None = None
        self._waiting: dict[Csn, _Waiting] = {}
        self._csn_of: dict[PartId, Csn] = {}
        self._tids: set[str] = set()
        self._applying: Applied | None = None

    @property
    def waiting(self) -> int:
        """Number of records that were read and are not applied."""
        return len(self._waiting)

    def find(self, tid: str) -> Csn | None:
        """Return the CSN of a transaction in records that were read and are not applied, or None."""
        if tid not in self._tids:
            return None
        return next(
            (csn for csn, item in self._waiting.items() if any(t.tid == tid for t in item.tids)), None
        )

    @property
    def missing(self) -> int:
        """Number of their parts that are not held."""
        return len(self._csn_of)

    def step(self, *events: PrefixEvent) -> tuple[PrefixInstruction, ...]:
        """Take events that are known together; what is to be applied is decided after the last of them.

        Raises:
            CorruptError: A record is missing from the log; the agent stops, it never skips (I15).
        """
        done = [said for event in events for said in self._take(event)]
        return (*done, *self._next())

    def copy(self) -> Prefix:
        """Return an independent machine in the same state."""
        twin = Prefix(self.applied, self.time_ms, apply_records_max=self._apply_records_max)
        twin.blocked, twin._read, twin._at_end = self.blocked, self._read, self._at_end
        twin._applying, twin._csn_of, twin._tids = self._applying, dict(self._csn_of), set(self._tids)
        twin._waiting = {
            csn: _Waiting(item.record, list(item.tids), dict(item.missing), dict(item.unread))
            for csn, item in self._waiting.items()
        }
        return twin

    def state(self) -> tuple[object, ...]:
        """Return the state as one hashable value."""
        waiting = (
            (csn, frozenset(item.missing), frozenset(item.unread), tuple(tid.tid for tid in item.tids))
            for csn, item in self._waiting.items()
        )
        return (self.applied, self.time_ms, self._read, self._at_end, self._applying, tuple(waiting))

    def check_invariants(self) -> None:
        """Raise AssertionError if the machine contradicts itself."""
        csns = list(self._waiting)
        assert csns == sorted(csns), csns
        assert not csns or (self.applied < csns[0] and csns[-1] == self._read), (
            self.applied,
            csns,
            self._read,
        )
        assert csns or self._read == self.applied, (self._read, self.applied)
        assert self._applying is None or self._applying.csn in self._waiting, self._applying
        lacking = {part: csn for csn, item in self._waiting.items() for part in item.missing}
        assert lacking == self._csn_of, (lacking, self._csn_of)
        tids = [tid.tid for item in self._waiting.values() for tid in item.tids]
        assert sorted(tids) == sorted(self._tids), (tids, self._tids)
        head = next(iter(self._waiting.values()), None)
        assert head is None or self._applying is not None or not head.executed, head
        assert self.blocked is None or self.blocked.csn in self._waiting, self.blocked

    # -- events --------------------------------------------------------------------------------------------

    def _take(self, event: PrefixEvent) -> tuple[PrefixInstruction, ...]:
        match event:
            case RecordRead(record, held, known):
                return self._record_read(record, held, known)
            case PartHeld(part):
                return self._part_held(part)
            case PartLost(part):
                return self._part_lost(part)
            case ManifestRead(part, entries, held):
                return self._manifest_read(part, entries, held)
            case Applied(csn):
                return self._applied(csn)
            case NotApplied():
                self._applying = None
                return ()
            case _:
                assert_never(event)

    def _record_read(
        self, read: LogRecord, held: frozenset[PartId], known: frozenset[str]
    ) -> tuple[PrefixInstruction, ...]:
        if read.csn <= self._read:
            return ()  # delivered twice
        self._check_next(read.csn)
        self._read, self._at_end = read.csn, read.record.kind is Kind.END
        item = _Waiting(read, [], {}, {})
        self._waiting[read.csn] = item
        done: list[PrefixInstruction] = []
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
                done.append(ReadManifest(part))
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

    def _part_held(self, part: PartId) -> tuple[PrefixInstruction, ...]:
        csn = self._csn_of.pop(part, None)
        if csn is None:
            return ()
        item = self._waiting[csn]
        del item.missing[part]
        return (ReadManifest(part),) if part in item.unread else ()

    def _part_lost(self, part: PartId) -> tuple[PrefixInstruction, ...]:
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
    ) -> tuple[PrefixInstruction, ...]:
        for item in self._waiting.values():
            if item.unread.pop(part, None) is None:
                continue
            for index, tid in enumerate(item.tids):
                if tid.manifest is not None and tid.manifest.part == part:
                    item.tids[index] = msgspec.structs.replace(tid, entries=entries)
                    return self._need(item, tid, entries, held)
        return ()

    def _applied(self, csn: Csn) -> tuple[PrefixInstruction, ...]:
        assert self._applying == Applied(csn), (self._applying, csn)
        for done in [number for number in self._waiting if number <= csn]:
            item = self._waiting.pop(done)
            self._tids.difference_update(tid.tid for tid in item.tids)
            for (
                part
            ) in item.missing:  # found damaged after it had been made visible: repaired, not waited for
                del self._csn_of[part]
            self.time_ms = max(self.time_ms, item.record.record.time_ms)
        self.applied, self._applying = csn, None
        return ()

    # -- what follows from an event -----------------------------------------------------------------------

    def _need(
        self, item: _Waiting, tid: TidRecord, entries: Iterable[Entry], held: frozenset[PartId]
    ) -> tuple[PrefixInstruction, ...]:
        added = (entry for entry in entries if isinstance(entry, AddPart))
        return tuple(self._lack(item, tid, _meta(entry)) for entry in added if entry.part not in held)

    def _lack(self, item: _Waiting, tid: TidRecord, meta: PartMeta) -> FetchPart:
        wanted = Wanted(meta, Tid.parse(tid.tid), item.record.csn, tid.holders)
        item.missing[meta.part] = wanted
        self._csn_of[meta.part] = item.record.csn
        return FetchPart(wanted)

    def _next(self) -> Iterator[PrefixInstruction]:
        if self._applying is None and (batch := self._executed()):
            self._applying = Applied(batch[-1].csn)
            yield Apply(batch)
        blocked = self._why_blocked() if self._applying is None else None
        if blocked != self.blocked:
            self.blocked = blocked
            yield Unblocked() if blocked is None else blocked

    def _executed(self) -> tuple[ResolvedRecord, ...]:
        batch: list[ResolvedRecord] = []
        time_ms = self.time_ms
        for csn, item in self._waiting.items():
            if not item.executed or len(batch) == self._apply_records_max:
                break
            record = item.record.record
            time_ms = max(time_ms, record.time_ms)
            batch.append(ResolvedRecord(csn, record.kind, record.home, time_ms, tuple(item.tids)))
        return tuple(batch)

    def _why_blocked(self) -> Blocked | None:
        for csn, item in self._waiting.items():
            for part, wanted in item.missing.items():
                holders = ", ".join(wanted.holders)
                reason = (
                    f"this {wanted.meta.kind} is not held here; it was committed with copies on {holders}"
                )
                return Blocked(csn, str(wanted.tid), part, reason)
            for part, tid in item.unread.items():
                return Blocked(csn, tid, part, "this manifest is being read")
        return None


def _meta(entry: AddPart) -> PartMeta:
    return PartMeta(entry.part, entry.table, entry.path, entry.rows, entry.length, entry.checksum)


def _manifest_meta(tid: TidRecord) -> PartMeta:
    assert tid.manifest is not None
    manifest = tid.manifest
    return PartMeta(manifest.part, TableName(""), "", 0, manifest.length, manifest.checksum, kind="manifest")
