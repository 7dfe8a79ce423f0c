"""Workers of agents that are forked off, as their agents are (`forked.py`).

A SQL process spends half a second of a processor on loading DuckDB and Arrow, a reader nearly as much on
loading aiohttp, and tests start hundreds. Each forked agent has a nursery: a child that was forked before the
agent had threads, and forks workers. The kernel hands a worker to the agent as a child of its own, so the
agent waits for it and kills it as any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from aiohttp import http_parser, http_writer, web_protocol

from tidelock.replica_agent.readers import worker as reader
from tidelock.replica_agent.sql import worker as sql_worker
from tidelock.replica_agent.uploads import examiner_process

PROGRAMS: Final = {
    "tidelock.replica_agent.readers.worker": reader.main,
    "tidelock.replica_agent.sql.worker": sql_worker.main,
    "tidelock.replica_agent.uploads.examiner_process": examiner_process.main,
}
_REQUEST_BYTES: Final = 1 << 16
#: More descriptors than any worker gets.
_DESCRIPTORS_MAX: Final = 8
_PR_SET_CHILD_SUBREAPER: Final = 36


def fork_workers_here() -> None:
    """Make this process, which has no threads yet, fork its workers from now on."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _serve(theirs)
    theirs.close()
    execute, lock = asyncio.create_subprocess_exec, threading.Lock()

    def fork(request: bytes, descriptors: Sequence[int]) -> int:
        with lock:
            socket.send_fds(ours, [request], descriptors)
            return int(ours.recv(64))

    async def start(*command: str, **options: Any) -> Any:
        if command[3] not in PROGRAMS:
            return await execute(*command, **options)
        request = {"module": command[3], "agent": os.getpid(), "environment": options["env"]}
        return ForkedWorker(await asyncio.to_thread(fork, json.dumps(request).encode(), options["pass_fds"]))

    asyncio.create_subprocess_exec = start  # type: ignore[assignment]


class ForkedWorker:
    """A worker, for its agent: as much of `asyncio.subprocess.Process` as agents use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()

    async def wait(self) -> int:
        """Return its exit code when it has ended."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _serve(channel: socket.socket) -> NoReturn:
    """Fork a worker for every request, until the agent has ended."""
    with contextlib.suppress(ConnectionError):
        while True:
            request, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, _DESCRIPTORS_MAX)
            if not request:
                break
            channel.send(str(_fork(channel, json.loads(request), descriptors)).encode())
            for descriptor in descriptors:
                os.close(descriptor)
    os._exit(0)


def _fork(channel: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Fork a worker whose parent has ended at once, so that the agent becomes its parent; return its pid."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            channel.close()
            os.close(reading)
            os.close(writing)
            _become_worker(request, descriptors)
        os.write(writing, str(pid).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(between, 0)
    pid = int(os.read(reading, 64))
    os.close(reading)
    return pid


def _become_worker(request: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Do what the kernel and Python do at an exec, and run the worker."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.environ.clear()
        os.environ.update(request["environment"])
        while os.getppid() != request["agent"]:  # its parent of a moment has not ended yet
            time.sleep(0.001)
        if "AIOHTTP_NO_EXTENSIONS" in os.environ:
            _leave_out_extensions()
        sys.argv[1:] = map(str, (request["agent"], *descriptors))
        PROGRAMS[request["module"]]()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # as the interpreter does at its top level
        traceback.print_exc()
    finally:
        os._exit(code)


def _leave_out_extensions() -> None:
    """Have aiohttp parse requests in Python, as the variable does where it is set before the import."""
    for module in (http_parser, web_protocol):
        vars(module)["HttpRequestParser"] = http_parser.HttpRequestParserPy
        vars(module)["RawRequestMessage"] = http_parser.RawRequestMessagePy
    vars(http_writer)["_serialize_headers"] = http_writer._py_serialize_headers
