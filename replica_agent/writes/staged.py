"""What a transaction has staged in one table's folder: the area, and where its files lie."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelock.csnlog.ids import PartId
from tidelock.replica_agent.writes.area import StagingArea
from tidelock.replication.model import Location


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of an area: the part that it may become, and its bytes when they are durable.

    Its undo row is noted before the first byte; a row of ``parts`` it has from the seal of its job on.
    """

    part: PartId
    path: str
    checksum: str = ""
    location: Location | None = None


@dataclass(slots=True, eq=False)
class TableWrites:
    """One table's folder in one transaction.

    Attributes:
        files: By their numbers in the area; also those that are being written.
        turn: Held by what takes time and must see the area as it has left it.
    """

    area: StagingArea = field(default_factory=StagingArea)
    files: dict[int, StagedFile] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, numbers: Iterable[int]) -> list[str]:
        """Forget files, and return the paths of those that lie there; an upload removes its own."""
        found = [self.files.pop(number, None) for number in numbers]
        return [file.path for file in found if file is not None and file.location is not None]
