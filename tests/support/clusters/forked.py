"""Agents that are forked off a process which has loaded their code already.

Most of what the start of an agent costs is the loading of modules, about a second of a processor, and tests
start agents by the hundred. The process is a real one in every respect: a session, environment, log and pid
of its own, killed as any other. What an agent does when its program is executed is tested where that is the
point (test_local_cluster.py, tests/chaos, test_docker.py), and by `make demo`.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.support.project import source
from tidelock import processes
from tidelock.cluster import LocalCluster

AGENT: Final = "tidelock.replica_agent.main"
#: How long the template may take to load everything, in seconds, beside other tests.
_LOAD_TIMEOUT_S: Final = 120.0


class _Template:
    """The process that is forked; started when it is first needed, ended with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def fork(self, request: Mapping[str, Any]) -> int:
        """Start an agent; return its pid."""
        with self._lock:
            channel = self._channel or self._start()
            channel.send(json.dumps(request).encode())
            answer = channel.recv(64)
        assert answer, "the template of agents has ended"
        return int(answer)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.clusters.template", str(theirs.fileno())],
                cwd=source.ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        ours.settimeout(_LOAD_TIMEOUT_S)
        self._channel = ours
        atexit.register(self._end)
        return ours

    def _end(self) -> None:
        assert self._channel is not None
        assert self._process is not None
        self._channel.close()
        self._process.wait()


_template: Final = _Template()


class ForkedCluster(LocalCluster):
    """A local cluster whose agents are forked."""

    def _launch(self, replica: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        assert command[1:3] == ["-m", AGENT], f"not an agent: {command}"
        folder = self.folder / replica
        pid = _template.fork(
            {
                "arguments": command[3:],
                "environment": environment,
                "folder": str(folder),
                "log": os.fspath(folder / "agent.log"),
            }
        )
        processes.record(pid, folder / "agent.pid")
