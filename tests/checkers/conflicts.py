"""The rules by which a store may refuse the second of two overlapping changes of a key. Pure."""

from __future__ import annotations

from typing import Final

from tests.checkers.operations import Append, MicroOperation, Write

#: The kinds of micro-operations that conflict with each other.
Conflicting = frozenset[type[MicroOperation]]

#: Rows that are only added never conflict; replaced and removed ones do.
ADDED_ROWS: Final[Conflicting] = frozenset((Write,))
#: The first of two changes of a key wins, whatever they are.
ALL_CHANGES: Final[Conflicting] = frozenset((Append, Write))
