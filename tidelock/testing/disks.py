"""A file system of some bytes for one node: in memory, so that it is made at once and can be really full."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelock.errors import UnavailableError
from tidelock.testing import commands
from tidelock.testing.owners import left_behind

_CHUNK_BYTES: Final = 1 << 20
#: Lines of /proc/self/mountinfo (proc(5)): the mount point, and after the separator type and source.
_MOUNT_POINT: Final = 4


class Disk:
    """A file system at a folder. It forgets all when it is unmounted, and nothing when processes die.

    Args:
        folder: The mount point; made if it does not exist.
        size: Bytes.
        source: The name of the device, by which the mount is found again.
        user: Number of the user who owns the root folder.
    """

    def __init__(self, folder: Path, size: int, *, source: str = "tmpfs", user: int = 0) -> None:
        self.folder = folder
        self._size = size
        self._source = source
        self._user = user

    def mount(self) -> None:
        """Mount it; UnavailableError where that is not allowed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size},mode=0750,uid={self._user},gid={self._user}"
        commands.run("mount", "-t", "tmpfs", "-o", options, self._source, str(self.folder))

    def unmount(self) -> None:
        """Give it back, also while a dying process still holds it; nothing happens if it is not mounted."""
        unmount(str(self.folder))

    @property
    def room(self) -> int:
        """Bytes that are free."""
        return shutil.disk_usage(self.folder).free

    @contextmanager
    def full(self, leaving: int = 0) -> Iterator[None]:
        """Leave no byte at the begin of the block, or about so many; what is deleted inside is free again."""
        ballast = self.folder / f"ballast{leaving}"
        try:
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while (room := self.room) > leaving:
                    file.write(bytes(min(room - leaving, _CHUNK_BYTES)))
            yield
        finally:
            ballast.unlink(missing_ok=True)


def unmount(folder: str) -> None:
    """Unmount a file system; nothing happens if there is none."""
    with contextlib.suppress(UnavailableError):
        commands.run("umount", "--lazy", folder)


def sweep() -> None:
    """Unmount the disks that dead owners have left behind."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, device = line.partition(" - ")
        kind, source, *_ = device.split()
        if kind == "tmpfs" and left_behind(source):
            # A space in a path is written as an octal number.
            unmount(fields.split()[_MOUNT_POINT].encode().decode("unicode_escape"))
