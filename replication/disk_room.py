"""The room on the disk of a replica's data directory, and the refusal of bytes that it keeps no room for."""

from __future__ import annotations

import shutil
from pathlib import Path

from tidelock.errors import DiskFullError
from tidelock.replication.core.room import DiskUse, RoomLimits

_NO_LIMITS = RoomLimits()


class DiskRoom:
    """The free space of one data directory.

    Args:
        folder: The data directory.
        replica: Id of the replica, for messages.
        limits: The marks; none by default.
    """

    def __init__(self, folder: Path, *, replica: str = "", limits: RoomLimits = _NO_LIMITS) -> None:
        self._folder, self._replica, self._limits = folder, replica, limits

    def free(self) -> int:
        """Return the free bytes; 0 if they are not known."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return 0

    def free_for(self, use: DiskUse) -> int:
        """Return the bytes that may be written for a purpose; 0 if they are not known."""
        return max(0, self.free() - self._mark(use))

    @property
    def low(self) -> bool:
        """Whether the free space is below the reserve, so that clients can add nothing here."""
        return self._limits.reserve_bytes > 0 and self.free() < self._mark(DiskUse.NEW)

    def admit(self, use: DiskUse, asked_bytes: int) -> None:
        """Raise unless so many bytes may be written.

        Raises:
            DiskFullError: Less than the mark of this purpose would be free.
        """
        if not (mark := self._mark(use)):
            return
        free = self.free()
        if free - asked_bytes < mark:
            raise DiskFullError(
                f"{self._where()} has {free} bytes free and keeps {mark} in reserve (disk_reserve_bytes), so "
                f"it takes no {asked_bytes} bytes more: free space there, truncate or drop partitions, or "
                "use another replica",
                **self._details(free),
                asked_bytes=asked_bytes,
                reserve_bytes=mark,
            )

    def none_left(self, doing: str, why: str) -> DiskFullError:
        """Return the error for a write that the disk has refused."""
        free = self.free()
        return DiskFullError(
            f"no room on the disk while {doing} ({why}): {self._where()} has {free} bytes free; free space "
            "in the data directory, or use another replica",
            **self._details(free),
        )

    def _mark(self, use: DiskUse) -> int:
        if not self._limits.reserve_bytes:
            return 0
        try:
            return self._limits.mark(use, shutil.disk_usage(self._folder).total)
        except OSError:
            return 0

    def _where(self) -> str:
        return f"replica {self._replica}, folder {self._folder}," if self._replica else f"{self._folder}"

    def _details(self, free: int) -> dict[str, object]:
        return {"replica": self._replica, "folder": str(self._folder), "free_bytes": free}
