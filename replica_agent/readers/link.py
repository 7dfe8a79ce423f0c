"""A reader process's end of the socketpair to its agent: requests, reports, and the end of the agent."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.replica_agent.readers import messages as msg
from tidelock.replica_agent.readers.availability import ReadAvailability
from tidelock.replica_agent.workers.child import STARTED, requests_async
from tidelock.replica_agent.workers.frames import pack

#: The agent bounds the wait itself; this limit only covers an agent that hangs. The sum of both must stay
#: below the time for which signs of life are sent and one patience of Spark more (`readers/signs.py`).
ANSWER_GRACE_S = 1.0
#: Most CSNs whose report is remembered; above it those that may be reported again are forgotten.
READ_CSNS_MAX = 10_000
#: Longest value of a log field, in characters.
LOGGED_CHARACTERS_MAX = 4000


@dataclass(slots=True, kw_only=True, eq=False)
class AgentLink:
    """Exchanges messages with the agent; for the event loop's thread. Made by :meth:`connect`.

    Attributes:
        reader: Messages from the agent.
        writer: Messages to the agent.
        read_report_s: Seconds after which the agent is notified again that a CSN is read.
        on_drain: Called when new reads must be refused.
        on_released: Called with a part that turned out to be whole.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    read_report_s: float
    on_drain: Callable[[], None] = lambda: None
    on_released: Callable[[PartId], None] = lambda _: None
    #: CSNs that are read, and when each was last reported to the agent.
    _reported: dict[Csn, float] = field(default_factory=dict, init=False)
    _waiting: dict[int, asyncio.Future[ReadAvailability]] = field(default_factory=dict, init=False)
    _last_id: int = field(default=0, init=False)

    @classmethod
    async def connect(cls, connection: socket.socket, *, read_report_s: float) -> AgentLink:
        """Return the link over the socket that the process was given."""
        reader, writer = await asyncio.open_connection(sock=connection)
        return cls(reader=reader, writer=writer, read_report_s=read_report_s)

    async def listen(self) -> None:
        """Receive messages until the agent has ended; then this process ends at once."""
        async for frame in requests_async(self.reader):
            match msgspec.json.decode(frame, type=msg.ToReader):
                case msg.WaitAnswer(id=number, availability=found):
                    waiting = self._waiting.pop(number, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(found)
                case msg.Drain():
                    self.on_drain()
                case msg.Released(part=part):
                    self.on_released(part)

    async def wait(self, csn: Csn, bound_s: float) -> ReadAvailability:
        """Have the agent wait for a CSN and return its answer; "standby" if it does not answer."""
        self._last_id += 1
        number = self._last_id
        future: asyncio.Future[ReadAvailability] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._send(msg.Wait(number, csn))
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
        """Report to the agent, now and then, that a CSN is read here: it may have to be pinned."""
        now = time.monotonic()
        if now - self._reported.get(csn, -math.inf) < self.read_report_s:
            return
        if len(self._reported) >= READ_CSNS_MAX:
            self._reported = {old: at for old, at in self._reported.items() if now - at < self.read_report_s}
        self._reported[csn] = now
        self._send(msg.CsnRead(csn))

    def ready(self) -> None:
        """Report to the agent that connections are accepted."""
        self.writer.write(STARTED)

    def drained(self) -> None:
        """Report to the agent that no read is running any more."""
        self._send(msg.Drained())

    def corrupt(self, part: PartId, detail: str) -> None:
        """Report a damaged part."""
        self._send(msg.CorruptPart(part, detail))

    def log(self, event: str, **fields: str) -> None:
        """Have the agent log an error; long values lose their beginning (a traceback's end says most)."""
        self._send(
            msg.LogError(event, {name: value[-LOGGED_CHARACTERS_MAX:] for name, value in fields.items()})
        )

    def _send(self, message: msg.FromReader) -> None:
        self.writer.write(pack(msgspec.json.encode(message)))
