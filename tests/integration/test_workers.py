"""Worker processes: the rules that hold for all of them, with real processes and real kills.

The rules of readers and of SQL processes are in test_readers_processes.py and test_sql_processes.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from tests.support.waiting import TIMEOUT_S, eventually
from tidelock.errors import UnavailableError
from tidelock.replica_agent.workers.process import Program, WorkerDiedError, WorkerProcess

MODULE = "tests.support.replicas.echo_worker"
#: An agent with one worker in the state of the argument; it prints the worker's pid, and waits.
_AGENT = """
import asyncio, os, signal, sys
from tests.integration.test_workers import program
from tidelock.replica_agent.workers.process import WorkerProcess

async def main():
    worker = await WorkerProcess.start(program(), b"")
    match sys.argv[1]:
        case "working":
            worker.send(b"work")
            assert await worker.receive() == b"working"
        case "frozen":
            os.kill(worker.pid, signal.SIGSTOP)
    print(worker.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers find the modules of the tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def program(**fields: Any) -> Program:
    """The worker of these tests."""
    given: dict[str, Any] = {"what": "test process", "module": MODULE, "start_timeout_s": TIMEOUT_S}
    return Program(**(given | {"environment": {}} | fields))


@contextlib.asynccontextmanager
async def running(config: bytes = b"", **fields: Any) -> AsyncIterator[WorkerProcess]:
    """A worker that runs."""
    worker = await WorkerProcess.start(program(**fields), config)
    try:
        yield worker
    finally:
        await worker.end()


async def asked(worker: WorkerProcess, request: bytes) -> bytes:
    """Send a request and return the answer."""
    worker.send(request)
    return await worker.receive()


def children() -> list[int]:
    """Return the workers of this process, zombies included."""
    return [child.pid for child in psutil.Process().children()]


async def test_requests_are_answered_in_their_order() -> None:
    """Frames of any size are answered in order, in both directions."""
    async with running(buffer_bytes=1 << 16) as worker:
        for request in (b"a", b"", b"x" * (3 << 20), b"b"):
            assert await asked(worker, request) == request


async def test_the_configuration_is_seen_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line and the environment, which others can read, hold no secrets of the agent."""
    monkeypatch.setenv("TIDELOCK_SECRET", "of the environment")
    async with running(b"of the configuration", environment={"MORE": "given"}) as worker:
        assert await asked(worker, b"config") == b"of the configuration"
        process = psutil.Process(worker.pid)
        command, environment = process.cmdline(), process.environ()
    assert command[-5:-2] == ["-P", "-m", MODULE]
    assert all(text.isdecimal() for text in command[-2:])
    assert "TIDELOCK_SECRET" not in environment
    assert environment["MORE"] == "given"


async def test_sockets_are_shared_with_the_agent() -> None:
    """A worker gets the sockets that it serves, and the agent keeps them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with running(sockets=(theirs,)) as worker:
            assert await asked(worker, b"up") == b"up"
            assert ours.recv(100) == b"shared"
        theirs.sendall(b"kept")
        assert ours.recv(100) == b"kept"


@pytest.mark.parametrize("config", [b"hang", b"die"])
async def test_a_start_that_fails_leaves_no_process(config: bytes) -> None:
    """A process that hangs or dies at its start is UnavailableError, and it has ended."""
    before = children()
    with pytest.raises(UnavailableError, match="a test process did not start"):
        await WorkerProcess.start(program(start_timeout_s=0.5 if config == b"hang" else TIMEOUT_S), config)
    assert children() == before


async def test_a_program_that_is_none_does_not_start() -> None:
    """A module that cannot run gets another error than a slow one."""
    with pytest.raises(UnavailableError, match="status 1"):
        await WorkerProcess.start(program(module="tests.support.no_such_module"), b"")


async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    """A caller that stops waiting leaves no worker to end."""
    before = children()
    starting = asyncio.create_task(WorkerProcess.start(program(), b"hang"))
    await asyncio.to_thread(eventually, lambda: len(children()) > len(before))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.to_thread(eventually, lambda: children() == before)


@pytest.mark.parametrize(("how", "status"), [("die", 3), ("kill", -signal.SIGKILL)])
async def test_a_death_is_told_to_whoever_waits(how: str, status: int) -> None:
    """A running request of a worker that ends gets the exit status instead of an answer."""
    async with running() as worker:
        if how == "die":
            worker.send(b"die")
        else:
            assert await asked(worker, b"work") == b"working"
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as died:
            await worker.receive()
        assert (died.value.status, worker.runs) == (status, False)
        worker.send(b"nobody is there")
        with pytest.raises(WorkerDiedError):
            await worker.receive()


@pytest.mark.parametrize("state", ["idle", "working", "frozen"])
async def test_the_end_of_a_worker_waits_for_nothing(state: str) -> None:
    """A worker that is busy, frozen or ignores SIGTERM is ended at once; a second end does no harm."""
    async with running() as worker:
        os.kill(worker.pid, signal.SIGTERM)
        assert await asked(worker, b"still there") == b"still there"
        if state == "working":
            assert await asked(worker, b"work") == b"working"
        elif state == "frozen":
            os.kill(worker.pid, signal.SIGSTOP)
        await worker.end()
        assert worker.pid not in children()


@pytest.mark.parametrize("state", ["idle", "working", "frozen"])
@pytest.mark.few(1)
async def test_a_worker_ends_with_a_killed_agent(state: str) -> None:
    """A SIGKILL of the agent ends its worker, also one that is too busy to read its socket."""
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _AGENT, state, stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    try:
        worker = psutil.Process(int(await agent.stdout.readline()))
    finally:
        agent.kill()
        await agent.wait()
    try:
        await asyncio.to_thread(worker.wait, TIMEOUT_S)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
