"""The replica that clones: what it does when its disk is full, and when a peer has a newer version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.clusters.log_node import R1, R2, R3, make_cluster
from tests.support.rows import settings
from tidelock.csnlog.cluster.members import MemberView
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.model import MemberState, SessionState, SkippedRecord
from tidelock.csnlog.core.skipped import NO_SKIPS, Skips
from tidelock.csnlog.testing.memory_store import MemoryEnsemble
from tidelock.errors import ClusterMismatchError, CorruptError, DiskFullError, UpgradeNeededError
from tidelock.replica_agent.cloning import manifest as manifests
from tidelock.replica_agent.cloning.joiner import Joiner
from tidelock.replica_agent.cloning.source import ManifestSource
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_schema import FORMAT
from tidelock.replication.core.room import RoomLimits
from tidelock.replication.disk_room import DiskRoom
from tidelock.replication.partfs import PartFs
from tidelock.wire.peers import CloneManifest


class Peers:
    """The peers as their clients see them: one source for all, without a network between.

    Attributes:
        formats: The catalog format that a peer tells, by its address.
        asked: The addresses that were asked for a range of a catalog.
        ended: The manifests that are not needed any more.
    """

    def __init__(self, source: ManifestSource) -> None:
        self.source = source
        self.formats: dict[str, int] = {}
        self.asked: list[str] = []
        self.ended: list[str] = []

    async def clone(self, api: str, name: str) -> CloneManifest:
        """Ask for a manifest."""
        found = await self.source.manifest(f"{name}-{api}")
        return msgspec.structs.replace(found, format=self.formats.get(api, found.format))

    async def read_clone(self, api: str, name: str, start: int) -> bytes:
        """Get a range."""
        self.asked.append(api)
        return await self.source.read(f"{name}-{api}", start)

    async def end_clone(self, api: str, name: str) -> None:
        """Give a manifest up."""
        self.ended.append(api)
        await self.source.end(f"{name}-{api}")


class Clone:
    """A replica r1 that clones from r2 and r3; its disk has no room above the reserve."""

    def __init__(self, folder: Path) -> None:
        self.folders = folder / "r1", folder / "r2"
        limits = RoomLimits(reserve_bytes=1 << 62, reserve_share=1.0)
        self.files = PartFs(self.folders[0], DiskRoom(self.folders[0], replica="r1", limits=limits))
        self.files.open()
        (self.folders[1] / "tmp").mkdir(parents=True)
        self.catalogs = [
            Catalog(one, initial={"replica": one.name, "disk": one.name}, cache_bytes=1 << 20)
            for one in self.folders
        ]
        self.skips: Skips = NO_SKIPS
        self.settings = settings(retry_wait_max_s=0.01, clone_retries=1)
        sends = settings().model_copy(update={"data_dir": self.folders[1]})
        self.peers = Peers(ManifestSource(settings=sends, room=DiskRoom(self.folders[1]), clock=lambda: 0.0))

    async def joiner(self) -> Joiner:
        """Return the replica that clones."""
        store = MemoryEnsemble().store()
        await make_cluster(store, (R1, R2, R3))
        client: Any = self.peers
        serving = SessionState(boot=1, disk="d", nonce="n", state="serving")
        view = {replica: MemberView(MemberState(api=replica), serving, 0, True, None) for replica in (R2, R3)}
        return Joiner(
            replica=R1, disk="d2", settings=self.settings, store=store, catalog=self.catalogs[0],
            files=self.files, client=client, members=lambda: view, skips=self.skips,
        )  # fmt: skip

    async def close(self) -> None:
        """Close files."""
        await self.peers.source.close()
        for catalog in self.catalogs:
            await catalog.close()
        self.files.close()


@pytest.fixture
async def clone(tmp_path: Path) -> AsyncIterator[Clone]:
    """Give a replica that clones."""
    made = Clone(tmp_path)
    yield made
    await made.close()


async def cloned(joiner: Joiner) -> int:
    """Clone within a bounded time."""
    async with asyncio.timeout(60):
        return await joiner.run()


async def test_a_disk_below_its_reserve_takes_a_clone(clone: Clone) -> None:
    """The catalog is what the replica must have to give up anything at all, so no mark refuses it."""
    assert await cloned(await clone.joiner()) == CSN_NONE
    assert clone.catalogs[0].reader.meta("disk") == "d2"
    assert clone.peers.ended == [R2]


async def test_a_peer_with_a_newer_version_is_not_downloaded(clone: Clone) -> None:
    """Another peer is asked; if none is left that this version can read, the replica says so and ends."""
    clone.peers.formats[R2] = FORMAT + 1
    assert await cloned(await clone.joiner()) == CSN_NONE
    assert set(clone.peers.asked) == {R3}
    clone.peers.formats[R3] = FORMAT + 1
    clone.peers.asked.clear()
    with pytest.raises(UpgradeNeededError, match=f"format {FORMAT + 1}, this version reads {FORMAT}"):
        await cloned(await clone.joiner())
    assert clone.peers.asked == []
    assert set(clone.peers.ended) == {R2, R3}
    assert not list((clone.folders[1] / "tmp").iterdir())


@pytest.mark.parametrize("at", ["receive", "install"])
async def test_a_disk_without_room_is_named_and_tried_again(
    clone: Clone, at: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replica waits for room on its own disk, and blames no peer for the lack of it."""
    joiner, full = await clone.joiner(), clone.files.room.none_left("writing", "No space left on device")

    def failing_once(call: Callable[..., Any]) -> Callable[..., Any]:
        calls: list[object] = []

        def fail(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if len(calls) == 1:
                raise full
            return call(*args, **kwargs)

        return fail

    if at == "receive":
        monkeypatch.setattr(clone.files, "scratch", failing_once(clone.files.scratch))
    else:
        monkeypatch.setattr(manifests, "install", failing_once(manifests.install))
    assert isinstance(full, DiskFullError)
    assert await cloned(joiner) == CSN_NONE
    said = capsys.readouterr().out
    assert "clone_disk_full" in said
    assert str(clone.folders[0]) in said
    assert "clone_not_sent" not in said
    assert not list((clone.folders[1] / "tmp").iterdir())


async def test_peers_of_another_history_end_the_clone(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent stops: to ask again would hide that ZooKeeper was set back (I15)."""

    def differs(*_: object, **__: object) -> None:
        raise ClusterMismatchError("another history")

    monkeypatch.setattr(manifests, "install", differs)
    with pytest.raises(ClusterMismatchError, match="another history"):
        await cloned(await clone.joiner())
    assert clone.peers.ended == [R2]


async def test_a_peer_that_shows_a_skipped_record_is_not_cloned(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has applied what all others passed over, and its clone could not start: another peer is asked."""
    word = SkippedRecord(csn=Csn(2), zxid=1, digest="ab", by="ann", why="rolled back", time_ms=9)
    clone.skips = {Csn(2): word}
    check, asked = manifests.check_skips, []

    def shown_first(path: Path, skips: Skips) -> None:
        asked.append(skips)
        if len(asked) == 1:
            raise CorruptError("the peer has applied the record of CSN 2")
        check(path, skips)

    monkeypatch.setattr(manifests, "check_skips", shown_first)
    assert await cloned(await clone.joiner()) == CSN_NONE
    assert asked == [clone.skips] * 2
    assert len(set(clone.peers.ended)) == 2
