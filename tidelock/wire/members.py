"""Bodies of the changes of members. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidelock.wire.rows import Row


class MembersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /admin/members: one change of the members.

    Attributes:
        change: The kind of the change.
        replica: The replica that it is about; not for `copies`.
        new: The replica that takes its place, for `replace`.
        rack: The rack of the new replica, until its agent publishes its own.
        undo: Take a drain back.
        copies: Durable copies that a commit needs, for `copies`.
        racks: Whether the copies of one rack count as one, for `copies`; null = as before.
    """

    change: Literal["add", "remove", "replace", "drain", "strike", "copies"]
    replica: str = ""
    new: str = ""
    rack: str = ""
    undo: bool = False
    copies: int = 0
    racks: bool | None = None


class MembersAnswer(Row, frozen=True, kw_only=True):
    """The members after a change.

    Attributes:
        changed: Whether this request changed them; false: they were like that before.
        copies: Durable copies that a commit needs.
        racks: Whether the copies of one rack count as one.
        draining: The replicas that are drained.
        states: The state of the session of each replica: `serving`, `stopped` (never started), `fenced`,
            `struck`, `cloning`, `removed`.
    """

    changed: bool
    copies: int
    racks: bool
    draining: list[str]
    states: dict[str, str]
