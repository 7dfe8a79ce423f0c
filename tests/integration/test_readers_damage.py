"""Damaged parts: readers send no wrong byte, report the damage once, and notice a repair."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.readers import ReaderHost
from tests.support.waiting import TIMEOUT_S, eventually
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replication.core.digest import BLOCK_BYTES
from tidelock.replication.core.part_frames import FrameReader, LackedPart, SentPart

SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.float64())])
#: Errors of a client whose answer is cut before its declared length.
CUT = (ConnectionResetError, http.client.IncompleteRead)


def _rows(count: int, seed: int) -> pa.Table:
    return pa.table({"id": range(count), "price": np.random.default_rng(seed).random(count)}, schema=SCHEMA)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """Two tables, to which each test adds parts of its own."""
    made = DataDir(tmp_path_factory.mktemp("damage") / "r1")
    made.create_table(2, "t", SCHEMA)
    made.create_table(2, "u", SCHEMA)
    return made


@pytest.fixture(scope="module")
def readers(data: DataDir) -> Iterator[ReaderHost]:
    """Readers with one worker, so that the next request meets its memory, and with small reads."""
    with ReaderHost(data.path, reader_workers=1, read_chunk_bytes=2 * BLOCK_BYTES) as running:
        yield running


@pytest.fixture
def host(readers: ReaderHost) -> ReaderHost:
    """The readers, without a report so far: a test that damages a part waits for the report of it."""
    readers.forget_events()
    return readers


@pytest.fixture
def large(data: DataDir) -> PartRow:
    """A new part in a file of its own: at least sixteen blocks."""
    (part,) = data.insert(data.meta("snapshot_csn") + 1, {"default.t": _rows(500_000, 3)})
    assert part.length > 16 * BLOCK_BYTES
    return part


@pytest.fixture
def pack(data: DataDir) -> list[PartRow]:
    """Two new parts in one pack."""
    rows = {"default.t": _rows(10, 1), "default.u": _rows(20, 2)}
    return data.insert(data.meta("snapshot_csn") + 1, rows, pack=True)


@pytest.fixture
def own_host(data: DataDir, tmp_path: Path) -> Iterator[tuple[ReaderHost, DataDir]]:
    """Readers over a copy of the data, for tests that change files of other tests."""
    copy = data.copy(tmp_path / "r1")
    with ReaderHost(copy.path, reader_workers=1) as running:
        yield running, copy


def _path(part: PartRow, csn: int | None = None) -> str:
    """Return the path of a part, by default at the CSN that made it."""
    return f"/snapshots/{csn or part.creation_csn}/default/{part.table.removeprefix('default.')}/{part.name}"


def _received(host: ReaderHost, part: PartRow) -> bytes:
    """Return all bytes of the body that arrive on a raw connection, in whichever way it ends."""
    with socket.create_connection(("127.0.0.1", host.port), timeout=TIMEOUT_S) as connection:
        connection.sendall(f"GET {_path(part)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        received = bytearray()
        try:
            while piece := connection.recv(1 << 16):
                received += piece
        except ConnectionResetError:
            pass
    return bytes(received).partition(b"\r\n\r\n")[2]


def _standby(host: ReaderHost, part: PartRow) -> bool:
    answer = host.webhdfs("OPEN", _path(part))
    return answer.status == 403 and answer.exception == "StandbyException"


@pytest.mark.parametrize("block", [1, 2, 3, 7, 15])
def test_a_flipped_bit_cuts_the_answer_before_its_block(
    host: ReaderHost, data: DataDir, large: PartRow, block: int
) -> None:
    """Bytes before the damaged block are right, the answer ends there; later reads are sent elsewhere."""
    intact = data.data(large)
    data.flip_bit(large, block * BLOCK_BYTES + 12345)
    received = _received(host, large)
    assert received == intact[: len(received)]
    assert len(received) <= block * BLOCK_BYTES
    assert host.event()["corrupt"] == large.part
    assert _standby(host, large)


def test_a_cut_answer_is_an_error_for_the_client(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """No client can take a cut answer for the whole."""
    data.flip_bit(large, 10 * BLOCK_BYTES)
    with pytest.raises(CUT):
        host.webhdfs("OPEN", _path(large))
    assert host.event()["corrupt"] == large.part


def test_damage_in_the_first_block_is_answered(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """Damage where the read begins is found before the first byte: the answer is "ask another replica"."""
    data.flip_bit(large, 5)
    assert _standby(host, large)
    assert host.get(_path(large)).status == 503
    assert host.event() == {
        "corrupt": large.part,
        "detail": f"block 0 of file {large.file} does not match its digest",
    }


def test_damage_elsewhere_does_not_matter(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """A read that does not touch the damaged block is served."""
    data.flip_bit(large, 10 * BLOCK_BYTES)
    whole = data.data(large)
    answer = host.webhdfs("OPEN", _path(large), offset=0, length=10 * BLOCK_BYTES)
    assert answer.body == whole[: 10 * BLOCK_BYTES]
    assert host.webhdfs("OPEN", _path(large), offset=11 * BLOCK_BYTES).body == whole[11 * BLOCK_BYTES :]
    assert host.no_more_events()


def test_neighbours_in_a_pack_are_served(host: ReaderHost, data: DataDir, pack: list[PartRow]) -> None:
    """A damaged slice of a pack does not affect the other slices."""
    first, second = pack
    assert first.file == second.file
    data.flip_bit(second, 100)
    assert _standby(host, second)
    assert host.event()["corrupt"] == second.part
    assert host.webhdfs("OPEN", _path(first)).body == data.data(first)


def _truncate(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1)


def _append(file: Path) -> None:
    file.write_bytes(b"x" + file.read_bytes())


@pytest.mark.scenario("S42")
@pytest.mark.parametrize("harm", [_truncate, Path.unlink, lambda file: file.write_bytes(b""), _append])
def test_a_file_that_is_not_whole(
    host: ReaderHost, data: DataDir, large: PartRow, harm: Callable[[Path], None]
) -> None:
    """A truncated, missing, emptied or shifted file is damage: never "not found", never wrong bytes."""
    assert large.file is not None
    harm(data.path / large.file)
    assert _standby(host, large)
    assert host.event()["corrupt"] == large.part
    status = host.webhdfs("GETFILESTATUS", _path(large))
    assert status.json()["FileStatus"]["length"] == large.length


def test_a_file_truncated_while_it_is_read(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """A file that shrinks under a running answer cuts it."""
    assert large.file is not None
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=TIMEOUT_S)
    connection.request("GET", _path(large))
    response = connection.getresponse()
    intact = data.data(large)
    with (data.path / large.file).open("r+b") as opened:
        opened.truncate(BLOCK_BYTES)
    with pytest.raises(CUT) as cut:
        response.read()
    connection.close()
    if isinstance(cut.value, http.client.IncompleteRead):
        assert cut.value.partial == intact[: len(cut.value.partial)]
    assert host.event()["corrupt"] == large.part


def test_what_cannot_be_opened_is_read_elsewhere(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """A file that the system refuses to open, e.g. one too many, fails no job and causes no fetch."""
    assert large.file is not None
    file = data.path / large.file
    file.rename(file.with_suffix(".aside"))
    file.symlink_to(file.name)  # the open is refused for a reason that does not concern the bytes
    assert _standby(host, large)
    assert host.no_more_events()
    file.unlink()
    file.with_suffix(".aside").rename(file)
    assert host.webhdfs("OPEN", _path(large)).body == data.data(large)


def test_damage_is_reported_once(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """One reader reports one damage once, after any number of reads."""
    data.flip_bit(large, 5)
    for _ in range(5):
        assert _standby(host, large)
    assert host.event()["corrupt"] == large.part
    assert host.no_more_events()


def test_damage_among_many_parts_is_of_that_part(
    host: ReaderHost, data: DataDir, pack: list[PartRow]
) -> None:
    """In an answer with many parts the damaged one is left out and reported, and the others are sent."""
    data.flip_bit(pack[1], 5)
    asked = json.dumps({"parts": [part.part for part in pack]}).encode()
    answer = host.request("POST", "/parts", {"Content-Type": "application/json"}, asked)
    frames = {frame.part: frame for frame in FrameReader().feed(answer.body)}
    assert isinstance(frames.pop(pack[1].part), LackedPart)
    others = {part.part: SentPart(part.part, data.data(part)) for part in pack if part is not pack[1]}
    assert frames == others
    assert others
    assert host.event()["corrupt"] == pack[1].part


def test_a_repair_in_place_is_noticed(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """A whole file renamed over the damaged one is served at once."""
    assert large.file is not None
    file = data.path / large.file
    shutil.copy(file, file.with_suffix(".repaired"))
    intact = data.data(large)
    data.flip_bit(large, 5)
    assert _standby(host, large)
    assert host.event()["corrupt"] == large.part
    file.with_suffix(".repaired").replace(file)
    assert host.webhdfs("OPEN", _path(large)).body == intact


def test_a_repair_elsewhere_is_noticed(host: ReaderHost, data: DataDir, pack: list[PartRow]) -> None:
    """A damaged slice is served from its new file as soon as the catalog names that."""
    part = pack[1]
    intact = data.data(part)
    data.flip_bit(part, 5)
    assert _standby(host, part)
    assert host.event()["corrupt"] == part.part
    with data.sql() as db:
        db.execute("UPDATE parts SET state = 'quarantined' WHERE part = ?", (part.part,))
    assert _standby(host, part)
    assert host.get(f"/parts/{part.part}").status == 404
    (data.path / "parts/repaired.parquet").write_bytes(intact)
    with data.sql() as db:
        db.execute(
            "UPDATE parts SET state = 'held', file = 'parts/repaired.parquet', offset = 0 WHERE part = ?",
            (part.part,),
        )
    assert host.webhdfs("OPEN", _path(part)).body == intact


def test_parts_that_are_wanted_here(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """A part without a file here, or in quarantine, exists and is read elsewhere."""
    for state, file in (("wanted", None), ("quarantined", large.file)):
        with data.sql() as db:
            db.execute("UPDATE parts SET state = ?, file = ? WHERE part = ?", (state, file, large.part))
        assert _standby(host, large)
        assert host.webhdfs("GETFILESTATUS", _path(large)).status == 200
    assert host.no_more_events()


def test_digests_that_do_not_cover_the_part(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """Bytes without matching digests are not served."""
    with data.sql() as db:
        db.execute("UPDATE parts SET blocks = substr(blocks, 1, 16) WHERE part = ?", (large.part,))
    assert _standby(host, large)
    assert "digests" in host.event()["detail"]


def test_an_unreadable_catalog_is_loud(large: PartRow, own_host: tuple[ReaderHost, DataDir]) -> None:
    """A failure inside the agent gets the error class that no Spark mode ignores, never "not found"."""
    host, data = own_host
    with data.sql() as db:
        db.execute("ALTER TABLE parts RENAME TO gone")
    path = _path(large)
    for op, place in (("OPEN", path), ("GETFILESTATUS", path), ("LISTSTATUS", path.rpartition("/")[0])):
        assert host.webhdfs(op, place).exception == "AccessControlException"
    answer = host.get(path)
    assert (answer.status, json.loads(answer.body)["error"]) == (500, "TidelockError")


def test_a_horizon_that_rises_is_seen_at_once(own_host: tuple[ReaderHost, DataDir]) -> None:
    """A cached listing is refused too as soon as its CSN is below the horizon."""
    host, data = own_host
    old = data.meta("snapshot_csn")
    data.insert(old + 1, {"default.t": _rows(1, 1)})
    listing = f"/snapshots/{old}/default/t"
    assert host.webhdfs("LISTSTATUS", listing).status == 200
    data.set(horizon=old + 1)
    assert host.webhdfs("LISTSTATUS", listing).exception == "AccessControlException"
    assert host.webhdfs("LISTSTATUS", f"/snapshots/{old + 1}/default/t").status == 200


def test_a_collected_part_is_not_found_only_above_the_horizon(own_host: tuple[ReaderHost, DataDir]) -> None:
    """The horizon is noted before rows are deleted, so a deleted part is answered with "too old"."""
    host, data = own_host
    before = data.meta("snapshot_csn") + 1
    (part,) = data.insert(before, {"default.t": _rows(1, 1)})
    data.remove(before + 1, part.part)
    data.set(horizon=before + 1)
    with data.sql() as db:
        db.execute("DELETE FROM parts WHERE part = ?", (part.part,))
    assert host.webhdfs("OPEN", _path(part, before)).exception == "AccessControlException"
    assert host.webhdfs("OPEN", _path(part, before + 1)).exception == "FileNotFoundException"


def test_a_file_that_is_deleted_under_a_reader(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """A part that is deleted while it is sent is sent to its end: the open file stays readable."""
    assert large.file is not None
    intact = data.data(large)
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=TIMEOUT_S)
    connection.request("GET", _path(large))
    response = connection.getresponse()
    (data.path / large.file).unlink()
    assert response.read() == intact
    connection.close()
    assert eventually(host.no_more_events)
