"""How parts are shown that were written before the columns of their table were changed. Pure.

A part has the columns of the definition that holds at its creation CSN, since each commit checks the version
of the definition for which its parts were made (rule columns). A part that shares bytes names the CSN whose
columns these have. A definition says of each of its columns since when parts have it, and under which names
and types they had it before. So what a reader has to do with a part follows from the definition at the
reader's CSN and from the columns CSN of the part. No earlier definition is needed; they are forgotten below
the horizon. Reader processes, which have no Arrow, use this
module too: so it works on definitions as the catalog has them.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tidelock.csnlog.core.ids import Csn
from tidelock.replica_agent.footers.evolving import (
    CHUNK_BYTES_MIN,
    ELEMENT_BYTES_MAX,
    MADE_CHUNK_BYTES_MAX,
    ShownColumn,
)

#: In a definition that is not committed: the CSN of its commit. It is above every CSN, so that a transaction
#: sees the parts that are there with its own definition; the largest integer that any JSON reader keeps.
HERE: Final = (1 << 53) - 1
#: The columns CSN of a row of ``parts``: NULL for a part of an open transaction.
COLUMNS_CSN_SQL: Final = "coalesce(columns_csn, creation_csn)"
#: Most row groups of a part that is shown with other columns than it has.
GROUPS_MAX: Final = 8192
#: Bytes of the names that Parquet adds to a path for each list, map or struct.
_LEVEL_BYTES: Final = len("key_value.element.") + 8
#: Bytes by which a footer may grow whatever its columns are.
_FOOTER_BYTES: Final = 64


class Layout(msgspec.Struct, frozen=True):
    """How the parts whose columns are of below a CSN, and not below that of the layout before, are shown.

    Attributes:
        below: The CSN.
        columns: The columns of the file, all that the table stores in files.
        base_bytes: By how much a file may grow.
        group_bytes: By how much it may grow for each row group.
        group_bytes_min: Fewest bytes of a row group of such a part.
    """

    below: Csn
    columns: tuple[ShownColumn, ...]
    base_bytes: int
    group_bytes: int
    group_bytes_min: int

    def length(self, rows: int, length: int) -> int:
        """Return the length of the file as which a part is shown, or several as one file.

        It depends on the numbers alone that every replica knows, so that a listing opens no part.

        Args:
            rows: Rows of the part.
            length: Length of its file as it is stored.
        """
        groups = min(rows, length // self.group_bytes_min + 1, GROUPS_MAX)
        return length + self.base_bytes + groups * self.group_bytes

    def length_sql(self) -> str:
        """Return :meth:`length` as SQL over the columns ``rows`` and ``length``."""
        groups = f"min(rows, length / {self.group_bytes_min} + 1, {GROUPS_MAX})"
        return f"length + {self.base_bytes} + {groups} * {self.group_bytes}"


class Layouts(msgspec.Struct, frozen=True):
    """The layouts of all parts of a table that do not have its columns, those of the oldest first."""

    periods: tuple[Layout, ...] = ()

    def of(self, columns_csn: Csn | None) -> Layout | None:
        """Return how a part is shown that has the columns of a CSN, or of an open transaction (None).

        None: it has the columns of the table.
        """
        if columns_csn is None or not self.periods:
            return None
        found = bisect.bisect_right(self.periods, columns_csn, key=operator.attrgetter("below"))
        return self.periods[found] if found < len(self.periods) else None

    def length_sql(self) -> str:
        """Return the length of the file as which a part is shown, as SQL over a row of ``parts``."""
        if not self.periods:
            return "length"
        cases = " ".join(
            f"WHEN {COLUMNS_CSN_SQL} < {one.below} THEN {one.length_sql()}" for one in self.periods
        )
        return f"CASE {cases} ELSE length END"


NO_LAYOUTS: Final = Layouts()


def layouts_of(definition: Mapping[str, Any]) -> Layouts:
    """Return the layouts of the parts of a table, by its definition (docs/protocol.md#bytes)."""
    stored = [column for column in definition["columns"] if column["name"] not in definition["partition_by"]]
    borders = {definition.get("dropped_at", 0)} | {column.get("since", 0) for column in stored}
    borders |= {former["until"] for column in stored for former in column.get("was", ())}
    return Layouts(tuple(_layout(stored, Csn(border)) for border in sorted(borders) if border > 0))


def committed(definition: Mapping[str, Any], csn: Csn) -> dict[str, Any]:
    """Return a definition as it is at its commit: with the CSN of that in place of :data:`HERE`."""

    def at(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
        return {**found, **{name: csn for name in names if found.get(name) == HERE}}

    columns = [
        at(column, "since")
        | ({"was": [at(former, "until") for former in column["was"]]} if "was" in column else {})
        for column in definition["columns"]
    ]
    return at({**definition, "columns": columns}, "dropped_at")


def _layout(stored: Sequence[Mapping[str, Any]], below: Csn) -> Layout:
    columns = tuple(_shown(column, Csn(below - 1)) for column in stored)
    base, group, kept = _FOOTER_BYTES, 0, 0
    for column, shown in zip(stored, columns, strict=True):
        size = _Size.of(column["name"], column["type"])
        if shown.stored is None:
            base += size.elements * ELEMENT_BYTES_MAX + size.path_bytes
            group += size.leaves * (MADE_CHUNK_BYTES_MAX + size.path_bytes + len(shown.value or b""))
            continue
        kept += 1
        longer = max(0, len(column["name"].encode()) - len(shown.stored.encode()))
        base += longer + (0 if shown.stored_type is None else ELEMENT_BYTES_MAX)
        group += longer * size.leaves
    return Layout(below, columns, base, group, CHUNK_BYTES_MIN * max(1, kept))


def _shown(column: Mapping[str, Any], csn: Csn) -> ShownColumn:
    """Return how a column is shown in a part that has the columns of a CSN."""
    name = column["name"]
    former = next((one for one in column.get("was", ()) if csn < one["until"]), None)
    if csn < column.get("since", 0) or (former is not None and former["name"] is None):
        initial = column.get("initial")
        return ShownColumn(name, None, value=None if initial is None else bytes.fromhex(initial))
    if former is None:
        return ShownColumn(name, name)
    then = former["type"]
    return ShownColumn(name, former["name"], stored_type=None if then == column["type"] else then)


class _Size(msgspec.Struct, frozen=True):
    """The size of a column in a footer, at most: its elements, its leaves, and the path of a leaf."""

    elements: int
    leaves: int
    path_bytes: int

    @classmethod
    def of(cls, name: str, kind: str) -> _Size:
        """Return the size of a column by the text of its type: each comma may be before one more leaf."""
        leaves, nested = 1 + kind.count(","), kind.count("<")
        return cls(
            leaves + 3 * nested, leaves, len(name.encode()) + len(kind.encode()) + _LEVEL_BYTES * nested
        )
