"""Visibility: one pure function of a part's metadata, a snapshot CSN, the own tid and adopted merges. Pure.

One place decides visibility (rule visibility). All code that shows parts calls this function or uses
:data:`VISIBLE_SQL`, its transcription for the catalog's index. A property test compares the two with each
other and with an independent oracle. Field names follow the RFC as ClickHouse shipped it: creation_tid,
creation_csn, removal_tid, removal_csn.

A transaction sees its snapshot S, its own changes, and the merges that it has *adopted*. An adopted merge was
committed above S, and all its input parts are visible to the transaction. A merge leaves all rows unchanged,
so the transaction sees the rows of S whatever it adopts; but they are in parts that still exist and can be
removed (F18). A merge that also has an input part from above S can never be adopted, since its result holds
rows that are not in S.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from tidelock.csnlog.core.ids import Csn, Tid


class PartVersions(msgspec.Struct, frozen=True):
    """The creation and removal of a part. A CSN is None until the transaction beside it is committed.

    Raises:
        ValueError: The metadata contradicts itself. That is corruption; it never means "visible to all".
    """

    creation_tid: Tid
    creation_csn: Csn | None = None
    removal_tid: Tid | None = None
    removal_csn: Csn | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for metadata that no history can produce."""
        if self.removal_csn is not None and self.removal_tid is None:
            msg = f"part of {self.creation_tid} has removal_csn {self.removal_csn} but no removal_tid"
            raise ValueError(msg)
        if self.removal_csn is not None and (
            self.creation_csn is None or self.removal_csn <= self.creation_csn
        ):
            msg = (
                f"part of {self.creation_tid} was created at {self.creation_csn}, "
                f"but removed at {self.removal_csn}"
            )
            raise ValueError(msg)


def visible(part: PartVersions, snapshot: Csn, own: Tid | None = None, adopted: Collection[Tid] = ()) -> bool:
    """Return whether a reader at ``snapshot``, inside the transaction ``own`` if any, sees the part.

    A transaction sees what it or an adopted merge created, and not what it or an adopted merge removed.
    Otherwise a part is visible from its creation CSN (inclusive) to its removal CSN (exclusive).
    """
    seen = adopted if own is None else {*adopted, own}
    if part.removal_tid in seen or (part.removal_csn is not None and part.removal_csn <= snapshot):
        return False
    return part.creation_tid in seen or (part.creation_csn is not None and part.creation_csn <= snapshot)


#: The same rule over the catalog's ``parts`` table, with the parameters of :func:`visible_args`.
VISIBLE_SQL = """
    (removal_tid IS NULL OR (
        removal_tid IS NOT :own AND removal_tid NOT IN (SELECT value FROM json_each(:adopted))
        AND (removal_csn IS NULL OR removal_csn > :s)
    ))
    AND (creation_csn <= :s OR creation_tid = :own
         OR creation_tid IN (SELECT value FROM json_each(:adopted)))
"""


def visible_args(snapshot: Csn, own: str | None = None, adopted: Iterable[str] = ()) -> dict[str, Any]:
    """Return the parameters of :data:`VISIBLE_SQL`; tids are texts."""
    return {"s": snapshot, "own": own, "adopted": json.dumps([*adopted])}


class Replaced(msgspec.Struct, frozen=True):
    """A part that a committed merge has replaced: the merge's textual tid, and the part's creation."""

    merge: str
    creation_tid: str
    creation_csn: Csn


def adoptable(replaced: Iterable[Replaced], snapshot: Csn, adopted: Collection[str]) -> set[str]:
    """Return the merges that a transaction at ``snapshot`` may adopt in addition to those it has.

    The decision on a merge is final: no later change makes it adoptable.

    Args:
        replaced: The parts that all merges of a table (or of all tables) above ``snapshot`` have replaced,
            in the order of the CSNs of the merges, without the merges that were judged before.
        snapshot: The S of the transaction.
        adopted: The merges that it has adopted.
    """
    sources: dict[str, list[Replaced]] = {}
    for part in replaced:
        sources.setdefault(part.merge, []).append(part)
    found: set[str] = set()
    for merge, parts in sources.items():
        # Each part existed until this merge replaced it, so it is visible if its creation is visible.
        if all(
            part.creation_csn <= snapshot or part.creation_tid in adopted or part.creation_tid in found
            for part in parts
        ):
            found.add(merge)
    return found
