"""The identifiers in bodies, as separate types; `tidelock.csnlog.core.ids` makes their texts. Pure."""

from __future__ import annotations

from typing import NewType

#: Number of a commit; a larger one is later.
Csn = NewType("Csn", int)
#: Id of a replica: `[a-z][a-z0-9_]{0,31}`.
ReplicaId = NewType("ReplicaId", str)
#: Id of a part: `<replica>-<boot>-<counter>`.
PartId = NewType("PartId", str)
#: Id of a table, forever: the name under which it was created, followed by `~<number>` where that name was
#: the id of an earlier table.
TableId = NewType("TableId", str)
#: Name of a table, which can change: `<namespace>.<table>`.
TableName = NewType("TableName", str)
