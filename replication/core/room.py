"""The marks of free space below which a disk takes no more, by what the bytes are for. Pure.

A disk without a free byte cannot collect garbage, since the catalog cannot note what is deleted. So a replica
stops to take what it may refuse while there is still room for what it must do.
"""

from __future__ import annotations

import enum

import msgspec


class DiskUse(enum.Enum):
    """The purpose of bytes that are to be written."""

    #: Rows, uploads and merges of this home: refused below the reserve.
    NEW = "new"
    #: Copies for transactions that are not committed, pushed or fetched early: refused below the floor.
    COPY = "copy"
    #: Parts of committed transactions: never refused by a mark.
    COMMITTED = "committed"


class RoomLimits(msgspec.Struct, frozen=True):
    """The bounds as they are set.

    Attributes:
        reserve_bytes: Largest reserve; 0 = none.
        reserve_share: Largest reserve as a share of the disk, for small disks.
        floor_share: Share of the reserve that is the floor.
    """

    reserve_bytes: int = 0
    reserve_share: float = 1.0
    floor_share: float = 0.0

    def mark(self, use: DiskUse, disk_bytes: int) -> int:
        """Return the bytes that stay free on a disk of this size when bytes are written for this purpose."""
        reserve = min(self.reserve_bytes, int(disk_bytes * self.reserve_share))
        match use:
            case DiskUse.NEW:
                return reserve
            case DiskUse.COPY:
                return int(reserve * self.floor_share)
            case DiskUse.COMMITTED:
                return 0
