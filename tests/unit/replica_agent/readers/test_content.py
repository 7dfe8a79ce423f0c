"""Reads from the system's cache without waiting return verified bytes, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir
from tidelock.replica_agent.readers.content import DamagedPartError, PartFile
from tidelock.replication.core.digest import BLOCK_BYTES

SCHEMA = pa.schema([("text", pa.string())])
Preadv = Callable[..., int]


@pytest.fixture
def part(tmp_path: Path) -> Iterator[tuple[PartFile, bytes]]:
    """An open part of several blocks, and its bytes."""
    data = DataDir(tmp_path / "r1")
    data.create_table(2, "t", SCHEMA)
    rows = pa.table({"text": [os.urandom(1000).hex() for _ in range(1000)]}, schema=SCHEMA)
    (row,) = data.insert(3, {"default.t": rows})
    file = PartFile(data.path, row)
    yield file, data.data(row)
    file.close()


def _patch(monkeypatch: pytest.MonkeyPatch, change: Callable[[Preadv], Preadv]) -> None:
    monkeypatch.setattr(os, "preadv", change(os.preadv))


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (5, BLOCK_BYTES + 5), (BLOCK_BYTES - 1, BLOCK_BYTES), (0, 2 * BLOCK_BYTES)]
)
def test_what_is_cached_is_what_the_disk_has(part: tuple[PartFile, bytes], start: int, end: int) -> None:
    """A file that was just read is in the cache; both methods return the same bytes."""
    file, data = part
    patient = file.read(start, end, BLOCK_BYTES)
    cached = file.read_cached(start, end, BLOCK_BYTES)
    assert cached == patient == data[start : start + len(patient)]


def test_what_would_have_to_wait_is_left_to_a_thread(
    part: tuple[PartFile, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cached bytes, some cached bytes, and a file system that cannot tell have the same answer."""
    file, _ = part

    def refuses(number: int) -> Callable[[Preadv], Preadv]:
        def preadv(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        return lambda _: preadv

    with monkeypatch.context() as patch:
        _patch(patch, refuses(11))  # EAGAIN
        assert file.read_cached(0, 10, BLOCK_BYTES) is None
    with monkeypatch.context() as patch:
        _patch(patch, refuses(95))  # EOPNOTSUPP
        assert file.read_cached(0, 10, BLOCK_BYTES) is None
    _patch(monkeypatch, lambda real: lambda *args: real(*args) - 1)
    assert file.read_cached(0, 10, BLOCK_BYTES) is None


def test_cached_damage_is_found(part: tuple[PartFile, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes from the cache are verified too."""
    file, _ = part

    def flips(real: Preadv) -> Preadv:
        def preadv(fd: int, buffers: list[bytearray], *rest: int) -> int:
            count = real(fd, buffers, *rest)
            buffers[0][7] ^= 1
            return count

        return preadv

    _patch(monkeypatch, flips)
    with pytest.raises(DamagedPartError, match="block 1 "):
        file.read_cached(BLOCK_BYTES, BLOCK_BYTES + 1, BLOCK_BYTES)
