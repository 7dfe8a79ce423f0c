"""A seal that waits for many files checks each file that arrives, and not all files each time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tests.support.aio import until
from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.errors import UnavailableError
from tidelock.replica_agent.transactions.staged_files import StagedFile
from tidelock.replica_agent.uploads.eager_replication import EagerReplication
from tidelock.replication.core.model import Location, bytes_alone

FILES: Final = 400
R2: Final = ReplicaId("r2")


@dataclass
class Around:
    """A catalog in which parts appear, and a fetcher (`Catalog.reader`, `Fetcher`)."""

    held: set[PartId] = field(default_factory=set)
    looks: int = 0
    wanted: set[PartId] = field(default_factory=set)

    def part(self, part: PartId) -> Any:
        """Return the row of a part."""
        self.looks += 1
        if part not in self.held:
            return None
        return SimpleNamespace(held=Location(f"{part}.parquet", 0, 1, b""))

    def want(self, wanted: Any) -> None:
        """Record the wanted parts."""
        self.wanted.add(wanted.meta.part)

    def came(self, _: Any) -> int:
        """Return that no bytes have arrived."""
        return 0

    def trouble(self, _: PartId) -> None:
        """Return that no error is known."""


def file(number: int) -> StagedFile:
    """Return a file that another replica has received."""
    part = PartId(f"r1-1-{number}")
    return StagedFile(part, f"{part}.parquet", bytes_alone(part, 1, "0" * 32), taken_by=R2, known=True)


def copies(around: Around, patience_s: float) -> EagerReplication:
    """Return the eager replication that waits for the files."""
    catalog, fetcher = cast("Any", SimpleNamespace(reader=around)), cast("Any", around)
    return EagerReplication(catalog, cast("Any", None), cast("Any", None), fetcher, patience_s=patience_s)


TX: Final = cast("Any", SimpleNamespace(tid="1-r1-1-1"))


async def test_only_what_arrives_is_looked_at() -> None:
    """Only arrived files are checked; else 10,000 files would be checked 10,000 times in the event loop."""
    around, files = Around(), [file(number) for number in range(FILES)]
    eager = copies(around, 60)
    gathering = asyncio.create_task(eager.gather(TX, files))
    await until(lambda: len(around.wanted) == FILES)
    for item in files:
        around.held.add(item.part)
        eager.arrived(item.part)
        eager.arrived(PartId("r1-1-9999"))
        await asyncio.sleep(0)
    places = await gathering
    assert {part: at.file for part, at in places.items()} == {item.part: item.path for item in files}
    assert around.looks < FILES * FILES / 10


async def test_what_arrives_without_a_word_is_found() -> None:
    """A file that arrived without a notification is found too, also one from before the wait."""
    around, files = Around(), [file(1), file(2)]
    around.held.add(files[0].part)
    gathering = asyncio.create_task(copies(around, 60).gather(TX, files))
    await until(lambda: around.wanted == {files[1].part})
    around.held.add(files[1].part)
    assert set(await gathering) == {item.part for item in files}


async def test_files_that_do_not_come_are_told() -> None:
    """The error names the missing files and their replicas."""
    with pytest.raises(UnavailableError, match="2 files that were written to r2"):
        await copies(Around(), 0.01).gather(TX, [file(1), file(2)])
