"""Connecting, finding the agents, and the CSN that a client carries from replica to replica (I11)."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeAgent, FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock import processes
from tidelock.client import Database, connect
from tidelock.cluster_layout import FOLDER_DEFAULT, ClusterLayout, ReplicaPorts, pid_file
from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    CommitUnknownError,
    ConfigError,
    NoAnswerError,
    NoConnectionError,
    RefusedError,
    TableExistsError,
    TidelockError,
    UnavailableError,
    UnknownTableError,
)

ROWS = pa.table({"k": [1, 2, 3]})


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8801", "ftp://host:1", "http://host:1/path", "http://host:1?x=1", "zk://", []],
)
def test_addresses_of_another_form(url: str) -> None:
    """A malformed address is refused; the error shows the right forms."""
    with pytest.raises(BadRequestError, match=r"http://host:port|found none"):
        connect(url)


def lay_out(cluster: FakeCluster, folder: Path) -> Path:
    """Write the files of a local cluster whose agent `r1` is a fake one; return the folder."""
    port = int(cluster["r1"].url.rpartition(":")[2])
    (folder / "r1").mkdir(parents=True)
    ClusterLayout(replicas=(ReplicaPorts("r1", port, 1), ReplicaPorts("r2", 1, 1)), copies=1).save(folder)
    processes.record(os.getpid(), pid_file(folder, "r1"))
    return folder


def test_the_folder_of_a_local_cluster_is_an_address(
    fake_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder stands for the ports of its cluster, which no user has to copy; others are refused."""
    folder = lay_out(fake_cluster, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    for address in ("mine", str(folder), folder):
        with connect(address) as db:
            assert db.tables()[0]["name"] == "default.t"
    for wrong in (".", tmp_path):
        with pytest.raises(ConfigError, match="there is no cluster"):
            connect(wrong)


def test_a_name_that_is_no_folder_is_refused_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt name is not taken for an address, and the error says how a cluster of that name is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequestError, match=r"found 'demo'.*`tidelock up --data-dir demo`"):
        connect("demo")


def test_without_an_address_the_cluster_of_the_environment_is_found(
    fake_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TIDELOCK_URL comes before the default folder, and an argument before both, as on the command line."""
    monkeypatch.chdir(tmp_path)
    lay_out(fake_cluster, tmp_path / FOLDER_DEFAULT)
    monkeypatch.setenv("TIDELOCK_URL", fake_cluster["r3"].url)
    with connect() as db:
        assert db.begin().holder == "r3"
    with connect(str(FOLDER_DEFAULT)) as db:
        assert db.begin().holder == "r1"
    monkeypatch.setenv("TIDELOCK_URL", "")
    with connect() as db:
        assert db.begin().holder == "r1"


def test_without_any_cluster_the_error_says_where_one_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is named in full, since a wrong current folder is the usual cause, with the next step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDELOCK_URL", raising=False)
    with pytest.raises(ConfigError, match=f"no cluster in {tmp_path / FOLDER_DEFAULT};.*`tidelock up"):
        connect()


def test_the_secret_of_the_environment_is_the_default_of_the_token(
    fake_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program needs no code for the secret: the variables are those of the command line."""
    fake_cluster["r1"].secret = "s3cret"
    (tmp_path / "secret").write_text("s3cret\n")
    for name, value in (("TIDELOCK_SECRET_FILE", str(tmp_path / "secret")), ("TIDELOCK_SECRET", "s3cret")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with connect(fake_cluster["r1"].url) as db:
                assert db.status()["id"] == "r1"
            with pytest.raises(AccessDeniedError):
                connect(fake_cluster["r1"].url, token="other")


def test_zookeeper_address_of_another_form() -> None:
    """A zk address without root is refused before a connection is made."""
    with pytest.raises(ConfigError, match="root"):
        connect("zk://127.0.0.1:1")


def test_an_unreachable_agent_is_told_in_one_line() -> None:
    """An address without an agent gives an error of one line."""
    with pytest.raises(UnavailableError, match="is it running"):
        connect("http://127.0.0.1:1", timeout_s=1.0)


def test_a_zookeeper_that_refuses_connections_is_given_up_after_three_tries() -> None:
    """No server listens there, and that is known at once: no minute of silence."""
    with pytest.raises(
        UnavailableError, match=r"no ZooKeeper listens at 127.0.0.1:1, .*refused; tried 3 times"
    ):
        connect("zk://127.0.0.1:1,127.0.0.1:2/tidelock", timeout_s=600)


def test_zookeeper_is_asked_if_no_agent_answers() -> None:
    """Of several addresses ZooKeeper's is the last resort, and its error is told."""
    with pytest.raises(UnavailableError, match="no ZooKeeper listens"):
        connect(["http://127.0.0.1:1", "zk://127.0.0.1:1/tidelock"], timeout_s=600)


def test_the_members_file_finds_agents_when_the_given_one_is_down(
    fake_cluster: FakeCluster, tmp_path: Path
) -> None:
    """A program that knows one address starts while that agent is down, since it keeps what it has learnt."""
    file = tmp_path / "state" / "members.json"
    with connect(fake_cluster["r1"].url, members_file=file):
        fake_cluster["r1"].stop()
    with pytest.raises(UnavailableError):
        connect(fake_cluster["r1"].url)
    with connect(fake_cluster["r1"].url, members_file=file) as db:
        assert db.begin().holder in {"r2", "r3"}


@pytest.mark.parametrize("content", [b"", b"{", b'{"cluster_id": "c1", "api": 7}'])
def test_a_damaged_members_file_does_no_harm(
    fake_cluster: FakeCluster, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and written again."""
    file = tmp_path / "members.json"
    file.write_bytes(content)
    with connect(fake_cluster["r1"].url, members_file=file) as db:
        assert db.begin().holder == "r1"
    assert "cannot be read" in caplog.text
    assert json.loads(file.read_bytes())["cluster_id"] == "c1"


def test_a_members_file_of_another_cluster_leads_nowhere(fake_cluster: FakeCluster, tmp_path: Path) -> None:
    """Its addresses count for the cluster that it names only."""
    file = tmp_path / "members.json"
    file.write_text(json.dumps({"cluster_id": "c2", "api": [fake_cluster["r2"].address]}))
    with pytest.raises(UnavailableError, match="of another cluster"):
        connect("http://127.0.0.1:1", members_file=file)


def test_a_cluster_that_is_down_is_told_in_one_sentence(fake_cluster: FakeCluster) -> None:
    """All addresses, one reason, one next step, and no object of a library."""
    addresses = [agent.address for agent in fake_cluster.agents.values()]
    for agent in fake_cluster.agents.values():
        agent.stop()
    with pytest.raises(NoConnectionError) as caught:
        connect([f"http://{address}" for address in addresses])
    assert caught.value.message == (
        f"no connection to an agent at {', '.join(addresses)} ([Errno 111] Connection refused); "
        "start the agents, or check the addresses"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"csn": "2026-11-22T10:00:00Z"}, "csn as an integer.*give a point in time as at="),
        ({"csn": True}, "csn as an integer"),
        ({"min_csn": 1.5}, "min_csn as an integer"),
        ({"at": "yesterday"}, "expected a point in time"),
        ({"at": "2026-11-22T10:00:00"}, "no time zone"),
        ({"at": 1.5}, "expected a datetime"),
    ],
)
def test_a_snapshot_names_the_argument_that_is_wrong(
    fake_db: Database, arguments: dict[str, object], message: str
) -> None:
    """The client says so in the words of its own arguments, before a request is sent."""
    with pytest.raises(BadRequestError, match=message):
        fake_db.snapshot(**arguments)  # type: ignore[arg-type]


def test_a_point_in_time_may_be_a_text(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """ISO 8601 with a time zone is the same as a datetime."""
    fake_db.insert("t", ROWS)
    fake_db.snapshot(at="2026-11-22T10:00:00+01:00")
    assert fake_cluster["r1"].requests[-1].json["at_ms"] == 1795338000000


def test_several_addresses_are_tried_in_order(fake_cluster: FakeCluster) -> None:
    """The first address that answers is the preferred replica."""
    with connect(["http://127.0.0.1:1", fake_cluster["r3"].url, fake_cluster["r1"].url]) as db:
        assert db.begin().holder == "r3"


def test_an_unknown_replica_is_refused_with_the_known_ones(fake_cluster: FakeCluster) -> None:
    """An unknown replica is refused; the error lists the existing ones."""
    with pytest.raises(BadRequestError, match="r1, r2, r3"):
        connect(fake_cluster["r1"].url, replica="r9")


def test_the_shared_secret_travels_with_every_request(fake_cluster: FakeCluster) -> None:
    """The token travels with every request; without it, access is denied."""
    for agent in fake_cluster.agents.values():
        agent.secret = "s3cret"
    with pytest.raises(AccessDeniedError, match="shared secret"):
        connect(fake_cluster["r1"].url)
    with connect(fake_cluster["r1"].url, token="s3cret") as db:
        db.insert("t", ROWS)
        assert db.read("t").num_rows == 3


def test_own_commit_is_seen_through_any_replica(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Every begin and snapshot carries the CSN of the last commit, to any replica."""
    result = fake_db.insert("t", ROWS)
    assert fake_db.seen_csn == result.csn
    fake_cluster["r1"].plan("POST /(transactions|snapshots)", *[Fault.LOST_REQUEST] * 2)
    tx, snap = fake_db.begin(), fake_db.snapshot()
    assert (tx.holder, snap.holder) == ("r2", "r2")
    for request in fake_cluster["r2"].requests:
        if request.path in {"/transactions", "/snapshots"}:
            assert request.json["min_csn"] == result.csn


def test_clients_with_one_key_go_to_one_home(fake_cluster: FakeCluster) -> None:
    """The label chooses the home for all clients; while that is dead, all choose the same other one."""
    with connect(fake_cluster["r1"].url) as one, connect(fake_cluster["r3"].url) as other:
        homes = {}
        for label in "abcdef":
            homes[label] = one.begin(label, batch=1, key=f"{label}/1").holder
            assert other.begin(label, batch=2, key=f"{label}/2").holder == homes[label]
        assert set(homes.values()) == {"r1", "r2", "r3"}
        fake_cluster["r2"].stop()
        for number, label in enumerate(itertools.cycle(homes), start=3):
            key = f"{label}/{number}"
            found = {db.begin(label, batch=number, key=key).holder for db in (one, other)}
            assert len(found) == 1
            assert homes[label] in {"r2", *found}
            if number == 8:
                break


def test_caller_may_ask_for_a_higher_csn(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The higher of the caller's CSN and the one seen is sent."""
    fake_db.insert("t", ROWS)
    with pytest.raises(RefusedError):
        fake_db.begin(min_csn=fake_db.seen_csn + 5)
    assert fake_cluster["r1"].requests[-1].json["min_csn"] == fake_db.seen_csn + 5
    fake_db.snapshot(min_csn=1)
    assert fake_cluster["r1"].requests[-1].json["min_csn"] == fake_db.seen_csn


def test_csn_seen_by_many_threads(fake_db: Database) -> None:
    """Commits of many threads through one client leave the highest CSN of all."""
    csns: list[int] = []

    def write() -> None:
        for _ in range(5):
            csn = fake_db.insert("t", ROWS).csn
            assert csn is not None
            csns.append(csn)
            assert fake_db.seen_csn >= csn

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake_db.seen_csn == max(csns)
    assert len(set(csns)) == 40
    assert fake_db.read("t").num_rows == 120


def test_tables_are_read_at_a_csn_not_below_what_was_seen(
    fake_cluster: FakeCluster, fake_db: Database
) -> None:
    """The list of tables has the client's own commits."""
    csn = fake_db.insert("t", ROWS).csn
    assert [table["name"] for table in fake_db.tables()] == ["default.t"]
    assert fake_cluster["r1"].requests[-1].query == {"csn": str(csn)}
    with pytest.raises(UnknownTableError):
        fake_db.table("nowhere")


def test_a_created_table_is_seen_at_once(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A created table is visible at once; a second one of the same name is refused."""
    table = fake_db.create_table("new", pa.schema([("k", pa.int64())]), partition_by=["k"])
    assert table["csn"] == fake_cluster.csn == fake_db.seen_csn
    assert fake_cluster["r1"].requests[-1].json["partition_by"] == ["k"]
    with pytest.raises(TableExistsError):
        fake_db.create_table("new", ROWS.schema)


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.PAGE, Fault.OTHER_JSON])
def test_lost_answer_of_create_table_is_unknown(
    fake_cluster: FakeCluster, fake_db: Database, fault: Fault
) -> None:
    """A create with a lost answer is not repeated: the first one would make the second one fail."""
    fake_cluster["r1"].plan("POST /tables", fault)
    with pytest.raises(CommitUnknownError, match=r"table\('new'\)"):
        fake_db.create_table("new", ROWS.schema)
    assert fake_db.table("new")["name"] == "default.new"


def test_address_that_changed_is_learnt_again(fake_cluster: FakeCluster) -> None:
    """A replica that comes back at another port is found through the others."""
    with connect([fake_cluster["r1"].url, fake_cluster["r2"].url], replica="r3") as db:
        fake_cluster["r3"].stop()
        fake_cluster.agents["r3"] = type(fake_cluster["r3"])(fake_cluster, "r3")
        assert db.begin().holder == "r3"


def test_a_home_has_an_address_for_others(fake_cluster: FakeCluster) -> None:
    """The caller's address of a home may be local; the published address is reachable from everywhere."""
    port = fake_cluster["r1"].address.rpartition(":")[2]
    with connect(f"http://localhost:{port}") as db, db.begin() as tx:
        assert tx.url == f"http://localhost:{port}"
        assert tx.published_url == fake_cluster["r1"].url
        tx.rollback()


def test_agent_of_another_cluster_is_not_asked(fake_cluster: FakeCluster) -> None:
    """The answer of another cluster's agent at a known address is ignored."""
    with FakeCluster("r1") as other, connect(fake_cluster["r1"].url, timeout_s=5.0) as db:
        original = other["r1"].answer
        other["r1"].answer = lambda request: {**original(request), "cluster_id": "c2"}  # type: ignore[method-assign]
        db._connection.members._seeds = (other["r1"].address,)
        for agent in fake_cluster.agents.values():
            agent.stop()
        with pytest.raises(UnavailableError, match="no connection to an agent"):
            db.begin(fresh=True)
        assert [request.path for request in other["r1"].requests] == ["/status"]


def test_silent_agent_is_passed_over(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The client waits once for a frozen replica, then asks the others first."""
    fake_cluster["r1"].plan(".*", *[Fault.SILENCE] * 10)
    assert fake_db.begin().holder == "r2"
    assert fake_db.snapshot().holder == "r2"
    assert [request.path for request in fake_cluster["r1"].requests] == [
        "/status",
        "/transactions",
        "/healthz",
    ]


def test_transactions_of_all_replicas(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Transactions are listed with their homes; replicas that do not answer are left out."""
    tx = fake_db.begin()
    fake_cluster["r2"].plan("GET /transactions", Fault.LOST_REQUEST)
    [shown] = fake_db.transactions()
    assert (shown.tid, shown.state, shown.home) == (tx.tid, "open", "r1")


def test_a_client_outlives_all_agents_that_it_began_with() -> None:
    """Members move to other machines: each time one is missing the others name those that have come."""
    with FakeCluster("r1", "r2", "r3") as cluster:
        cluster.add_table("t", ROWS)
        with connect([agent.url for agent in cluster.agents.values()]) as db:
            assert db.read("t") == ROWS
            for old, fresh in (("r1", "r4"), ("r2", "r5"), ("r3", "r6")):
                cluster.agents[fresh] = FakeAgent(cluster, fresh)
                cluster.agents.pop(old).stop()
                assert db.read("t") == ROWS


def test_the_list_of_agents_is_read_again_now_and_then() -> None:
    """A client that never meets a dead agent learns those that have come as well."""
    with FakeCluster("r1") as cluster:
        cluster.add_table("t", ROWS)
        with connect(cluster["r1"].url, members_refresh_s=0.0) as db:
            cluster.agents["r2"] = FakeAgent(cluster, "r2")
            assert db.read("t") == ROWS
            cluster.agents.pop("r1").stop()
            assert db.read("t") == ROWS
    with FakeCluster("r1") as cluster:
        cluster.add_table("t", ROWS)
        with connect(cluster["r1"].url) as db:
            for _ in range(5):
                db.read("t")
        assert cluster["r1"].count("GET /status") == 1


@contextmanager
def other_server(status: int, body: bytes) -> Iterator[str]:
    """The address of a web server that is no agent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b"<html>", BadRequestError),
        (200, b"{}", NoAnswerError),
        (200, b'{"id": 7, "cluster_id": "c1", "snapshot_csn": 1, "replicas": []}', NoAnswerError),
        (404, b"<html>", RefusedError),
        (502, b"bad gateway", UnavailableError),
        (503, b"[]", UnavailableError),
        (500, b"oops", TidelockError),
        (418, json.dumps({"error": "TeapotError", "message": "short"}).encode(), RefusedError),
    ],
)
def test_answers_of_something_else(status: int, body: bytes, error: type[TidelockError]) -> None:
    """An answer of another server becomes an error class that claims no false certainty."""
    with other_server(status, body) as url, pytest.raises(TidelockError) as caught:
        connect(url)
    assert type(caught.value) is error


def test_client_does_not_load_the_inside_of_an_agent() -> None:
    """The import of the client loads neither kazoo nor modules of the agents."""
    inside = ("kazoo", "aiohttp", "tidelock.csnlog", "tidelock.replication", "tidelock.replica_agent")
    code = f"import sys, tidelock.client; print([name for name in sys.modules if name.startswith({inside})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_client_for_another_process(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A pickled client connects again, even if its first agent has ended, and never goes back in time."""
    fake_db.insert("t", ROWS)
    with connect(fake_cluster["r2"].url, replica="r2") as pinned:
        data = [pickle.dumps(db) for db in (fake_db, pinned)]
    fake_cluster["r1"].stop()
    other, other_pinned = (pickle.loads(one) for one in data)  # noqa: S301 - our own bytes
    assert other.seen_csn == fake_db.seen_csn > 0
    assert other.read("t").num_rows == 3
    assert [other_pinned.begin().holder for _ in range(3)] == ["r2"] * 3
    for db in (other, other_pinned):
        db.close()
