"""The snapshot file system over HTTP: a real reader pool over a hand-made catalog, all its answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.replicas.datadir import TIME_MS, DataDir
from tests.support.replicas.readers import Answer, ReaderHost
from tests.support.waiting import TIMEOUT_S
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replication.core.digest import BLOCK_BYTES
from tidelock.replication.core.part_frames import (
    GROUP_BYTES_MAX,
    GROUP_PARTS_MAX,
    FrameReader,
    LackedPart,
    PartFrame,
    SentPart,
)

SECRET = "tide"
CITIES = [
    "Zürich",
    "a/b%c",
    "007",
    None,
    "東京 #1",
    'q"?*:=\\[]{}^',
    "new\nline",
    "..",
    "a b+c&d;e",
    "Straße/ß",
]
ORDERS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("city", pa.string())])
ITEMS = pa.schema([("id", pa.int64()), ("price", pa.float64())])
#: The commits: tables at 2 and 3, rows at 4 (a pack) and 5 (large files), one part removed at 6.
REMOVED_AT = 6
HORIZON = 3


def _orders(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + len(CITIES)), "name": CITIES, "city": CITIES}, schema=ORDERS)


def _prices(rows: int) -> pa.Table:
    # Random doubles do not compress, so the size of a part is known: several blocks, the last one short.
    return pa.table({"id": range(rows), "price": np.random.default_rng(7).random(rows)}, schema=ITEMS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """Two tables, hostile partitions, a pack and large files; no test of this file changes them."""
    made = DataDir(tmp_path_factory.mktemp("readers") / "r1")
    made.create_table(2, "orders", ORDERS, partition_by=["city"])
    made.create_table(3, "sales.items", ITEMS)
    made.insert(4, {"default.orders": _orders(0), "sales.items": _prices(10)}, pack=True)
    made.insert(5, {"default.orders": _orders(100), "sales.items": _prices(150_000)})
    made.remove(REMOVED_AT, made.parts("sales.items")[0].part)
    made.set(horizon=HORIZON)
    return made


@pytest.fixture(scope="module")
def host(data: DataDir) -> Iterator[ReaderHost]:
    """Readers over the data directory."""
    with ReaderHost(data.path, secret=SECRET, advertise="r1.example", advertise_data_port=8901) as running:
        yield running


@pytest.fixture(scope="module")
def large(data: DataDir) -> PartRow:
    """A part of several blocks in a file of its own, visible at 5 and later."""
    part = data.parts("sales.items")[1]
    assert part.length > 4 * BLOCK_BYTES
    assert part.length % BLOCK_BYTES
    return part


@pytest.fixture(scope="module")
def slice_of_pack(data: DataDir) -> PartRow:
    """A part that lies in the middle of a pack."""
    part = data.parts("default.orders")[2]
    assert part.offset > 0
    return part


def _path(part: PartRow, csn: int = 6) -> str:
    return f"/snapshots/{csn}/{part.table.replace('.', '/')}/{part.name}"


def _list(host: ReaderHost, path: str) -> list[dict[str, Any]]:
    answer = host.webhdfs("LISTSTATUS", path)
    assert answer.status == 200, answer
    statuses: list[dict[str, Any]] = answer.json()["FileStatuses"]["FileStatus"]
    return statuses


def _walk(host: ReaderHost, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all files below a path, with the status in the listing of their folder."""
    for status in _list(host, path):
        inside = f"{path}/{status['pathSuffix']}"
        if status["type"] == "DIRECTORY":
            yield from _walk(host, inside)
        else:
            yield inside, status


# -- names and listings ------------------------------------------------------------------------------------


def test_the_root_leads_to_every_part(host: ReaderHost, data: DataDir) -> None:
    """A walk from the root finds exactly the parts of the newest CSN, whatever the values are."""
    parts = [*data.parts("default.orders"), data.parts("sales.items")[1]]
    expected = {_path(part) for part in parts}
    expected |= {f"/snapshots/6/{table}/_common_metadata" for table in ("default/orders", "sales/items")}
    assert {path for path, _ in _walk(host, "")} == expected


@pytest.mark.parametrize(("csn", "orders", "items"), [(3, 0, 0), (4, 10, 1), (5, 20, 2), (6, 20, 1)])
def test_a_listing_shows_what_is_visible(host: ReaderHost, csn: int, orders: int, items: int) -> None:
    """Each CSN lists its own parts, also when it is not the newest."""
    for table, count in (("default/orders", orders), ("sales/items", items)):
        files = [path for path, _ in _walk(host, f"/snapshots/{csn}/{table}") if path.endswith(".parquet")]
        assert len(files) == count


def test_a_status_is_what_its_folder_shows(host: ReaderHost) -> None:
    """The status of a file has the length and time that the listing of its folder shows."""
    for path, listed in _walk(host, "/snapshots/6"):
        answer = host.webhdfs("GETFILESTATUS", path)
        assert answer.status == 200
        assert answer.json()["FileStatus"] == listed | {"pathSuffix": ""}


def test_times_are_those_of_the_commits(host: ReaderHost, large: PartRow) -> None:
    """A part's time is that of its commit, so it never changes."""
    status = host.webhdfs("GETFILESTATUS", _path(large)).json()["FileStatus"]
    assert status["modificationTime"] == TIME_MS + 5


@pytest.mark.parametrize(
    "path", ["", "/snapshots", "/snapshots/6", "/snapshots/6/sales", "/snapshots/6/sales/items"]
)
def test_folders_are_known_with_and_without_a_slash(host: ReaderHost, path: str) -> None:
    """Every folder on the way has the status of a folder, with and without a slash at its end."""
    for variant in (path, f"{path}/"):
        status = host.webhdfs("GETFILESTATUS", variant).json()["FileStatus"]
        assert (status["type"], status["length"]) == ("DIRECTORY", 0)


def test_a_file_lists_as_itself(host: ReaderHost, large: PartRow) -> None:
    """LISTSTATUS of a file is its status, as in HDFS."""
    (status,) = _list(host, _path(large))
    assert (status["pathSuffix"], status["type"], status["length"]) == ("", "FILE", large.length)


def test_a_batched_listing_is_the_whole(host: ReaderHost) -> None:
    """Hadoop's shell asks for batches and gets everything in the first."""
    answer = host.webhdfs("LISTSTATUS_BATCH", "/snapshots/6/sales/items").json()["DirectoryListing"]
    assert answer["remainingEntries"] == 0
    statuses = answer["partialListing"]["FileStatuses"]["FileStatus"]
    assert statuses == _list(host, "/snapshots/6/sales/items")


def test_common_metadata_is_the_schema(host: ReaderHost, data: DataDir) -> None:
    """The virtual file holds the schema in the catalog, by OPEN with a range and by plain GET."""
    path = "/snapshots/3/default/orders/_common_metadata"
    with data.sql() as db:
        (expected,) = db.execute(
            "SELECT common_metadata FROM tables WHERE name = 'default.orders'"
        ).fetchone()
    assert host.get(path).body == expected
    assert host.webhdfs("OPEN", path).body == expected
    assert host.webhdfs("OPEN", path, offset=4, length=6).body == expected[4:10]
    assert host.get(path, Range="bytes=-8").body == expected[-8:]


# -- bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, None),
        (0, 0),
        (0, 1),
        (5, 10),
        (BLOCK_BYTES - 1, 2),
        (BLOCK_BYTES, BLOCK_BYTES),
        (BLOCK_BYTES + 1, 3 * BLOCK_BYTES),
        (-8, None),
        (-8, 8),
        (-1, 1000),
        (-BLOCK_BYTES - 1, BLOCK_BYTES),
    ],
)
def test_open_gives_the_bytes(
    host: ReaderHost, data: DataDir, large: PartRow, offset: int, length: int | None
) -> None:
    """Any range gives exactly the part's bytes, cut at its end; a negative offset counts from the end."""
    start = offset % large.length
    query: dict[str, Any] = {"offset": start} | ({} if length is None else {"length": length})
    answer = host.webhdfs("OPEN", _path(large), **query)
    stored = data.data(large)
    assert answer.status == 200
    assert answer.body == (stored[start:] if length is None else stored[start : start + length])
    assert int(answer.headers["Content-Length"]) == len(answer.body)


def test_open_of_a_slice(host: ReaderHost, data: DataDir, slice_of_pack: PartRow) -> None:
    """A part in a pack is its slice and nothing of its neighbours."""
    answer = host.webhdfs("OPEN", _path(slice_of_pack))
    assert answer.body == data.data(slice_of_pack)


def test_open_at_the_end_is_empty(host: ReaderHost, large: PartRow) -> None:
    """A read at the end gives no bytes, a read behind the end is refused."""
    assert host.webhdfs("OPEN", _path(large), offset=large.length).body == b""
    assert host.webhdfs("OPEN", _path(large), offset=large.length + 1).exception == "AccessControlException"


def test_raw_utf8_in_the_request_line(host: ReaderHost, data: DataDir) -> None:
    """Hadoop's client sends names as raw UTF-8 bytes in the request line."""
    part = next(part for part in data.parts("default.orders") if "東京" in part.path)
    target = f"/webhdfs/v1{_path(part)}?op=OPEN".replace("%", "%25").replace(" ", "%20")
    with socket.create_connection(("127.0.0.1", host.port), timeout=TIMEOUT_S) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == data.data(part)


# -- other operations --------------------------------------------------------------------------------------


def test_locations_name_this_replica_alone(host: ReaderHost, large: PartRow) -> None:
    """The whole part is one block, on the advertised host."""
    (block,) = host.webhdfs("GETFILEBLOCKLOCATIONS", _path(large)).json()["BlockLocations"]["BlockLocation"]
    assert (block["offset"], block["length"], block["hosts"]) == (0, large.length, ["r1.example"])
    assert block["names"] == ["r1.example:8901"]


def test_the_location_request_of_older_clients(host: ReaderHost, large: PartRow) -> None:
    """Spark 3.5 asks for located blocks and is content with none."""
    located = host.webhdfs("GET_BLOCK_LOCATIONS", _path(large)).json()["LocatedBlocks"]
    assert (located["fileLength"], located["locatedBlocks"]) == (large.length, [])


def test_there_is_no_delegation_token(host: ReaderHost) -> None:
    """Clients in a Kerberos realm ask for a token, get none, and go on."""
    assert host.webhdfs("GETDELEGATIONTOKEN", "/", renewer="x").json() == {"Token": None}


def test_a_content_summary_counts_folders_files_and_bytes(host: ReaderHost, data: DataDir) -> None:
    """A summary counts a table's folders, files and bytes."""
    summary = host.webhdfs("GETCONTENTSUMMARY", "/snapshots/6/default/orders").json()["ContentSummary"]
    files = dict(_walk(host, "/snapshots/6/default/orders"))
    assert summary["fileCount"] == len(files) == 2 * len(CITIES) + 1
    assert summary["directoryCount"] == 1 + len(CITIES)
    assert summary["length"] == sum(status["length"] for status in files.values())


def test_everything_may_be_read_and_nothing_written(host: ReaderHost, large: PartRow) -> None:
    """ACCESS allows reads of all existing files, and no writes."""
    assert host.webhdfs("CHECKACCESS", _path(large), fsaction="r-x").status == 200
    assert host.webhdfs("CHECKACCESS", _path(large), fsaction="rw-").exception == "AccessControlException"
    assert (
        host.webhdfs("CHECKACCESS", "/snapshots/6/sales/x", fsaction="r--").exception
        == "FileNotFoundException"
    )


def test_the_home_directory_of_everybody_is_the_root(host: ReaderHost) -> None:
    """The home directory of every user is the root."""
    assert host.webhdfs("GETHOMEDIRECTORY", "/").json() == {"Path": "/"}


# -- refusals ----------------------------------------------------------------------------------------------

READ_OPS = [
    "GETFILESTATUS",
    "LISTSTATUS",
    "OPEN",
    "GETFILEBLOCKLOCATIONS",
    "GET_BLOCK_LOCATIONS",
    "GETCONTENTSUMMARY",
]


@pytest.mark.parametrize("op", READ_OPS)
@pytest.mark.parametrize(
    "path",
    [
        "/snapshots/6/default/nothing",
        "/snapshots/6/nothing",
        "/snapshots/6/default/orders/city=Nowhere",
        "/snapshots/6/default/orders/_spark_metadata",
        "/snapshots/6/sales/items/r1-1-999.parquet",
        "/snapshots/6/sales/items/r1-1-1.parquet",  # a part of the other table
        "/snapshots/6/default/orders/city=007/r1-1-1.parquet",  # a part of another partition
        "/elsewhere",
    ],
)
def test_a_name_that_does_not_exist(host: ReaderHost, op: str, path: str) -> None:
    """A missing name at a CSN that is served is FileNotFoundException."""
    answer = host.webhdfs(op, path)
    assert (answer.status, answer.exception) == (404, "FileNotFoundException")


def test_a_part_is_there_only_while_it_is_visible(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """A part does not exist below the CSN that created it, nor from the CSN that removed it."""
    removed = data.parts("sales.items")[0]
    assert host.webhdfs("OPEN", _path(large, 4)).exception == "FileNotFoundException"
    assert host.webhdfs("OPEN", _path(removed, 5)).status == 200
    assert host.webhdfs("OPEN", _path(removed, REMOVED_AT)).exception == "FileNotFoundException"


@pytest.mark.parametrize("op", READ_OPS)
@pytest.mark.parametrize(
    "csn", [str(HORIZON - 1), "0", "007", "latest", "-1", "9223372036854775808", "5%2F..", "7"]
)
@pytest.mark.few(16)
def test_whatever_is_wrong_with_the_csn_is_loud(host: ReaderHost, large: PartRow, op: str, csn: str) -> None:
    """A CSN that is too old, malformed or too new gets the error class that no Spark mode ignores."""
    host.say("beyond", "the log ends at 6")
    for inner in ("", "/sales", "/sales/items", f"/sales/items/{large.name}", "/sales/nothing"):
        answer = host.webhdfs(op, f"/snapshots/{csn}{inner}")
        assert (answer.status, answer.exception) == (403, "AccessControlException")


@pytest.mark.parametrize(
    ("verdict", "exception"),
    [
        ("standby", "StandbyException"),
        ("suspended", "StandbyException"),
        ("beyond", "AccessControlException"),
        ("too_old", "AccessControlException"),
        ("fenced", "AccessControlException"),
        ("ready", "StandbyException"),  # the agent is wrong: its catalog is not at this CSN
    ],
)
def test_above_the_snapshot_csn_the_agent_decides(host: ReaderHost, verdict: str, exception: str) -> None:
    """For a CSN that is not applied readers pass the agent's answer on; they never serve an older CSN."""
    host.say(verdict, "so it is")
    for op in READ_OPS:
        answer = host.webhdfs(op, "/snapshots/7/sales/items")
        assert (answer.status, answer.exception) == (403, exception)
        assert verdict == "ready" or "so it is" in answer.json()["RemoteException"]["message"]


@pytest.mark.parametrize(
    ("method", "op"),
    [
        ("PUT", "CREATE"),
        ("PUT", "MKDIRS"),
        ("PUT", "RENAME"),
        ("PUT", "SETTIMES"),
        ("PUT", "SETPERMISSION"),
        ("POST", "APPEND"),
        ("POST", "CONCAT"),
        ("POST", "TRUNCATE"),
        ("DELETE", "DELETE"),
        ("GET", "GETFILECHECKSUM"),
        ("GET", "NOSUCHOP"),
        ("GET", ""),
        ("PUT", "OPEN"),
    ],
)
def test_operations_that_write_are_refused_loudly(
    host: ReaderHost, large: PartRow, method: str, op: str
) -> None:
    """Every operation that writes, and every unknown one, is refused with an error that Spark reports."""
    answer = host.webhdfs(op, _path(large), method=method)
    assert (answer.status, answer.exception) == (403, "AccessControlException")


@pytest.mark.parametrize("query", [{"offset": "-1"}, {"offset": "x"}, {"length": "1.5"}, {"length": 1 << 63}])
def test_malformed_ranges_of_open(host: ReaderHost, large: PartRow, query: dict[str, Any]) -> None:
    """Offsets and lengths that are no byte counts are refused with an error that Spark reports."""
    assert host.webhdfs("OPEN", _path(large), **query).exception == "AccessControlException"


def test_a_folder_cannot_be_opened(host: ReaderHost) -> None:
    """OPEN of an existing folder is refused, not answered with "not found", which would be untrue."""
    assert host.webhdfs("OPEN", "/snapshots/6/sales/items").exception == "AccessControlException"


def test_no_answer_has_a_content_type(host: ReaderHost, large: PartRow) -> None:
    """Hadoop's shaded client cannot parse a Content-Type, so no answer has one."""
    host.say("standby")
    answers = [host.webhdfs(op, _path(large)) for op in [*READ_OPS, "GETDELEGATIONTOKEN", "CHECKACCESS", "X"]]
    answers += [host.webhdfs(op, f"/snapshots/{csn}/sales/nothing") for op in READ_OPS for csn in (1, 6, 7)]
    answers += [
        host.webhdfs("CREATE", _path(large), method="PUT"),
        host.webhdfs("OPEN", _path(large), length=0),
    ]
    assert all("Content-Type" not in answer.headers for answer in answers)


# -- plain HTTP --------------------------------------------------------------------------------------------


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_plain_get_with_ranges(host: ReaderHost, data: DataDir, large: PartRow) -> None:
    """Clients other than Hadoop's read the same paths: as a whole, by range, by suffix."""
    stored = data.data(large)
    whole = host.get(_path(large))
    assert (whole.status, whole.body) == (200, stored)
    assert whole.headers["ETag"] == f'"{large.checksum}"'
    assert whole.headers["Accept-Ranges"] == "bytes"
    piece = host.get(_path(large), Range="bytes=300000-700000")
    assert (piece.status, piece.body) == (206, stored[300000:700001])
    assert piece.headers["Content-Range"] == f"bytes 300000-700000/{large.length}"
    assert host.get(_path(large), Range="bytes=-8").body == stored[-8:]
    assert host.get(_path(large), Range="bytes=0-1,5-6").status == 200


def test_a_range_behind_the_end(host: ReaderHost, large: PartRow) -> None:
    """The answer is 416, with the length of the part."""
    answer = host.get(_path(large), Range=f"bytes={large.length}-")
    assert (answer.status, answer.body) == (416, b"")
    assert answer.headers["Content-Range"] == f"bytes */{large.length}"


def test_a_range_of_another_version_gets_the_whole(host: ReaderHost, large: PartRow) -> None:
    """A range of another version of the part is answered with the whole part."""
    assert host.get(_path(large), Range="bytes=0-9", If_Range=f'"{large.checksum}"').status == 206
    assert host.get(_path(large), Range="bytes=0-9", If_Range='"other"').status == 200


def test_head_has_the_headers_of_get(host: ReaderHost, large: PartRow) -> None:
    """HEAD has the headers of GET and no body."""
    for path, length in ((_path(large), large.length), (f"/parts/{large.part}", large.length)):
        answer = host.request("HEAD", path, _bearer(SECRET))
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["Content-Length"]) == length
        assert answer.headers["ETag"] == f'"{large.checksum}"'
    ranged = host.request("HEAD", _path(large), {"Range": "bytes=0-9"})
    assert (ranged.status, ranged.headers["Content-Length"]) == (206, "10")
    metadata = host.request("HEAD", "/snapshots/6/sales/items/_common_metadata")
    assert (metadata.status, metadata.body) == (200, b"")


def test_plain_folders_list_as_json(host: ReaderHost) -> None:
    """A folder is answered with its listing, so that a snapshot can be browsed with curl."""
    answer = host.get("/snapshots/6/sales/items/")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json()["FileStatuses"]["FileStatus"] == _list(host, "/snapshots/6/sales/items")


def test_plain_404_is_for_names_only(host: ReaderHost) -> None:
    """Only a missing name is 404, since clients may skip missing files, and must not skip unserved parts."""

    def error(answer: Answer) -> tuple[int, str]:
        return answer.status, json.loads(answer.body)["error"]

    assert error(host.get("/snapshots/6/sales/nothing")) == (404, "NoSuchPathError")
    assert error(host.get(f"/snapshots/{HORIZON - 1}/sales/items")) == (410, "SnapshotTooOldError")
    assert error(host.get("/snapshots/latest/sales/items")) == (403, "UnknownTagError")
    assert error(host.get("/snapshots/-1/sales/items")) == (400, "BadRequestError")
    host.say("beyond")
    assert error(host.get("/snapshots/7/sales/items")) == (403, "NoSuchCsnError")
    host.say("standby")
    assert error(host.get("/snapshots/7/sales/items")) == (503, "StandbyError")
    assert error(host.request("POST", "/snapshots/6/sales/items")) == (400, "BadRequestError")


def test_raw_parts_for_peers(host: ReaderHost, data: DataDir, large: PartRow, slice_of_pack: PartRow) -> None:
    """Peers read parts by id with the secret, at any CSN."""
    for part in (large, slice_of_pack):
        answer = host.request("GET", f"/parts/{part.part}", _bearer(SECRET))
        assert (answer.status, answer.body) == (200, data.data(part))
    answer = host.request("GET", f"/parts/{large.part}", _bearer(SECRET) | {"Range": "bytes=10-19"})
    assert (answer.status, answer.body) == (206, data.data(large)[10:20])


def _many(
    host: ReaderHost, asked: object, headers: dict[str, str] | None = None
) -> tuple[int, list[PartFrame]]:
    """Ask for many parts; return the status, and the frames of an answer that is none of an error."""
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    answer = host.request("POST", "/parts", _bearer(SECRET) if headers is None else headers, body)
    return answer.status, FrameReader().feed(answer.body) if answer.status == 200 else []


def test_many_parts_for_peers_in_one_answer(
    host: ReaderHost, data: DataDir, large: PartRow, slice_of_pack: PartRow
) -> None:
    """Each part has a frame of its own; one that is not held is said to be so, and the answer goes on."""
    asked = [slice_of_pack.part, "r1-1-999", large.part, slice_of_pack.part]
    status, frames = _many(host, {"parts": asked})
    assert status == 200
    sent = {frame.part: frame.data for frame in frames if isinstance(frame, SentPart)}
    assert sent == {part.part: data.data(part) for part in (slice_of_pack, large)}
    assert [frame.part for frame in frames if isinstance(frame, LackedPart)] == ["r1-1-999"]
    assert len(frames) == 3
    assert _many(host, {"parts": []}) == (200, [])


def test_one_answer_has_a_bound_of_bytes(data: DataDir, large: PartRow, tmp_path: Path) -> None:
    """The answer says which parts do not fit: a request for too much costs no more memory."""
    copy = data.copy(tmp_path / "r1")
    fitting = GROUP_BYTES_MAX // large.length
    names = [f"r1-9-{number}" for number in range(fitting + 2)]
    with copy.sql() as db:
        db.execute("CREATE TEMP TABLE made AS SELECT * FROM parts WHERE part = ?", (large.part,))
        for name in names:
            db.execute("UPDATE made SET part = ?", (name,))
            db.execute("INSERT INTO parts SELECT * FROM made")
    with ReaderHost(copy.path, reader_workers=1, secret=SECRET) as own:
        _, frames = _many(own, {"parts": names})
    assert [type(frame) for frame in frames].count(SentPart) == fitting
    assert sorted(frame.part for frame in frames) == sorted(names)


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"{",
        {"part": []},
        {"parts": "r1-1-1"},
        {"parts": ["../catalog.db"]},
        {"parts": ["r1-1-1"] * (GROUP_PARTS_MAX + 1)},
        b" " * (1 << 20),
    ],
    ids=["nothing", "no JSON", "another field", "no list", "no part", "too many", "too long"],
)
def test_a_request_for_many_parts_is_checked(host: ReaderHost, asked: object) -> None:
    """A body that no replica sends is refused, before anything is read."""
    assert _many(host, asked) == (400, [])


@pytest.mark.parametrize("headers", [{}, _bearer("wrong")])
def test_many_parts_need_the_secret(host: ReaderHost, large: PartRow, headers: dict[str, str]) -> None:
    """As for a single part: without the secret nothing is learned."""
    assert _many(host, {"parts": [large.part]}, headers) == (401, [])


@pytest.mark.parametrize("part", ["", "r1-1-999", "x", "r1-1-1/y", "..%2F..%2Fcatalog.db"])
def test_parts_that_are_not_held(host: ReaderHost, part: str) -> None:
    """A part that the replica does not hold is 404, so that the peer asks another holder."""
    assert host.request("GET", f"/parts/{part}", _bearer(SECRET)).status == 404


@pytest.mark.parametrize("headers", [{}, _bearer("wrong"), _bearer(""), {"Authorization": SECRET}])
def test_raw_parts_need_the_secret(host: ReaderHost, large: PartRow, headers: dict[str, str]) -> None:
    """Without the shard's secret a request for a raw part learns nothing, not even whether it exists."""
    for part in (large.part, "r1-1-999"):
        assert host.request("GET", f"/parts/{part}", headers).status == 401


def test_the_data_directory_is_not_a_web_root(host: ReaderHost, data: DataDir) -> None:
    """Only snapshots and parts are served, in every spelling of a path."""
    assert (Path(data.path) / "catalog.db").exists()
    for path in ("/catalog.db", "/snapshots/../catalog.db", "/parts/../catalog.db", "//catalog.db", "/run"):
        assert host.request("GET", path, _bearer(SECRET)).status in {400, 403, 404}
