"""Fetching missing parts over real connections: resume, next holder, wrong bytes, a full disk."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.support.aio import until
from tests.support.machines.names import part, tid
from tests.support.replicas.part_holder import PartHolder
from tests.support.replicas.part_store import PartStoreStub
from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import PartMeta, Peer, Wanted
from tidelock.replication.core.room import RoomLimits
from tidelock.replication.fetch import Fetcher
from tidelock.replication.partfs import PartFs
from tidelock.replication.peers import PeerClient

SMALL_MAX = 1000
RANGE = 300_000
LARGE = random.Random(1).randbytes(1_000_000)
SMALL = b"small part"


class Here:
    """A replica r9 that fetches."""

    def __init__(self, data_dir: Path) -> None:
        self.files = PartFs(data_dir)
        self.files.open()
        self.store = PartStoreStub(self.files)
        self.held: list[PartId] = []
        self.wrong: list[tuple[ReplicaId, PartId]] = []
        self.client = PeerClient(secret="", connections=8, timeout_s=5.0)
        self.fetcher = self.make()

    def make(
        self,
        *,
        patience_s: float = 2.0,
        grace_s: float = 0.0,
        early_max: int = 100,
        small_concurrency: int = 3,
    ) -> Fetcher:
        """Return a fetcher with these settings."""
        return Fetcher(
            client=self.client,
            files=self.files,
            store=self.store,
            replica=ReplicaId("r9"),
            on_held=self.held.append,
            on_wrong_bytes=lambda holder, name: self.wrong.append((holder, name)),
            range_bytes=RANGE,
            small_bytes_max=SMALL_MAX,
            concurrency=2,
            small_concurrency=small_concurrency,
            retry_wait_max_s=0.05,
            patience_s=patience_s,
            patience_max_s=5.0,
            grace_s=grace_s,
            early_max=early_max,
        )

    @property
    def files_left(self) -> set[str]:
        """Return all files of the data directory but its lock."""
        found = (
            path.relative_to(self.files.data_dir) for path in self.files.data_dir.rglob("*") if path.is_file()
        )
        return {path.as_posix() for path in found} - {"lock"}

    async def close(self) -> None:
        """Stop."""
        await self.fetcher.close()
        await self.client.close()
        self.files.close()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    """Give a replica that fetches."""
    made = Here(tmp_path / "data")
    yield made
    await made.close()


@pytest.fixture
async def r1() -> AsyncIterator[PartHolder]:
    """Give the home of the transactions."""
    holder = await PartHolder("r1").start()
    yield holder
    await holder.stop()


@pytest.fixture
async def r2() -> AsyncIterator[PartHolder]:
    """Give another holder."""
    holder = await PartHolder("r2").start()
    yield holder
    await holder.stop()


def wanted(name: str, data: bytes, *holders: str, csn: int | None = 7) -> Wanted:
    """Want a part with these bytes, of transaction t1."""
    meta = PartMeta(part(name), TableId("db.t"), "", 1, len(data), checksum(data))
    return Wanted(meta, tid("t1"), None if csn is None else Csn(csn), tuple(map(ReplicaId, holders)))


def flipped(data: bytes, at: int) -> bytes:
    """Return the bytes with one bit changed."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


async def test_small_and_large_parts(here: Here, r1: PartHolder) -> None:
    """A small part comes whole, a large one in ranges into a file that was noted before its first byte."""
    r1.parts = {part("p1"): SMALL, part("p2"): LARGE, part("p3"): b""}
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", SMALL, "r1"))
    here.fetcher.want(wanted("p2", LARGE, "r1"))
    here.fetcher.want(wanted("p3", b"", "r1"))
    await until(lambda: len(here.held) == 3)
    assert here.store.small == {part("p1"): SMALL, part("p3"): b""}
    path = here.files.part_path(part("p2"))
    steps = [step for step in here.store.steps if not step.startswith("store")]
    assert steps == [f"undo {path}", f"record {part('p2')} {tid('t1')}"]
    assert here.files_left == {path}
    assert [start for name, start in r1.asked if name == part("p2")] == [0, RANGE, 2 * RANGE, 3 * RANGE]


async def test_parts_with_the_same_bytes_are_fetched_once(here: Here, r1: PartHolder) -> None:
    """A part that shares the bytes of another one takes them here, however many are missing at once."""
    names = [part(f"p{number}") for number in range(1, 6)]
    r1.parts = dict.fromkeys(names, SMALL)
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", SMALL, "r1"))
    for number in range(2, 6):
        other = wanted(f"p{number}", SMALL, "r1")
        here.fetcher.want(replace(other, meta=replace(other.meta, source=part("p1"))))
    await until(lambda: len(here.held) == 5)
    assert here.store.small == dict.fromkeys(names, SMALL)
    assert len(r1.asked) == 1
    assert sorted(step.split()[0] for step in here.store.steps) == ["share"] * 4 + ["store"]


@pytest.mark.scenario("S39")
async def test_a_broken_transfer_goes_on_with_another_holder(
    here: Here, r1: PartHolder, r2: PartHolder
) -> None:
    """The received bytes of a large part are kept: the next holder is asked for the rest only (S39)."""
    r1.parts = r2.parts = {part("p1"): LARGE}
    r1.breaks_after = 100_000
    here.fetcher.members([r1.peer, r2.peer])
    here.fetcher.want(wanted("p1", LARGE, "r1", "r2"))
    await until(lambda: here.held)
    assert r1.asked == [(part("p1"), 0)]
    first = r2.asked[0][1]
    assert 0 < first <= 100_000
    assert [start for _, start in r2.asked] == list(range(first, len(LARGE), RANGE))
    assert here.wrong == []


async def test_one_holder_that_breaks_off_again_and_again(here: Here, r1: PartHolder) -> None:
    """With one holder left, each try brings the part further, until it is whole."""
    r1.parts = {part("p1"): LARGE}
    r1.breaks_after = 250_000
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", LARGE, "r1"))
    await until(lambda: here.held)
    starts = [start for _, start in r1.asked]
    assert starts == sorted(starts)
    assert starts[:1] == [0]
    assert len(here.store.steps) == 2


@pytest.mark.scenario("S40", "S41")
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("etags", [True, False])
async def test_wrong_bytes_are_never_kept(
    here: Here, r1: PartHolder, r2: PartHolder, data: bytes, etags: bool
) -> None:
    """A holder whose bytes are wrong is reported and the part comes from another, whole (S40, S41)."""
    r1.parts, r2.parts = {part("p1"): flipped(data, len(data) // 2)}, {part("p1"): data}
    r1.etags = etags
    here.fetcher.members([r1.peer, r2.peer])
    here.fetcher.want(wanted("p1", data, "r1", "r2"))
    await until(lambda: here.held)
    assert here.wrong == [(ReplicaId("r1"), part("p1"))]
    assert r2.asked[0] == (part("p1"), 0)
    assert here.store.small.get(part("p1"), data) == data
    assert all(path.startswith("parts/") for path in here.files_left)


async def test_a_holder_of_wrong_bytes_is_asked_last(here: Here, r1: PartHolder, r2: PartHolder) -> None:
    """Once it was caught, a holder is asked again only after all others have failed."""
    r1.parts = {part("p1"): flipped(SMALL, 0)}
    here.fetcher.members([r1.peer, r2.peer])
    here.fetcher.want(wanted("p1", SMALL, "r1"))
    await until(lambda: len(r1.asked) >= 2)
    assert len(r2.asked) >= 2
    r2.parts = {part("p1"): SMALL}
    await until(lambda: here.held)


async def test_mixed_sources_are_sorted_out(here: Here, r1: PartHolder, r2: PartHolder) -> None:
    """If a part from two holders is wrong, it comes from one alone from then on, and the liar is found."""
    r1.parts, r2.parts = {part("p1"): flipped(LARGE, 10)}, {part("p1"): LARGE}
    r1.etags = False
    r1.breaks_after = r2.breaks_after = 200_000
    here.fetcher.members([r1.peer, r2.peer])
    here.fetcher.want(wanted("p1", LARGE, "r1", "r2"))
    await until(lambda: part("p1") in here.fetcher._running and here.fetcher._running[part("p1")].wrong)
    r1.breaks_after = None
    await until(lambda: here.held)
    assert here.files.read(here.store.large[part("p1")]) == LARGE
    assert here.wrong == [(ReplicaId("r1"), part("p1"))]


@pytest.mark.parametrize("refuses", [404, 403, 503, 500])
async def test_the_next_holder_is_asked(here: Here, r1: PartHolder, r2: PartHolder, refuses: int) -> None:
    """A holder that has not got it, or cannot give it now, is passed over; any replica may have it by now."""
    r1.refuses = refuses
    r2.parts = {part("p1"): SMALL}
    here.fetcher.members([r1.peer, r2.peer])
    here.fetcher.want(wanted("p1", SMALL, "r1"))
    await until(lambda: here.held)
    assert here.wrong == []


async def test_a_dead_and_a_frozen_holder(here: Here, r1: PartHolder, r2: PartHolder) -> None:
    """A holder that has ended, or accepts the request and never answers, is given up for the next."""
    here.fetcher = here.make(patience_s=0.1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = Peer(ReplicaId("r3"), "", f"127.0.0.1:{nobody.getsockname()[1]}", "d3")
        r1.gate.clear()
        r2.parts = {part("p1"): SMALL, part("p2"): SMALL}
        here.fetcher.members([dead, r1.peer, r2.peer])
        here.fetcher.want(wanted("p1", SMALL, "r3", "r1", "r2"))
        await until(lambda: here.held == [part("p1")])
        here.fetcher.want(wanted("p2", SMALL, "r3", "r1", "r2"))
        await until(lambda: len(here.held) == 2)
    assert [name for name, _ in r1.asked] == [part("p1")]  # the silent ones are asked last from now on


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_slow_holder_alone_gets_more_time_each_round(here: Here, r1: PartHolder, data: bytes) -> None:
    """A holder that needs longer than the patience is left, and gets twice as long in the next round."""
    here.fetcher = here.make(patience_s=0.05)
    r1.parts, r1.delay_s = {part("p1"): data}, 0.3
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", data, "r1"))
    await until(lambda: here.held == [part("p1")])
    assert sum(start == 0 for _, start in r1.asked) >= 3  # after 50 ms, 100 ms, 200 ms


async def test_a_large_part_goes_on_when_its_holder_falls_silent(
    here: Here, r1: PartHolder, r2: PartHolder
) -> None:
    """The bytes of a holder that fell silent are kept; the next one sends the rest."""
    here.fetcher = here.make(patience_s=0.1)
    r1.parts = r2.parts = {part("p1"): LARGE}
    r1.gate_at = RANGE
    here.fetcher.members([r1.peer, r2.peer])
    here.fetcher.want(wanted("p1", LARGE, "r1", "r2"))
    await until(lambda: here.held == [part("p1")])
    assert [start for _, start in r1.asked] == [0, RANGE]
    assert [start for _, start in r2.asked] == [RANGE, 2 * RANGE, 3 * RANGE]


async def test_it_goes_on_until_somebody_has_it(here: Here, r1: PartHolder, r2: PartHolder) -> None:
    """While no holder has the part the fetch says why it waits, and takes it as soon as one has it."""
    here.fetcher.want(wanted("p1", SMALL, "r1"))
    await until(lambda: "no other replica is known" in str(here.fetcher.trouble(part("p1"))))
    here.fetcher.members([r1.peer])
    # A new try begins without a reason, so the reason is there between two tries only.
    await until(lambda: len(r1.asked) > 2 and "404" in str(here.fetcher.trouble(part("p1"))))
    r2.parts = {part("p1"): SMALL}
    here.fetcher.members([r1.peer, r2.peer])
    await until(lambda: here.held)
    assert here.fetcher.trouble(part("p1")) is None


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_part_that_is_collected_is_not_fetched_any_more(
    here: Here, r1: PartHolder, data: bytes
) -> None:
    """Its row is gone, and nobody has it; before, all holders were asked again forever."""
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", data))
    await until(lambda: r1.asked)
    here.store.collected.add(part("p1"))
    await until(lambda: here.fetcher.trouble(part("p1")) is None)
    await until(lambda: not here.files_left)  # the fetch under way deletes its file when it has ended
    assert here.held == []


async def test_wants_of_one_part_are_one_fetch(here: Here, r1: PartHolder) -> None:
    """A part that is on its way is fetched once; a commit makes an early fetch one to keep."""
    r1.parts = {part("p1"): SMALL}
    r1.gate.clear()
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", SMALL, "r1", csn=None))
    await until(lambda: r1.in_flight)
    assert here.fetcher.early() == {str(tid("t1"))}
    here.fetcher.want(wanted("p1", SMALL, "r1"))
    assert here.fetcher.early() == frozenset()
    here.fetcher.cancel([str(tid("t1"))])
    r1.gate.set()
    await until(lambda: here.held)
    assert (len(r1.asked), here.held) == (1, [part("p1")])


async def test_an_early_fetch_is_taken_back_by_its_part(here: Here, r1: PartHolder) -> None:
    """The others of its transaction go on, and so does what a record wants."""
    r1.parts = {part(name): SMALL for name in ("p1", "p2", "p3")}
    r1.gate.clear()
    here.fetcher.members([r1.peer])
    for name, csn in (("p1", None), ("p2", None), ("p3", Csn(7))):
        here.fetcher.want(replace(wanted(name, SMALL, "r1"), csn=csn))
    here.fetcher.drop([part("p1"), part("p3"), part("p4")])
    r1.gate.set()
    await until(lambda: len(here.held) == 2)
    assert set(here.held) == {part("p2"), part("p3")}


async def test_a_rollback_stops_early_fetches(here: Here, r1: PartHolder) -> None:
    """A fetch for a transaction that was rolled back is given up and leaves nothing on the disk."""
    r1.parts = {part("p1"): LARGE, part("p2"): SMALL, part("p3"): SMALL}
    r1.breaks_after = 1000
    here.fetcher.members([r1.peer])
    for name, data in (("p1", LARGE), ("p2", SMALL)):
        here.fetcher.want(wanted(name, data, "r1", csn=None))
    other = wanted("p3", SMALL, "r1", csn=None)
    await until(lambda: any(path.startswith("tmp/") for path in here.files_left))
    here.fetcher.cancel([str(tid("t1"))])
    here.fetcher.want(replace(other, tid=tid("t2")))
    await until(lambda: not here.files_left and part("p3") in here.held)
    assert here.fetcher.trouble(part("p1")) is None
    assert part("p1") not in here.held
    await until(lambda: f"forget {here.files.part_path(part('p1'))}" in here.store.steps)


async def test_what_a_push_brings_is_not_fetched(here: Here, r1: PartHolder) -> None:
    """Small parts of a commit are left to the push that is probably under way."""
    r1.parts = {part("p1"): SMALL, part("p2"): SMALL}
    here.fetcher = here.make(grace_s=3600.0)
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", SMALL, "r1"))
    here.fetcher.want(wanted("p2", SMALL, "r1", csn=None))  # no push is expected for this one
    here.fetcher.arrived(part("p1"))
    await until(lambda: here.held == [part("p2")])
    assert [name for name, _ in r1.asked] == [part("p2")]
    assert here.fetcher.trouble(part("p1")) is None


async def test_a_want_that_comes_late_does_not_touch_the_file(here: Here, r1: PartHolder) -> None:
    """A part that an early fetch has brought is wanted by its record, and that is taken back."""
    r1.parts = {part("p1"): LARGE}
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", LARGE, "r1", csn=None))
    await until(lambda: here.held)
    asked = len(r1.asked)
    here.fetcher.want(wanted("p1", LARGE, "r1"))
    await until(lambda: len(here.held) == 2 or len(r1.asked) > asked)
    here.fetcher.arrived(part("p1"))
    await here.fetcher.close()
    assert here.files_left == {here.files.part_path(part("p1"))}
    assert len(r1.asked) == asked


async def test_a_full_disk_is_waited_out(here: Here, r1: PartHolder) -> None:
    """While the disk is full the part stays wanted, says so, and leaves nothing half-written."""
    r1.parts = {part("p1"): LARGE}
    here.fetcher.members([r1.peer])
    with faults.armed("partfs.fsync.before", "enospc"):
        here.fetcher.want(wanted("p1", LARGE, "r1"))
        await until(lambda: "no room" in str(here.fetcher.trouble(part("p1"))))
    await until(lambda: here.held)
    assert here.files_left == {here.files.part_path(part("p1"))}


@pytest.mark.parametrize("point", ["replication.fetch.before", "replication.fetch.after"])
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_fault_at_either_side(here: Here, r1: PartHolder, point: str, data: bytes) -> None:
    """An error before or after the transfer is one more failed try."""
    r1.parts = {part("p1"): data}
    here.fetcher.members([r1.peer])
    with faults.armed(point, "once"):
        here.fetcher.want(wanted("p1", data, "r1"))
        await until(lambda: here.held)
        assert faults.fired(point) == 1


async def test_large_parts_do_not_hold_up_small_ones(here: Here, r1: PartHolder, r2: PartHolder) -> None:
    """Each size class has a bound of its own, and no class waits for the other."""
    r1.parts = {part(f"p{number}"): LARGE for number in range(5)}
    r2.parts = {part(f"p{number}"): SMALL for number in range(10, 15)}
    r1.gate.clear()
    here.fetcher.members([r1.peer, r2.peer])
    for number in range(5):
        here.fetcher.want(wanted(f"p{number}", LARGE, "r1"))
    await until(lambda: r1.in_flight == 2)
    for number in range(10, 15):
        here.fetcher.want(wanted(f"p{number}", SMALL, "r2"))
    await until(lambda: len(here.held) == 5)
    assert r1.in_flight_max == 2
    assert all(len(group) <= 3 for group in r2.groups)
    r1.gate.set()
    await until(lambda: len(here.held) == 10)


async def test_a_clone_does_not_hold_up_the_parts_of_records(
    here: Here, r1: PartHolder, r2: PartHolder
) -> None:
    """Parts that a clone lacks have places of their own, so the log is followed while they are fetched."""
    r1.parts = {part(f"p{number}"): data for number in range(8) for data in [SMALL if number < 4 else LARGE]}
    r2.parts = {part("p10"): SMALL, part("p11"): LARGE}
    r1.gate.clear()
    here.fetcher.members([r1.peer, r2.peer])
    for number in range(8):
        here.fetcher.want(wanted(f"p{number}", SMALL if number < 4 else LARGE, "r1"), clone=True)
    await until(lambda: len(r1.asked) == 5)  # three small parts, in one request, and two large ones
    here.fetcher.want(wanted("p10", SMALL, "r2"))
    here.fetcher.want(wanted("p11", LARGE, "r2"))
    await until(lambda: set(here.held) == {part("p10"), part("p11")})
    assert len(r1.asked) == 5  # no place became free meanwhile
    r1.gate.set()
    await until(lambda: len(here.held) == 10)


async def test_small_parts_share_a_request(here: Here, r1: PartHolder) -> None:
    """Parts that are wanted together are asked for together, as many as have a place."""
    r1.parts = {part(f"p{number}"): b"%d" % number for number in range(7)}
    here.fetcher.members([r1.peer])
    for number in range(7):
        here.fetcher.want(wanted(f"p{number}", b"%d" % number, "r1"))
    await until(lambda: len(here.held) == 7)
    assert here.store.small == r1.parts
    assert r1.groups[0] == [part("p0"), part("p1"), part("p2")]
    assert len(r1.asked) == 7


async def test_wrong_bytes_of_one_part_are_of_that_part_only(
    here: Here, r1: PartHolder, r2: PartHolder
) -> None:
    """The others of the answer count, and the holder is reported for the one part."""
    data = {part(f"p{number}"): b"part %d" % number for number in range(3)}
    r1.parts, r2.parts = data | {part("p1"): flipped(b"part 1", 2)}, data
    here.fetcher.members([r1.peer, r2.peer])
    for number in range(3):
        here.fetcher.want(wanted(f"p{number}", b"part %d" % number, "r1", "r2"))
    await until(lambda: len(here.held) == 3)
    assert here.wrong == [(ReplicaId("r1"), part("p1"))]
    assert r2.asked == [(part("p1"), 0)]
    assert here.store.small == data


async def test_a_part_of_another_length_is_of_that_part_only(
    here: Here, r1: PartHolder, r2: PartHolder
) -> None:
    """A longer part under a right id is wrong too, and the frames behind it are still understood."""
    data = {part(f"p{number}"): b"part %d" % number for number in range(3)}
    r1.parts, r2.parts = data | {part("p0"): b"part 0 and more"}, data
    here.fetcher.members([r1.peer, r2.peer])
    for number in range(3):
        here.fetcher.want(wanted(f"p{number}", b"part %d" % number, "r1", "r2"))
    await until(lambda: len(here.held) == 3)
    assert here.wrong == [(ReplicaId("r1"), part("p0"))]
    assert r2.asked == [(part("p0"), 0)]


async def test_a_part_that_one_holder_lacks_comes_from_the_next(
    here: Here, r1: PartHolder, r2: PartHolder
) -> None:
    """The answer says so of that part, and nobody is blamed."""
    data = {part(f"p{number}"): b"part %d" % number for number in range(3)}
    r1.parts, r2.parts = {name: held for name, held in data.items() if name != part("p2")}, data
    here.fetcher.members([r1.peer, r2.peer])
    for number in range(3):
        here.fetcher.want(wanted(f"p{number}", b"part %d" % number, "r1", "r2"))
    await until(lambda: len(here.held) == 3)
    assert (here.wrong, r2.asked) == ([], [(part("p2"), 0)])


async def test_what_came_before_a_broken_answer_counts(here: Here, r1: PartHolder, r2: PartHolder) -> None:
    """Of an answer that is cut the whole parts are kept, and the others come from the next holder."""
    data = {part(f"p{number}"): b"%d" % number * 300 for number in range(3)}
    r1.parts = r2.parts = data
    r1.breaks_after = 800  # in the third frame
    here.fetcher.members([r1.peer, r2.peer])
    for number in range(3):
        here.fetcher.want(wanted(f"p{number}", b"%d" % number * 300, "r1", "r2"))
    await until(lambda: len(here.held) == 3)
    assert (here.wrong, r2.asked) == ([], [(part("p2"), 0)])
    assert here.store.small == data


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_holder_of_an_older_version_is_asked_part_by_part(
    here: Here, r1: PartHolder, status: int
) -> None:
    """While replicas are upgraded one after the other, each of them can be fetched from."""
    r1.parts = {part(f"p{number}"): SMALL for number in range(5)}
    r1.refuses_groups = status
    here.fetcher.members([r1.peer])
    for number in range(5):
        here.fetcher.want(wanted(f"p{number}", SMALL, "r1"))
    await until(lambda: len(here.held) == 5)
    assert (r1.groups, len(r1.asked)) == ([], 5)
    r1.refuses_groups = 0  # it was upgraded
    r1.parts = {part(f"p{number}"): SMALL for number in range(5, 8)}
    for number in range(5, 8):
        here.fetcher.want(wanted(f"p{number}", SMALL, "r1"))
    await until(lambda: len(here.held) == 8)
    assert [len(group) for group in r1.groups] == [3]


async def test_those_that_wait_for_a_silent_holder_do_not_ask_it_again(
    here: Here, r1: PartHolder, r2: PartHolder
) -> None:
    """One silence is enough for all: else each group would wait for as long again."""
    here.fetcher = here.make(patience_s=0.2, small_concurrency=9)
    r1.gate.clear()
    r2.parts = {part(f"p{number}"): SMALL for number in range(9)}
    here.fetcher.members([r1.peer, r2.peer])
    for number in range(3):
        here.fetcher.want(wanted(f"p{number}", SMALL, "r1", "r2"))
    await until(lambda: r1.in_flight)
    for number in range(3, 9):
        here.fetcher.want(replace(wanted(f"p{number}", SMALL), holders=(ReplicaId("r1"),)))
    await until(lambda: len(here.held) == 9)
    assert len(r1.groups) == 1


async def test_early_fetches_have_a_bound(here: Here, r1: PartHolder) -> None:
    """Hints beyond the bound are dropped, parts of commits never are, and finished ones make room."""
    r1.parts = {part(f"p{number}"): SMALL for number in range(6)}
    r1.gate.clear()
    here.fetcher = here.make(early_max=2)
    here.fetcher.members([r1.peer])
    for number in range(4):
        here.fetcher.want(wanted(f"p{number}", SMALL, "r1", csn=None))
    here.fetcher.want(wanted("p4", SMALL, "r1"))
    r1.gate.set()
    await until(lambda: set(here.held) == {part("p0"), part("p1"), part("p4")})
    here.fetcher.want(wanted("p5", SMALL, "r1", csn=None))
    await until(lambda: part("p5") in here.held)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_copy_leaves_the_floor_until_its_transaction_commits(
    here: Here, r1: PartHolder, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is fetched early is refused below the floor; the same part of a commit is not."""
    r1.parts = {part("p1"): data}
    here.files.room._limits = RoomLimits(reserve_bytes=1 << 20, floor_share=1.0)
    usage = SimpleNamespace(total=1 << 40, free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", data, "r1", csn=None))
    await until(lambda: "in reserve" in (here.fetcher.trouble(part("p1")) or ""))
    assert (here.held, r1.asked) == ([], [])
    here.fetcher.want(wanted("p1", data, "r1"))
    await until(lambda: here.held == [part("p1")])


async def test_closing_leaves_nothing_behind(here: Here, r1: PartHolder) -> None:
    """A fetcher that is closed in the middle of transfers ends its tasks and its temporary files."""
    r1.parts = {part("p1"): LARGE, part("p2"): SMALL}
    r1.breaks_after = 1000
    here.fetcher.members([r1.peer])
    here.fetcher.want(wanted("p1", LARGE, "r1"))
    await until(lambda: any(path.startswith("tmp/") for path in here.files_left))
    await here.fetcher.close()
    assert here.files_left == set()
    here.fetcher.want(wanted("p2", SMALL, "r1"))
    assert here.fetcher.trouble(part("p2")) is None
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("fetch")]
