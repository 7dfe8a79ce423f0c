"""Where a subscription stands, as text that its subscriber stores with its own effects. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from tidelock.errors import BadRequestError

#: Longest position; the longest names of a cluster and a table need an eighth of it.
POSITION_BYTES_MAX: Final = 4096


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All changes of a table of a cluster up to a CSN.

    Attributes:
        cluster: Id of the cluster.
        table: Full name of the table.
        csn: The CSN.
    """

    cluster: str
    table: str
    csn: int

    def to_text(self) -> str:
        """Return the position as JSON of at most `POSITION_BYTES_MAX` bytes."""
        return msgspec.json.encode(self).decode()


def csn_of(text: object, *, cluster: str, table: str) -> int:
    """Return the CSN of a position.

    Raises:
        BadRequestError: It is no position, or that of another cluster or table.
    """
    if not isinstance(text, str) or len(text) > POSITION_BYTES_MAX:
        raise _no_position(f"no text, or one of more than {POSITION_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(text, type=Position)
    except ValueError as error:
        raise _no_position(str(error)) from error
    for what, expected, stored in (("cluster", cluster, found.cluster), ("table", table, found.table)):
        if expected != stored:
            raise BadRequestError(
                f"the position is one of {what} {stored}, and the subscription is to {what} {expected}; give "
                f"the position of that {what}, or None to begin with the rows of the table",
                **{what: stored},
            )
    return found.csn


def _no_position(reason: str) -> BadRequestError:
    return BadRequestError(
        f"expected a position of a subscription, found another value ({reason}); give `position` of a "
        "subscription as it was read, or None to begin with the rows of the table"
    )
