"""Files of this machine that an import may link: those of one folder, which the client sees as well."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec


class LocalFile(msgspec.Struct, frozen=True):
    """A file as its client sees it: path, length in bytes, time of its last change (ns), inode.

    The agent has to see the same. So a client of another machine links no file that has the same path here.
    """

    path: str
    length: int
    mtime_ns: int
    inode: int


def linkable(import_dir: str, file: LocalFile) -> Path | None:
    """Return where a file is, without symbolic links; None if it is another one, or not in the folder."""
    if not import_dir or not Path(file.path).is_absolute():
        return None
    folder = Path(import_dir).resolve()
    if not Path(os.path.normpath(file.path)).is_relative_to(folder):
        return None  # before anything outside is looked at: its answers would tell what exists there
    try:
        path = Path(file.path).resolve(strict=True)
        found = path.stat()
    except OSError:
        return None
    same = (found.st_size, found.st_mtime_ns, found.st_ino) == (file.length, file.mtime_ns, file.inode)
    return path if path.is_relative_to(folder) and stat.S_ISREG(found.st_mode) and same else None
