"""The list of faults, and their proofs, which see nothing where nothing has happened."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import pkgutil
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import xxhash

from chaos import faults
from chaos.faults.disks import rotting
from chaos.faults.disks.catalogs import TABLES, cut_end, flip_page
from chaos.faults.disks.tracing import Traced, family, injected
from chaos.faults.fault import Aim, Fault, NotPossibleError, Proof
from chaos.faults.signs import Signs
from chaos.faults.zookeeper import ensemble, session_expired
from chaos.faults.zookeeper.session_expired import SessionExpired
from chaos.watching import waiting
from chaos.world import World
from tests.support.faults import ability
from tests.unit.chaos.hurried import Hurried
from tests.unit.chaos.stand_in import SESSION, idle_world, write_catalog
from tidelock.errors import TidelockError, UnavailableError


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits end at once."""
    monkeypatch.setattr(waiting, "time", Hurried())


@pytest.fixture
def world(tmp_path: Path, hurried: None) -> Iterator[World]:
    """A run on a cluster that nothing happens to."""
    with idle_world(tmp_path) as made:
        yield made


def test_the_list_has_each_fault_of_the_folder() -> None:
    """A fault that is not in the list would never be drawn."""
    for module in pkgutil.walk_packages(faults.__path__, "chaos.faults."):
        importlib.import_module(module.name)
    known = {fault for fault in Fault.__subclasses__() if fault.__module__.startswith("chaos.")}
    assert set(faults.ALL) == known
    assert len(faults.ALL) == len(set(faults.ALL)) >= 30


def test_each_kind_has_a_name_of_its_own() -> None:
    """The command line, the plan and the report know faults by their kinds."""
    assert len({fault.kind for fault in faults.ALL}) == len(faults.ALL)


@pytest.mark.parametrize("fault", faults.ALL, ids=lambda fault: fault.kind)
def test_a_fault_says_what_it_needs(fault: type[Fault]) -> None:
    """The plan reads these, and people read the docstring."""
    least_s, most_s = fault.lasts_s
    assert 0 <= least_s <= most_s
    assert fault.places <= {"processes", "containers"}
    assert fault.__doc__ is not None
    assert len(fault.__doc__.splitlines()) > 2, "what happens, and how a cluster must react"
    assert not fault.halts or fault.alone


@pytest.mark.parametrize(
    "fault",
    [fault for fault in faults.ALL if fault.aim is not Aim.CLIENT],  # there are no sessions of Spark
    ids=lambda fault: fault.kind,
)
def test_no_proof_is_seen_where_nothing_has_happened(world: World, fault: type[Fault]) -> None:
    """The handles do nothing, so the fault says so itself, or proves nothing, also when it is healed."""
    ability.require(fault.lack())
    cluster = world.cluster
    targets = {
        Aim.REPLICA: ["r2"],
        Aim.PAIR: ["r2", "r3"],
        Aim.ZOOKEEPER: ["z2"],
        Aim.ALL: [*cluster.replicas, *cluster.zookeepers],
    }[fault.aim]
    proofs: list[Proof] = []
    with (
        contextlib.suppress(TidelockError, NotPossibleError),
        fault().inject(world, targets, random.Random(1)) as proof,
    ):
        proofs.append(proof)
        for _ in range(3):
            assert proof.seen() is None
    for proof in proofs:
        assert proof.seen() is None


def test_all_signs_are_needed_but_not_at_once() -> None:
    """A sign that was seen once may go; one that was never seen keeps the proof away."""
    first: list[str | None] = ["one", None, None]
    second: list[str | None] = [None, None, "two"]
    proof = Signs(lambda: first.pop(0), lambda: second.pop(0))
    assert proof.seen() is None
    assert proof.seen() is None
    assert proof.seen() == "one; two"
    assert proof.seen() == "one; two"


def test_a_wait_that_is_in_vain_says_for_what(hurried: None) -> None:
    """A heal without a bound would hang a run."""
    with pytest.raises(UnavailableError, match="expected the moon within 300 s"):
        waiting.until(lambda: False, what="the moon")


def test_the_owner_of_a_sign_of_life_is_read_from_zookeeper(world: World) -> None:
    """It is the session that is ended."""
    assert ensemble.owner(world, "replicas/r1/alive") == SESSION
    assert ensemble.connected(world, "r1") == "z1"


def test_the_password_of_a_session_is_that_of_java() -> None:
    """The bytes of java.util.Random(5L ^ 0xB3415C00L).nextBytes, as servers make them."""
    assert ensemble.password(5).hex() == "51d0af4ab760fac5eaf29f8f5a96423a"


@pytest.mark.parametrize("folder", ["parts", "packs"])
def test_a_flipped_bit_is_seen_until_it_is_flipped_back(world: World, folder: str) -> None:
    """The heal waits for that, so it must not take a damaged part for a whole one."""
    node = world.cluster.node("r1")
    [place] = rotting.visible(node, folder)
    assert rotting.whole(node, place.part)
    rotting.flip_bit(place, random.Random(3))
    assert not rotting.whole(node, place.part)
    rotting.flip_bit(place, random.Random(3))
    assert rotting.whole(node, place.part)


@pytest.mark.parametrize("folder", ["parts", "packs"])
def test_a_cut_ends_in_the_middle_of_its_part(world: World, folder: str) -> None:
    """In a pack the parts before it stay, and the part itself is not whole."""
    node = world.cluster.node("r1")
    [place] = rotting.visible(node, folder)
    rotting.truncate(place, random.Random(3))
    assert place.offset <= place.file.stat().st_size < place.offset + place.length
    assert not rotting.whole(node, place.part)


def test_all_parts_behind_a_cut_are_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as one of them is not whole, the disk may not count as well for the next fault."""
    monkeypatch.setattr(rotting, "serve_again", lambda *_: None)
    node = world.cluster.node("r1")
    [first] = rotting.visible(node, "packs")
    behind = first.file.read_bytes()[first.offset + first.length :]
    with closing(sqlite3.connect(node.data_dir / "catalog.db")) as db, db:
        db.execute(
            "INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, file, offset, "
            "kind, state) VALUES ('r1-1-3', 't', '', 1, ?, ?, 'tid', 'packs/00/p', ?, 'part', 'held')",
            (len(behind), xxhash.xxh3_128_hexdigest(behind), first.offset + first.length),
        )
    rotten = rotting.rotten(world, "r1", random.Random(1), folder="packs", harm=rotting.truncate)
    with pytest.raises(UnavailableError, match="each of r1-1-2, r1-1-3 is whole at r1"), rotten:
        pass


def test_a_part_that_nobody_needs_is_not_waited_for(world: World) -> None:
    """Compaction and collection may take it away before it was read."""
    assert rotting.whole(world.cluster.node("r1"), "r9-9-9")


def test_rot_that_was_collected_unread_harms_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a fault was not possible: there is no effect to be shown."""
    monkeypatch.setattr(rotting, "serve_again", lambda *_: None)
    monkeypatch.setattr(rotting, "there", lambda *_: True)
    node = world.cluster.node("r1")

    def collect(place: rotting.Place, _: random.Random) -> None:
        with closing(sqlite3.connect(node.data_dir / "catalog.db")) as db, db:
            db.execute("DELETE FROM parts WHERE part = ?", (place.part,))

    rotten = rotting.rotten(world, "r1", random.Random(1), folder="packs", harm=collect)
    with pytest.raises(NotPossibleError, match="before anybody has read it"), rotten:
        pass


def test_a_session_whose_end_was_not_answered_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers have carried out the request, and no further one finds the session."""
    owners = itertools.chain([5], itertools.repeat(6))

    def lose_answer(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(session_expired, "_session", lambda *_: next(owners))
    monkeypatch.setattr(session_expired, "end_session", lose_answer)
    monkeypatch.setattr(session_expired, "serve_again", lambda *_: None)
    with SessionExpired().inject(world, ["r1"], random.Random(1)) as proof:
        assert "0x5 is gone" in (proof.seen() or "")


@pytest.mark.parametrize("seed", range(8))
def test_sqlite_refuses_a_damaged_catalog(tmp_path: Path, seed: int) -> None:
    """The damage must be one that a start finds: no table that it reads can be read."""
    write_catalog(tmp_path)
    flip_page(tmp_path / "catalog.db", random.Random(seed))
    failed = []
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
        for table in TABLES:
            try:
                db.execute(f"SELECT * FROM {table}").fetchall()
            except sqlite3.DatabaseError as error:
                failed.append(str(error))
    assert failed == ["database disk image is malformed"]


@pytest.mark.parametrize("seed", range(8))
def test_sqlite_refuses_a_catalog_that_was_cut(tmp_path: Path, seed: int) -> None:
    """A cut that SQLite does not see would leave the fault without an effect."""
    write_catalog(tmp_path)
    before = (tmp_path / "catalog.db").stat().st_size
    cut_end(tmp_path / "catalog.db", random.Random(seed))
    assert 0 < (tmp_path / "catalog.db").stat().st_size < before
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as db,
        pytest.raises(sqlite3.DatabaseError, match=r"malformed|not a database"),
    ):
        db.execute("SELECT count(*) FROM sqlite_master").fetchall()


@pytest.mark.parametrize("size", [2, 15, 99, 100, 4096], ids="{} bytes".format)
def test_sqlite_refuses_a_catalog_of_a_few_bytes(tmp_path: Path, size: int) -> None:
    """A file of a few bytes must not look like an empty catalog, which an agent would fill."""
    write_catalog(tmp_path)

    class Least(random.Random):
        def randint(self, a: int, b: int) -> int:
            assert a <= size <= b
            return size

    cut_end(tmp_path / "catalog.db", Least())
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as db,
        pytest.raises(sqlite3.DatabaseError, match=r"malformed|not a database"),
    ):
        db.execute("SELECT count(*) FROM sqlite_master").fetchall()


def test_only_calls_that_were_changed_are_counted(tmp_path: Path) -> None:
    """A call that went through proves nothing."""
    output = tmp_path / "calls"
    traced = Traced(output)
    assert traced.count() == 0
    output.write_text(
        "12 fsync(7) = 0\n12 fsync(7) = -1 EIO (Input/output error) (INJECTED)\n"
        "13 fdatasync(9) = 0 (DELAYED)\n13 fdatasync(9 <unfinished ...>\n"
    )
    assert traced.count() == 2


def test_a_process_that_is_gone_cannot_be_traced(world: World) -> None:
    """The run says so instead of going on without the fault."""
    ability.require(next(fault.lack() for fault in faults.ALL if fault.kind == "slow disk"))
    node = world.cluster.node("r1")
    assert family(node.pid) == [node.pid]
    world.cluster.close()
    with pytest.raises(UnavailableError, match="strace"), injected(node, "error=EIO"):
        pytest.fail("a process that is gone was traced")
