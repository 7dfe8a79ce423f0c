"""Judges whether replicas show the same at one CSN. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.wire.peers import StateDigest

#: Tables that a message names.
_NAMED_MAX = 5


class Disagreement(msgspec.Struct, frozen=True):
    """Others show something else at a CSN.

    Attributes:
        csn: The CSN.
        tables: The tables that differ.
        others: The largest group of replicas that agree with each other and not with this one.
        outvoted: Whether they are a majority of all members, so that this replica is the wrong one.
    """

    csn: Csn
    tables: tuple[TableId, ...]
    others: tuple[ReplicaId, ...]
    outvoted: bool

    def __str__(self) -> str:
        """Return it for messages."""
        shown = ", ".join(self.tables[:_NAMED_MAX])
        more = f" and {len(self.tables) - _NAMED_MAX} more" if len(self.tables) > _NAMED_MAX else ""
        return (
            f"at CSN {self.csn} the parts of {shown}{more} are not those that {', '.join(self.others)} "
            f"{'show' if len(self.others) > 1 else 'shows'}"
        )


def disagreement(own: StateDigest, answers: Sequence[StateDigest], members: int) -> Disagreement | None:
    """Return how the answers of others differ from the own digest, or None if none does.

    Args:
        own: The digest of this replica.
        answers: Those of others. One of another CSN, form or record says nothing.
        members: Number of the members of the cluster, those that did not answer included.
    """
    comparable = [one for one in answers if (one.csn, one.form, one.zxid) == (own.csn, own.form, own.zxid)]
    groups = Counter(_content(one) for one in comparable if one.tables != own.tables)
    if not groups:
        return None
    [(largest, size)] = groups.most_common(1)
    others = [one for one in comparable if _content(one) == largest]
    theirs = others[0].tables
    differing = {
        name for name in own.tables.keys() | theirs.keys() if own.tables.get(name) != theirs.get(name)
    }
    return Disagreement(
        csn=own.csn,
        tables=tuple(sorted(differing)),
        others=tuple(sorted(one.replica for one in others)),
        outvoted=2 * size > members,
    )


def _content(one: StateDigest) -> tuple[tuple[TableId, str], ...]:
    return tuple(sorted(one.tables.items()))
