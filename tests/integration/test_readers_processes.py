"""Reader processes: drained, killed, left alone by their agent, counted."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import urllib3

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.readers import ReaderHost
from tests.support.waiting import TIMEOUT_S, eventually
from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.errors import ConfigError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.readers import counters
from tidelock.replica_agent.readers.availability import ReadAvailability
from tidelock.replica_agent.readers.pool import ReaderPool
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replication.core.digest import blocks_of

SCHEMA = pa.schema([("price", pa.float64())])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """One table with a part that no socket buffer holds."""
    made = DataDir(tmp_path_factory.mktemp("processes") / "r1")
    made.create_table(2, "t", SCHEMA)
    made.insert(
        3, {"default.t": pa.table({"price": np.random.default_rng(1).random(4_000_000)}, schema=SCHEMA)}
    )
    return made


@pytest.fixture
def host(data: DataDir) -> Iterator[ReaderHost]:
    """Readers of its own for each test."""
    with ReaderHost(data.path) as running:
        yield running


@pytest.fixture(scope="module")
def part(data: DataDir) -> PartRow:
    """The part that no socket buffer holds."""
    return data.parts("default.t")[0]


def _path(part: PartRow) -> str:
    return f"/snapshots/3/default/t/{part.name}"


def _gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    return True


@contextlib.contextmanager
def _half_read(host: ReaderHost, part: PartRow) -> Iterator[http.client.HTTPResponse]:
    """Yield the connection of an answer that is stuck, since its client does not read."""
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=TIMEOUT_S)
    connection.request("GET", _path(part))
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def test_readers_stay_small_and_without_pyarrow(host: ReaderHost) -> None:
    """Readers do not import pyarrow and its hundred megabytes."""
    assert len(host.pids) == 2
    for pid in host.pids:
        assert "libarrow" not in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def test_a_drain_finishes_what_is_running(host: ReaderHost, data: DataDir, part: PartRow) -> None:
    """After SIGTERM new reads are sent to other replicas, running ones are sent to their end."""
    with _half_read(host, part) as running:
        host.start_drain()
        eventually(lambda: host.webhdfs("OPEN", _path(part)).status == 403)
        for op in ("OPEN", "LISTSTATUS", "GETFILESTATUS"):
            assert host.webhdfs(op, _path(part)).exception == "StandbyException"
        assert host.get(_path(part)).status == 503
        assert host.no_more_events()
        assert running.read() == data.data(part)
    assert host.event() == {"drained": True}


def test_a_drain_without_readers_ends_at_once(host: ReaderHost) -> None:
    """A drain waits for running reads only."""
    host.start_drain()
    assert host.event() == {"drained": True}


def test_a_drain_has_an_end(host: ReaderHost, part: PartRow) -> None:
    """A client that never reads does not keep the agent from stopping."""
    with _half_read(host, part):
        host.start_drain(timeout_s=0.2)
        assert host.event() == {"drained": False}


def test_a_killed_worker_is_replaced(host: ReaderHost, data: DataDir, part: PartRow) -> None:
    """Readers that are killed come back on the same port, connections wait for them, and counting goes on."""
    assert host.webhdfs("OPEN", _path(part)).status == 200
    for pid in host.pids:
        os.kill(pid, signal.SIGKILL)
    assert host.webhdfs("OPEN", _path(part)).body == data.data(part)
    assert counters.read(data.path / "run")["opens"] == 2


def test_a_worker_that_is_killed_cuts_its_answers(host: ReaderHost, part: PartRow) -> None:
    """The answer of a worker that dies ends with an error for the client."""
    with _half_read(host, part) as running:
        for pid in host.pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            running.read()


def test_signals_for_the_group_are_the_agents(host: ReaderHost, part: PartRow) -> None:
    """SIGTERM and SIGINT to the whole group do not end the readers: the agent drains them first."""
    for pid in host.pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert host.webhdfs("GETFILESTATUS", _path(part)).status == 200
    assert not any(_gone(pid) for pid in host.pids)


@pytest.mark.parametrize("stopped", [False, True])
def test_readers_end_with_a_killed_agent(host: ReaderHost, part: PartRow, stopped: bool) -> None:
    """A SIGKILL of the agent ends its readers at once, also frozen ones, and frees the port."""
    if stopped:
        for pid in host.pids:
            os.kill(pid, signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        if not stopped:
            stack.enter_context(_half_read(host, part))
        os.kill(host.process.pid, signal.SIGKILL)
        eventually(lambda: all(_gone(pid) for pid in host.pids))
    # A connection of another program may have the free port for a moment.
    eventually(lambda: _is_free(host.port), what="the port of readers that are gone")


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def test_counters_are_exact_after_a_kill(host: ReaderHost, data: DataDir, part: PartRow) -> None:
    """The counters count every answer, and can be read after agent and readers were killed."""
    for _ in range(3):
        host.webhdfs("GETFILESTATUS", _path(part))
    host.webhdfs("LISTSTATUS", "/snapshots/3/default/t")
    host.webhdfs("OPEN", _path(part), length=1000)
    host.webhdfs("OPEN", _path(part))
    host.say("standby")
    host.webhdfs("OPEN", _path(part).replace("/3/", "/4/"))
    host.webhdfs("CREATE", _path(part), method="PUT")
    host.webhdfs("OPEN", _path(part) + "x")
    host.kill()
    found = counters.read(data.path / "run")
    assert found.pop("blocks") == blocks_of(part.length) + 1  # of both answers
    assert found == {
        "opens": 2,
        "bytes": 1000 + part.length,
        "status_requests": 3,
        "listings": 1,
        "standby_answers": 1,
        "refusals": 1,
        "corrupt_blocks": 0,
    }


def test_a_client_that_hangs_up_costs_one_block(data: DataDir, part: PartRow) -> None:
    """Hadoop's client asks for all that follows, reads a little and hangs up: no more is read for it."""
    target = f"/webhdfs/v1{_path(part)}?op=OPEN&offset=0"
    with ReaderHost(data.path, reader_workers=1) as host:
        host.webhdfs("OPEN", _path(part), length=1)  # the footer is looked at once
        before = counters.read(data.path / "run")["blocks"]
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # as large as it is by default
            client.settimeout(TIMEOUT_S)
            client.connect(("127.0.0.1", host.port))
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            received = 0
            while received < 8192:
                received += len(client.recv(8192 - received))
            for _ in range(100):  # as many turns of the event loop, in which it could read on
                host.webhdfs("GETFILESTATUS", _path(part))
            assert counters.read(data.path / "run")["blocks"] == before + 1
        host.start_drain()
        assert host.event() == {"drained": True}
        assert counters.read(data.path / "run")["blocks"] == before + 1


def test_counters_start_at_zero(data: DataDir, tmp_path: Path) -> None:
    """Counters start at zero, also in the slots of former workers."""
    assert not any(counters.read(tmp_path).values())
    counters.reset(tmp_path, 3)
    counters.ReaderCounters(counters.path_of(tmp_path, 2)).add("bytes", 7)
    assert counters.read(tmp_path)["bytes"] == 7
    counters.reset(tmp_path, 2)
    assert not any(counters.read(tmp_path).values())


class _Agent:
    """The agent's side of the readers' questions: callbacks of a test in the same process."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Csn] = asyncio.Queue()
        self.corrupted: asyncio.Queue[PartId] = asyncio.Queue()
        self.applied = asyncio.Event()

    async def wait(self, csn: Csn) -> ReadAvailability:
        self.asked.put_nowait(csn)
        await self.applied.wait()
        return ReadAvailability("ready")

    def read(self, csn: Csn) -> None:
        """Return the answer without pinning the CSN."""

    def corrupt(self, part: PartId, detail: str) -> None:
        self.corrupted.put_nowait(part)


def _settings(data: DataDir, **fields: object) -> AgentSettings:
    return AgentSettings(replica="r1", data_dir=data.path, zk="unused:2181", **fields)  # type: ignore[arg-type] # any field


@contextlib.asynccontextmanager
async def _pool(data: DataDir, agent: _Agent, **fields: object) -> AsyncIterator[ReaderPool]:
    pool = ReaderPool(settings=_settings(data, **fields), data_dir=data.path, callbacks=agent, api="")
    await pool.start()
    try:
        await pool.ready()
        yield pool
    finally:
        await pool.close()


def _get(url: str) -> tuple[int, bytes]:
    answer = urllib3.request("GET", url, retries=False, timeout=TIMEOUT_S)
    return answer.status, answer.data


async def test_a_read_waits_for_its_csn(data: DataDir, tmp_path: Path) -> None:
    """A read above the snapshot CSN is answered when the agent has applied it, with the rows of that CSN."""
    own = data.copy(tmp_path / "r1")
    agent = _Agent()
    async with _pool(own, agent) as pool:
        url = f"http://{pool.address}/webhdfs/v1/snapshots/4/default/t?op=LISTSTATUS"
        answer = asyncio.create_task(asyncio.to_thread(_get, url))
        assert await agent.asked.get() == 4
        assert not answer.done()
        own.insert(4, {"default.t": pa.table({"price": [1.0]}, schema=SCHEMA)})
        agent.applied.set()
        status, body = await answer
        assert status == 200
        assert len(json.loads(body)["FileStatuses"]["FileStatus"]) == 3
        assert pool.counters()["listings"] == 1


async def test_an_agent_that_does_not_answer_is_standby(data: DataDir) -> None:
    """A wait without an answer ends as "standby" soon after its bound, before the client gives up."""
    async with _pool(data, _Agent(), read_wait_s=0.1) as pool:
        url = f"http://{pool.address}/webhdfs/v1/snapshots/4/default/t?op=LISTSTATUS"
        _, body = await asyncio.to_thread(_get, url)
        assert json.loads(body)["RemoteException"]["exception"] == "StandbyException"


async def test_released_parts_are_served_again(data: DataDir, tmp_path: Path) -> None:
    """A part that the agent checked and found intact (memory or disk had one error) is served again."""
    own = data.copy(tmp_path / "r1")
    (part,) = own.parts("default.t")
    agent = _Agent()
    async with _pool(own, agent, reader_workers=1) as pool:
        url = f"http://{pool.address}{_path(part)}"
        # The file does not change, so only the agent can say that it is intact.
        for blocks in (bytes(len(part.blocks)), part.blocks):
            with own.sql() as db:
                db.execute("UPDATE parts SET blocks = ?", (blocks,))
            assert (await asyncio.to_thread(_get, url))[0] == 503
        assert await agent.corrupted.get() == part.part
        pool.released(part.part)
        await asyncio.to_thread(eventually, lambda: _get(url)[0] == 200)


async def test_the_next_agent_waits_for_the_port(data: DataDir, part: PartRow) -> None:
    """An agent gets its port, although readers of its predecessor hold it at the start."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        pool = ReaderPool(
            settings=_settings(data, data_port=port), data_dir=data.path, callbacks=_Agent(), api=""
        )
        starting = asyncio.create_task(pool.start())
        await asyncio.sleep(0)  # the first try has failed now
        assert not starting.done()
    await starting
    status, _ = await asyncio.to_thread(_get, f"http://{pool.address}{_path(part)}")
    assert (pool.port, status) == (port, 200)
    await pool.close()


async def test_an_address_that_cannot_be_bound(data: DataDir) -> None:
    """An address of another machine is a configuration error that names the settings."""
    settings = _settings(data, bind="192.0.2.1", insecure=True)
    with pytest.raises(ConfigError, match="data_port"):
        await ReaderPool(settings=settings, data_dir=data.path, callbacks=_Agent(), api="").start()
