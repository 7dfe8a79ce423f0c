"""A file system that is really full: a small one in memory, where mounting is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidelock.errors import UnavailableError
from tidelock.testing.disks import Disk
from tidelock.testing.owners import ClusterName

MIB: Final = 1 << 20
DISK_BYTES: Final = 24 * MIB
#: Says why a test has none (`ability.require`).
NO_DISK: Final = "no file system may be mounted here"


class SmallDisk(Disk):
    """A file system of some bytes at a folder."""

    def __init__(self, folder: Path, size: int = DISK_BYTES) -> None:
        super().__init__(folder, size, source=str(ClusterName.fresh()))

    def mounted(self) -> bool:
        """Mount it; False where that is not allowed."""
        try:
            self.mount()
        except UnavailableError:
            return False
        return True
