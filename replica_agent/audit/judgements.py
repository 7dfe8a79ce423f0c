"""Judgements of an audit on locks, undecided rows, labels, pins and definitions: who owns them. Pure.

Each function gets the values that were read and returns what contradicts them. Work under way looks the same
as a fault here. The caller has to find out whether a finding lasts (see the package).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import PinState
from tidelock.csnlog.core.results import Aborted, Committed, Outcome, TooOld
from tidelock.replica_agent.tables.layouts import committed
from tidelock.replication.core.lock_rules import LockInfo, OnePart, covers
from tidelock.wire.audit import AuditFinding, Severity

LOCKS: Final = "locks"
UNDECIDED: Final = "undecided"
LABELS: Final = "labels"
PINS: Final = "pins"
TABLES: Final = "tables"
TAGS: Final = "tags"
PROGRESS: Final = "progress"

_REPORT: Final = "keep the agents' logs and report it"


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one run of a check: the number of compared things, and the differences."""

    compared: int
    findings: frozenset[AuditFinding]


class PartRemoval(msgspec.Struct, frozen=True):
    """A part that leaves its table: at a CSN, or marked by an undecided transaction."""

    part: PartId
    table: TableId
    path: str
    tid: Tid
    csn: Csn | None = None


class Label(msgspec.Struct, frozen=True):
    """One label: the znode's name, the transaction that it names, and its batch if it is a stream's label."""

    name: str
    tid: str
    batch: int | None = None

    @property
    def znode(self) -> str:
        """The path of its znode."""
        return f"{tree.LABELS}/{self.name}"


class Definition(msgspec.Struct, frozen=True):
    """A table's newest definition.

    Attributes:
        version: Its number.
        content: The definition.
        csn: Where it was committed; 0: as ZooKeeper has it, which was written before that was known.
    """

    version: int
    content: Mapping[str, Any]
    csn: Csn = CSN_NONE


def ended(outcome: Outcome | None) -> str:
    """Describe how a transaction ended; None stands for a tid that no replica can have begun."""
    match outcome:
        case Committed(csn):
            return f"committed at {csn}"
        case TooOld(floor):
            return f"ended before CSN {floor}"
        case Aborted():
            return "aborted"
        case None:
            return "of no replica of this cluster"
    return "running"


# ---------------------------------------------------------------------------------------------------- locks


def stale_locks(
    locks: Iterable[LockInfo],
    outcomes: Mapping[Tid, Outcome | None],
    *,
    tail: Csn,
    silent: Collection[ReplicaId],
) -> Iterator[AuditFinding]:
    """Find locks of ended transactions, up to the tail, which hold nothing back any more.

    The locks of a silent replica remain until its next boot, or until another transaction needs them.
    """
    for lock in locks:
        outcome = outcomes[lock.tid]
        match outcome:
            case Committed(csn):
                stale = csn < tail and lock.tid.home not in silent
            case TooOld():
                stale = lock.tid.home not in silent
            case Aborted() | None:
                stale = True
            case _:
                stale = False
        if stale:
            yield AuditFinding(
                check=LOCKS,
                fault="stale_lock",
                severity=Severity.ERROR,
                table=lock.table,
                part=lock.scope.part if isinstance(lock.scope, OnePart) else None,
                znode=lock.znode,
                tid=str(lock.tid),
                expected=f"a running transaction, or one committed at or above the tail {tail}",
                found=ended(outcome),
                next_step=f"restart the agent of {lock.tid.home}, which releases locks of former boots",
            )


def unlocked_removals(removals: Iterable[PartRemoval], locks: Iterable[LockInfo]) -> Iterator[AuditFinding]:
    """Find removals without a lock: another transaction could remove the same part again (I7)."""
    held: dict[tuple[Tid, TableId], list[LockInfo]] = {}
    for lock in locks:
        held.setdefault((lock.tid, lock.table), []).append(lock)
    for one in removals:
        scope = OnePart(one.part, one.path)
        if any(covers(lock.scope, scope) for lock in held.get((one.tid, one.table), ())):
            continue
        marked = one.csn is None
        yield AuditFinding(
            check=LOCKS,
            fault="mark_without_lock" if marked else "removal_without_lock",
            severity=Severity.ERROR,
            table=one.table,
            part=one.part,
            tid=str(one.tid),
            csn=one.csn,
            expected=f"a lock of {one.tid} on the part, its partition or its table",
            found="none",
            next_step=f"kill {one.tid}: `tidelock kill`" if marked else _REPORT,
        )


# ------------------------------------------------------------------------------------------------- undecided


def left_undecided(
    outcomes: Mapping[str, Outcome | None], applied: Csn, landed: Collection[str] = ()
) -> Iterator[AuditFinding]:
    """Find ended transactions whose parts, marks or notes here are not decided.

    Args:
        outcomes: The outcomes of all transactions with undecided rows here.
        applied: The snapshot CSN, read before the outcomes.
        landed: Those of them whose rows landed.
    """
    for tid, outcome in outcomes.items():
        match outcome:
            case Committed(csn):
                over = csn <= applied
            case Aborted() | None:
                over = True
            case _:
                over = False
        if over and tid in landed:
            yield AuditFinding(
                check=UNDECIDED,
                fault="landing_not_rescued",
                severity=Severity.WARNING,
                tid=tid,
                expected="rows that landed with a transaction that is over, committed by one of its holders",
                found="parts with such rows, not committed yet",
                next_step="look for landing_not_rescued in the log of this agent: it says why; they stay",
            )
        elif over:
            yield AuditFinding(
                check=UNDECIDED,
                fault="undecided_leftover",
                severity=Severity.ERROR if isinstance(outcome, Committed) else Severity.WARNING,
                tid=tid,
                expected="rows of running transactions only",
                found=f"undecided rows of a transaction that is {ended(outcome)}",
                next_step="restart this agent, which resolves its undecided transactions",
            )


# ---------------------------------------------------------------------------------------------------- labels


class Labelled(msgspec.Struct, frozen=True):
    """A committed transaction: its label, None if it has none, and its batch if the label is a stream's."""

    tid: str
    label: str | None
    batch: int | None = None

    @property
    def shown(self) -> str:
        """The label in words."""
        return f"{self.label!r}" if self.batch is None else f"{self.label!r}, batch {self.batch}"


def dangling_labels(
    labels: Iterable[Label],
    outcomes: Mapping[str, Outcome | None],
    labelled: Mapping[str, Labelled],
    skipped: Collection[str] = (),
) -> Iterator[AuditFinding]:
    """Find labels whose transaction is not committed, or is committed under another label.

    Args:
        labels: The labels in ZooKeeper.
        outcomes: The outcomes of the transactions that they name.
        labelled: Committed transactions, as far as they are known here, by their tids.
        skipped: Transactions of skipped records: a stream's label that names one was set back by one batch.
    """
    for label in labels:
        if label.tid in skipped:
            continue
        outcome, known = outcomes[label.tid], labelled.get(label.tid)
        if isinstance(outcome, TooOld):
            continue  # the home deletes the label when it has forgotten the outcome as well
        if not isinstance(outcome, Committed):
            found = f"a transaction that is {ended(outcome)}"
        elif known is None:
            continue
        elif known.label is None:
            found = "one without a label"
        elif tree.label(known.label) != label.znode or known.batch != label.batch:
            found = f"a transaction committed under the label {known.shown}"
        else:
            continue
        yield AuditFinding(
            check=LABELS,
            fault="dangling_label",
            severity=Severity.ERROR,
            znode=label.znode,
            tid=label.tid,
            expected="a transaction that is committed under this label"
            + ("" if label.batch is None else f", batch {label.batch}"),
            found=found,
            next_step="commits under this label are refused: delete the znode when you know that none ran",
        )


def missing_labels(
    kept: Iterable[Labelled], labels: Iterable[Label], skipped: Collection[str] = ()
) -> Iterator[AuditFinding]:
    """Find labels of committed transactions that ZooKeeper lacks: a second run would count twice.

    Args:
        kept: The newest transaction of each label that must be kept.
        labels: The labels in ZooKeeper, read later: a stream's label may have moved on.
        skipped: Transactions of skipped records: a stream's label that names one was set back by one batch.
    """
    known = {label.znode: label for label in labels}
    for one in kept:
        znode = tree.label(one.label or "")
        label = known.get(znode)
        of_batch = label is not None and label.tid in skipped and label.batch == one.batch
        if label is None or (label.tid != one.tid and not of_batch and not _moved_on(one, label)):
            yield AuditFinding(
                check=LABELS,
                fault="missing_label",
                severity=Severity.ERROR,
                znode=znode,
                tid=one.tid,
                expected=f"the label {one.shown} of {one.tid}",
                found="no such znode" if label is None else f"the label of {label.tid}",
                next_step=f"do not run what is labelled {one.shown} a second time, and report it",
            )


def _moved_on(one: Labelled, label: Label) -> bool:
    return one.batch is not None and label.batch is not None and label.batch > one.batch


def repeated_batches(batches: Iterable[tuple[Labelled, Csn, int]]) -> Iterator[AuditFinding]:
    """Find batches of a streaming query that count again, or after a later one.

    Args:
        batches: The transaction of such a batch, its CSN, and the batch that had counted before.
    """
    for one, csn, before in batches:
        yield AuditFinding(
            check=LABELS,
            fault="repeated_batch",
            severity=Severity.ERROR,
            tid=one.tid,
            csn=csn,
            expected=f"a batch of {one.label!r} above {before}",
            found=f"batch {one.batch}",
            next_step="its rows may count twice: compare the tables with their source, and report it",
        )


# ------------------------------------------------------------------------------------------- pins, progress


def stray_pins(
    pins: Mapping[str, PinState],
    *,
    members: Collection[ReplicaId],
    replica: ReplicaId,
    known: Collection[str],
    horizon: Csn,
    end: Csn,
) -> Iterator[AuditFinding]:
    """Find pins without an owner, and pins that promise a CSN that is not kept.

    Args:
        pins: The pins in ZooKeeper, by id.
        members: All registered replicas.
        replica: This replica.
        known: The ids of this replica's pins.
        horizon: ``csn/horizon``, read before the pins.
        end: The end of the log, read after them.
    """
    for name, pin in pins.items():
        faults = []
        if pin.owner not in members:
            faults.append(("pin_of_nobody", "a registered replica as its owner", f"owner {pin.owner}"))
        elif pin.owner == replica and name not in known:
            faults.append(("pin_of_nobody", "a pin that its owner holds", f"{replica} knows no such pin"))
        if pin.csn < horizon:
            faults.append(("pin_below_horizon", f"a CSN from the horizon {horizon} on", f"CSN {pin.csn}"))
        if pin.csn > end:
            faults.append(("pin_beyond_end", f"a CSN up to the end of the log {end}", f"CSN {pin.csn}"))
        for fault, expected, found in faults:
            yield AuditFinding(
                check=PINS,
                fault=fault,
                severity=Severity.WARNING if fault == "pin_of_nobody" else Severity.ERROR,
                znode=tree.pin(name),
                csn=pin.csn,
                expected=expected,
                found=found,
                next_step=f"it holds the horizon back; it goes {pin.ttl_s:g} s after its last renewal"
                if fault == "pin_of_nobody"
                else "its reader gets an error; take a new snapshot, and report it",
            )


def false_progress(
    published: Csn,
    applied: Csn,
    *,
    tail_before: Csn,
    tail: Csn,
    horizon: Csn,
    noted_tail: Csn,
    noted_horizon: Csn,
) -> Iterator[AuditFinding]:
    """Find promises of this replica, or deletions in ZooKeeper, beyond the state here (I9, I12).

    Args:
        published: The snapshot CSN in ``progress``, read first.
        applied: The snapshot CSN of the catalog, read after that.
        tail_before: ``csn/tail``, read before the catalog.
        tail: The same, read after it.
        horizon: ``csn/horizon``, read after it.
        noted_tail: The tail that the catalog has noted.
        noted_horizon: The horizon that the catalog has noted.
    """
    claims = (
        ("progress_ahead", published <= applied, f"progress up to {applied}", f"progress {published}"),
        ("tail_ahead", tail_before <= applied, f"a tail up to {applied}", f"csn/tail {tail_before}"),
        ("horizon_behind", noted_horizon <= horizon, f"csn/horizon from {noted_horizon} on", f"{horizon}"),
        ("tail_behind", noted_tail <= tail, f"csn/tail from {noted_tail} on", f"{tail}"),
    )
    for fault, so, expected, found in claims:
        if not so:
            yield AuditFinding(
                check=PROGRESS,
                fault=fault,
                severity=Severity.ERROR,
                expected=expected,
                found=found,
                next_step="catalog or ZooKeeper was put back to an older state: stop this agent, report it",
            )


# ---------------------------------------------------------------------------------------------------- tables


def differing_tables(
    znodes: Mapping[TableId, Definition], catalog: Mapping[TableId, Definition], *, complete: bool
) -> Iterator[AuditFinding]:
    """Find tables that have different definitions in ZooKeeper and in the catalog.

    Args:
        znodes: The definitions in ZooKeeper, read first.
        catalog: The definitions in the catalog.
        complete: Whether the catalog had applied, when it was read, all that was in the log when the znodes
            had been read; otherwise it may be behind.
    """
    for table in sorted(znodes.keys() | catalog.keys()):
        there, here = znodes.get(table), catalog.get(table)
        if _same(there, here) or (there and not complete and (here is None or here.version < there.version)):
            continue
        yield AuditFinding(
            check=TABLES,
            fault="table_differs",
            severity=Severity.ERROR,
            table=table,
            znode=tree.table(table),
            expected=_described(there),
            found=_described(here, there),
            next_step="commits to the table are refused here; let this replica clone, and report it",
        )


def _same(there: Definition | None, here: Definition | None) -> bool:
    """Return whether the catalog has a definition of ZooKeeper, with its CSN in all places for that."""
    if there is None or here is None:
        return there is here
    return there.version == here.version and committed(there.content, here.csn) == here.content


def _described(one: Definition | None, other: Definition | None = None) -> str:
    if one is None:
        return "no definition"
    changed = other is not None and other.version == one.version
    return f"version {one.version}" + (" with other content" if changed else "")


# ---------------------------------------------------------------------------------------------------- tags


def differing_tags(there: Mapping[str, Csn], here: Mapping[str, Csn]) -> Iterator[AuditFinding]:
    """Find tags that name different CSNs in ZooKeeper and in the catalog, which were read at one state."""
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) == here.get(name):
            continue
        yield AuditFinding(
            check=TAGS,
            fault="tag_differs",
            severity=Severity.ERROR,
            znode=tree.TAGS,
            expected=_tagged(name, there),
            found=_tagged(name, here),
            next_step="the history of the tag may be collected; let this replica clone, and report it",
        )


def _tagged(name: str, tags: Mapping[str, Csn]) -> str:
    return f"tag {name} of CSN {tags[name]}" if name in tags else f"no tag {name}"
