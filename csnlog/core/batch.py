"""The content of one commit: which proposals may share a record, and the multi that carries them. Pure.

The shape of the multi is fixed (rule commit)::

    check(replicas/<me>/session, fence)  check(csn/epoch, v)  [check(csn/head, v) of a serializable tid]
    [check(replicas, version) at which the copies were counted]
    check(tables/<t>, version) of each table touched  [check(labels, version) where one is moved]
    [create or set tables/<t>]  [create or set labels/<hash>]  set(csn/head)
    create(csn/<epoch>/csn-, sequential)

The multi is applied as a whole or not at all, so one refused element refuses the whole batch. :func:`plan`
therefore notes for each element which transactions it belongs to, and the committer sends the other
transactions again (F10, F21 "Labels").
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId, TableId
from tidelock.csnlog.core.labels import Move
from tidelock.csnlog.core.log_time import ClockReading
from tidelock.csnlog.core.model import LabelState, LogRecord, Record, RecordKind, TidRecord
from tidelock.csnlog.core.store import Check, Create, Op, SetData, Written, multi_bytes

KIB = 1 << 10


class Proposal(msgspec.Struct, frozen=True):
    """One sealed transaction that is to be committed, or a carrier with its riders.

    A carrier is a transaction of the home itself: its parts hold the rows of small transactions, its riders.
    They are in one record with it or in none, and their content is refused or committed as a whole.

    Attributes:
        record: Its entry in the record of the log.
        tables: Every table that it touches, with the version of the definition that it was made for.
        ddl: Creates or sets of ``tables/<table>``, in the same multi; or the writes and checks of a change of
            tags.
        label: Its label, or None; the znode of the label is created in the same multi, or moved.
        move: The versions at which an existing label was read and is moved; None creates the label.
        roster: The version of ``replicas`` at which its copies were counted; None if it has no parts.
        riders: The entries of the transactions that it carries; their labels are created in the same multi.
        head_version: For a serializable transaction the version of ``csn/head``, read before the log was
            read to its end and the read set was validated; None otherwise. Such a transaction is sent alone,
            since two in one batch could invalidate each other (F11).
    """

    record: TidRecord
    tables: Mapping[TableId, int]
    ddl: tuple[Create | SetData | Check, ...] = ()
    label: str | None = None
    head_version: int | None = None
    move: Move | None = None
    roster: int | None = None
    riders: tuple[TidRecord, ...] = ()

    @property
    def tid(self) -> str:
        """The textual tid."""
        return self.record.tid

    @property
    def records(self) -> tuple[TidRecord, ...]:
        """All its entries in the record of the log."""
        return (self.record, *self.riders)

    def riders_at(self, path: str) -> list[str]:
        """Return the tids of the riders which an element of the multi at this path belongs to."""
        return [
            rider.tid
            for rider in self.riders
            if (rider.label is not None and tree.label(rider.label) == path)
            or any(tree.table(table) == path for table in rider.rows or ())
        ]

    def __hash__(self) -> int:
        """Hash the tid: a tid has exactly one content, and ``tables`` is a mapping, which has no hash."""
        return hash(self.record.tid)


class LogLimits(msgspec.Struct, frozen=True):
    """The bounds of the log; see the configuration reference for what each means to an operator.

    Attributes:
        record_bytes_max: One commit record.
        multi_bytes_max: One commit multi, all its elements together.
        batch_tids_max: Transactions in one record.
        queue_tids_max: Transactions that wait for their record; beyond that commits are refused.
        read_ahead: Records that are requested, or read and not yet accepted, at a time.
        epoch_limit: The sequence number at which an epoch is closed; far below ZooKeeper's limit of 2^31-1.
        recheck_s: How often a follower that rests at the end reads again, since a watch is only a hint.
        retry_s: Pause after a request that failed although the store is connected.
        patience_s: Longest wait of a commit's reads for a connection that was lost.
    """

    record_bytes_max: int = 384 * KIB
    multi_bytes_max: int = 800_000
    batch_tids_max: int = 512
    queue_tids_max: int = 4096
    read_ahead: int = 32
    epoch_limit: int = 1_000_000_000
    recheck_s: float = 5.0
    retry_s: float = 0.1
    patience_s: float = 10.0


class Queued(msgspec.Struct, frozen=True):
    """A proposal with its bytes: ``payloads`` go into the record, ``op_bytes`` bounds its elements."""

    tid: str
    proposal: Proposal
    payloads: tuple[bytes, ...]
    op_bytes: int

    @classmethod
    def of(cls, proposal: Proposal) -> Queued:
        """Encode a proposal."""
        elements = tuple(op for op, _ in _elements(proposal))
        payloads = tuple(map(codec.encode_tid, proposal.records))
        return cls(proposal.tid, proposal, payloads, multi_bytes(elements))

    @property
    def record_bytes(self) -> int:
        """The most bytes that it adds to a record: each entry and what separates it from the next one."""
        return sum(map(len, self.payloads)) + len(self.payloads)


class ElementRole(enum.Enum):
    """The role of an element of the commit multi."""

    FENCE = "fence"
    EPOCH = "epoch"
    HEAD = "head"
    TABLE = "table"
    DEFINITION = "definition"
    LABEL = "label"
    #: Nothing has changed that decides whose copies count.
    ROSTER = "roster"
    #: No label of a stream was deleted since the moved label was read.
    LABELS = "labels"
    #: The word that a part is lost, which nobody has said before.
    SKIP = "skip"
    #: Neither the tags nor the horizon have changed since they were read.
    TAGS = "tags"
    #: Elements that no other replica can make fail while the checks before them hold.
    OWN = "own"


#: Checks that transactions of a batch share.
_SHARED: Final = frozenset({ElementRole.TABLE, ElementRole.HEAD, ElementRole.ROSTER, ElementRole.LABELS})


#: The roles of the elements besides definitions that a proposal brings, by the folders of their paths.
_ROLES: Final[Mapping[str, ElementRole]] = {
    tree.SKIPS: ElementRole.SKIP,
    tree.TAGS: ElementRole.TAGS,
    tree.CSN: ElementRole.TAGS,
    tree.PINS: ElementRole.OWN,
}


class Element(msgspec.Struct, frozen=True):
    """One element of the multi: its role and its path."""

    part: ElementRole
    path: str


class CommitPlan(msgspec.Struct, frozen=True):
    """A commit multi without the record itself, whose clocks only the shell knows. A tick has no batch.

    Attributes:
        home: The replica that commits.
        epoch: The epoch whose directory gets the record.
        checks: All elements before the create of the record.
        elements: The role of each of them, index by index, the create of the record included.
        batch: The transactions of the record.
    """

    home: ReplicaId
    epoch: int
    checks: tuple[Op, ...]
    elements: tuple[Element, ...]
    batch: tuple[Queued, ...]

    def record(self, clock: ClockReading) -> Record:
        """Return the record as followers will read it."""
        tids = tuple(record for item in self.batch for record in item.proposal.records)
        return Record(RecordKind.COMMIT, self.home, clock.time_ms, tids, clock.witnesses)

    def ops(self, clock: ClockReading) -> tuple[Op, ...]:
        """Return the whole multi; the create of the record is its last element and is the commit point."""
        payloads = [payload for item in self.batch for payload in item.payloads]
        data = codec.encode_commit(self.home, clock, payloads)
        return (*self.checks, Create(tree.record_prefix(self.epoch), data, sequential=True))

    def made(self, clock: ClockReading, ops: tuple[Op, ...], values: tuple[object, ...]) -> LogRecord:
        """Return the record that the multi ``ops`` has made; ``values`` are its results.

        ZooKeeper does not tell the stamp of a create, but that of csn/head is the same (Z19).
        """
        return _made(self.record(clock), ops[-1], values[-1], values[-2])


class Rollover(msgspec.Struct, frozen=True):
    """The multi that closes an epoch (F4).

    The END record is the last one of its epoch, because every later commit into it fails the check of
    csn/epoch; so a follower that has read END has missed nothing.
    """

    home: ReplicaId
    fence: int
    epoch: int
    epoch_version: int

    def record(self, clock: ClockReading) -> Record:
        """Return the END record."""
        return Record(RecordKind.END, self.home, clock.time_ms, witnesses=clock.witnesses)

    def ops(self, clock: ClockReading) -> tuple[Op, ...]:
        """Return the multi. Results: None, None, path of the END record, path of the new epoch, Written."""
        end = codec.encode_record(self.record(clock))
        return (
            Check(tree.session(self.home), self.fence),
            Check(tree.EPOCH, self.epoch_version),
            Create(tree.record_prefix(self.epoch), end, sequential=True),
            Create(tree.epoch_dir(self.epoch + 1)),
            SetData(tree.EPOCH, codec.encode_epoch(self.epoch + 1)),
        )

    def made(self, clock: ClockReading, ops: tuple[Op, ...], values: tuple[object, ...]) -> LogRecord:
        """Return the END record that the multi ``ops`` has made; ``values`` are its results."""
        return _made(self.record(clock), ops[2], values[2], values[4])


def _made(record: Record, create: Op, path: object, beside: object) -> LogRecord:
    assert isinstance(create, Create), f"{create} makes no record"
    assert isinstance(beside, Written), f"{beside} has no stamp"
    return LogRecord(tree.csn_of(str(path)), record, beside.stamp, codec.digest(create.data))


def too_large(item: Queued, home: ReplicaId, limits: LogLimits) -> tuple[str, int, int] | None:
    """Return (limit, its bytes, bytes found) if a proposal cannot even be sent alone, else None."""
    record_bytes = codec.commit_bytes(home, tuple(map(len, item.payloads)))
    if record_bytes > limits.record_bytes_max:
        return "record_bytes_max", limits.record_bytes_max, record_bytes
    if record_bytes + item.op_bytes > limits.multi_bytes_max:
        return "multi_bytes_max", limits.multi_bytes_max, record_bytes + item.op_bytes
    return None


def choose(queue: Iterable[Queued], home: ReplicaId, limits: LogLimits, tids_max: int) -> tuple[Queued, ...]:
    """Choose the next batch: the first of the queue, and those behind it that may share its record.

    A proposal that conflicts is passed over and keeps its position, so it soon becomes the first one.
    """
    taken: list[Queued] = []
    tids = 0
    claims = _Claims()
    record_bytes = request_bytes = codec.commit_bytes(home, ())
    for item in queue:
        record_with = record_bytes + item.record_bytes
        request_with = request_bytes + item.record_bytes + item.op_bytes
        if taken and (
            tids + len(item.payloads) > tids_max
            or record_with > limits.record_bytes_max
            or request_with > limits.multi_bytes_max
        ):
            break
        if item.proposal.head_version is not None:
            if not taken:
                return (item,)
        elif claims.add(item.proposal):
            taken.append(item)
            tids += len(item.payloads)
            record_bytes, request_bytes = record_with, request_with
    return tuple(taken)


class _Claims:
    """The paths that the proposals of a batch touch; it keeps apart proposals that contradict each other."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._defined: set[str] = set()
        self._labels: set[str] = set()

    def add(self, proposal: Proposal) -> bool:
        """Add a proposal; return False, and add nothing, when it cannot share the batch."""
        versions = {tree.table(table): version for table, version in proposal.tables.items()}
        if proposal.roster is not None:
            versions[tree.REPLICAS] = proposal.roster
        if proposal.move is not None:
            versions[tree.LABELS] = proposal.move.deletions
        defined = {op.path for op in proposal.ddl}
        labels = {label for label in (proposal.label, *(one.label for one in proposal.riders)) if label}
        if labels & self._labels:
            return False
        if any(path in self._defined for path in versions) or any(
            path in self._defined or path in self._versions for path in defined
        ):
            return False
        if any(self._versions.get(path, version) != version for path, version in versions.items()):
            return False
        self._versions |= versions
        self._defined |= defined
        self._labels |= labels
        return True


def plan(
    batch: tuple[Queued, ...], *, home: ReplicaId, fence: int, epoch: int, epoch_version: int
) -> CommitPlan:
    """Build the multi of a batch; each table is checked once, however many tids touch it."""
    ops: list[Op] = [Check(tree.session(home), fence), Check(tree.EPOCH, epoch_version)]
    elements = [Element(ElementRole.FENCE, ops[0].path), Element(ElementRole.EPOCH, ops[1].path)]
    definitions: list[tuple[Op, ElementRole]] = []
    checked: set[str] = set()
    for item in batch:
        for op, part in _elements(item.proposal):
            if part in _SHARED:
                if op.path not in checked:
                    checked.add(op.path)
                    ops.append(op)
                    elements.append(Element(part, op.path))
            else:
                definitions.append((op, part))
    for op, part in definitions:
        ops.append(op)
        elements.append(Element(part, op.path))
    ops.append(SetData(tree.HEAD))
    elements += [Element(ElementRole.OWN, tree.HEAD), Element(ElementRole.OWN, tree.record_prefix(epoch))]
    return CommitPlan(home, epoch, tuple(ops), tuple(elements), batch)


def victims(element: Element, batch: Iterable[Queued]) -> frozenset[str]:
    """Return the tids that a refusal of this element concerns."""
    return frozenset(
        item.tid for item in batch if any(op.path == element.path for op, _ in _elements(item.proposal))
    )


def _elements(proposal: Proposal) -> Iterable[tuple[Op, ElementRole]]:
    """Return the elements of one proposal. A set of a table with a version checks that version by itself."""
    if proposal.head_version is not None:
        yield Check(tree.HEAD, proposal.head_version), ElementRole.HEAD
    if proposal.roster is not None:
        yield Check(tree.REPLICAS, proposal.roster), ElementRole.ROSTER
    checked = {op.path for op in proposal.ddl if isinstance(op, SetData) and op.version is not None}
    for table, version in proposal.tables.items():
        path = tree.table(table)
        if path not in checked:
            yield Check(path, version), ElementRole.TABLE
    for op in proposal.ddl:
        yield op, _ROLES.get(op.path.partition("/")[0], ElementRole.DEFINITION)
    if proposal.label is not None:
        path = tree.label(proposal.label)
        data = codec.encode_label(LabelState.of(proposal.record))
        if proposal.move is None:
            yield Create(path, data), ElementRole.LABEL
        else:
            yield Check(tree.LABELS, proposal.move.deletions), ElementRole.LABELS
            yield SetData(path, data, proposal.move.version), ElementRole.LABEL
    for rider in proposal.riders:
        if rider.label is not None:
            yield (
                Create(tree.label(rider.label), codec.encode_label(LabelState.of(rider))),
                ElementRole.LABEL,
            )
