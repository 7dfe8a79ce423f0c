"""A file system that is really full: a small one in memory, where mounting is allowed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
DISK_BYTES: Final = 24 * MIB
#: Says why a test has none (`ability.require`).
NO_DISK: Final = "no file system may be mounted here"


def _done(program: str, *arguments: str) -> bool:
    """Run a program of the system; False if there is none, or it failed."""
    found = shutil.which(program)
    if found is None:
        return False
    return subprocess.run([found, *arguments], capture_output=True, check=False).returncode == 0


class SmallDisk:
    """A file system of some bytes at a folder."""

    def __init__(self, folder: Path, size: int = DISK_BYTES) -> None:
        self.folder = folder
        self._size = size

    def mount(self) -> bool:
        """Mount it; False where that is not allowed."""
        self.folder.mkdir(parents=True)
        return _done("mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.folder))

    def unmount(self) -> None:
        """Give it back, also while a dying process still holds it."""
        _done("umount", "--lazy", str(self.folder))

    @property
    def room(self) -> int:
        """Bytes that are free."""
        return shutil.disk_usage(self.folder).free

    @contextmanager
    def full(self, leaving: int = 0) -> Iterator[None]:
        """Leave no byte while inside, or about so many."""
        ballast = self.folder / f"ballast{leaving}"
        with ballast.open("wb", buffering=0) as file:
            while (room := self.room) > leaving:
                file.write(bytes(min(room - leaving, MIB)))
        try:
            yield
        finally:
            ballast.unlink()
