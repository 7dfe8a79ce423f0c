"""The staged files of one table in a transaction: the area, and the location of its files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.replica_agent.transactions.staging_area import StagingArea
from tidelock.replication.core.model import Location, PartMeta


class StagedFile(msgspec.Struct, frozen=True):
    """A file of an area: the part that it may become.

    The replica that receives the file writes an undo row before the first byte. Here the file gets a row of
    ``parts``, as an early copy, when its task is committed, or, if another replica has received it, when it
    has been fetched. That row gets its table and partition when the job is sealed.

    Attributes:
        part: Its id; never given again, whatever becomes of the file.
        path: Its own file below the data directory.
        meta: The description of its bytes, once they are durable on some replica.
        location: Where an upload to this replica has stored them.
        taken_by: Another replica that receives the file; its bytes are fetched from there.
        known: It may have a row of ``parts``, here and at peers.
    """

    part: PartId
    path: str
    meta: PartMeta | None = None
    location: Location | None = None
    taken_by: ReplicaId | None = None
    known: bool = False


class TakenParts(msgspec.Struct, frozen=True):
    """Parts of the table that a job replaces by files with what remains of their rows.

    Attributes:
        parts: Their ids.
        rows: The number of their rows.
    """

    parts: tuple[PartId, ...]
    rows: int


@dataclass(slots=True, eq=False, repr=False)
class TableWrites:
    """One table's folder in one transaction.

    Attributes:
        files: The files by their numbers in the area, including those that are being written.
        length: Bytes of all files, including those received so far by an upload that runs here.
        elsewhere: Files that other replicas receive or have received, by the ids of their parts.
        taken: Parts that the transaction has removed, and whose remaining rows a job writes; None: none, or
            that job is sealed.
        unconfirmed: A job was sealed by its mark, and the engine that ran it has not said that it went well:
            the answer to the mark may have been lost, and the job reported as failed.
        turn: A lock for an operation that takes time and must find the area as it left it.
    """

    area: StagingArea = field(default_factory=StagingArea)
    files: dict[int, StagedFile] = field(default_factory=dict)
    length: int = 0
    elsewhere: dict[PartId, int] = field(default_factory=dict)
    taken: TakenParts | None = None
    unconfirmed: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, numbers: Iterable[int]) -> list[StagedFile]:
        """Forget files, and return those that are durable; an upload removes its own."""
        found = [file for number in numbers if (file := self.files.pop(number, None)) is not None]
        for file in found:
            self.elsewhere.pop(file.part, None)
        self.length -= sum(file.meta.length for file in found if file.meta is not None)
        return [file for file in found if file.meta is not None]
