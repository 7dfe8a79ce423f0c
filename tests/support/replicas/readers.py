"""Readers over a hand-made data directory in a process of their own, and plain HTTP requests to them."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from tests.support.project.source import ROOT
from tests.support.waiting import TIMEOUT_S


@dataclass(frozen=True)
class Answer:
    """A complete answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def exception(self) -> str:
        """Simple name of the Java class of a RemoteException."""
        fields = self.json()["RemoteException"]
        assert fields["javaClassName"].endswith("." + fields["exception"])
        return str(fields["exception"])


def send(
    address: str,
    method: str,
    target: str,
    body: bytes | Iterable[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one request on a connection of its own; a redirect is an answer, and a cut answer an error.

    A body in pieces is sent in chunks, without its length.
    """
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(method, target, body, headers or {})
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read())
    finally:
        connection.close()


class ReaderHost:
    """A process with a reader pool, as an agent has one (tests/support/replicas/reader_host.py)."""

    def __init__(self, data_dir: Path, replica: str = "r1", **settings: Any) -> None:
        """Start the process, wait until its readers are up; ``settings`` are fields of AgentSettings."""
        fields = {"replica": replica, "data_dir": str(data_dir)} | settings
        self.replica = replica
        self.data_dir = data_dir
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.replicas.reader_host", json.dumps(fields)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        started = self.event()
        self.port = int(started["port"])
        self.pids: list[int] = started["pids"]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    @property
    def address(self) -> str:
        """``host:port`` of the readers."""
        return f"localhost:{self.port}"

    def event(self) -> dict[str, Any]:
        """Return the next event; queue.Empty when there is none in time."""
        return self._events.get(timeout=TIMEOUT_S)

    def no_more_events(self) -> bool:
        """Return whether all events have been taken."""
        return self._events.empty()

    def forget_events(self) -> None:
        """Drop the events that no test has taken."""
        while not self._events.empty():
            self._events.get()

    def say(self, availability: str, reason: str = "because the test says so") -> None:
        """Set what the agent says about CSNs that are not applied."""
        self._send({"availability": availability, "reason": reason})

    def start_drain(self, timeout_s: float = TIMEOUT_S) -> None:
        """Let the readers drain; the event ``drained`` reports the end."""
        self._send({"drain": timeout_s})

    def _send(self, command: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def request(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """Send one request on a connection of its own; a cut answer is an error of http.client."""
        return send(f"127.0.0.1:{self.port}", method, target, body, headers)

    def get(self, path: str, **headers: str) -> Answer:
        """Plain GET of a path."""
        return self.request(
            "GET", quote(path), {name.replace("_", "-"): text for name, text in headers.items()}
        )

    def webhdfs(self, op: str, path: str, *, method: str = "GET", **query: Any) -> Answer:
        """A WebHDFS operation, as fsspec sends it (percent-encoded)."""
        fields = "".join(f"&{name}={value}" for name, value in query.items())
        return self.request(method, f"/webhdfs/v1{quote(path)}?op={op}{fields}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the agent and its readers, as a frozen or killed machine would."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End agent and readers by SIGKILL."""
        self.signal(signal.SIGKILL)
        self._wait()

    def close(self) -> None:
        """End the process, in whichever state it is."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            assert self.process.stdin is not None
            self.process.stdin.close()
        self._wait()

    def _wait(self) -> None:
        self.process.wait(TIMEOUT_S)
        self._listener.join(TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
