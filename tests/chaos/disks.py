"""Disks whose power can be cut: an ext4 file system in a file, mounted through a loop device.

The file has the same bytes as a platter would have: pages that no program has flushed are in the page cache
of the file system, which a copy of the file does not see (Z18). A mount of the copy replays its journal, as
after a power cut.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.waiting import eventually

_BYTES: Final = 96 << 20
#: Flushes happen only on request: by default the journal is written every 5 seconds.
_OPTIONS: Final = "loop,noatime,commit=3600"
_MKFS: Final = ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0")
_PROGRAMS: Final = ("mkfs.ext4", "mount", "umount", "findmnt")
_TIMEOUT_S: Final = 60
#: Attempts to copy a disk while nothing is written to it.
_COPIES: Final = 5
#: The name of a disk's file, from which a later run can tell which process made it.
_IMAGE: Final = "{name}.{pid}.disk"
_OWNER: Final = re.compile(r"\.(\d+)\.disk( \(deleted\))?$")
#: Fields of /sys/block/<device>/stat: writes that were completed, requests in flight.
_WRITES, _IN_FLIGHT = 4, 8


def unable() -> str:
    """Return why no disk can be made here; "" = one can be made."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can mount the disks whose power is cut"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices (/dev/loop-control) for disks whose power is cut"
    if lacking := [program for program in _PROGRAMS if shutil.which(program) is None]:
        return f"there is no {', '.join(lacking)} for disks whose power is cut"
    return ""


def sweep() -> list[str]:
    """Give back the disks of runs that were killed: they would keep their folders busy forever.

    Returns:
        The files whose disks were given back.
    """
    swept = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            image = backing.read_text(encoding="utf-8").strip()
        except OSError:
            continue  # its owner has given it back meanwhile
        owner = _OWNER.search(image)
        if owner is None or Path("/proc", owner[1]).exists():
            continue
        # Lazily: a remaining process of the run may have files open. Another worker may have been faster.
        command = ["umount", "--lazy", f"/dev/{backing.parent.parent.name}"]
        if subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode == 0:
            swept.append(image)
    return swept


class Disk:
    """A disk, mounted from its making to `close`.

    Args:
        image: The file, to whose name the process id and `.disk` are added; it must not exist.
        at: The mount point; made if it does not exist.
    """

    def __init__(self, image: Path, at: Path) -> None:
        sweep()
        self.image = image.with_name(_IMAGE.format(name=image.name, pid=os.getpid()))
        self.at = at
        self.image.touch(exist_ok=False)
        os.truncate(self.image, _BYTES)
        _run(*_MKFS, str(self.image))
        at.mkdir(parents=True, exist_ok=True)
        self._mount()

    def copy(self, platter: Path) -> None:
        """Copy the bytes that a power cut would leave now. No process may write meanwhile (SIGSTOP).

        But the kernel may write: dirty pages go to the disk when they are old enough. A copy that was made
        during such a write shows no single moment, and is made again.
        """
        for _ in range(_COPIES):
            eventually(lambda: self._stat()[1] == 0, what=f"no request in flight for {self.image}")
            before = self._stat()
            _run("cp", "--sparse=always", str(self.image), str(platter))
            if self._stat() == before:
                return
        msg = f"somebody has written to {self.at} while its platter was copied, {_COPIES} times"
        raise AssertionError(msg)

    def revert(self, platter: Path) -> None:
        """Replace the disk by a platter, which is used up; no process may use the disk."""
        self._unmount()
        self.image.unlink()
        platter.rename(self.image)
        self._mount()

    def abort(self) -> None:
        """Make it read-only under its users, as the kernel does after an error of its journal."""
        _run("mount", "-o", "remount,abort", str(self.at))

    def again(self) -> None:
        """Mount it again, after which it can be written to; no process may use it."""
        self._unmount()
        self._mount()

    def close(self) -> None:
        """Give the loop device and the file back. No process may use the disk."""
        self._unmount()
        self.image.unlink()

    def _mount(self) -> None:
        _run("mount", "-t", "ext4", "-o", _OPTIONS, str(self.image), str(self.at))
        self._device = Path(_run("findmnt", "-n", "-o", "SOURCE", "--mountpoint", str(self.at))).name

    def _unmount(self) -> None:
        """Unmount; a killed process whose threads are still ending keeps the disk busy for a moment."""
        command = ["umount", str(self.at)]
        eventually(
            lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0, what="umount"
        )

    def _stat(self) -> tuple[int, int]:
        fields = Path(f"/sys/block/{self._device}/stat").read_text(encoding="ascii").split()
        return int(fields[_WRITES]), int(fields[_IN_FLIGHT])


def _run(*command: str) -> str:
    """Run a command of the system and return its output; AssertionError with the output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout.strip()
