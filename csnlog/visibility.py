"""Visibility: one pure function of a part's metadata, a snapshot CSN and the reader's own tid.

Design section 4. Everything that shows parts to anybody asks this function or uses :data:`VISIBLE_SQL`, its
transcription for the catalog's index, and a property test holds the two and an independent oracle against
each other. Field names follow the RFC as ClickHouse shipped it: creation_tid, creation_csn, removal_tid,
removal_csn.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelock.csnlog.ids import Csn, Tid


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


def visible(part: PartVersions, snapshot: Csn, own: Tid | None = None) -> bool:
    """Tell whether a reader at ``snapshot``, inside the transaction ``own`` if any, sees the part.

    A transaction sees what it created and not what it removed, whatever is committed; beyond that a part is
    seen from its creation CSN (inclusive) to its removal CSN (exclusive).
    """
    if own is not None and part.removal_tid == own:
        return False
    if own is not None and part.creation_tid == own:
        return True
    if part.creation_csn is None or part.creation_csn > snapshot:
        return False
    return part.removal_csn is None or part.removal_csn > snapshot


#: The same rule over the catalog's ``parts`` table; parameters ``:s`` (snapshot CSN) and ``:own`` (tid text
#: or NULL).
VISIBLE_SQL = """
    (removal_tid IS NULL OR removal_tid IS NOT :own)
    AND ((:own IS NOT NULL AND creation_tid = :own)
         OR (creation_csn <= :s AND (removal_csn IS NULL OR removal_csn > :s)))
"""
