"""Agents as a client sees them: real HTTP by docs/protocol.md, tables in memory, answers lost on request.

A double for tests of the client alone. It knows no replication: all agents of a `FakeCluster` share one log,
and each shows it up to its own `snapshot_csn`. Real agents are tested in tests/integration.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote

import duckdb
import msgspec
import pyarrow as pa
import pytest

from tests.support.replicas import fake_feed
from tests.support.replicas.fake_http import Fault, Request, Server
from tests.support.replicas.fake_members import FakeMembers
from tidelock.client import Database, connect
from tidelock.column_types import to_text
from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    LeaseExpiredError,
    NoSuchCsnError,
    SnapshotTooOldError,
    StandbyError,
    TableExistsError,
    TidelockError,
    TransactionClosedError,
    UnknownTableError,
    UnknownTransactionError,
)
from tidelock.wire import writes
from tidelock.wire.cluster import ExplainedPart, Explanation
from tidelock.wire.log import AddedPart, LogEntry, LoggedEntry, LoggedTransaction
from tidelock.wire.tables import PartInfo
from tidelock.wire.transactions import TransactionInfo

#: The effective time of every commit, in ms since 1970.
TIME_MS = 1_700_000_000_000


@dataclass
class FakeTransaction:
    """A transaction as the agent knows it."""

    tid: str
    snapshot_csn: int
    lease_s: float
    label: str | None = None
    state: str = "open"
    csn: int | None = None
    heartbeats: int = 0
    staged: list[tuple[str, pa.Table]] = field(default_factory=list)


def _info(tx: FakeTransaction) -> TransactionInfo:
    """Return a transaction as an agent shows it."""
    return TransactionInfo(
        tid=tx.tid,
        state=tx.state,
        snapshot_csn=tx.snapshot_csn,
        statement_csn=tx.snapshot_csn,
        isolation="snapshot",
        label=tx.label,
        batch=None,
        tables=sorted({table for table, _ in tx.staged}),
        rows=sum(rows.num_rows for _, rows in tx.staged),
        parts=len(tx.staged),
        removed_parts=0,
        csn=tx.csn,
        error=None,
        lease_left_s=tx.lease_s,
    )


def token_of(tid: str) -> str:
    """Return a token of a transaction, with the fields that a client reads."""
    claims = base64.urlsafe_b64encode(json.dumps({"t": tid}).encode()).decode().rstrip("=")
    return f"tl1.{claims}.mac"


@pytest.fixture
def fake_cluster() -> Iterator[FakeCluster]:
    """Three agents, and an empty table `t` with the column `k`."""
    with FakeCluster("r1", "r2", "r3") as cluster:
        cluster.add_table("t")
        yield cluster


@pytest.fixture
def fake_db(fake_cluster: FakeCluster) -> Iterator[Database]:
    """A client that was connected to `r1`."""
    with connect(fake_cluster["r1"].url, timeout_s=5.0) as db:
        yield db


class FakeCluster:
    """The log that all agents share; a context manager that ends them."""

    def __init__(self, *replicas: str) -> None:
        self.lock = threading.RLock()
        self.csn = 1
        self.horizon = 0
        #: The effective times of CSNs that have another one than `TIME_MS`.
        self.times_ms: dict[int, int] = {}
        self.definitions: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, list[tuple[int, pa.Table]]] = {}
        self.outcomes: dict[str, int] = {}
        self.released = threading.Event()
        self._kept = contextlib.ExitStack()
        self.agents = {replica: FakeAgent(self, replica) for replica in replicas or ("r1",)}
        self.members = FakeMembers(dict.fromkeys(self.agents, "serving"))

    def __getitem__(self, replica: str) -> FakeAgent:
        """Return the agent of a replica."""
        return self.agents[replica]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        for agent in self.agents.values():
            agent.stop()
        self._kept.close()

    def keep_port(self, address: Any) -> None:
        """Keep the port of an agent that was stopped: a server of another test would answer there."""
        port = self._kept.enter_context(socket.socket())
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # it is kept already, or was taken in the moment between
            port.bind(address)

    def add_table(self, name: str, rows: pa.Table | None = None) -> None:
        """Make a table of the namespace `default`, with the columns of its rows; without rows: with `k`."""
        schema = pa.schema([("k", pa.int64())]) if rows is None else rows.schema
        with self.lock:
            self.csn += 1
            self.definitions[f"default.{name}"] = {
                "name": f"default.{name}",
                "columns": [
                    {"name": one.name, "type": to_text(one.name, one.type), "nullable": one.nullable}
                    for one in schema
                ],
                "partition_by": [],
                "sort_by": [],
                "properties": {},
            }
            self.rows[f"default.{name}"] = [] if rows is None else [(self.csn, rows)]

    def table(self, name: str, csn: int) -> pa.Table:
        """Return all rows of a table at a CSN."""
        full = name if "." in name else f"default.{name}"
        if full not in self.definitions:
            raise UnknownTableError(f"there is no table {full}", table=full)
        tables = [rows for at, rows in self.rows[full] if at <= csn]
        return pa.concat_tables(tables) if tables else pa.table({"k": pa.array([], pa.int64())})


class FakeAgent:
    """One agent: a server in a thread. `lag` CSNs of the log are not applied here."""

    def __init__(self, cluster: FakeCluster, replica: str) -> None:
        self.cluster, self.id = cluster, replica
        self.released = cluster.released
        self.boot = 1
        self.lag = 0
        self.wait_bound_s = 1.0
        self.landed: list[str] = []
        self.secret = ""
        self.requests: list[Request] = []
        self.transactions: dict[str, FakeTransaction] = {}
        self.reserved: set[str] = set()
        self.pins: dict[str, int] = {}
        self.renewals = 0
        #: Seconds for which requests `METHOD path` wait for their answer, or the error that is planned.
        self.delays: dict[str, float] = {}
        self._plans: dict[str, deque[Fault | TidelockError | None]] = {}
        self._counter = 0
        self._server = Server(self)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def snapshot_csn(self) -> int:
        """The CSN up to which this replica has applied the log."""
        return max(1, self.cluster.csn - self.lag)

    def plan(self, pattern: str, *faults: Fault | TidelockError | None) -> None:
        """Give the next requests whose `METHOD path` matches these faults; None = a proper answer."""
        self._plans.setdefault(pattern, deque()).extend(faults)

    def next_fault(self, request: Request) -> Fault | TidelockError | None:
        """Take the fault that is planned for a request, after its delay."""
        self.released.wait(self.delays.get(f"{request.method} {request.path}", 0.0))
        for pattern, faults in self._plans.items():
            if faults and re.fullmatch(pattern, f"{request.method} {request.path}"):
                return faults.popleft()
        return None

    def restart(self) -> None:
        """Forget all that an agent forgets at a restart."""
        self.boot += 1
        self.transactions.clear()
        self.reserved.clear()
        self.pins.clear()

    def stop(self) -> None:
        """Refuse connections from now on, and close all that are open."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut_all()
        self._thread.join()
        self.cluster.keep_port(self._server.server_address)

    def begin(self) -> str:
        """Begin a transaction as if a client had asked for it; return its tid."""
        with self.cluster.lock:
            return str(self._begin({})["tid"])

    def count(self, pattern: str) -> int:
        """Return how many requests matched `METHOD path`."""
        return sum(bool(re.fullmatch(pattern, f"{r.method} {r.path}")) for r in self.requests)

    # -- routes
    # -----------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Any:
        """Return the JSON answer to a request, or the rows of a query."""
        if self.secret and request.headers.get("Authorization") != f"Bearer {self.secret}":
            raise AccessDeniedError("the shared secret is missing or wrong")
        parts = [unquote(part) for part in request.path.split("/")[1:]]
        with self.cluster.lock:
            match request.method, parts:
                case "GET", ["healthz" | "readyz"]:
                    return {}
                case "GET", ["status"]:
                    return self._status()
                case "POST", ["transactions"]:
                    return self._begin(request.json)
                case "GET", ["transactions"]:
                    return [msgspec.to_builtins(_info(tx)) for tx in self.transactions.values()]
                case "POST", ["transactions", tid, "rows", table]:
                    return self._insert(tid, table, request.body)
                case "POST", ["transactions", tid, verb]:
                    return self._end(tid, verb)
                case "POST", ["tids"]:
                    return self._reserve(request.json["count"])
                case "POST", ["commits"]:
                    return self._write(request.body)
                case "POST", ["landings", table]:
                    return self._land(table, request)
                case "GET", ["labels", label]:
                    return self._label(label)
                case "GET", ["outcomes", tid]:
                    return self._outcome(tid)
                case "POST", ["tables"]:
                    return self._create(request.json)
                case "PATCH", ["tables", table]:
                    return self._alter(table, request.json)
                case "DELETE", ["tables", table]:
                    definition = self._defined(table)
                    del self.cluster.definitions[definition["name"]]
                    self.cluster.csn += 1
                    return {"name": definition["name"], "csn": self.cluster.csn}
                case "GET", ["tables"]:
                    return [self._described(name, request.query) for name in self.cluster.definitions]
                case ("GET", ["tables", table]) | ("GET", ["transactions", _, "tables", table]):
                    return self._described(table if "." in table else f"default.{table}", request.query)
                case "GET", ["parts"]:
                    return self._parts(request.query["table"], int(request.query["csn"]))
                case ("GET", ["tables", table, "changes"]) | ("POST", ["tables", table, "changes", "rows"]):
                    return self._changes(table, request)
                case "GET", ["csns"]:
                    return self._csn_at(int(request.query["at_ms"]))
                case "GET", ["log"]:
                    return self._log(int(request.query["from_csn"]), int(request.query.get("limit", 1000)))
                case "GET", ["explain", tid]:
                    return self._explain(tid)
                case ("POST", ["snapshots", *_]) | ("DELETE", ["snapshots", _]):
                    return self._snapshot(request, parts)
                case "POST", ["query"]:
                    return self._query(request.json)
                case "POST", ["admin", "members"]:
                    return self.cluster.members.change(request.body)
                case "POST", ["admin", "optimize"]:
                    done = request.json["timeout_s"] > 1
                    merged = {"groups": 3, "parts_before": 2000, "parts_after": 7, "bytes": 3 << 20}
                    return {**merged, "done": done, "csn": self.snapshot_csn}
        raise BadRequestError(f"no route {request.method} {request.path}")

    def _status(self) -> dict[str, Any]:
        replicas = [
            {
                "id": a.id,
                "api": a.address,
                "data": f"{a.id}.test:9870",
                "alive": True,
                "state": "serving",
                "snapshot_csn": a.snapshot_csn,
                **self.cluster.members.row(a.id),
            }
            for a in self.cluster.agents.values()
        ]
        return {
            "id": self.id,
            "cluster_id": "c1",
            "snapshot_csn": self.snapshot_csn,
            "end_csn": self.cluster.csn,
            "tail": 0,
            "state": "draining" if self.id in self.cluster.members.draining else "serving",
            "open_transactions": sum(tx.state == "open" for tx in self.transactions.values()),
            "landed": self.landed,
            "wait_bound_s": self.wait_bound_s,
            "read_wait_s": 1.0,
            "copies": self.cluster.members.copies,
            "replicas": replicas,
        }

    def _described(self, name: str, query: dict[str, str]) -> dict[str, Any]:
        csn = int(query.get("csn", self.snapshot_csn))
        self._require(csn)
        rows = self.cluster.table(name, csn)
        size = {"parts": len(self.cluster.rows[name]), "rows": rows.num_rows, "bytes": rows.nbytes}
        schema = base64.b64encode(rows.schema.serialize()).decode("ascii")
        return {**self.cluster.definitions[name], "version": 0, "arrow_schema": schema, **size}

    def _parts(self, table: str, csn: int) -> list[dict[str, Any]]:
        self._require(csn)
        self.cluster.table(table, csn)
        full = table if "." in table else f"default.{table}"
        return [
            msgspec.to_builtins(
                PartInfo(
                    *(f"r1-1-{at}", "", rows.num_rows, rows.nbytes, "0" * 32, f"default/{at}.parquet"),
                    rows.nbytes,
                )
            )
            for at, rows in self.cluster.rows[full]
            if at <= csn
        ]

    def _changes(self, table: str, request: Request) -> object:
        asked = request.query or request.json
        since, end = int(asked["from"]), int(asked.get("to", self.snapshot_csn))
        self._require(max(since, end))
        self._require_kept(since)
        schema = self.cluster.table(table, end).schema
        full = table if "." in table else f"default.{table}"
        commits = [(at, rows) for at, rows in self.cluster.rows[full] if since < at <= end]
        if request.method == "POST":
            return fake_feed.rows(schema, commits, self.time_ms)
        return fake_feed.page(commits, end, self.time_ms)

    def time_ms(self, csn: int) -> int:
        """Return the effective time of a CSN."""
        return self.cluster.times_ms.get(csn, TIME_MS)

    def _csn_at(self, at_ms: int) -> dict[str, int]:
        csn = max((csn for csn in range(1, self.cluster.csn + 1) if self.time_ms(csn) <= at_ms), default=1)
        return {"csn": csn, "time_ms": self.time_ms(csn)}

    def _require_kept(self, csn: int | None) -> None:
        horizon = self.cluster.horizon
        if csn is not None and csn < horizon:
            raise SnapshotTooOldError(f"CSN {csn} is below the horizon {horizon}", min_csn=horizon)

    def _explain(self, tid: str) -> Any:
        outcome = self._outcome(tid)
        part = ExplainedPart("r1-1-1", "default.t", "", 3, 900, "held", "default/t/r1-1-1.parquet", None)
        return msgspec.to_builtins(
            Explanation(
                tid=tid,
                home=self.id,
                snapshot_csn=1,
                outcome=outcome["outcome"],
                csn=outcome.get("csn"),
                asked=self.id,
                here=None,
                parts=[part],
                replicas={agent.id: agent.snapshot_csn for agent in self.cluster.agents.values()},
                waiting_for=None,
            )
        )

    def _log(self, begin: int, limit: int) -> list[Any]:
        records = [
            msgspec.to_builtins(LogEntry(csn, "commit", "r1", TIME_MS, [self._logged(tid, csn)]))
            for tid, csn in self.cluster.outcomes.items()
            if csn >= begin
        ]
        return [msgspec.to_builtins(record) for record in records[:limit]]

    def _logged(self, tid: str, csn: int) -> LoggedTransaction:
        added: list[LoggedEntry] = [
            AddedPart(table, f"r1-1-{csn}", "", rows.num_rows, rows.nbytes, "0" * 32)
            for table, parts in self.cluster.rows.items()
            for at, rows in parts
            if at == csn
        ]
        label = next(
            agent.transactions[tid].label
            for agent in self.cluster.agents.values()
            if tid in agent.transactions
        )
        return LoggedTransaction(tid, added, None, ["r1", "r2"], label, True, None, None)

    def _require(self, csn: int | None) -> None:
        if csn is not None and csn > self.cluster.csn:
            raise NoSuchCsnError(f"there is no CSN {csn}", end_csn=self.cluster.csn)
        if csn is not None and csn > self.snapshot_csn:
            raise StandbyError(f"{self.id} is at {self.snapshot_csn}", snapshot_csn=self.snapshot_csn)

    def _begin(self, body: dict[str, Any]) -> dict[str, Any]:
        self._require(body.get("min_csn"))
        self._counter += 1
        tid = f"{self.snapshot_csn}-{self.id}-{self.boot}-{self._counter}"
        self.transactions[tid] = FakeTransaction(
            tid, self.snapshot_csn, body.get("lease_s", 60.0), body.get("label")
        )
        return {"tid": tid, "snapshot_csn": self.snapshot_csn, "lease_s": self.transactions[tid].lease_s}

    def _reserve(self, count: int) -> dict[str, Any]:
        first = self._counter + 1
        self._counter += count
        tids = [f"{self.snapshot_csn}-{self.id}-{self.boot}-{n}" for n in range(first, first + count)]
        self.reserved.update(tids)
        return {"first": tids[0], "count": count, "seconds": 60.0}

    def _write(self, body: bytes) -> dict[str, Any]:
        head, streams = writes.decode(body)
        self._require(head.min_csn)
        if head.tid in self.reserved:
            self.reserved.remove(head.tid)
            snapshot = int(head.tid.split("-")[0])
            self.transactions[head.tid] = FakeTransaction(head.tid, snapshot, 60.0, head.label)
            for rows, stream in zip(head.rows, streams, strict=True):
                self._insert(head.tid, rows.table, stream)
        return self._end(head.tid, "commit")

    def _land(self, table: str, request: Request) -> dict[str, Any]:
        self._require(int(request.query.get("min_csn", 1)))
        self.cluster.table(table, self.snapshot_csn)
        rows = pa.ipc.open_stream(request.body).read_all()
        self.cluster.csn += 1
        self.cluster.rows[f"default.{table}"].append((self.cluster.csn, rows))
        return {"rows": rows.num_rows, "tid": f"1-{self.id}-{self.boot}-1", "csn": None}

    def _find(self, tid: str) -> FakeTransaction:
        if tid not in self.transactions:
            raise UnknownTransactionError(f"{self.id} has no transaction {tid}", tid=tid)
        return self.transactions[tid]

    def _insert(self, tid: str, table: str, body: bytes) -> dict[str, Any]:
        tx = self._find(tid)
        if tx.state == "expired":
            raise LeaseExpiredError(f"the lease of {tid} ran out", tid=tid, state="rolled_back")
        if tx.state != "open":
            raise TransactionClosedError(f"{tid} is {tx.state}", tid=tid, state=tx.state)
        try:
            self.cluster.table(table, tx.snapshot_csn)
        except UnknownTableError:
            tx.state = "failed"
            raise
        rows = pa.ipc.open_stream(body).read_all()
        tx.staged.append((f"default.{table}", rows))
        return {"rows": rows.num_rows, "parts": 1}

    def _end(self, tid: str, verb: str) -> dict[str, Any]:
        tx = self._find(tid)
        if verb == "heartbeat":
            tx.heartbeats += 1
            if tx.state != "expired":
                return {"lease_s": tx.lease_s, "state": tx.state}
            why = LeaseExpiredError(f"the lease of {tid} ran out", tid=tid).to_wire()
            return {"lease_s": tx.lease_s, "state": "rolled_back", "why": why}
        if verb in {"rollback", "kill"}:
            if tx.state == "committed":
                raise TransactionClosedError(f"{tid} is committed", tid=tid, state="committed")
            tx.state = "rolled_back"
            return {"tid": tid, "state": "rolled_back"}
        if tx.state not in {"open", "committed"}:
            raise TransactionClosedError(f"{tid} is {tx.state}", tid=tid, state=tx.state)
        if tx.state == "open" and tx.staged:
            self.cluster.csn += 1
            tx.csn = self.cluster.outcomes[tid] = self.cluster.csn
            for table, rows in tx.staged:
                self.cluster.rows[table].append((tx.csn, rows))
        tx.state = "committed"
        return {"tid": tid, "csn": tx.csn, "time_ms": TIME_MS if tx.csn else None, "state": "committed"}

    def _label(self, label: str) -> object:
        named = (tx for agent in self.cluster.agents.values() for tx in agent.transactions.values())
        tids = [tx.tid for tx in named if tx.label == label and tx.tid in self.cluster.outcomes]
        tid = tids[0] if tids else None
        csn = self.cluster.outcomes.get(tid or "")
        return {"label": label, "tid": tid, "batch": None, "csn": csn, "time_ms": TIME_MS if csn else None}

    def _outcome(self, tid: str) -> dict[str, Any]:
        if csn := self.cluster.outcomes.get(tid):
            return {"tid": tid, "outcome": "committed", "csn": csn, "time_ms": TIME_MS}
        home = self.cluster.agents[tid.split("-")[1]]
        home.reserved.discard(tid)
        tx = home.transactions.get(tid)
        running = tx is not None and tx.state in {"open", "sealed"}
        return {"tid": tid, "outcome": "running" if running else "aborted"}

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body["name"]
        if f"default.{name}" in self.cluster.definitions:
            raise TableExistsError(f"there is a table default.{name}", table=name)
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["schema"])))
        self.cluster.add_table(name)
        return {**self.cluster.definitions[f"default.{name}"], "csn": self.cluster.csn, "version": 0}

    def _defined(self, table: str) -> dict[str, Any]:
        name = table if "." in table else f"default.{table}"
        if name not in self.cluster.definitions:
            raise UnknownTableError(f"there is no table {name}", table=name)
        return self.cluster.definitions[name]

    def _alter(self, table: str, body: dict[str, Any]) -> dict[str, Any]:
        definition = dict(self._defined(table))
        del self.cluster.definitions[definition["name"]]
        if name := body.get("name"):
            definition["name"] = name if "." in name else f"default.{name}"
        given = {**definition["properties"], **body.get("properties", {})}
        definition["properties"] = {key: value for key, value in given.items() if value is not None}
        self.cluster.definitions[definition["name"]] = definition
        self.cluster.csn += 1
        return {**definition, "csn": self.cluster.csn, "version": 1}

    def _snapshot(self, request: Request, parts: list[str]) -> dict[str, Any]:
        if request.method == "DELETE":
            self.pins.pop(parts[1], None)
            return {"id": parts[1]}
        if len(parts) > 1:
            if parts[1] not in self.pins:
                raise UnknownTransactionError(f"{self.id} holds no snapshot {parts[1]}")
            self.renewals += 1
            return {"id": parts[1], "csn": self.pins[parts[1]], "ttl_s": 60.0}
        body = request.json
        self._require(body.get("csn"))
        self._require_kept(body.get("csn"))
        self._require(body.get("min_csn"))
        self._counter += 1
        pin = f"{self.id}-{self.boot}-{self._counter}"
        self.pins[pin] = body.get("csn") or self.snapshot_csn
        return {"id": pin, "csn": self.pins[pin], "ttl_s": body.get("ttl_s", 60.0)}

    def _query(self, body: dict[str, Any]) -> pa.Table:
        if tid := body.get("tid"):
            tx = self._find(tid)
            csn, staged = tx.snapshot_csn, tx.staged
        else:
            csn, staged = body["csn"], []
            self._require(csn)
        with duckdb.connect() as database:
            for full in self.cluster.definitions:
                own = [rows for table, rows in staged if table == full]
                database.register(full.split(".")[1], pa.concat_tables([self.cluster.table(full, csn), *own]))
            sql = body.get("sql")
            if sql is None:
                self.cluster.table(body["table"], csn)
                columns = ", ".join(body["columns"]) if body.get("columns") else "*"
                condition = f" where {body['where']}" if body.get("where") else ""
                sql = f"select {columns} from {body['table']}{condition}"
            try:
                sql = sql.replace('"default".', "")
                return database.sql(sql, params=body.get("params") or None).to_arrow_table()
            except duckdb.Error as error:
                raise BadRequestError(str(error)) from error
