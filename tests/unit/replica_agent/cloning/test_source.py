"""The peer that sends its catalog: repeated requests, bounds, and what happens to manifests nobody needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.rows import settings
from tidelock.errors import BadRequestError, UnavailableError
from tidelock.replica_agent.cloning import source as sources
from tidelock.replica_agent.cloning.manifest import ManifestFacts, write_manifest
from tidelock.replica_agent.cloning.source import ManifestSource
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.room import RoomLimits
from tidelock.replication.disk_room import DiskRoom
from tidelock.wire.peers import CloneManifest


class Sender:
    """A source around a real catalog, with a clock of the test."""

    def __init__(self, folder: Path) -> None:
        (folder / "tmp").mkdir()
        self.folder, self.now = folder / "tmp", 0.0
        self.catalog = Catalog(folder, initial={"replica": "r1", "disk": "d"}, cache_bytes=1 << 20)
        bounds = {"fetch_range_bytes": 10_000, "clone_manifest_ttl_s": 60.0, "clone_manifests_max": 2}
        changed = settings(**bounds).model_copy(update={"data_dir": folder})
        self.source = ManifestSource(settings=changed, room=self.room(), clock=lambda: self.now)

    def room(self, reserve_bytes: int = 0) -> DiskRoom:
        """Return the room on the disk of the sender, with a reserve."""
        limits = RoomLimits(reserve_bytes=reserve_bytes)
        return DiskRoom(self.folder, replica="r1", limits=limits)

    async def ready(self, name: str) -> CloneManifest:
        """Ask until a manifest is written."""
        while not (found := await self.source.manifest(name)).ready:  # noqa: ASYNC110 - a thread
            await asyncio.sleep(0.01)
        return found

    @property
    def files(self) -> set[str]:
        """The names of the files that manifests have left."""
        return {path.stem for path in self.folder.iterdir()}


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[Sender]:
    """A sender."""
    made = Sender(tmp_path)
    yield made
    await made.source.close()
    await made.catalog.close()


async def test_a_manifest_comes_in_ranges(sender: Sender) -> None:
    """All ranges together have the told length and checksum; the same request gets the same manifest."""
    facts = await sender.ready("r2-1")
    assert facts == await sender.ready("r2-1")
    data = bytearray()
    while len(data) < facts.length:
        data += await sender.source.read("r2-1", len(data))
    assert (len(data), checksum(data)) == (facts.length, facts.checksum)
    with pytest.raises(BadRequestError, match="outside"):
        await sender.source.read("r2-1", facts.length)
    await sender.source.end("r2-1")
    assert sender.files == set()
    with pytest.raises(UnavailableError, match="no manifest"):
        await sender.source.read("r2-1", 0)


async def test_a_replica_that_asks_again_gives_up_its_former_manifest(sender: Sender) -> None:
    """Replicas that die in their clones, or whose last word is lost, do not use the source up."""
    for attempt in range(5):
        await sender.ready(f"r2-{attempt}")
    assert sender.files == {"clone.r2-4"}


async def test_the_number_of_manifests_is_bounded(sender: Sender) -> None:
    """A third replica is refused until one of the others is done, or has not asked for long."""
    for replica in ("r2", "r3"):
        await sender.ready(f"{replica}-1")
    with pytest.raises(UnavailableError, match="clone_manifests_max=2"):
        await sender.source.manifest("r4-1")
    sender.now = 30.0
    await sender.ready("r3-1")
    sender.now = 70.0
    await sender.ready("r4-1")
    assert sender.files == {"clone.r3-1", "clone.r4-1"}


async def test_a_manifest_that_is_given_up_is_not_written_to_its_end(sender: Sender) -> None:
    """A stop waits for no manifest, however large the catalog is."""
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
    await sender.catalog.write(lambda db: db.execute(f"{sql} INSERT INTO meta SELECT 'k' || i, i FROM n"))
    assert not (await sender.source.manifest("r2-1")).ready
    made = sender.source._manifests["r2-1"].made
    await sender.source.close()
    assert "interrupted" in str(made.exception())
    assert sender.files == set()


async def test_repeated_requests_begin_one_manifest(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests that meet while the manifest of a former clone ends write one file."""
    written: list[Path] = []

    def counted(data_dir: Path, path: Path, *rest: Callable[[], bool]) -> ManifestFacts:
        written.append(path)
        return write_manifest(data_dir, path, *rest)

    monkeypatch.setattr(sources, "write_manifest", counted)
    await sender.source.manifest("r2-1")
    await asyncio.gather(sender.source.manifest("r2-2"), sender.source.manifest("r2-2"))
    assert (await sender.ready("r2-2")).csn == 0
    assert len(written) == 2
    assert sender.files == {"clone.r2-2"}


async def test_a_file_that_cannot_be_deleted_stops_nothing(sender: Sender) -> None:
    """The loop that forgets manifests goes on; the next start deletes the file."""
    await sender.ready("r2-1")
    [path] = sender.folder.iterdir()
    path.unlink()
    path.mkdir()
    sender.now = 70.0
    await sender.source.forget_unused()
    with pytest.raises(UnavailableError, match="no manifest"):
        await sender.source.read("r2-1", 0)


async def test_a_manifest_leaves_the_reserve(sender: Sender) -> None:
    """A replica with a full disk sends no catalog; the one that clones asks another peer."""
    free = sender.room().free()
    sender.source.room = sender.room(free)
    with pytest.raises(UnavailableError, match=r"no room to write the catalog .* replica r1, folder"):
        await sender.source.manifest("r2-1")
    assert sender.files == set()
