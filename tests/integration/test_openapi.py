"""A walk through all operations of the OpenAPI document, at a running cluster: each answer is as it says."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pytest
import urllib3

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import Addresses
from tests.support.project import openapi_page
from tests.support.project.openapi_check import Checker, Told
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.replication.core import wire
from tidelock.wire import writes

V1: Final = "/api/v1"
#: The headers that open a WebSocket.
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
}
TX: Final = f"{V1}/transactions/{{tid}}"
PEER: Final = "/peer/v1"
SCHEMA: Final = pa.schema(
    [pa.field("p", pa.string(), nullable=False), pa.field("k", pa.int64(), nullable=False)]
)
ROWS: Final = pa.table({"p": ["a", "a", "b"], "k": [1, 2, 3]}, schema=SCHEMA)
JOB: Final = "00000000-0000-0000-0000-000000000000"
CHECKSUM: Final = "0" * 32


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas; the audit does not wait for findings to last."""
    return module_cluster(settings={**QUICK, "audit_settle_s": 0.1})


class Walk:
    """A client that compares each answer of a replica with the document."""

    def __init__(self, cluster: LocalCluster) -> None:
        addresses = Addresses.of(cluster, "r1")
        self.api, self.data = addresses.api.removesuffix(V1), addresses.data
        self.checker = Checker(json.loads(openapi_page.PAGE.read_text(encoding="utf-8")))
        self.csn = 0

    def raw(
        self,
        method: str,
        template: str,
        body: bytes | None = None,
        *,
        query: dict[str, Any] | None = None,
        status: int = 200,
        headers: dict[str, str] | None = None,
        **names: object,
    ) -> urllib3.BaseHTTPResponse:
        """Send one request, check the answer, and return it."""
        of_data = "servers" in self.checker.document["paths"].get(template, {})
        url = (self.data if of_data else self.api) + template.format(
            **{name: quote(str(value), safe="/") for name, value in names.items()}
        )
        asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in (query or {}).items())
        answer = urllib3.request(
            method, f"{url}?{asked}", body=body, headers=headers, retries=False, redirect=False, timeout=60.0
        )
        told = Told(answer.status, answer.headers.get("Content-Type"), answer.data)
        assert self.checker.differences(method, template, told) == [], answer.data
        assert answer.status == status, answer.data
        return answer

    def open(self, path: str) -> None:
        """Open a WebSocket and check the answer to its handshake; the connection is closed."""
        connection = http.client.HTTPConnection(self.api.removeprefix("http://"), timeout=60.0)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=HANDSHAKE)
            answer = connection.getresponse()
            told = Told(answer.status, answer.headers.get("Content-Type"), b"")
        assert self.checker.differences("GET", path, told) == []
        assert answer.status == 101

    def ask(self, method: str, template: str, body: Any = None, **options: Any) -> Any:
        """Send a value as JSON, or bytes as they are; return the JSON answer."""
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return json.loads(self.raw(method, template, sent, **options).data)

    def begin(self, **body: Any) -> str:
        """Begin a transaction and return its id."""
        return str(self.ask("POST", f"{V1}/transactions", body, status=201)["tid"])

    def table(self, name: str, **properties: str) -> str:
        """Create a table."""
        asked = {
            "name": name,
            "schema": base64.b64encode(SCHEMA.serialize()).decode(),
            "partition_by": ["p"],
            "properties": properties,
        }
        self.csn = self.ask("POST", f"{V1}/tables", asked, status=201)["csn"]
        return f"default.{name}"


def stream(rows: pa.Table) -> bytes:
    """Rows as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def state(walk: Walk) -> None:
    """Read the state of the replica."""
    walk.ask("GET", f"{V1}/status")
    walk.ask("GET", "/healthz")
    walk.ask("GET", "/readyz")
    walk.raw("GET", "/metrics")
    for root in (V1, "/peer/v1"):
        walk.open(f"{root}/channel")
    assert walk.ask("GET", f"{V1}/openapi.json") == walk.checker.document


def write(walk: Walk) -> str:
    """Write to a table in transactions of all kinds; return the last one that committed."""
    table, other = walk.table("t"), walk.table("other")
    tid = walk.begin(label="walk", meta={"by": "test"})
    walk.ask("POST", f"{TX}/rows/{{table}}", stream(ROWS), tid=tid, table=table)
    walk.ask("GET", f"{TX}/tables/{{table}}", tid=tid, table=table)
    walk.raw("POST", f"{TX}/query", b'{"sql": "select count(*) from t"}', tid=tid)
    walk.ask("POST", f"{TX}/heartbeat", tid=tid)
    walk.ask("GET", TX, tid=tid)
    walk.ask("GET", f"{V1}/transactions")
    walk.ask("GET", f"{PEER}/outcome/{{tid}}", tid=tid)
    walk.csn = walk.ask("POST", f"{TX}/commit", {"wait": "all"}, tid=tid)["csn"]
    walk.ask("GET", f"{V1}/labels/{{label}}", label="walk")
    walk.ask("GET", f"{V1}/labels/{{label}}", label="a/free/one")

    tid = walk.begin()
    walk.ask("POST", f"{TX}/delete/{{table}}", {"where": "k = ?", "params": [3]}, tid=tid, table=table)
    walk.ask("POST", f"{TX}/update/{{table}}", {"set": {"k": "k + 10"}}, tid=tid, table=table)
    new = stream(ROWS.slice(0, 1))
    walk.ask("POST", f"{TX}/upsert/{{table}}", new, query={"on": "p,k"}, tid=tid, table=table)
    spec = json.dumps({"on": ["p", "k"], "when_matched_delete": "true"})
    walk.ask("POST", f"{TX}/merge/{{table}}", new, query={"spec": spec}, tid=tid, table=table)
    part = {"partition": {"p": "a"}}
    walk.ask("POST", f"{TX}/move_partition/{{table}}", {**part, "into": other}, tid=tid, table=table)
    walk.ask("POST", f"{TX}/drop_partition/{{table}}", part, tid=tid, table=other)
    walk.ask("POST", f"{TX}/truncate/{{table}}", tid=tid, table=other)
    walk.ask("POST", f"{TX}/rollback", tid=tid)
    assert walk.ask("GET", f"{V1}/outcomes/{{tid}}", tid=tid)["outcome"] == "aborted"
    walk.ask("POST", f"{TX}/kill", tid=walk.begin())

    lands = walk.table("lands", landing="on")
    walk.ask("POST", f"{V1}/landings/{{table}}", stream(ROWS), table=lands, query={"timeout_s": 30})
    tid = str(walk.ask("POST", f"{V1}/tids", {"count": 2}, status=201)["first"])
    data = stream(ROWS)
    whole = writes.encode(writes.WriteHead(tid, (writes.TableRows(table, len(data)),), wait="all"), [data])
    walk.csn = walk.ask("POST", f"{V1}/commits", whole)["csn"]
    assert walk.ask("GET", f"{V1}/outcomes/{{tid}}", tid=tid, query={"wait": "all"})["csn"] == walk.csn
    return tid


def read(walk: Walk) -> None:
    """Read tables, snapshots, files and changes."""
    at = {"csn": walk.csn}
    walk.ask("GET", f"{V1}/tables", query=at)
    walk.ask("GET", f"{V1}/tables/{{table}}", query=at, table="t")
    parts = walk.ask("GET", f"{V1}/parts", query={**at, "table": "t"})
    pin = walk.ask("POST", f"{V1}/snapshots", at, status=201)["id"]
    assert pin in {one["id"] for one in walk.ask("GET", f"{V1}/snapshots")}
    walk.ask("POST", f"{V1}/snapshots/{{id}}/renew", id=pin)
    walk.raw("POST", f"{V1}/query", json.dumps({**at, "table": "t"}).encode())
    walk.raw("GET", "/webhdfs/v1/snapshots/{path}", path=f"{walk.csn}/default/t", query={"op": "LISTSTATUS"})
    for method in ("GET", "HEAD"):
        walk.raw(method, "/snapshots/{path}", path=f"{walk.csn}/{parts[0]['file']}")
        walk.raw(method, "/parts/{part}", part=parts[0]["part"])
    walk.raw("POST", "/parts", json.dumps({"parts": [part["part"] for part in parts]}).encode())
    walk.raw("GET", "/parts/{part}", part=parts[0]["part"], headers={"Range": "bytes=0-3"}, status=206)
    walk.ask("DELETE", f"{V1}/snapshots/{{id}}", id=pin)
    walk.ask("GET", f"{V1}/csns", query={"at_ms": time.time_ns() // 1_000_000})
    walk.ask("GET", f"{V1}/csns/{{csn}}", csn=str(walk.csn))
    walk.ask("GET", f"{V1}/csns/{{csn}}/replicas", csn=str(walk.csn))
    walk.ask("GET", f"{V1}/tables/{{table}}/last_change", table="t")
    statistics = f"{V1}/tables/{{table}}/statistics"
    assert walk.ask("GET", statistics, query={"distinct": 1}, table="t")["columns"][0]["distinct"]
    [part, *_] = walk.ask("GET", f"{V1}/parts", query={"table": "t"})
    assert walk.ask("GET", f"{V1}/explain/parts/{{part}}", part=part["part"])["visible"]
    walk.table("passing")
    walk.ask("PATCH", f"{V1}/tables/{{table}}", {"properties": {"comment": "soon gone"}}, table="passing")
    walk.ask("DELETE", f"{V1}/tables/{{table}}", table="passing")
    changes = f"{V1}/tables/{{table}}/changes"
    assert walk.ask("GET", changes, query={"from": 2, "to": walk.csn}, table="t")["sets"]
    walk.raw("POST", f"{changes}/rows", json.dumps({"csn": walk.csn}).encode(), table="t")


def define(walk: Walk) -> None:
    """Define tables, namespaces and tags, alone and in a transaction, and bring tables back."""
    table = walk.table("kept")
    asked = {"name": "first", "csn": walk.csn}
    assert walk.ask("POST", f"{V1}/tags", asked, status=201)["csn"] == walk.csn
    walk.ask("GET", f"{V1}/tags/{{name}}", name="first")
    walk.ask("POST", f"{V1}/namespaces", {"name": "sales"}, status=201)
    tid = walk.begin()
    made = {"name": "sales.made", "schema": base64.b64encode(SCHEMA.serialize()).decode()}
    walk.ask("POST", f"{TX}/tables", made, tid=tid, status=201)
    walk.ask("PATCH", f"{TX}/tables/{{table}}", {"name": "sales.named"}, tid=tid, table="sales.made")
    walk.ask("DELETE", f"{TX}/tables/{{table}}", tid=tid, table="sales.named")
    walk.ask("POST", f"{TX}/namespaces", {"name": "passing"}, tid=tid, status=201)
    walk.ask("DELETE", f"{TX}/namespaces/{{namespace}}", tid=tid, namespace="passing")
    walk.ask("POST", f"{TX}/rows/{{table}}", stream(ROWS), tid=tid, table=table)
    walk.ask("POST", f"{TX}/commit", tid=tid)
    tid = walk.begin()
    walk.ask("POST", f"{TX}/restore/{{table}}", {"tag": "first"}, tid=tid, table=table)
    copy = {"name": "copied"}
    walk.ask("POST", f"{TX}/tables/{{table}}/clone", copy, tid=tid, table=table, status=201)
    walk.ask("POST", f"{TX}/rollback", tid=tid)
    walk.ask("DELETE", f"{V1}/tables/{{table}}", table=table)
    tid = walk.begin()
    walk.ask("POST", f"{TX}/tables/{{table}}/undrop", {}, tid=tid, table=table)
    walk.ask("POST", f"{TX}/rollback", tid=tid)
    walk.ask("POST", f"{V1}/tables/{{table}}/undrop", {}, table=table)
    assert "sales" in {one["name"] for one in walk.ask("GET", f"{V1}/namespaces")}
    walk.ask("DELETE", f"{V1}/namespaces/{{namespace}}", namespace="sales")
    assert [one["name"] for one in walk.ask("GET", f"{V1}/tags")] == ["first"]
    walk.ask("DELETE", f"{V1}/tags/{{name}}", name="first")


def files(walk: Walk) -> None:
    """Write files through the folder of a transaction, and send one to another replica."""
    table, tid = "default.t", walk.begin()
    made = walk.ask("POST", f"{TX}/token", {"tables": [table]}, tid=tid, status=201)
    folder = f"{made['token']}/default/t"
    path = "/webhdfs/v1/transactions/{path}"
    walk.raw("PUT", path, path=f"{folder}/_temporary/0", query={"op": "MKDIRS"})
    walk.raw("GET", path, path=f"{folder}/_temporary/0", query={"op": "GETFILESTATUS"})
    walk.raw("DELETE", path, path=f"{folder}/_temporary", query={"op": "DELETE", "recursive": "true"})
    walk.ask("POST", f"{TX}/seal/{{table}}", tid=tid, table=table)
    walk.ask("POST", f"{TX}/confirm/{{table}}", tid=tid, table=table)
    changing = walk.begin()
    walk.ask("POST", f"{TX}/replace/{{table}}", {"files": []}, tid=changing, table=table)
    walk.ask("POST", f"{TX}/replaced/{{table}}", {"rows_updated": 0}, tid=changing, table=table)
    walk.ask("POST", f"{TX}/rollback", tid=changing)

    grant = next(_grants(walk, f"{folder}/_temporary/0/_temporary"))
    asked = {"grant": grant, "replica": _replica_of(grant)}
    part = walk.ask("POST", f"{PEER}/uploads", asked)["part"]
    taken = {"tid": tid, "table": table, "replica": asked["replica"]}
    walk.ask("POST", f"{PEER}/uploads/{{part}}", {**taken, "length": 9, "checksum": CHECKSUM}, part=part)
    walk.ask("POST", f"{PEER}/uploads/{{part}}/failed", taken, part=part)
    walk.ask("POST", f"{TX}/rollback", tid=tid)


def _grants(walk: Walk, folder: str) -> Iterator[str]:
    """Ask where files may be written until the answer names a replica other than the home."""
    for number in range(30):
        task = f"attempt_202611220000_0000_m_{number:06}_0"
        place = (
            f"{folder}/{task}/p=a/part-{number:05}-00000000-0000-0000-0000-000000000000-c000.snappy.parquet"
        )
        answer = walk.raw(
            "PUT", "/webhdfs/v1/transactions/{path}", path=place, query={"op": "CREATE"}, status=307
        )
        segments = urlsplit(answer.headers["Location"]).path.split("/")
        if segments[-2] == "uploads":
            yield segments[-1]


def _replica_of(grant: str) -> str:
    """Return the replica that a grant is for, as the grant says."""
    claims = grant.split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["to"])


def peers(walk: Walk, tid: str) -> None:
    """Send the requests of another agent."""
    walk.ask("GET", f"{PEER}/status")
    status = walk.ask("GET", f"{V1}/status")
    walk.ask("GET", f"{PEER}/digests/{{csn}}", csn=status["snapshot_csn"])
    push = wire.encode(home=ReplicaId("r2"), boot=1, cluster_id=status["cluster_id"], tids=[], inline={})
    walk.ask("POST", f"{PEER}/stage", b"".join(push))
    walk.ask("POST", f"{PEER}/forget", {"tids": []})
    walk.ask("POST", f"{PEER}/hint", {"tid": tid, "holder": "r2", "parts": []})


def look(walk: Walk, tid: str) -> None:
    """Ask for outcomes and the log, run an audit, and raise the horizon."""
    assert walk.ask("GET", f"{V1}/log", query={"from_csn": 2})
    walk.ask("GET", f"{V1}/explain/{{tid}}", tid=tid)
    walk.ask("GET", f"{V1}/audit", query={"deep": 1})
    walk.ask("GET", f"{V1}/audit/digests", query={"csn": walk.csn})
    walk.ask("POST", f"{V1}/admin/optimize", {"table": "t"})
    walk.ask("POST", f"{V1}/admin/switches", {"name": "compaction", "value": "off"})
    walk.ask("POST", f"{V1}/admin/members", {"change": "copies", "copies": 2})
    part = walk.ask("GET", f"{V1}/parts", query={"csn": walk.csn, "table": "t"})[0]["part"]
    assert walk.ask("GET", f"{PEER}/parts/{{part}}", part=part)
    assert walk.ask("POST", f"{V1}/admin/resolve-lost", {"part": part})
    clone = f"{PEER}/clones/{{name}}"
    eventually(lambda: walk.ask("POST", clone, name="one")["ready"], what="a catalog to send")
    walk.raw("GET", clone, name="one", query={"from": 0})
    walk.ask("DELETE", clone, name="one")
    walk.ask("POST", f"{V1}/admin/horizon", {"drop_pins": True})


def refusals(walk: Walk) -> None:
    """Errors have the form that the document says."""
    walk.ask("GET", TX, tid="7-r1-9-9", status=404)
    walk.ask("GET", f"{V1}/tables/{{table}}", table="nowhere", status=404)
    walk.ask("POST", f"{V1}/transactions", {"isolation": "none"}, status=400)
    walk.ask("POST", f"{V1}/snapshots", {"colour": "red"}, status=400)
    walk.ask("POST", f"{V1}/tables", {"name": "t", "schema": "!"}, status=400)
    walk.ask("POST", f"{PEER}/stage", b"garbage", status=400)
    tid = walk.begin()
    walk.ask("POST", f"{TX}/rollback", tid=tid)
    walk.ask("POST", f"{TX}/rows/{{table}}", stream(ROWS), tid=tid, table="t", status=409)


def test_every_operation_answers_as_the_document_says(local: LocalCluster) -> None:
    """Each operation succeeds once, with the documented status, content type and body."""
    walk = Walk(local)
    state(walk)
    tid = write(walk)
    read(walk)
    define(walk)
    files(walk)
    peers(walk, tid)
    look(walk, tid)
    refusals(walk)
    assert set(walk.checker.operations()) - walk.checker.succeeded == set()
