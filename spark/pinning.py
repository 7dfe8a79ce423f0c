"""The CSN that a session of Spark reads at, pinned."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tidelock.client import Database, Snapshot


def pin(
    db: Database,
    csn: int | None,
    replica: str | None,
    *,
    at: datetime | int | None = None,
    lease: float | None = None,
) -> tuple[Snapshot, Mapping[str, Any]]:
    """Pin a CSN, by default one that the preferred replica has applied, and ask how the replicas are.

    Raises as `Database.snapshot` and `Database.status`.
    """
    seen = db.seen_csn
    given: dict[str, Any] = {} if lease is None else {"lease": lease}
    snapshot = db.snapshot(csn, **given) if at is None else db.snapshot(at=at, **given)
    try:
        status = db.status()
        applied = _applied(status, replica)
        if csn is None and at is None and applied is not None and applied < snapshot.csn:
            # Reads would wait for that replica, or leave it for good: Hadoop's client does not come back.
            snapshot.close()
            snapshot = db.snapshot(max(applied, seen), **given)
    except BaseException:
        snapshot.close()
        raise
    return snapshot, status


def _applied(status: Mapping[str, Any], replica: str | None) -> int | None:
    """The CSN that a replica has reached, None if none is preferred or it shows no sign of life."""
    for row in status["replicas"]:
        if row["id"] == replica and row.get("alive", True):
            return int(row["snapshot_csn"])
    return None
