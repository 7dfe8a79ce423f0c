"""Visibility: one pure function of a part's metadata, a snapshot CSN, the own tid and adopted merges. Pure.

One place decides (rule visibility). Everything that shows parts to anybody asks this function or uses
:data:`VISIBLE_SQL`, its transcription for the catalog's index, and a property test holds the two and an
independent oracle against each other. Field names follow the RFC as ClickHouse shipped it: creation_tid,
creation_csn, removal_tid, removal_csn.

A transaction sees its snapshot S, its own changes, and the merges that it has *adopted*: merges that were
committed above S, of nothing but parts that it sees. A merge leaves all rows as they are, so the rows that
the transaction sees are those of S whatever it adopts; but they are in parts that are still there to be
removed (F18). A merge that has also taken a part from above S can never be adopted, for its
result holds rows that are not those of S.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from tidelock.csnlog.core.ids import Csn, Tid


@dataclass(frozen=True, slots=True)
class PartVersions:
    """When a part came and went. A CSN is None until the transaction beside it is committed.

    Raises:
        ValueError: The metadata contradicts itself. That is corruption; it never means "visible to all".
    """

    creation_tid: Tid
    creation_csn: Csn | None = None
    removal_tid: Tid | None = None
    removal_csn: Csn | None = None

    def __post_init__(self) -> None:
        """Refuse metadata that no history can produce."""
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
    """Tell whether a reader at ``snapshot``, inside the transaction ``own`` if any, sees the part.

    A transaction sees what it or a merge that it has adopted created, and not what one of them removed;
    beyond that a part is seen from its creation CSN (inclusive) to its removal CSN (exclusive).
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


@dataclass(frozen=True, slots=True)
class Replaced:
    """A part that a committed merge has replaced: the textual tid of the merge, and what made the part."""

    merge: str
    creation_tid: str
    creation_csn: Csn


def adoptable(replaced: Iterable[Replaced], snapshot: Csn, adopted: Collection[str]) -> set[str]:
    """Return the merges that a transaction at ``snapshot`` may adopt beside those it has.

    The verdict on a merge is final: what comes later never makes it adoptable.

    Args:
        replaced: What all merges of a table (or of all) above ``snapshot`` have replaced, those left out that
            were judged before, in the order of the CSNs of the merges.
        snapshot: The S of the transaction.
        adopted: What it has adopted.
    """
    sources: dict[str, list[Replaced]] = {}
    for part in replaced:
        sources.setdefault(part.merge, []).append(part)
    found: set[str] = set()
    for merge, parts in sources.items():
        # Each of them was there until this merge took it, so it is seen if the transaction sees its creation.
        if all(
            part.creation_csn <= snapshot or part.creation_tid in adopted or part.creation_tid in found
            for part in parts
        ):
            found.add(merge)
    return found
