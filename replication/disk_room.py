"""The room on the disk of a replica's data directory, and the refusal of bytes that it keeps no room for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelock.errors import DiskFullError
from tidelock.replication.core.room import DiskUse, RoomLimits

_NO_LIMITS = RoomLimits()
#: How long a look at a disk that has plenty of room counts, in seconds. Each look gives up the interpreter's
#: lock, and a commit would look five times.
_LOOK_S: Final = 0.1
#: A disk has plenty of room if so many times the mark stays free after all that was admitted since the look.
_PLENTY: Final = 2


@dataclass(slots=True)
class _Look:
    """The space at one moment, in bytes; ``admitted`` since then."""

    at_s: float
    total: int
    free: int
    admitted: int = 0


class DiskRoom:
    """The free space of one data directory.

    Args:
        folder: The data directory.
        replica: Id of the replica, for messages.
        limits: The marks; none by default.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replica: str = "",
        limits: RoomLimits = _NO_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._replica, self._limits, self._clock = folder, replica, limits, clock
        self._last: _Look | None = None

    def free(self) -> int:
        """Return the free bytes; 0 if they are not known."""
        return self._look().free

    def free_for(self, use: DiskUse) -> int:
        """Return the bytes that may be written for a purpose; 0 if they are not known."""
        look = self._look()
        return max(0, look.free - self._mark(use, look))

    @property
    def low(self) -> bool:
        """Whether the free space is below the reserve, so that clients can add nothing here."""
        if not self._limits.reserve_bytes:
            return False
        look = self._look()
        return look.free < self._mark(DiskUse.NEW, look)

    def admit(self, use: DiskUse, asked_bytes: int) -> None:
        """Raise unless so many bytes may be written.

        Raises:
            DiskFullError: Less than the mark of this purpose would be free.
        """
        if not self._limits.reserve_bytes or self._has_plenty(use, asked_bytes):
            return
        look = self._look()
        mark, free = self._mark(use, look), look.free
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

    def _has_plenty(self, use: DiskUse, asked_bytes: int) -> bool:
        """Return whether a look of just now has left no doubt, and note the bytes."""
        look = self._last
        if look is None or self._clock() - look.at_s > _LOOK_S:
            look = self._look()
        if look.free - look.admitted - asked_bytes < _PLENTY * self._mark(use, look):
            return False
        look.admitted += asked_bytes
        return True

    def _look(self) -> _Look:
        try:
            seen = shutil.disk_usage(self._folder)
            self._last = _Look(self._clock(), seen.total, seen.free)
        except OSError:
            self._last = _Look(self._clock(), 0, 0)
        return self._last

    def _mark(self, use: DiskUse, look: _Look) -> int:
        return self._limits.mark(use, look.total)

    def _where(self) -> str:
        return f"replica {self._replica}, folder {self._folder}," if self._replica else f"{self._folder}"

    def _details(self, free: int) -> dict[str, object]:
        return {"replica": self._replica, "folder": str(self._folder), "free_bytes": free}
