"""Bytes that change or vanish on a replica's disk: no client reads wrong rows; a peer's copy repairs them."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import urllib3

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import http
from tests.support.histories.evidence import data_address, nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import connect
from tidelock.client.writes.transaction import Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import PartDamagedError, StandbyError, TransactionClosedError, UnavailableError
from tidelock.replication.core.digest import checksum
from workloads.agents import ask

REPLICAS = ("r1", "r2", "r3")
#: Parts above this size are files of their own; several ranges are fetched of each.
INLINE_BYTES_MAX = 32 * 1024
SETTINGS = {
    **QUICK,
    "inline_part_bytes_max": INLINE_BYTES_MAX,
    "fetch_range_bytes": 2 * INLINE_BYTES_MAX,
    "row_group_rows": 2_000,
    "cut_part_bytes_min": INLINE_BYTES_MAX,
}
#: Rows of a part that shares a pack, and of one that is a file of its own. Random numbers do not compress.
ROWS = {"pack": 1_000, "file": 20_000}
NAMES = itertools.count()
DAMAGED = "r2"


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=SETTINGS)


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, with all replicas up before and after the test."""
    shared.up()
    yield shared
    shared.up()


@dataclass(frozen=True)
class Stored:
    """A table of one part, committed on all replicas that run."""

    local: LocalCluster
    table: str
    rows: pa.Table
    csn: int
    part: str
    checksum: str
    path: str

    @classmethod
    def insert(cls, local: LocalCluster, kind: str, *, ordered: bool = False) -> Stored:
        """Commit a table whose part is stored in this way, its numbers in order or not."""
        table = f"t{next(NAMES)}"
        numbers = random.Random(table)
        found = [numbers.getrandbits(62) for _ in range(ROWS[kind])]
        rows = pa.table({"k": sorted(found) if ordered else found})
        with local.connect("r1") as db:
            db.create_table(table, rows.schema)
            csn = db.insert(table, rows, wait="all").csn
        assert csn is not None
        (part,) = ask(local, "r1", f"/parts?csn={csn}&table={table}")
        stored = cls(local, table, rows, csn, part["part"], part["checksum"], part["file"])
        assert stored.place("r1")[0].startswith({"pack": "packs/", "file": "parts/"}[kind])
        return stored

    def place(self, replica: str) -> tuple[str, int, int, str]:
        """Return where the part lies by a replica's catalog: file, offset, length, state."""
        place = self.find(replica)
        assert place is not None, f"{replica} does not know {self.part}"
        return place

    def find(self, replica: str) -> tuple[str, int, int, str] | None:
        """Return the same, or None while the replica has not applied the part's commit."""
        path = self.local.data_dir(replica) / "catalog.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            sql = "SELECT file, offset, length, state FROM parts WHERE part = ?"
            place: tuple[str, int, int, str] | None = db.execute(sql, (self.part,)).fetchone()
            return place

    def file(self, replica: str) -> Path:
        """Return the file that holds the part on a replica."""
        return self.local.data_dir(replica) / self.place(replica)[0]

    def data(self, replica: str) -> bytes:
        """Return the bytes of the part on a replica's disk."""
        _, offset, length, _ = self.place(replica)
        return self.file(replica).read_bytes()[offset : offset + length]

    def flip_bit(self, replica: str) -> None:
        """Change one bit in the middle of the column chunk.

        The file stays open while it is read and written: readers meet the damage at once, and an intact copy
        may get its name before this returns.
        """
        name, offset, length, _ = self.place(replica)
        with (self.local.data_dir(replica) / name).open("r+b") as file:

            def data() -> bytes:
                file.seek(offset)
                return file.read(length)

            assert checksum(data()) == self.checksum
            column = pq.read_metadata(io.BytesIO(data())).row_group(0).column(0)
            start = column.dictionary_page_offset or column.data_page_offset
            position = offset + start + column.total_compressed_size // 2
            file.seek(position)
            (byte,) = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ 1]))
            assert checksum(data()) != self.checksum

    def sound(self, replica: str) -> bool:
        """Return whether the replica holds the right bytes and its catalog says so."""
        place = self.find(replica)
        return place is not None and place[3] == "held" and checksum(self.data(replica)) == self.checksum

    def mended(self, *replicas: str) -> None:
        """Wait until replicas hold the right bytes; then they serve them, by HTTP and to a pinned client."""
        for replica in replicas:
            eventually(lambda replica=replica: self.sound(replica), what=f"{self.part} mended on {replica}")  # type: ignore[misc]
            eventually(lambda replica=replica: self.download(replica) is not None, what="its bytes")  # type: ignore[misc]
            with self.local.connect(replica) as db, db.snapshot(self.csn) as snap:
                assert snap.read(self.table).to_pydict() == self.rows.to_pydict()

    def download(self, replica: str) -> bytes | None:
        """Get the part by plain HTTP: its right bytes, or None if they were refused or cut."""
        url = f"http://{data_address(self.local, replica)}/snapshots/{self.csn}/{self.path}"
        try:
            answer = http("GET", url)
        except urllib3.exceptions.HTTPError:
            return None  # cut: no client can take it for the whole
        if answer.status == 503:
            assert answer.json["error"] == StandbyError.__name__
            return None
        assert answer.status == 200
        assert checksum(answer.data) == self.checksum
        return answer.data


def _fetched_again(error: PartDamagedError, stored: Stored) -> None:
    """Require that an error says what was found, where, and what is done about it."""
    assert error.retriable
    assert error.details["replica"] == DAMAGED
    assert error.details["part"] == stored.part
    assert f"replica {DAMAGED} should have part {stored.part} whole, and it is damaged" in error.message
    assert "fetched again from another replica: begin the transaction again" in error.message


def _update(tx: Transaction, stored: Stored) -> object:
    return tx.update(stored.table, {"k": "k + 1"}, "k = ?", [stored.rows["k"][0].as_py()])


def _delete(tx: Transaction, stored: Stored) -> object:
    return tx.delete(stored.table, "k = ?", [stored.rows["k"][0].as_py()])


def _merge(tx: Transaction, stored: Stored) -> object:
    return tx.merge(
        stored.table, stored.rows.slice(0, 1), on=["k"], when_matched_update={"k": "target.k + 1"}
    )


def _sql(tx: Transaction, stored: Stored) -> object:
    return tx.sql(f"select sum(k) from {stored.table}")


def _read(tx: Transaction, stored: Stored) -> object:
    return tx.read(stored.table)


STATEMENTS = {"update": _update, "delete": _delete, "merge": _merge, "sql": _sql, "read": _read}


@pytest.mark.parametrize("kind", ROWS)
def test_a_flipped_bit_is_never_sent(local: LocalCluster, kind: str) -> None:
    """A download from the damaged replica is refused or cut, not wrong; it also has the part repaired."""
    stored = Stored.insert(local, kind)
    stored.flip_bit(DAMAGED)
    assert stored.download(DAMAGED) is None
    assert stored.download("r1") is not None
    stored.mended(DAMAGED)


@pytest.mark.parametrize("kind", ROWS)
def test_a_query_goes_on_elsewhere(local: LocalCluster, kind: str) -> None:
    """A client that prefers the damaged replica gets the right rows elsewhere; then the part is repaired."""
    stored = Stored.insert(local, kind)
    stored.flip_bit(DAMAGED)
    with (
        local.connect(DAMAGED) as pinned,
        pinned.snapshot(stored.csn) as snap,
        pytest.raises(PartDamagedError, match=stored.part) as damaged,
    ):
        snap.read(stored.table)
    _fetched_again(damaged.value, stored)
    stored.mended(DAMAGED)
    stored.flip_bit(DAMAGED)
    with connect([local.url(DAMAGED), local.url("r1")]) as db, db.snapshot(stored.csn) as snap:
        assert snap.holder == DAMAGED
        assert snap.read(stored.table).to_pydict() == stored.rows.to_pydict()
        assert snap.sql(f"select count(*) as n from {stored.table}").to_pydict() == {"n": [ROWS[kind]]}
    stored.mended(DAMAGED)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_at_a_damaged_home_is_to_begin_again(local: LocalCluster, name: str) -> None:
    """It did nothing, and an error that may be retried says why; the same one, begun again, works."""
    run = STATEMENTS[name]
    stored = Stored.insert(local, "pack")
    stored.flip_bit(DAMAGED)
    with local.connect(DAMAGED) as db:
        with pytest.raises(PartDamagedError, match=stored.part) as damaged, db.begin() as tx:
            run(tx, stored)
        _fetched_again(damaged.value, stored)
        with pytest.raises(TransactionClosedError):
            tx.read(stored.table)  # half of the statement may have been done
        stored.mended(DAMAGED)
        with db.begin() as tx:
            run(tx, stored)
            assert len(tx.read(stored.table)) == stored.rows.num_rows - (name == "delete")
    require_clean_audit(local)


def test_an_autocommit_statement_begins_again_by_itself(local: LocalCluster) -> None:
    """The client repeats it at the damaged replica, the only one that it knows, until the part is whole."""
    stored = Stored.insert(local, "pack")
    stored.flip_bit(DAMAGED)
    with local.connect(DAMAGED) as db:
        db.delete(stored.table, "k = ?", [stored.rows["k"][0].as_py()], wait="all")
        assert len(db.read(stored.table)) == stored.rows.num_rows - 1


def test_rows_that_land_by_key_at_a_damaged_home_land_later(local: LocalCluster) -> None:
    """Their statement reads the damaged part of the table; it is repeated by the client."""
    table = f"t{next(NAMES)}"
    rows = pa.table({"k": range(ROWS["pack"]), "v": [0] * ROWS["pack"]})
    schema = pa.schema([field.with_nullable(False) for field in rows.schema])
    with local.connect(DAMAGED) as db:
        db.create_table(
            table, schema, properties={"landing": "on", "unique_key": "k", "on_duplicate": "replace"}
        )
        csn = db.land(table, rows.cast(schema)).csn
        assert csn is not None
        (part,) = ask(local, DAMAGED, f"/parts?csn={csn}&table={table}")
        stored = Stored(local, table, rows, csn, part["part"], part["checksum"], part["file"])
        eventually(lambda: all(stored.sound(replica) for replica in REPLICAS), what="the part everywhere")
        stored.flip_bit(DAMAGED)
        db.land(table, pa.table({"k": [1], "v": [1]}, schema=schema))
        found = db.read(table)
    assert (len(found), sum(found["v"].to_pylist())) == (ROWS["pack"], 1)
    stored.mended("r1", "r3")


@pytest.mark.parametrize("kind", ROWS)
def test_late_reports_do_not_undo_a_repair(local: LocalCluster, kind: str) -> None:
    """Many queries meet the damage at once; reports that arrive after the repair change nothing."""
    stored = Stored.insert(local, kind)
    stop = threading.Event()

    def query(_: int) -> int:
        found = 0
        with local.connect(DAMAGED) as db, db.snapshot(stored.csn) as snap:
            while not stop.is_set():
                try:
                    assert snap.read(stored.table).to_pydict() == stored.rows.to_pydict()
                except UnavailableError:
                    found += 1
        return found

    with ThreadPoolExecutor(4) as executor:
        queries = executor.map(query, range(4))
        try:
            for _ in range(10):
                stored.flip_bit(DAMAGED)
                eventually(lambda: stored.sound(DAMAGED), what="a sound part")
        finally:
            stop.set()
        assert sum(queries) > 0
    stored.mended(DAMAGED)


def test_a_change_copies_no_damaged_row_group(local: LocalCluster) -> None:
    """A delete in the last row group finds the first one damaged, which it would copy; it is repaired."""
    stored = Stored.insert(local, "file", ordered=True)
    stored.flip_bit("r1")
    last = stored.rows["k"][-1].as_py()
    with local.connect("r1") as db:
        with pytest.raises(PartDamagedError, match=stored.part), db.begin() as tx:
            tx.delete(stored.table, "k = ?", [last])
        stored.mended("r1")
        with db.begin() as tx:
            done = tx.delete(stored.table, "k = ?", [last])
            assert (done.rows_deleted, done.parts_removed, done.parts_added) == (1, 1, 2)
            tx.commit(wait="all")
    for replica in REPLICAS:
        with local.connect(replica) as db:
            assert sorted(db.read(stored.table)["k"].to_pylist()) == stored.rows["k"].to_pylist()[:-1]
    require_clean_audit(local, deep=True)


@pytest.mark.scenario("S40")
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.few(1)
def test_a_damaged_holder_is_not_believed(local: LocalCluster, kind: str) -> None:
    """A replica that was away finds one holder's bytes wrong, takes the other's, and both are right."""
    local.kill("r3")
    stored = Stored.insert(local, kind)
    stored.flip_bit("r1")
    local.start("r3")
    stored.mended("r1", "r3")


@pytest.mark.scenario("S41")
@pytest.mark.slow
def test_another_valid_file_is_not_taken_for_the_part(local: LocalCluster) -> None:
    """A holder's file is that of another table, and a good one: the checksum decides."""
    local.kill("r3")
    stored, other = Stored.insert(local, "file"), Stored.insert(local, "file")
    shutil.copyfile(other.file("r1"), stored.file("r1"))
    assert pq.read_metadata(stored.file("r1")).num_rows == stored.rows.num_rows
    assert not stored.sound("r1")
    local.start("r3")
    stored.mended("r3")
    assert stored.download("r1") is None or stored.sound("r1")
    stored.mended("r1", "r3")


@pytest.mark.scenario("S42")
@pytest.mark.slow
def test_files_that_are_gone_come_back(local: LocalCluster) -> None:
    """A replica whose files were deleted while it was down fetches them all, and leaves nothing behind."""
    stored = [Stored.insert(local, kind) for kind in (*ROWS, *ROWS)]
    local.kill(DAMAGED)
    for one in stored:
        one.file(DAMAGED).unlink(missing_ok=True)
    local.start(DAMAGED)
    for one in stored:
        one.mended(DAMAGED)
    local.stop(DAMAGED)
    local.start(DAMAGED)
    nothing_left(local.data_dir(DAMAGED))
