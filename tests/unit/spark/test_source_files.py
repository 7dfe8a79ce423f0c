"""Tasks of the data source without Spark: pieces of parts, reads from any replica, files of rows."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.errors import (
    BadRequestError,
    SchemaMismatchError,
    SnapshotTooOldError,
    StandbyError,
    UnavailableError,
    UnknownTableError,
)
from tidelock.read_route import ROUNDS
from tidelock.spark.source import encoding, files, silent
from tidelock.spark.source.encoding import Encoder, FileLayout
from tidelock.spark.source.files import RemoteFile, SnapshotFiles
from tidelock.spark.source.pieces import groups, pieces

# -- pieces --------------------------------------------------------------------------------------------------

_parts = st.lists(
    st.lists(st.integers(1, 50), min_size=1, max_size=6).map(lambda sizes: [4, *sizes, 8]), max_size=6
)


@given(_parts, st.integers(1, 200))
def test_every_row_group_is_read_once(parts: list[list[int]], size: int) -> None:
    """Each row group is in one piece, and tasks have about the wanted size, for all sizes of parts."""
    listed = [
        {"part": str(number), "file": f"t/{number}", "path": "", "rows": 1, "file_length": sum(sizes)}
        for number, sizes in enumerate(parts)
    ]
    planned = groups(pieces(listed, size), size)
    found = [piece for group in planned for piece in group]
    for number, sizes in enumerate(parts):
        begin = sizes[0]
        for width in sizes[1:-1]:
            holders = [piece for piece in found if piece.part == str(number) and piece.holds(begin, width)]
            assert len(holders) == 1
            begin += width
    assert all(sum(piece.end - piece.start for piece in group) <= 2 * size for group in planned)
    assert planned == groups(pieces(listed, size), size)
    whole = groups(pieces(listed, None), size)
    assert sorted(piece.part for group in whole for piece in group) == sorted(
        str(row["part"]) for row in listed
    )


# -- bytes ---------------------------------------------------------------------------------------------------

DATA = bytes(range(256)) * 4


class Replica(ThreadingHTTPServer):
    """The snapshot file system of one replica, as a task sees it; `mode` is its fault."""

    daemon_threads = True

    def __init__(self, mode: str = "good") -> None:
        self.mode = mode
        self.asked: list[tuple[str, str]] = []
        self.thawed = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        """Its `host:port`."""
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Replica

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer as the mode says."""
        self.server.asked.append((self.path, self.headers["Range"]))
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        data, mode = DATA[first : last + 1], self.server.mode
        if mode == "frozen":
            self.server.thawed.wait()
            return
        if mode == "slow":
            for _ in range(3):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        errors = {
            "standby": StandbyError("behind"),
            "missing": UnknownTableError("no such file"),
            "too old": SnapshotTooOldError("gone", min_csn=9),
        }
        error = errors.get(mode)
        body = data if error is None else json.dumps(error.to_wire()).encode()
        status = {"missing": 404, "whole": 200}.get(mode, 206 if error is None else 403)
        body = DATA if mode == "whole" else body[:-1] if mode == "short" else body
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + (mode == "cut")))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = mode == "cut"


@pytest.fixture
def replicas() -> Iterator[Callable[..., list[Replica]]]:
    """Return a function that starts replicas with these modes."""
    started: list[Replica] = []

    def start(*modes: str) -> list[Replica]:
        started.extend(found := [Replica(mode) for mode in modes])
        return found

    yield start
    silent.forget()
    for replica in started:
        replica.thawed.set()
        replica.shutdown()
        replica.server_close()


def snapshot(*found: Replica | str, read_s: float = 5.0) -> SnapshotFiles:
    """Return the files of CSN 7 on some replicas."""
    addresses = [item if isinstance(item, str) else item.address for item in found]
    return SnapshotFiles(7, addresses, connect_s=5, read_s=read_s)


@pytest.mark.parametrize("mode", ["standby", "missing", "short", "cut", "dead"])
def test_another_replica_goes_on(replicas: Callable[..., list[Replica]], mode: str) -> None:
    """If the first replica fails, another one answers at the same CSN, and is asked first from then on."""
    bad, good = replicas("good" if mode == "dead" else mode, "good")
    if mode == "dead":
        bad.shutdown()
        bad.server_close()
    found = snapshot(bad, good)
    assert found.read("default/t/p=a%2Fb/é.parquet", 3, 9) == DATA[3:9]
    assert good.asked == [("/snapshots/7/default/t/p%3Da%252Fb/%C3%A9.parquet", "bytes=3-8")]
    asked = len(bad.asked)
    assert found.read("x", 0, len(DATA)) == DATA
    assert (len(bad.asked), len(good.asked)) == (asked, 2)
    assert found.read("x", 5, 5) == b""
    found.close()


def test_tasks_of_a_process_wait_once_for_a_frozen_replica(
    replicas: Callable[..., list[Replica]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that comes later asks the others first, for a while; one that only refused is not avoided."""
    frozen, standby, good = replicas("frozen", "standby", "good")
    for number in range(3):
        task = snapshot(frozen, standby, good, read_s=0.2)
        assert task.read("x", number, number + 2) == DATA[number : number + 2]
        task.close()
    assert (len(frozen.asked), len(standby.asked), len(good.asked)) == (1, 3, 3)
    monkeypatch.setattr(silent, "AVOIDED_S", 0.0)
    silent.note(frozen.address)
    assert silent.last([frozen.address, good.address]) == [frozen.address, good.address]


def test_signs_of_life_are_read_over(replicas: Callable[..., list[Replica]]) -> None:
    """A replica that works on an answer says so before it, any number of times."""
    slow, good = replicas("slow", "good")
    assert snapshot(slow, good).read("x", 3, 9) == DATA[3:9]
    assert good.asked == []


def test_when_no_replica_can_all_are_asked_again(
    replicas: Callable[..., list[Replica]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replicas are asked several times; a refusal of the snapshot itself ends the read at once."""
    monkeypatch.setattr(files, "PAUSE_S", 0.0)
    one, two = replicas("standby", "cut")
    message = r"no replica returns x at CSN 7 .*behind.*no complete answer"
    with pytest.raises(UnavailableError, match=message):
        snapshot(one, two).read("x", 0, 3)
    assert len(one.asked) == len(two.asked) == ROUNDS
    old, good = replicas("too old", "good")
    with pytest.raises(SnapshotTooOldError):
        snapshot(old, good).read("x", 0, 3)
    assert good.asked == []


@given(st.lists(st.tuples(st.integers(0, 1100), st.integers(-1, 300)), max_size=8))
def test_a_file_of_a_snapshot(steps: list[tuple[int, int]]) -> None:
    """A file of a snapshot is read as a file on a disk is."""

    class Memory(SnapshotFiles):
        def __init__(self) -> None:
            """Connect to nothing."""

        def read(self, file: str, start: int, end: int) -> bytes:
            assert 0 <= start == end or 0 <= start <= end <= len(DATA)
            return DATA[start:end]

    remote, local = RemoteFile(Memory(), "x", len(DATA)), io.BytesIO(DATA)
    for position, size in steps:
        assert remote.seek(position) == local.seek(position)
        assert remote.read(size) == local.read(size)
    assert remote.seek(-4, io.SEEK_END) == local.seek(-4, io.SEEK_END)


# -- files ---------------------------------------------------------------------------------------------------

ARROW = pa.schema([pa.field("id", pa.int64(), nullable=False), ("p", pa.string()), ("day", pa.date32())])
LAYOUT = FileLayout("default.t", ARROW, ("p",), ("id",))


class FileStore:
    """The files that a task has sent, by path."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.open = self.most = 0

    def begin(self, path: str, number: int) -> Any:
        """Begin a file."""
        self.open += 1
        self.most = max(self.most, self.open)
        return _StoredFile(self, f"{path}/{number}")


class _StoredFile(io.BytesIO):
    def __init__(self, store: FileStore, path: str) -> None:
        super().__init__()
        self.path, self._store = path, store

    @property
    def length(self) -> int:
        return len(self.getvalue())

    def finish(self) -> None:
        self._store.files[self.path] = self.getvalue()
        self._store.open -= 1

    def close(self) -> None:
        """Do nothing; the Parquet writer does not own the file."""


def batch(ids: range, partitions: int) -> pa.RecordBatch:
    """Return unsorted rows of several partitions."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array(list(reversed(ids)), pa.int64()),
            pa.array([None if number % partitions == 0 else f"{number % partitions}/x" for number in ids]),
            pa.array([dt.date(2026, 1, 1)] * len(ids)),
        ],
        schema=ARROW,
    )


@pytest.mark.parametrize(
    ("rows", "waiting", "length", "open_"), [(100, 1 << 20, 1 << 20, 3), (7, 600, 900, 2)]
)
def test_rows_become_bounded_files_of_their_partitions(
    monkeypatch: pytest.MonkeyPatch, rows: int, waiting: int, length: int, open_: int
) -> None:
    """No row is lost, each is in its partition; files and memory are bounded, row groups are sorted."""
    monkeypatch.setattr(encoding, "ROW_GROUP_ROWS", rows)
    monkeypatch.setattr(encoding, "ROW_GROUP_BYTES", waiting)
    monkeypatch.setattr(encoding, "FILE_BYTES", length)
    monkeypatch.setattr(encoding, "FILES_OPEN_MAX", open_)
    store = FileStore()
    encoder = Encoder(LAYOUT, store.begin)
    for begin in range(0, 400, 40):
        encoder.add(batch(range(begin, begin + 40), 5))
        assert encoder._waiting_bytes <= waiting
    encoder.finish()
    assert encoder.rows == 400
    assert sorted(encoder.files) == sorted(store.files)
    assert store.most <= open_
    assert store.open == 0
    found: dict[str, list[int]] = {}
    for path, data in store.files.items():
        part = pq.ParquetFile(io.BytesIO(data))
        assert part.schema_arrow.names == ["id", "day"]
        for group in range(part.num_row_groups):
            ids = part.read_row_group(group)["id"].to_pylist()
            assert ids == sorted(ids)
            assert len(ids) <= rows
            found.setdefault(path.rpartition("/")[0], []).extend(ids)
    assert set(found) == {
        "p=__HIVE_DEFAULT_PARTITION__",
        *(f"p={number}%2Fx" for number in range(1, 5)),
    }
    assert sorted(itertools.chain(*found.values())) == list(range(400))


def test_a_nan_that_comes_late_begins_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The footer of the first file has a range for all its rows; the next one has none for that column."""
    monkeypatch.setattr(encoding, "ROW_GROUP_ROWS", 2)
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    store = FileStore()
    encoder = Encoder(FileLayout("default.t", schema, (), ()), store.begin)
    values = [1.0, 2.0, 3.0, 4.0, math.nan, 5.0, 6.0, 7.0]
    encoder.add(pa.RecordBatch.from_arrays([pa.array(range(8)), pa.array(values)], schema=schema))
    encoder.finish()
    files = [pq.ParquetFile(io.BytesIO(store.files[path])) for path in encoder.files]
    ranged = [
        [file.metadata.row_group(group).column(1).is_stats_set for group in range(file.num_row_groups)]
        for file in files
    ]
    assert ranged == [[True, True], [False, False]]
    assert [row["id"] for file in files for row in file.read().to_pylist()] == list(range(8))


def test_rows_that_do_not_fit() -> None:
    """The error of a null in a required column names the column; a table without partitions is refused."""
    arrays = [pa.array([1, None]), pa.array(["a", "b"]), pa.array([None, None], pa.date32())]
    with pytest.raises(SchemaMismatchError, match=r"column id of table default\.t is required"):
        LAYOUT.conform(arrays, ARROW.names)
    found = LAYOUT.conform([arrays[1], arrays[2], pa.array([3, 4], pa.int64())], ["p", "day", "id"])
    assert found.schema.equals(ARROW)
    with pytest.raises(BadRequestError, match="has no partitions"):
        FileLayout("t", ARROW, (), ()).require_partitions()
