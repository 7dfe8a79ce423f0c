"""The reserve of a disk: which bytes are refused at which mark, and what the error says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import DiskFullError
from tidelock.replication.core.room import DiskUse, RoomLimits
from tidelock.replication.disk_room import DiskRoom
from tidelock.replication.partfs import BUFFER_BYTES, PartFs

_GIB = 1 << 30
_MIB = 1 << 20
_LIMITS = RoomLimits(reserve_bytes=256 * _MIB, reserve_share=0.05, floor_share=0.25)

#: Sets the free bytes of the disk.
SetFree = Callable[[int], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SetFree:
    """Stand for the disk: 100 GiB of which the test says how much is free."""

    def set_free(count: int) -> None:
        usage = SimpleNamespace(total=100 * _GIB, free=count)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    return set_free


def test_the_reserve_is_for_large_disks_and_a_share_of_small_ones() -> None:
    """256 MiB of a large disk are nothing; of a small one they would be most of it."""
    assert _LIMITS.mark(DiskUse.NEW, 100 * _GIB) == 256 * _MIB
    assert _LIMITS.mark(DiskUse.NEW, 100 * _MIB) == 5 * _MIB
    assert _LIMITS.mark(DiskUse.COPY, 100 * _GIB) == 64 * _MIB
    assert _LIMITS.mark(DiskUse.COMMITTED, 100 * _GIB) == 0
    assert RoomLimits().mark(DiskUse.NEW, _GIB) == 0


@pytest.mark.parametrize(
    ("left", "refused"),
    [
        (300 * _MIB, set()),
        (255 * _MIB, {DiskUse.NEW}),
        (64 * _MIB, {DiskUse.NEW}),
        (63 * _MIB, {DiskUse.NEW, DiskUse.COPY}),
        (0, {DiskUse.NEW, DiskUse.COPY}),
    ],
)
def test_what_others_need_is_taken_longer(free: SetFree, left: int, refused: set[DiskUse]) -> None:
    """New rows are refused first, then copies of undecided transactions; committed parts never by a mark."""
    free(left)
    room = DiskRoom(Path("/data"), replica="r1", limits=_LIMITS)
    found = set()
    for use in DiskUse:
        try:
            room.admit(use, 0)
        except DiskFullError:
            found.add(use)
    assert found == refused
    assert room.low == (DiskUse.NEW in refused)


def test_the_bytes_that_are_asked_for_count(free: SetFree) -> None:
    """A request that would leave less than the mark is refused before its first byte."""
    free(300 * _MIB)
    room = DiskRoom(Path("/data"), replica="r1", limits=_LIMITS)
    room.admit(DiskUse.NEW, 44 * _MIB)
    with pytest.raises(DiskFullError) as caught:
        room.admit(DiskUse.NEW, 45 * _MIB)
    for words in (
        "replica r1",
        "folder /data",
        f"{300 * _MIB} bytes free",
        "disk_reserve_bytes",
        "another replica",
    ):
        assert words in caught.value.message
    assert caught.value.details == {
        "replica": "r1",
        "folder": "/data",
        "free_bytes": 300 * _MIB,
        "asked_bytes": 45 * _MIB,
        "reserve_bytes": 256 * _MIB,
    }


def test_no_reserve_refuses_nothing(free: SetFree) -> None:
    """With disk_reserve_bytes = 0 the disk itself is the limit."""
    free(0)
    room = DiskRoom(Path("/data"))
    room.admit(DiskUse.NEW, _GIB)
    assert not room.low


def test_a_file_that_grows_stops_at_the_reserve(free: SetFree, tmp_path: Path) -> None:
    """The size of an insert or upload is not known before: it is cut when it would use the reserve."""
    free(300 * _MIB)
    files = PartFs(tmp_path, DiskRoom(tmp_path, replica="r1", limits=_LIMITS))
    files.open()
    sink = files.begin(PartId("r1-1-1"), use=DiskUse.NEW)
    sink.write(bytes(BUFFER_BYTES))
    free(256 * _MIB)
    with pytest.raises(DiskFullError, match="in reserve"):
        sink.write(bytes(BUFFER_BYTES))
    assert sink.closed
    assert not [*(tmp_path / "tmp").iterdir()]
    committed = files.begin(PartId("r1-1-2"))
    committed.write(bytes(BUFFER_BYTES))
    committed.finish()
    free(255 * _MIB)
    with pytest.raises(DiskFullError, match="in reserve"):
        files.scratch()
    files.close()


def test_a_disk_with_plenty_of_room_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look costs more than an insert; the bytes that were admitted since the look count."""
    usage, looks, now_s = SimpleNamespace(total=100 * _GIB, free=_GIB), [0], [0.0]

    def look(_: Path) -> SimpleNamespace:
        looks[0] += 1
        return usage

    monkeypatch.setattr(shutil, "disk_usage", look)
    room = DiskRoom(Path("/data"), replica="r1", limits=_LIMITS, clock=lambda: now_s[0])
    for _ in range(5):
        room.admit(DiskUse.NEW, 100 * _MIB)
    assert looks == [1]
    now_s[0] = 0.2
    room.admit(DiskUse.NEW, 0)
    assert looks == [2]
    usage.free = 255 * _MIB
    now_s[0] = 0.4
    with pytest.raises(DiskFullError, match=f"has {usage.free} bytes free"):
        room.admit(DiskUse.NEW, 0)


def test_bytes_that_were_admitted_since_the_look_are_not_free(free: SetFree) -> None:
    """The sixth time little would be left, so the disk is looked at again; it says what is there."""
    free(_GIB)
    room = DiskRoom(Path("/data"), replica="r1", limits=_LIMITS, clock=lambda: 0.0)
    for _ in range(5):
        room.admit(DiskUse.NEW, 100 * _MIB)
    free(300 * _MIB)
    room.admit(DiskUse.NEW, 10 * _MIB)
    with pytest.raises(DiskFullError, match="takes no 100000000 bytes more"):
        room.admit(DiskUse.NEW, 100_000_000)


def test_little_room_is_looked_at_every_time(free: SetFree) -> None:
    """A look of before neither refuses bytes nor admits them."""
    room = DiskRoom(Path("/data"), replica="r1", limits=_LIMITS, clock=lambda: 0.0)
    free(300 * _MIB)
    room.admit(DiskUse.NEW, 0)
    free(255 * _MIB)
    with pytest.raises(DiskFullError):
        room.admit(DiskUse.NEW, 0)
    free(300 * _MIB)
    room.admit(DiskUse.NEW, 0)
