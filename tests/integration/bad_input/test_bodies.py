"""Bodies that are cut, damaged or too large, and requests that an agent does not know: all by plain HTTP."""

from __future__ import annotations

import gzip
import socket
import time
import zlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pytest

from tests.support.faults.refusals import (
    LIMITS,
    ROWS,
    SCHEMA,
    Addresses,
    Answer,
    Ground,
    check_home_wants_rollback,
    check_message,
    http,
    stream,
)
from tests.support.waiting import eventually
from tidelock.errors import BadRequestError, EncodedBodyError, TidelockError, TooLargeError

WHOLE = stream(ROWS)
#: Rows of about 100 bytes each.
ROW_BYTES = 100


def rows_of(size: int) -> pa.Table:
    """Rows of about so many bytes."""
    count = size // ROW_BYTES
    names = pa.array(["x" * (ROW_BYTES - 28)] * count)
    return pa.table(
        {"k": range(count), "name": names, "price": pa.nulls(count, SCHEMA.types[2])}, schema=SCHEMA
    )


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds that a process and its children have used."""
    spent = [item.cpu_times() for item in (process, *process.children(recursive=True))]
    return float(sum(times.user + times.system for times in spent))


class Raw:
    """One transaction at one replica, by plain HTTP."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.home = Addresses.of(ground.cluster, "r1")
        self.tid = str(http("POST", f"{self.home.api}/transactions").json["tid"])
        self.url = f"{self.home.api}/transactions/{self.tid}"

    def insert(self, body: bytes | Iterator[bytes], **headers: str) -> Answer:
        """Send rows."""
        return http("POST", f"{self.url}/rows/{self.ground.table}", body, headers)

    @property
    def state(self) -> str:
        """Return the state of the transaction at its home."""
        return str(http("GET", self.url).json["state"])

    def check_refused(self, answer: Answer, error: type[TidelockError], *words: str) -> None:
        """The answer is this error, and the transaction can only be rolled back."""
        assert answer.status == error.http_status, answer.data
        check_message(answer.error, error, words)
        self.check_lost()

    def check_lost(self) -> None:
        """The transaction takes a rollback only; after it the home does not know the transaction."""
        check_home_wants_rollback(self.home, self.tid, self.ground.table)
        assert http("POST", f"{self.url}/rollback").json["state"] == "rolled_back"
        self.ground.check_intact()


@pytest.fixture
def raw(ground: Ground) -> Raw:
    """A transaction that has staged rows already."""
    raw = Raw(ground)
    assert raw.insert(WHOLE).json == {"rows": ROWS.num_rows, "parts": 1}
    return raw


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "schema message"),
        (b"garbage" * 100, "metadata bytes"),
        (WHOLE[:100], "metadata bytes"),
        (WHOLE[:-8], "its end is missing"),
        (WHOLE[:-40], "message body"),
        (WHOLE + b"x", "bytes follow its end"),
        (WHOLE + WHOLE, "bytes follow its end"),
        (b"PAR1" + WHOLE, ""),
    ],
    ids=["empty", "garbage", "cut schema", "no end", "cut batch", "more", "two streams", "other format"],
)
def test_rows_that_are_no_arrow_stream(raw: Raw, body: bytes, word: str) -> None:
    """A stream counts only as a whole; one that is cut between two messages is refused."""
    raw.check_refused(
        raw.insert(body), BadRequestError, "not one complete Arrow IPC stream", word, "nothing was kept"
    )


def test_one_flipped_byte_never_miscounts_rows(ground: Ground) -> None:
    """Whatever byte is damaged: rows come in with the right count or not at all, and the agent lives on."""
    for position in range(0, len(WHOLE), 23):
        raw = Raw(ground)
        damaged = WHOLE[:position] + bytes([WHOLE[position] ^ 0xFF]) + WHOLE[position + 1 :]
        answer = raw.insert(damaged)
        if answer.status == 200:  # a value, or padding
            assert answer.json["rows"] == ROWS.num_rows
            assert raw.state == "open"
        else:
            assert answer.status == 400, answer.data
            assert raw.state == "failed"
        assert http("POST", f"{raw.url}/rollback").status == 200
    ground.check_intact()


@pytest.mark.parametrize("size", [1 << 10, 3 << 20], ids=["small", "large"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_body_that_is_cut(raw: Raw, size: int, *, chunked: bool) -> None:
    """A client that dies in the middle of an insert leaves no rows, and no commit without these rows."""
    body = stream(rows_of(size), batch_rows=4096)
    half = body[: len(body) // 2]
    head, frame = f"Content-Length: {len(body)}", half
    if chunked:
        head, frame = "Transfer-Encoding: chunked", b"%x\r\n%s\r\n" % (len(half), half)
    address = urlsplit(raw.url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as connection:
        path = f"{address.path}/rows/{raw.ground.table}"
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: agent\r\n{head}\r\n\r\n".encode() + frame)
    eventually(lambda: raw.state == "failed", what="the refusal of the cut insert")
    assert "nothing was kept" in http("GET", raw.url).json["error"]
    raw.check_lost()


@pytest.mark.parametrize("body", [WHOLE, gzip.compress(WHOLE)], ids=["not compressed", "compressed"])
def test_a_body_with_an_encoding_is_refused(raw: Raw, body: bytes) -> None:
    """No body is decompressed, whether it is encoded as its header says or not."""
    answer = raw.insert(body, **{"Content-Encoding": "gzip"})
    raw.check_refused(
        answer, EncodedBodyError, "Content-Encoding: 'gzip' is not accepted", "nothing was kept"
    )
    begin = http("POST", f"{raw.home.api}/transactions", gzip.compress(b"{}"), {"Content-Encoding": "gzip"})
    assert begin.status == 415
    check_message(begin.error, EncodedBodyError, ["send the body as it is"])
    read = http("GET", f"{raw.home.data}/snapshots/1", b"x", {"Content-Encoding": "deflate"})
    assert read.status == 415, read.data
    write = http("PUT", f"{raw.home.data}/webhdfs/v1/x?op=CREATE", b"x", {"Content-Encoding": "deflate"})
    assert "is not accepted" in write.json["RemoteException"]["message"]
    assert "request_failed" not in raw.ground.cluster.log("r1").read_text()


def test_a_compressed_body_costs_no_more_than_its_bytes(ground: Ground) -> None:
    """A small body that holds 512 MiB is drained as it is, also by a server that has refused it already."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = b"".join([packer.compress(bytes(1 << 20)) for _ in range(512)]) + packer.flush()
    started = time.process_time()
    unpacker = zlib.decompressobj(31)
    while bomb_left := unpacker.unconsumed_tail or (bomb if not unpacker.eof else b""):
        unpacker.decompress(bomb_left, 1 << 20)
    unpacked_s = time.process_time() - started
    agent = psutil.Process(ground.cluster.pid("r1"))
    before = cpu_s(agent)
    home = Addresses.of(ground.cluster, "r1")
    for url in (f"{home.api}/transactions", f"{home.data}/snapshots/1", f"{home.api}/nowhere"):
        assert http("POST", url, bomb, {"Content-Encoding": "gzip"}).status in {404, 415}
    eventually(lambda: http("GET", home.api.replace("/api/v1", "/healthz")).status == 200, what="an answer")
    assert cpu_s(agent) - before < unpacked_s / 2


def test_insert_above_the_limit_by_its_length(raw: Raw) -> None:
    """A body whose length is known is refused before it is read."""
    limit = LIMITS["insert_bytes_max"]
    answer = raw.insert(stream(rows_of(limit + (1 << 20)), batch_rows=4096))
    words = ("the insert has", f"the limit is insert_bytes_max={limit}", "split it")
    raw.check_refused(answer, TooLargeError, *words)
    assert answer.error.details["limit"] == limit
    assert answer.error.details["found"] > limit


def test_insert_above_the_limit_without_a_length(raw: Raw) -> None:
    """A body in chunks is refused as soon as it has passed the limit."""
    limit = LIMITS["insert_bytes_max"]
    body = stream(rows_of(limit + (2 << 20)), batch_rows=4096)
    pieces = (body[start : start + (1 << 20)] for start in range(0, len(body), 1 << 20))
    words = (f"more than {limit} bytes", "insert_bytes_max", "split it")
    raw.check_refused(raw.insert(pieces), TooLargeError, *words)


def test_record_batch_above_the_limit(raw: Raw) -> None:
    """One record batch must fit into memory; the same rows in smaller batches are taken."""
    limit = LIMITS["row_group_bytes"]
    rows = rows_of(limit + (1 << 20))
    answer = raw.insert(stream(rows))
    words = (
        "a record batch of the insert has",
        f"at most {limit} (row_group_bytes)",
        "send smaller record batches",
    )
    raw.check_refused(answer, TooLargeError, *words)
    assert answer.error.details["limit"] == limit
    other = Raw(raw.ground)
    assert other.insert(stream(rows, batch_rows=4096)).json["rows"] == rows.num_rows
    assert http("POST", f"{other.url}/rollback").status == 200
    raw.ground.check_intact()


@pytest.mark.parametrize(
    ("method", "route", "status", "words"),
    [
        ("GET", "/nowhere", 404, ["/api/v1/nowhere", "Not Found", "docs/protocol.md"]),
        ("PUT", "/transactions", 405, ["Method Not Allowed"]),
        ("GET", "/tables?csn=now", 400, ["csn='now' is not an integer"]),
        ("GET", "/tables/Orders", 400, ["is not a table name"]),
        ("GET", "/parts", 400, ["is not a table name"]),
        ("GET", "/log?limit=0", 400, ["limit=0 is outside 1..1000"]),
        ("GET", "/log?limit=1001", 400, ["limit=1001 is outside 1..1000"]),
        ("GET", "/explain/x", 400, ["<snapshot csn>-<replica>-<boot>-<counter>"]),
        ("POST", "/query", 400, ["exactly one of csn and tid", "exactly one of sql and table"]),
        ("POST", "/snapshots?csn=1", 201, []),
        ("GET", "/../../../etc/passwd", 404, ["Not Found"]),
    ],
)
def test_requests_that_no_agent_knows(
    ground: Ground, method: str, route: str, status: int, words: list[str]
) -> None:
    """Routes, methods and parameters that do not exist are refused as such."""
    answer = http(method, Addresses.of(ground.cluster, "r1").api + route)
    assert answer.status == status
    if status >= 400:
        check_message(answer.error, BadRequestError, words)
    ground.check_intact()


@pytest.mark.parametrize(
    "body",
    [
        {"csn": 2},
        {"csn": 2, "tid": "1-r1-1-1", "sql": "SELECT 1"},
        {"csn": 2, "sql": "SELECT 1", "table": "t"},
        {"csn": "2", "sql": "SELECT 1"},
        {"csn": 2, "sql": "SELECT 1", "params": {"a": 1}},
        b"SELECT 1",
    ],
)
def test_queries_of_another_form(ground: Ground, body: object) -> None:
    """A query without a place, without a statement, or with one of them twice is refused."""
    answer = http("POST", f"{Addresses.of(ground.cluster, 'r1').api}/query", body)
    assert answer.status == 400
    check_message(answer.error, BadRequestError, [])


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/stage", b""),
        ("/stage", b"garbage"),
        ("/stage", b"\0\0\0\5abcde"),
        ("/stage", b"\x7f\0\0\5abcde"),
        ("/hint", b"{}"),
        ("/forget", b'{"tids": ["x"]}'),
    ],
)
def test_pushes_that_are_none(ground: Ground, route: str, body: bytes) -> None:
    """A body that a peer could send by mistake is refused with a reason, and changes nothing."""
    peer = Addresses.of(ground.cluster, "r1").api.replace("/api/v1", "/peer/v1")
    answer = http("POST", peer + route, body)
    assert answer.status == 400
    check_message(answer.error, BadRequestError, [])
    ground.check_intact()
