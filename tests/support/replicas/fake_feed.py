"""The answers of a fake agent about changes: inserts only, and the wait for a commit ends at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

#: CSN and rows of an insert.
Commit = tuple[int, pa.Table]

_ADDED = pa.schema(
    [
        ("_change_type", pa.string()),
        ("_commit_csn", pa.int64()),
        ("_commit_time", pa.timestamp("us", tz="UTC")),
    ]
)


def page(commits: Sequence[Commit], to: int, time_ms: Callable[[int], int]) -> dict[str, Any]:
    """Return the change sets of commits; the parts have the CSN as their number."""
    sets = [
        {
            "csn": csn,
            "time_ms": time_ms(csn),
            "tids": [],
            "added": [
                {
                    "part": f"r1-1-{csn}",
                    "tid": f"{csn - 1}-r1-1-1",
                    "path": "",
                    "partition": {},
                    "rows": rows.num_rows,
                    "length": rows.nbytes,
                    "file_length": rows.nbytes,
                }
            ],
            "removed": [],
        }
        for csn, rows in commits
    ]
    return {"to": to, "complete": True, "sets": sets, "time_ms": time_ms(to)}


def rows(schema: pa.Schema, commits: Sequence[Commit], time_ms: Callable[[int], int]) -> pa.Table:
    """Return the rows of commits as inserts, each batch of its table as one batch."""
    told = pa.schema([*schema, *_ADDED])
    batches = []
    for csn, table in commits:
        for batch in table.to_batches():
            added = [
                pa.repeat(pa.scalar(value, field.type), batch.num_rows)
                for field, value in zip(_ADDED, ("insert", csn, time_ms(csn) * 1000), strict=True)
            ]
            batches.append(pa.RecordBatch.from_arrays([*batch.columns, *added], schema=told))
    return pa.Table.from_batches(batches, told)
