"""The progress that each disk has published, and whether a power cut has taken it back."""

from __future__ import annotations

from contextlib import closing

from tests.sim.catalog import reading
from tests.sim.disk import SimDisk
from tidelock.csnlog.core import codec
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.store import SetData


class PublishedProgress:
    """The largest snapshot CSN that the replica on each disk has written to its progress."""

    def __init__(self) -> None:
        self._by_disk: dict[str, Csn] = {}

    def note(self, disk: str, op: SetData) -> None:
        """Take a progress that was written while a disk was registered."""
        self._by_disk[disk] = codec.decode_progress(op.data).snapshot

    def passed_by(self, disk: SimDisk) -> str | None:
        """Return how a disk is behind what it has published: others have deleted what lies below (I12)."""
        if not (disk.data / "catalog.db").exists():
            return None
        with closing(reading(disk.data)) as db:
            values = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('disk', 'snapshot_csn')"))
        published = self._by_disk.get(str(values.get("disk")), CSN_NONE)
        if int(values.get("snapshot_csn", 0)) >= published:
            return None
        return f"is back at CSN {values['snapshot_csn']}, and has published {published}"
