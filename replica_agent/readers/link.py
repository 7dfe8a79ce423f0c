"""The worker's end of the socketpair to its agent: questions, reports, and the end of the agent.

JSON objects, one per line. To the agent: ``{"op": "ready"}``, ``{"op": "wait", "id", "csn"}``, ``{"op":
"read", "csn"}``, ``{"op": "corrupt", "part", "detail"}``, ``{"op": "log", "event", "fields"}``, ``{"op":
"drained"}``. From it: the
:class:`WorkerConfig` as first line, ``{"op": "verdict", "id", "verdict", "reason"}``, ``{"op": "drain"}``,
``{"op": "released", "part"}``.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.replica_agent.readers.config import WorkerConfig
from tidelock.replica_agent.readers.verdict import ReadAvailability

#: The agent bounds the wait itself; this only covers one that hangs. Spark's read timeout is the bound + 3 s,
#: so it must stay below those.
ANSWER_GRACE_S = 2.0
#: CSNs that were told as read which are remembered; beyond it those that may be told again are forgotten.
READ_CSNS_MAX = 10_000
#: Longest value of a log field, in characters; a line over the socketpair is bounded by asyncio (64 KiB).
LOGGED_CHARACTERS_MAX = 4000


class Link:
    """Speaks with the agent; for the event loop's thread."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, read_told_s: float
    ) -> None:
        """Use :meth:`connect`."""
        self._reader = reader
        self._writer = writer
        self._read_told_s = read_told_s
        #: CSNs that are read, and when the agent was told so.
        self._told: dict[Csn, float] = {}
        self._waiting: dict[int, asyncio.Future[ReadAvailability]] = {}
        self._last_id = 0
        self.on_drain: Callable[[], None] = lambda: None
        self.on_released: Callable[[PartId], None] = lambda _part: None

    @classmethod
    async def connect(cls, fd: int) -> tuple[Link, WorkerConfig]:
        """Take over the inherited descriptor and read the configuration; end if the agent is gone."""
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
        line = await reader.readline()
        if not line:
            _die()
        config = WorkerConfig.from_line(line)
        return cls(reader, writer, read_told_s=config.read_told_s), config

    async def listen(self) -> None:
        """Take what the agent sends, until it is gone: then this process ends at once, without any clean-up.

        It may not outlive the agent by one answer: the next agent on this data directory wants the port, and
        it alone may decide what is served.
        """
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except ConnectionError:
            pass
        _die()

    def _take(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "verdict":
                waiting = self._waiting.pop(message["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(ReadAvailability(message["verdict"], message["reason"]))
            case "drain":
                self.on_drain()
            case "released":
                self.on_released(PartId(message["part"]))
            case other:
                raise AssertionError(f"the agent sent {other!r}")

    async def wait(self, csn: Csn, bound_s: float) -> ReadAvailability:
        """Have the agent wait for a CSN and return what it says; "standby" if that is nothing."""
        self._last_id += 1
        number = self._last_id
        future: asyncio.Future[ReadAvailability] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._send({"op": "wait", "id": number, "csn": csn})
        try:
            async with asyncio.timeout(bound_s + ANSWER_GRACE_S):
                return await future
        except TimeoutError:
            return ReadAvailability(
                "standby", f"this replica's agent gave no answer about CSN {csn} in {bound_s:.0f} s"
            )
        finally:
            self._waiting.pop(number, None)

    def read(self, csn: Csn) -> None:
        """Tell the agent, now and then, that a CSN is read here: it may have to be pinned."""
        now = time.monotonic()
        if now - self._told.get(csn, -math.inf) < self._read_told_s:
            return
        if len(self._told) >= READ_CSNS_MAX:
            self._told = {old: at for old, at in self._told.items() if now - at < self._read_told_s}
        self._told[csn] = now
        self._send({"op": "read", "csn": csn})

    def ready(self) -> None:
        """Tell the agent that connections are accepted."""
        self._send({"op": "ready"})

    def drained(self) -> None:
        """Tell the agent that no read is running any more."""
        self._send({"op": "drained"})

    def corrupt(self, part: PartId, detail: str) -> None:
        """Report a damaged part."""
        self._send({"op": "corrupt", "part": part, "detail": detail})

    def log(self, event: str, **fields: str) -> None:
        """Have the agent log an error; long values lose their beginning (a traceback's end says most)."""
        shortened = {name: value[-LOGGED_CHARACTERS_MAX:] for name, value in fields.items()}
        self._send({"op": "log", "event": event, "fields": shortened})

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")


def _die() -> NoReturn:
    os._exit(0)
