"""Pinning of the CSN at which a Spark session reads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tidelock.client import Database, Snapshot
from tidelock.errors import BadRequestError
from tidelock.wire.rows import Fields


def pin(
    db: Database,
    csn: int | str | None,
    replica: str | None,
    *,
    at: datetime | int | str | None = None,
    lease: float | None = None,
) -> tuple[Snapshot, Fields]:
    """Pin a CSN, by default one that the preferred replica has applied; return it with the cluster's status.

    Raises as `Database.snapshot` and `Database.status`.
    """
    if csn is not None and at is not None:
        raise BadRequestError(f"csn={csn} and at={at} are given; give one of them")
    seen = db.seen_csn
    lease_option: dict[str, Any] = {} if lease is None else {"lease": lease}
    snapshot = db.snapshot(csn, **lease_option) if at is None else db.snapshot(at=at, **lease_option)
    try:
        status = db.status()
        applied = _applied(status, replica)
        if csn is None and at is None and applied is not None and applied < snapshot.csn:
            # Reads would wait for that replica, or leave it for good: Hadoop's client does not return to it.
            snapshot.close()
            snapshot = db.snapshot(max(applied, seen), **lease_option)
    except BaseException:
        snapshot.close()
        raise
    return snapshot, status


def _applied(status: Fields, replica: str | None) -> int | None:
    """Return the snapshot CSN of the preferred replica; None if no replica is preferred, or it is silent."""
    for row in status["replicas"]:
        if row["id"] == replica and row.get("alive", True):
            return int(row["snapshot_csn"])
    return None
