"""Each held part is read once in a pass, at the rate that is allowed, and rot is reported."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.replicas.audited import AuditedReplica
from tidelock.csnlog.core.ids import PartId
from tidelock.replica_agent.config.metrics import ScrubMetrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.scrubbing.scrubber import Scrubber
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.held_bytes import HeldBytes, HeldParts

#: Parts in a pack, one of them removed; in files of their own; and the manifest.
PARTS = ["r1-1-30", "r1-1-31", "r1-1-40", "r1-1-50", "r1-1-9"]
LARGE = PartId("r1-1-40")
RATE = 1 << 20
DAY_S = 86_400.0


@dataclass
class Host:
    """A scrubber, the time that it is told, and what it has reported."""

    replica: AuditedReplica
    settings: dict[str, Any] = field(default_factory=dict)
    now_s: float = 1000.0
    damaged: list[PartId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics = ScrubMetrics(CollectorRegistry())
        fields = {"scrub_bytes_per_s": RATE, "scrub_interval_s": DAY_S} | self.settings
        self.scrubber = Scrubber(
            catalog=self.replica.catalog,
            settings=AgentSettings(replica="r1", data_dir=self.replica.path, zk="unused", **fields),
            metrics=self.metrics,
            damaged=lambda part, _: self.damaged.append(part),
            log_ms=lambda: round(self.now_s * 1000),
            monotonic=lambda: self.now_s,
        )

    async def wait(self, seconds: float) -> None:
        """Let time pass, then tick."""
        self.now_s += seconds
        await self.scrubber.tick()

    @property
    def bytes(self) -> int:
        """Bytes that were read."""
        return int(self.metrics.bytes._value.get())

    @property
    def passes(self) -> int:
        """Passes that are over."""
        return int(self.metrics.passes._value.get())


def held_bytes(replica: AuditedReplica) -> int:
    """Return the bytes of all parts that are here."""
    with closing(HeldParts(replica.path)) as held:
        return held.total()[1]


def flip(replica: AuditedReplica, part: str) -> None:
    """Change the last bit of a part."""
    row = replica.catalog.reader.part(PartId(part))
    assert row is not None
    with replica.file_of(part).open("r+b") as file:
        file.seek(row.offset + row.length - 1)
        (byte,) = file.read(1)
        file.seek(row.offset + row.length - 1)
        file.write(bytes([byte ^ 1]))


async def test_a_pass_reads_every_part_once(replica: AuditedReplica) -> None:
    """Then nothing is read until the interval since its begin is over."""
    host = Host(replica)
    await host.wait(0.0)
    await host.wait(2.0)
    size = held_bytes(replica)
    assert (host.bytes, host.passes, host.damaged) == (size, 1, [])
    await host.wait(DAY_S / 2)
    await host.wait(2.0)
    assert host.passes == 1
    await host.wait(DAY_S / 2)
    await host.wait(2.0)
    assert (host.bytes, host.passes) == (2 * size, 2)


@pytest.mark.parametrize("part", PARTS)
async def test_a_flipped_bit_is_reported(replica: AuditedReplica, part: str) -> None:
    """The part alone, not its neighbours in the pack; the pass goes on behind it."""
    flip(replica, part)
    host = Host(replica)
    await host.wait(0.0)
    await host.wait(2.0)
    assert (host.damaged, host.passes) == ([part], 1)


async def test_a_file_that_is_gone_is_reported(replica: AuditedReplica) -> None:
    """As rot, since nothing of the part is there."""
    replica.file_of(LARGE).unlink()
    host = Host(replica)
    await host.wait(0.0)
    await host.wait(2.0)
    assert host.damaged == [LARGE]


async def test_a_part_that_is_collected_meanwhile_is_no_rot(replica: AuditedReplica) -> None:
    """The row that was read before has a file no more; by now no row has."""
    host = Host(replica, {"scrub_bytes_per_s": 1})
    await host.wait(0.0)
    await host.wait(2.0)  # the first page is read
    replica.file_of(LARGE).unlink()
    replica.sql(f"DELETE FROM parts WHERE part = '{LARGE}'")
    for _ in range(10):
        host.scrubber.settings = Host(replica).scrubber.settings
        await host.wait(2.0)
    assert (host.damaged, host.passes) == ([], 1)


async def test_the_rate_is_kept(replica: AuditedReplica) -> None:
    """Large parts are read in pieces; after a pause no more is read than for two seconds."""
    host = Host(replica, {"scrub_bytes_per_s": 10_000})
    await host.wait(0.0)
    await host.wait(1000.0)
    assert host.bytes <= 2 * 10_000
    ticks = 0
    while not host.passes:
        before = host.bytes
        await host.wait(0.5)
        assert host.bytes - before <= 5_000
        ticks += 1
        assert ticks < 200, "the pass does not end"
    assert host.bytes == held_bytes(replica)
    assert ticks >= 300_000 / 5_000 - 5


async def test_a_small_part_counts_as_one_page_of_the_disk(replica: AuditedReplica) -> None:
    """A replica with many small parts is read through soon: one part in each second, at 4 KiB a second."""
    host = Host(replica, {"scrub_bytes_per_s": 4096})
    await host.wait(0.0)
    read = [host.bytes]
    for _ in range(2):
        await host.wait(1.0)
        read.append(host.bytes)
    first, second = read[1] - read[0], read[2] - read[1]
    assert 0 < first < 4096
    assert 0 < second < 4096


async def test_a_restart_goes_on_where_the_last_boot_was(replica: AuditedReplica) -> None:
    """A part that was read is not read again, but for the one that was not finished."""
    first = Host(replica, {"scrub_bytes_per_s": 40_000})
    await first.wait(0.0)
    for _ in range(100):
        await first.wait(1.0)
        if first.scrubber._pass is not None and first.scrubber._pass.place.part:
            break
    await first.wait(31.0)  # the place is noted
    first.scrubber.close()
    second = Host(replica, now_s=first.now_s)
    await second.wait(0.0)
    await second.wait(2.0)
    size = held_bytes(replica)
    assert second.passes == 1
    assert second.bytes < size
    assert first.bytes + second.bytes >= size


async def test_no_rate_is_no_scrubbing(replica: AuditedReplica) -> None:
    """An operator may switch it off."""
    host = Host(replica, {"scrub_bytes_per_s": 0})
    for _ in range(3):
        await host.wait(10.0)
    assert (host.bytes, host.passes) == (0, 0)


async def test_parts_that_are_not_here_are_not_read(replica: AuditedReplica) -> None:
    """A part that is fetched again is not read before it is held."""
    await replica.catalog.write(lambda db: jobs.quarantine(db, LARGE))
    flip(replica, LARGE)
    host = Host(replica)
    await host.wait(0.0)
    await host.wait(2.0)
    assert (host.damaged, host.passes) == ([], 1)


async def test_a_cancelled_tick_reads_no_closed_file(
    replica: AuditedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread goes on for a piece at most, and its file stays open until then."""
    host = Host(replica)
    await host.wait(0.0)
    begun, go_on = threading.Event(), threading.Event()
    read = HeldBytes.read

    def held_up(self: HeldBytes, count: int) -> int:
        begun.set()
        go_on.wait(10)
        return read(self, count)

    monkeypatch.setattr(HeldBytes, "read", held_up)
    tick = asyncio.create_task(host.wait(2.0))
    await asyncio.to_thread(begun.wait, 10)
    tick.cancel()
    closing = asyncio.create_task(asyncio.to_thread(host.scrubber.close))
    done, _ = await asyncio.wait([closing], timeout=0.1)
    assert not done, "closed under the thread"
    go_on.set()
    await closing
    assert host.scrubber._reading is None
    assert host.bytes < held_bytes(replica)
