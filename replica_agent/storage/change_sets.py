"""Change sets as values, and how many of them fit into one answer. Pure but for the rows of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId
from tidelock.replica_agent.storage.catalog_reads import PartRow


class PartChange(msgspec.Struct, frozen=True):
    """A part that a commit has added or removed.

    Attributes:
        row: The part.
        tid: The transaction that has added or removed it, textual.
        since: CSN from which on it is visible.
        until: CSN from which on it is no longer visible, None if it was not removed.
    """

    row: PartRow
    tid: str
    since: Csn
    until: Csn | None

    def visible(self, csn: Csn) -> bool:
        """Return whether a snapshot at ``csn`` shows it."""
        return self.since <= csn and (self.until is None or csn < self.until)


class CsnChanges(msgspec.Struct, frozen=True):
    """The changes of a table by the transactions of one CSN, without compaction.

    Attributes:
        csn: The CSN.
        time_ms: Its effective time, Unix, ms.
        added: Parts that are visible from it on.
        removed: Parts that were visible up to it.
    """

    csn: Csn
    time_ms: int
    added: Sequence[PartChange]
    removed: Sequence[PartChange]

    @property
    def parts(self) -> Sequence[PartChange]:
        """Return all its parts."""
        return (*self.added, *self.removed)

    @property
    def tids(self) -> Sequence[str]:
        """Return its transactions: several can share one CSN."""
        return sorted({part.tid for part in self.parts})


class CsnChangePage(msgspec.Struct, frozen=True):
    """The change sets of a table in (since, to], in the order of their CSNs.

    Attributes:
        since: CSN after which the page begins.
        to: CSN up to which it is complete.
        complete: Whether it contains all that was requested.
        sets: The change sets.
        time_ms: Effective time of ``to``, Unix, ms; 0 if it is not known.
    """

    since: Csn
    to: Csn
    complete: bool
    sets: Sequence[CsnChanges]
    time_ms: int = 0


def net_of(pages: Iterable[CsnChangePage]) -> CsnChanges:
    """Return the changes of at least one page as those of one commit, at the end of the last page.

    Each page begins where the one before ends. A part that is added and removed in between is left out. A
    row of other parts may still be on both sides.
    """
    added: dict[PartId, PartChange] = {}
    removed: list[PartChange] = []
    csn, time_ms = CSN_NONE, 0
    for page in pages:
        for one in page.sets:
            added.update((part.row.part, part) for part in one.added)
            removed += [part for part in one.removed if added.pop(part.row.part, None) is None]
        csn, time_ms = page.to, page.time_ms
    return CsnChanges(csn, time_ms, list(added.values()), removed)


def admit(
    found: Iterable[CsnChanges], since: Csn, until: Csn, *, files_max: int, bytes_max: int
) -> CsnChangePage:
    """Accept as many change sets as fit, but at least one: the work of a CSN cannot be split.

    Args:
        found: The change sets of (since, until] in their order; read only as far as they are accepted.
        since: See :class:`CsnChangePage`.
        until: Where the page ends if all fit.
        files_max: Most parts, added and removed ones together.
        bytes_max: Most bytes of these parts.
    """
    taken: list[CsnChanges] = []
    files = size = 0
    for one in found:
        files += len(one.parts)
        size += sum(part.row.length for part in one.parts)
        if taken and (files > files_max or size > bytes_max):
            return CsnChangePage(since, taken[-1].csn, complete=False, sets=taken)
        taken.append(one)
    return CsnChangePage(since, until, complete=True, sets=taken)
