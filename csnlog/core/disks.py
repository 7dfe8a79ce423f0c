"""The id of a disk: that of its data folder, and a suffix after a clone. Pure.

Copies count by the id of the disk (rule copies), and a clone replaces what a folder holds, so it gets another
id. By the part before the suffix a start knows its own folder again.
"""

from __future__ import annotations

from typing import Final

_MARK: Final = "."


def cloned_disk(disk: str, suffix: str) -> str:
    """Return the id of a folder's disk once its catalog is a clone."""
    return f"{folder_of(disk)}{_MARK}{suffix}"


def folder_of(disk: str) -> str:
    """Return the id of the data folder of a disk."""
    return disk.partition(_MARK)[0]


def names_folder(disk: str) -> bool:
    """Return whether a clone was given this id by a version that keeps the folder's."""
    return _MARK in disk
