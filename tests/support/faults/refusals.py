"""Refusals against a real cluster: the statement that must be refused, and the proof that it changed nothing.

(rule errors): each refusal is of its own class and says what was expected, what was found and the next step;
after a refused statement the transaction accepts rollback only; transaction and cluster stay intact.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import urllib3

from tests.support.waiting import eventually
from tidelock.client import Database, Decision, Transaction, TransactionState
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError, TransactionClosedError, from_wire

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(9, 2)),
    ]
)
ROWS = pa.table({"k": [1, 2], "name": ["a", None], "price": [None, 1]}, schema=SCHEMA)
#: Settings of the cluster that takes bad input: limits that a test can exceed.
LIMITS = {
    "insert_bytes_max": 12 << 20,
    "row_group_bytes": 5 << 20,
    "transactions_max": 8,
    "columns_max": 1500,
}
COMMAND_TIMEOUT_S = 120.0

Statement = Callable[[Transaction], object]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an address: status, and the body as it came."""

    status: int
    data: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.data)

    @property
    def error(self) -> TidelockError:
        """The error in the body."""
        return from_wire(self.status, self.json)

    @property
    def java_class(self) -> str:
        """The exception of a WebHDFS answer, which decides how Spark reacts."""
        name: str = self.json["RemoteException"]["javaClassName"]
        return name


def http(method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
    """Send one request without the client library; a body that is not bytes is sent as JSON."""
    if body is not None and not isinstance(body, bytes | Iterator):
        body = json.dumps(body).encode()
    response = urllib3.request(method, url, body=body, headers=headers, retries=False, timeout=60.0)
    return Answer(response.status, response.data)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The two addresses of one replica."""

    api: str
    data: str

    @classmethod
    def of(cls, cluster: LocalCluster, replica: str) -> Addresses:
        """Return the addresses of a replica."""
        ports = next(ports for ports in cluster.layout.replicas if ports.id == replica)
        return cls(f"http://127.0.0.1:{ports.api}/api/v1", f"http://127.0.0.1:{ports.data}")


def command(*arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tidelock` with these arguments to its end."""
    return run("tidelock.cli", *arguments, env=env)


def run(
    module: str, *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module as a program to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
        env={**os.environ, **(env or {})},
    )


class Ground:
    """A cluster with a table of known rows, which every refusal must leave as it is.

    Args:
        cluster: The running cluster.
        db: A client of the cluster.
        table: Name of a table to make, with the columns of `SCHEMA`.
    """

    def __init__(self, cluster: LocalCluster, db: Database, table: str) -> None:
        self.cluster, self.db, self.table = cluster, db, table
        db.create_table(table, SCHEMA)
        db.insert(table, ROWS, wait="all")
        self.rows = ROWS.num_rows

    @contextmanager
    def refuses(
        self, error: type[TidelockError], *words: str
    ) -> Iterator[pytest.ExceptionInfo[TidelockError]]:
        """Require exactly this error, with these words in its message, and an unchanged cluster."""
        with pytest.raises(error) as caught:
            yield caught
        check_message(caught.value, error, words)
        self.check_intact()

    def refuses_statement(self, run: Statement, error: type[TidelockError], *words: str) -> TidelockError:
        """Run a statement in a transaction with staged rows; it must be refused and leave rollback only."""
        tx = self.db.begin(fresh=True)
        tx.insert(self.table, ROWS)
        with pytest.raises(error) as caught:
            run(tx)
        check_message(caught.value, error, words)
        self.check_rollback_only(tx)
        self.check_intact()
        return caught.value

    def check_rollback_only(self, tx: Transaction) -> None:
        """Require that client and home take a rollback only, and that the transaction is gone after it."""
        check_state(tx, TransactionState.FAILED)
        for statement in (
            lambda: tx.insert(self.table, ROWS),
            lambda: tx.read(self.table),
            tx.commit,
        ):
            with pytest.raises(TransactionClosedError, match="roll it back"):
                statement()
        home = Addresses.of(self.cluster, tx.holder)
        check_home_wants_rollback(home, tx.tid, self.table)
        tx.rollback()
        check_state(tx, TransactionState.ROLLED_BACK)
        assert self.db.outcome(tx.tid).decision is Decision.ABORTED

    def check_intact(self) -> None:
        """Require that the next transaction works, and that replicas have its rows and the former ones."""
        self.rows += ROWS.num_rows
        csn = self.db.insert(self.table, ROWS, wait="all").csn
        for replica in self.cluster.replicas:
            at = f"{Addresses.of(self.cluster, replica).api}/tables/{self.table}?csn={csn}"
            assert http("GET", at).json["rows"] == self.rows, replica
        assert self.db.snapshot(csn=csn).scan(self.table).count() == self.rows


def check_state(tx: Transaction, state: TransactionState) -> None:
    """Require that the client knows the state of the transaction."""
    assert tx.state is state


def check_message(error: TidelockError, kind: type[TidelockError], words: Iterable[str]) -> None:
    """Require that the error is of this very class, and that its message has these words."""
    assert type(error) is kind, repr(error)
    for word in words:
        assert word in error.message


def check_home_wants_rollback(home: Addresses, tid: str, table: str) -> None:
    """Require that the home also stops a program without the client library that ignores the refusal."""
    transaction = f"{home.api}/transactions/{tid}"
    assert http("GET", transaction).json["state"] == "failed"
    for route, body in ((f"/rows/{table}", stream(ROWS)), ("/commit", b"{}")):
        answer = http("POST", transaction + route, body)
        assert answer.status == 409
        check_message(answer.error, TransactionClosedError, ["roll it back"])


def stream(rows: pa.Table, *, batch_rows: int | None = None) -> bytes:
    """The rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch_rows)
    return bytes(sink.getvalue().to_pybytes())


def nothing_open(cluster: LocalCluster) -> None:
    """Wait until no replica has an open transaction left."""
    statuses = [f"{Addresses.of(cluster, replica).api}/status" for replica in cluster.replicas]
    eventually(lambda: not any(http("GET", status).json["open_transactions"] for status in statuses))
