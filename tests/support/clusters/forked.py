"""Agents that are forked off a process which has loaded their code already.

The start of an agent spends most of its time on loading modules, about a second of a processor, and tests
start hundreds of agents. A forked agent is a real process: it has a session, environment, log and pid of its
own, and is killed like any other. Other tests execute the agent's program (test_local_cluster.py,
tests/chaos, test_docker.py), and so does `make demo`.
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
    """The process that forks agents; it starts at the first use, and ends with this process."""

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
                **self._special(replica),
            }
        )
        processes.record(pid, folder / "agent.pid")

    def _special(self, replica: str) -> Mapping[str, str]:
        """Return what sets the process of a replica apart: the items that `template.become_agent` knows."""
        return {}
