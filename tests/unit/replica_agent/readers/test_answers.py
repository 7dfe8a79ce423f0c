"""The answers of readers: bodies, refusals, ranges, listings. Pure."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock import errors
from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.replica_agent.readers import hdfs, ranges, tree
from tidelock.replica_agent.readers import messages as msg
from tidelock.replica_agent.readers.availability import ReadAvailability
from tidelock.replica_agent.readers.catalog import FolderRow
from tidelock.replica_agent.readers.content import DamagedPartError, Place
from tidelock.replica_agent.readers.messages import ReaderConfig
from tidelock.replica_agent.readers.paths import NoSuchPathError
from tidelock.replica_agent.readers.ranges import UnsatisfiableRangeError


def _classes(root: type[errors.TidelockError]) -> list[type[errors.TidelockError]]:
    return [root, *(found for child in root.__subclasses__() for found in _classes(child))]


def _java_class(error: Exception) -> tuple[int, str]:
    status, body = hdfs.refusal(error)
    return status, json.loads(body)["RemoteException"]["javaClassName"]


def test_only_a_missing_name_is_file_not_found() -> None:
    """FileNotFoundException, which Spark may read as "no rows", is for a name that does not exist."""
    assert _java_class(NoSuchPathError("x")) == (404, "java.io.FileNotFoundException")


def test_only_standby_sends_the_client_on() -> None:
    """StandbyException is for requests that another replica may be able to answer."""
    assert _java_class(errors.StandbyError("x")) == (403, "org.apache.hadoop.ipc.StandbyException")


@pytest.mark.parametrize(
    "error",
    [
        *(
            kind("x")
            for kind in _classes(errors.TidelockError)
            if kind not in {NoSuchPathError, errors.StandbyError, DamagedPartError}
        ),
        DamagedPartError(PartId("r1-1-1"), "x", Place("f", 0, 0, 0)),
        OSError("x"),
        FileNotFoundError("x"),
        RuntimeError("x"),
        AssertionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_everything_else_is_loud(error: Exception) -> None:
    """Every other error, also an unexpected one, is the class that Spark swallows in no mode."""
    assert _java_class(error) == (403, "org.apache.hadoop.security.AccessControlException")


def test_refusals_name_the_class_twice() -> None:
    """A RemoteException has the simple and the full name of its class, and the error for our own clients."""
    _, body = hdfs.refusal(errors.BadRequestError('"quoted" ünd\n', column="k"))
    assert json.loads(body) == {
        "RemoteException": {
            "exception": "AccessControlException",
            "javaClassName": "org.apache.hadoop.security.AccessControlException",
            "message": 'BadRequestError: "quoted" ünd\n',
            "tidelock": {
                "error": "BadRequestError",
                "message": '"quoted" ünd\n',
                "details": {"column": "k"},
            },
        }
    }


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("ready", None),
        ("standby", errors.StandbyError),
        ("suspended", errors.StandbyError),
        ("beyond", errors.NoSuchCsnError),
        ("too_old", errors.SnapshotTooOldError),
        ("fenced", errors.FencedError),
    ],
)
def test_verdicts_of_the_agent_become_errors_with_reasons(state: str, error: type[Exception] | None) -> None:
    """Each state in the agent's answer becomes one error, with the agent's reason."""
    refusal = ReadAvailability(state, "why").refusal(Csn(5))  # type: ignore[arg-type] # the table's words
    assert refusal is None if error is None else (type(refusal) is error and str(refusal) == "why")


def test_an_unknown_availability_is_refused() -> None:
    """A state that readers do not know is refused."""
    with pytest.raises(ValueError, match="perhaps"):
        ReadAvailability("perhaps")  # type: ignore[arg-type] # on purpose


def test_the_configuration_crosses_the_socketpair() -> None:
    """The configuration is read back as it was sent, and the secret does not appear in logs."""
    config = ReaderConfig(
        data_dir="/d", replica="r1", host="host", port=1, secret="se\ncret", counters_file="/c", api="",
        read_wait_s=1.0, read_chunk_bytes=1 << 20, send_buffer_bytes=1 << 18, listing_cache_entries=10,
        combined_part_bytes_max=1 << 20, threads=2, footer_cache_entries=10, read_report_s=30.0,
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(config), type=ReaderConfig) == config
    assert "cret" not in repr(config)


@pytest.mark.parametrize(
    "message",
    [
        msg.Wait(7, Csn(5)),
        msg.CsnRead(Csn(5)),
        msg.CorruptPart(PartId("r1-1-1"), "block 3"),
        msg.LogError("failed", {"a": "b"}),
        msg.Drained(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_of_a_reader_is_read_back(message: msg.FromReader) -> None:
    """The agent gets what the reader has sent."""
    assert msgspec.json.decode(msgspec.json.encode(message), type=msg.FromReader) == message


@pytest.mark.parametrize(
    "message",
    [msg.WaitAnswer(7, ReadAvailability("standby", "why")), msg.Drain(), msg.Released(PartId("r1-1-1"))],
    ids=lambda message: type(message).__name__,
)
def test_a_message_to_a_reader_is_read_back(message: msg.ToReader) -> None:
    """The reader gets what the agent has sent."""
    assert msgspec.json.decode(msgspec.json.encode(message), type=msg.ToReader) == message


def test_an_answer_with_an_unknown_availability_is_refused() -> None:
    """A state that readers do not know does not cross the socketpair either."""
    sent = msgspec.json.encode(msg.WaitAnswer(7, ReadAvailability("ready"))).replace(b"ready", b"perhaps")
    with pytest.raises(msgspec.ValidationError, match="perhaps"):
        msgspec.json.decode(sent, type=msg.ToReader)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=5-", (5, 100)),
        ("bytes=5-9", (5, 10)),
        ("bytes=5-1000", (5, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes=9-5", None),
        ("bytes=0-1,5-6", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("lines=0-1", None),
        ("bytes=٣-", None),
    ],
)
def test_ranges_are_cut_and_malformed_ones_mean_the_whole(
    header: str | None, found: tuple[int, int] | None
) -> None:
    """A single range is honoured, cut at the end; anything malformed means the whole (RFC 9110)."""
    assert ranges.parse(header, 100) == found


@pytest.mark.parametrize(
    ("header", "length"), [("bytes=100-", 100), ("bytes=100-200", 100), ("bytes=-0", 100), ("bytes=0-", 0)]
)
def test_ranges_of_nothing_are_refused(header: str, length: int) -> None:
    """A range without any byte is refused."""
    with pytest.raises(UnsatisfiableRangeError):
        ranges.parse(header, length)


def _names(listing: bytes) -> list[str]:
    return [entry["pathSuffix"] for entry in json.loads(listing)["FileStatuses"]["FileStatus"]]


def _folder(path: str, *parts: str, length: int = 1) -> FolderRow:
    entries = [hdfs.file_entry(f"{part}.parquet", length, 5) for part in parts]
    return FolderRow(path, len(parts), length * len(parts), b",".join(entries))


def test_a_tree_of_two_levels() -> None:
    """Folders lead to folders, folders to parts, and the table's folder shows its metadata."""
    rows = [
        _folder("a=1/b=x", "r1-1-1", length=10),
        _folder("a=1/b=y", "r1-1-2", length=20),
        _folder("a=2/b=x", "r1-1-3", length=40),
    ]
    built = tree.build(rows, 100)
    assert {path: _names(folder.listing) for path, folder in built.folders.items()} == {
        "": ["a=1", "a=2", "_common_metadata"],
        "a=1": ["b=x", "b=y"],
        "a=1/b=x": ["r1-1-1.parquet"],
        "a=1/b=y": ["r1-1-2.parquet"],
        "a=2": ["b=x"],
        "a=2/b=x": ["r1-1-3.parquet"],
    }
    assert built.totals("") == (6, 4, 170)
    assert built.totals("a=1") == (3, 2, 30)
    assert built.totals("a=2/b=x") == (1, 1, 40)


def test_a_tree_without_parts() -> None:
    """An empty table is a folder with metadata."""
    built = tree.build([], 100)
    assert _names(built.folders[""].listing) == ["_common_metadata"]
    assert list(built.folders) == [""]


def test_a_large_listing_weighs_more() -> None:
    """The cache counts a large listing as several entries, so that its bound also bounds memory."""
    built = tree.build([_folder("", *(f"r1-1-{number}" for number in range(1000)))], 1)
    assert built.weight == 1 + len(built.folders[""].listing) // tree.ENTRY_BYTES > 1


SEGMENTS = st.lists(st.sampled_from(["p=1", "p=2", "q=é", "q=%2F"]), max_size=3).map("/".join)


@given(st.lists(SEGMENTS, max_size=20, unique=True))
def test_every_part_is_reached_once(folders: list[str]) -> None:
    """Walking down from the table's folder meets each part exactly once, whatever the folders are."""
    parts = [f"r1-1-{number}" for number in range(len(folders))]
    built = tree.build([_folder(*pair) for pair in zip(folders, parts, strict=True)], 1)
    met: list[str] = []
    ahead = [""]
    while ahead:
        folder = ahead.pop()
        for entry in json.loads(built.folders[folder].listing)["FileStatuses"]["FileStatus"]:
            name = entry["pathSuffix"]
            path = f"{folder}/{name}" if folder else name
            (ahead if entry["type"] == "DIRECTORY" else met).append(path)
    met.remove("_common_metadata")
    expected = [f"{folder}/{part}.parquet".lstrip("/") for folder, part in zip(folders, parts, strict=True)]
    assert sorted(met) == sorted(expected)
