"""Requests to single agents over HTTP, and DuckDB queries over the copies of their parts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from demo.second_opinion import SecondOpinion
from tidelock.cluster import LocalCluster
from tidelock.cluster_layout import ClusterLayout, ReplicaPorts
from tidelock.errors import CorruptError, StandbyError, UnavailableError
from workloads.agents import Agents, Served
from workloads.tpch.queries import TpchQuery
from workloads.tpch.tables import CUSTOMER, LINEITEM, ORDERS, TpchTable

METRICS = """\
# HELP tidelock_reader_opens_total Snapshot file system: opens.
# TYPE tidelock_reader_opens_total counter
tidelock_reader_opens_total 12.0
tidelock_reader_bytes_total 3.4e+06
tidelock_commits_total{result="committed"} 3.0
tidelock_snapshot_csn 41.0
"""


@dataclass
class Server:
    """An agent's two addresses in one: fixed answers by path."""

    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add_part(self, table: TpchTable, path: str, rows: pa.Table, csn: int) -> str:
        """Serve a part, and return its path below the data address."""
        sink = pa.BufferOutputStream()
        pq.write_table(rows.drop_columns(list(table.partition_by)), sink)
        data = sink.getvalue().to_pybytes()
        listing = f"/api/v1/parts?csn={csn}&table={table.name}"
        parts = json.loads(self.answers.get(listing, (200, b"[]"))[1])
        name = f"r2-1-{len(self.answers)}"
        file = "/".join(["default", table.name, *filter(None, [path]), f"{name}.parquet"])
        parts.append(
            {
                "part": name,
                "path": path,
                "rows": rows.num_rows,
                "length": len(data),
                "checksum": xxhash.xxh3_128_hexdigest(data),
                "file": file,
            }
        )
        self.answers[listing] = (200, json.dumps(parts).encode())
        self.answers[f"/snapshots/{csn}/{file}"] = (200, data)
        return f"/snapshots/{csn}/{file}"


@pytest.fixture
def served() -> Iterator[tuple[Server, Agents]]:
    """A server that acts as r2, and the agents of its cluster; r1 is down."""
    answers = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.asked.append(self.path)
            status, data = answers.answers.get(self.path, (404, b"{}"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        port = server.server_port
        layout = ClusterLayout(replicas=(ReplicaPorts("r1", 1, 1), ReplicaPorts("r2", port, port)), copies=1)
        yield answers, Agents(LocalCluster(Path("nowhere"), layout))
        server.shutdown()
        thread.join()


def test_metrics_are_read_out_of_prometheus_text(served: tuple[Server, Agents]) -> None:
    """Counters of the readers and the snapshot CSN come out of the text for Prometheus."""
    server, agents = served
    server.answers["/metrics"] = (200, METRICS.encode())
    assert agents.served("r2") == Served(opens=12, byte_count=3_400_000)
    assert agents.snapshot_csn("r2") == 41
    assert agents.served("r2").since(Served(2, 400_000)) == Served(10, 3_000_000)


def test_a_dead_agent_is_unavailable(served: tuple[Server, Agents]) -> None:
    """No connection is an error that can be told from every answer."""
    with pytest.raises(UnavailableError, match="no answer from"):
        served[1].served("r1")


def test_an_agents_error_is_raised_as_its_class(served: tuple[Server, Agents]) -> None:
    """An agent's error is raised as its class, also with a body of another program."""
    server, agents = served
    wire = StandbyError("behind", snapshot_csn=3).to_wire()
    server.answers["/api/v1/parts?csn=9&table=orders"] = (503, json.dumps(wire).encode())
    with pytest.raises(StandbyError, match="behind"):
        agents.parts("r2", 9, "orders")
    server.answers["/metrics"] = (503, b"<html>")
    with pytest.raises(UnavailableError):
        agents.snapshot_csn("r2")


def fill(server: Server, csn: int) -> list[str]:
    """Two parts of orders in two years, one of lineitem, an empty one of customer."""
    return [
        server.add_part(ORDERS, "o_year=1995", _rows(ORDERS, 3), csn),
        server.add_part(ORDERS, "o_year=1996", _rows(ORDERS, 2), csn),
        server.add_part(LINEITEM, "l_year=1995", _rows(LINEITEM, 4), csn),
        server.add_part(CUSTOMER, "", _rows(CUSTOMER, 0), csn),
    ]


def _rows(table: TpchTable, count: int) -> pa.Table:
    columns = [pa.nulls(count, column.type) for column in table.schema]
    return pa.Table.from_arrays(columns, names=table.schema.names)


ASKED = TpchQuery("rows", "select o_year, count(*) from orders group by o_year order by o_year")


def test_duckdb_answers_from_copies_of_the_listed_parts(
    served: tuple[Server, Agents], tmp_path: Path
) -> None:
    """Exactly the parts of the list are read, with the partition column as the number that it is."""
    server, agents = served
    fill(server, 9)
    opinion = SecondOpinion(agents, "r2", tmp_path)
    others = TpchQuery("others", "select (select count(*) from lineitem), (select count(*) from customer)")
    assert opinion.answers(9, [ASKED, others]) == [[(1995, 3), (1996, 2)], [(4, 0)]]


def test_a_part_is_copied_once(served: tuple[Server, Agents], tmp_path: Path) -> None:
    """A later CSN fetches only what has come in between."""
    server, agents = served
    fill(server, 9)
    opinion = SecondOpinion(agents, "r2", tmp_path)
    opinion.answers(9, [ASKED])
    for table in (ORDERS, LINEITEM, CUSTOMER):
        server.answers[f"/api/v1/parts?csn=10&table={table.name}"] = server.answers[
            f"/api/v1/parts?csn=9&table={table.name}"
        ]
    new = server.add_part(ORDERS, "o_year=1995", _rows(ORDERS, 1), 10)
    server.asked.clear()
    assert opinion.answers(10, [ASKED]) == [[(1995, 4), (1996, 2)]]
    assert [path for path in server.asked if path.startswith("/snapshots")] == [new]


def test_bytes_that_are_not_those_of_the_list_are_refused(
    served: tuple[Server, Agents], tmp_path: Path
) -> None:
    """DuckDB reads verified bytes only."""
    server, agents = served
    path = fill(server, 9)[0]
    status, data = server.answers[path]
    server.answers[path] = (status, data[:-1] + b"\x00")
    with pytest.raises(CorruptError, match="checksum"):
        SecondOpinion(agents, "r2", tmp_path).answers(9, [ASKED])
