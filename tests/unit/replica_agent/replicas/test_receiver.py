"""The receiving side of replication: hints, and the room that copies leave on the disk."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.storage.pack_writer import StagedBytes
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import Held, PartMeta, SealedTid, Wanted
from tidelock.replication.core.room import RoomLimits
from tidelock.replication.core.wire import encode
from tidelock.replication.disk_room import DiskRoom
from tidelock.replication.fetch import Fetcher
from tidelock.replication.partfs import PartFs
from tidelock.replication.peers import PeerClient

TID = Tid(Csn(4), ReplicaId("r1"), 1, 7)


def _part(name: str, length: int) -> PartMeta:
    return PartMeta(PartId(name), TableId("db.t"), "", 1, length, "0" * 32)


@pytest.mark.parametrize(
    ("decided", "held", "wanted"),
    [
        (False, set(), ["one", "other"]),
        (False, {"other"}, ["one"]),
        (True, set(), []),
    ],
    ids=["running", "held", "decided"],
)
def test_a_hint_wants_parts_of_running_transactions(
    *, decided: bool, held: set[str], wanted: list[str]
) -> None:
    """The record of a decided transaction has requested all its parts: a missing part was deleted since."""
    asked: list[Wanted] = []
    around: Any = SimpleNamespace(
        reader=SimpleNamespace(
            held=held.intersection, outcome=lambda tid: object() if decided and tid == str(TID) else None
        ),
        want=asked.append,
        is_wanted=lambda _: False,
        coming_bytes=lambda: 0,
    )
    acceptor = PushReceiver(
        replica=ReplicaId("r2"),
        disk="d",
        boot=1,
        cluster_id="c",
        catalog=around,
        files=PartFs(Path.cwd()),
        stager=around,
        fetcher=around,
        waiters=around,
        cut=lambda _: None,
        arrived=lambda _: None,
    )
    acceptor.hint(TID, ReplicaId("r3"), [_part("one", 1), _part("other", 1 << 30)])
    assert [item.meta.part for item in asked] == wanted
    assert all(item.csn is None and item.tid == TID for item in asked)
    assert all(item.holders == ("r3", TID.home) for item in asked)


_GIB = 1 << 30
SMALL = b"small"


def _tid(number: int) -> Tid:
    return Tid(Csn(4), ReplicaId("r1"), 1, number)


class Receiving:
    """A receiver whose disk has 2 GiB free, and whose floor is 64 MiB; nobody answers its fetches."""

    def __init__(self, folder: Path) -> None:
        limits = RoomLimits(reserve_bytes=256 << 20, floor_share=0.25)
        files = PartFs(folder, DiskRoom(folder, replica="r2", limits=limits))
        self.stored: list[PartId] = []
        self.decided: set[str] = set()
        self.known: set[str] = set()
        self.client = PeerClient(secret="", connections=1, timeout_s=1.0)
        around: Any = SimpleNamespace(
            reader=SimpleNamespace(
                held=lambda _: set(),
                nameless=lambda _: set(),
                committed=lambda tids: self.decided & {*tids},
                outcome=lambda tid: object() if tid in self.decided else None,
                part=lambda part: object() if part in self.known else None,
            ),
            reached=Csn(1),
            store=self.store,
        )
        self.fetcher = Fetcher(
            client=self.client, files=files, store=around, replica=ReplicaId("r2"),
            on_held=lambda _: None, on_wrong_bytes=lambda *_: None, range_bytes=1 << 20,
            small_bytes_max=1000, concurrency=1, small_concurrency=1, retry_wait_max_s=60.0, patience_s=1.0,
            patience_max_s=1.0, grace_s=0.0, early_max=100,
        )  # fmt: skip
        self.receiver = PushReceiver(
            replica=ReplicaId("r2"), disk="d", boot=1, cluster_id="c", catalog=around, files=files,
            stager=around, fetcher=self.fetcher, waiters=around, cut=lambda _: None, arrived=lambda _: None,
        )  # fmt: skip

    async def store(self, parts: Sequence[StagedBytes], prepared: Sequence[Tid]) -> None:
        """Make parts durable."""
        self.stored += [one.meta.part for one in parts]

    async def push(self, *tids: SealedTid) -> Held:
        """Push transactions, those of small parts with their bytes."""
        small = {meta.part: SMALL for one in tids for meta in one.parts if meta.length == len(SMALL)}
        body = encode(home=ReplicaId("r1"), boot=1, cluster_id="c", tids=tids, inline=small)
        return await self.receiver.stage(b"".join(body))


def _sealed(number: int, length: int = len(SMALL)) -> SealedTid:
    meta = PartMeta(PartId(f"r1-1-{number}"), TableId("db.t"), "", 1, length, checksum(SMALL))
    return SealedTid(_tid(number), (meta,))


@pytest.fixture
async def receiving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiving]:
    """Give a receiver."""
    usage = SimpleNamespace(total=100 * _GIB, free=2 * _GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    made = Receiving(tmp_path)
    yield made
    await made.fetcher.close()
    await made.client.close()


async def test_a_transaction_without_room_does_not_take_the_small_ones_with_it(receiving: Receiving) -> None:
    """Each transaction of a push is judged by itself; the refusal names the disk."""
    held = await receiving.push(_sealed(1, 10 * _GIB), _sealed(2), _sealed(3))
    assert held.held == (str(_tid(2)), str(_tid(3)))
    assert list(held.refused) == [str(_tid(1))]
    assert "replica r2" in held.refused[str(_tid(1))]
    assert receiving.stored == ["r1-1-2", "r1-1-3"]


async def test_the_bytes_that_are_under_way_count(receiving: Receiving) -> None:
    """Pushes that fit one by one do not fill the disk together, and a repeated push counts once."""
    first = _sealed(1, _GIB)
    assert not (await receiving.push(first)).refused
    assert list((await receiving.push(_sealed(2, _GIB))).refused) == [str(_tid(2))]
    assert not (await receiving.push(first, _sealed(3, _GIB // 2))).refused
    receiving.receiver.hint(_tid(4), ReplicaId("r1"), _sealed(4, _GIB).parts)
    assert not receiving.fetcher.is_wanted(PartId("r1-1-4"))
    assert receiving.fetcher.coming_bytes() == _GIB + _GIB // 2


async def test_an_answer_tells_how_many_bytes_have_arrived(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small parts, and what is there of a large one; the home waits as long as that grows."""
    small, large = _sealed(1).parts[0], _sealed(2, _GIB // 2).parts[0]
    both = SealedTid(_tid(3), (small, large))
    assert (await receiving.push(both)).arrived == {str(_tid(3)): len(SMALL)}
    monkeypatch.setattr(Fetcher, "came", lambda _, parts: 1000 if [*parts] == [large.part] else 0)
    held = await receiving.push(both, _sealed(4))
    assert (held.held, held.arrived) == ((str(_tid(4)),), {str(_tid(3)): len(SMALL) + 1000})


async def test_a_late_push_brings_back_no_deleted_part(receiving: Receiving) -> None:
    """After a commit is applied, a part that is not known was removed and collected since."""
    deleted, wanted = _sealed(1), _sealed(2)
    absent = _sealed(3, 5000)
    receiving.decided = {str(one.tid) for one in (deleted, wanted, absent)}
    receiving.known = {wanted.parts[0].part}
    held = await receiving.push(deleted, wanted, absent)
    assert receiving.stored == [wanted.parts[0].part]
    assert {*held.held} == receiving.decided
    assert receiving.fetcher.coming_bytes() == 0
