"""Small requests over WebSockets that are kept open, and over HTTP where they must be.

A request of HTTP costs a client four times as much as a message, and an agent five times as much. The first
request to an agent goes over HTTP: a program that sends only one would pay for the handshake as well. So do
requests to an agent that opens no channel, since it is older or behind a proxy, and bodies that are larger
than a message may be.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidelock.client.agents.kept import KeptConnections
from tidelock.client.agents.plain_http import LostError, NotSentError, PlainHttp, words
from tidelock.wire import channel

if TYPE_CHECKING:
    import socket

    from websockets.client import ClientProtocol
    from websockets.frames import Frame

#: Largest answer in bytes; none of an agent is near it.
_ANSWER_BYTES_MAX: Final = 16 << 20
_READ_BYTES: Final = 64 << 10


class NoChannelError(Exception):
    """The agent opens no channel; nothing of the request has left."""


class Channels:
    """Channels to all agents; any number of threads may use one object at once.

    Args:
        plain: Sends what does not go over a channel, and opens connections.
        root: Path of the API, which HTTP has before each target.
        headers: The headers of each handshake.
        connect_s: How long to wait for a handshake.
    """

    def __init__(self, plain: PlainHttp, root: str, headers: Mapping[str, str], connect_s: float) -> None:
        self._plain = plain
        self._root = root
        self._headers = headers
        self._connect_s = connect_s
        self._kept: KeptConnections[_Channel] = KeptConnections(self)
        self._known: set[str] = set()
        self._refused: dict[str, float] = {}

    def close(self) -> None:
        """Close the connections; those that are in use when their requests end."""
        self._kept.close()
        self._plain.close()

    def post(
        self, address: str, target: str, body: bytes, *, content_type: str, read_s: float
    ) -> tuple[int, bytes]:
        """Send a body and return status and body of the answer.

        Args:
            address: Address of the agent.
            target: Path and query below the root of the API.
            body: The body.
            content_type: Its media type, for HTTP.
            read_s: How long to wait for the answer.

        Raises:
            NotSentError: The agent cannot be reached.
            LostError: No whole answer within `read_s`.
        """
        if self._opens(address) and len(body) <= channel.BODY_BYTES_MAX:
            try:
                used = self._kept.take(address) or self._open(address)
            except NoChannelError:
                self._refused[address] = time.monotonic() + channel.REFUSED_S
            else:
                answer = used.ask(target, body, read_s)
                if used.open:
                    self._kept.give_back(address, used)
                else:
                    used.close()
                return answer
        self._known.add(address)
        return self._plain.post(address, self._root + target, body, content_type=content_type, read_s=read_s)

    def _opens(self, address: str) -> bool:
        return address in self._known and time.monotonic() >= self._refused.get(address, 0.0)

    def _open(self, address: str) -> _Channel:
        opened = _Channel(self._plain.connect(address))
        try:
            opened.shake_hands(f"ws://{address}{self._root}{channel.PATH}", self._headers, self._connect_s)
        except (OSError, http.client.HTTPException) as error:
            opened.close()
            raise NotSentError(words(error)) from error
        except BaseException:
            opened.close()
            raise
        if not opened.open:  # an agent that stops may say farewell right behind its answer
            opened.close()
            raise NotSentError("the agent has closed the channel")
        return opened


class _Channel:
    """One channel; one thread uses it at a time."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._number = 0

    @property
    def sock(self) -> socket.socket | None:
        """The socket; None if it is closed."""
        return self._connection.sock

    @property
    def open(self) -> bool:
        """Return whether it may be used again: the agent may have said farewell behind its last answer."""
        return self._protocol.state is self._protocol.state.OPEN

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def shake_hands(self, url: str, headers: Mapping[str, str], wait_s: float) -> None:
        """Turn the connection into a WebSocket.

        Raises:
            NoChannelError: The agent answers with something else.
            OSError: No answer in time.
        """
        # A program that sends one request never needs the library, which takes a tenth of a second to load.
        from websockets.client import ClientProtocol  # noqa: PLC0415
        from websockets.uri import parse_uri  # noqa: PLC0415

        self._protocol: ClientProtocol = ClientProtocol(parse_uri(url), max_size=_ANSWER_BYTES_MAX)
        request = self._protocol.connect()
        for name, value in headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        deadline = time.monotonic() + wait_s
        self._socket.settimeout(wait_s)
        self._flush()
        while not self._protocol.events_received():
            if self._protocol.handshake_exc is not None:
                break
            self._receive(deadline)
        if self._protocol.handshake_exc is not None:
            raise NoChannelError(str(self._protocol.handshake_exc)) from self._protocol.handshake_exc

    def ask(self, target: str, body: bytes, read_s: float) -> tuple[int, bytes]:
        """Send a request and return status and body of its answer; otherwise the channel is closed.

        Raises:
            LostError: No whole answer within `read_s`.
        """
        self._number = (self._number + 1) % (1 << 32)
        deadline = time.monotonic() + read_s
        try:
            self._socket.settimeout(read_s)
            self._protocol.send_binary(channel.encode_request(self._number, target, body))
            self._flush()
            while (answer := self._answer()) is None:
                self._receive(deadline)
        except (OSError, ValueError) as error:
            self.close()
            raise LostError(words(error)) from error
        except BaseException:
            self.close()
            raise
        return answer.status, answer.body

    def _answer(self) -> channel.Answer | None:
        """Return the answer to the last request, if it has come."""
        for event in self._protocol.events_received():
            frame: Frame = event  # type: ignore[assignment] # after the handshake there are only frames
            if frame.opcode is frame.opcode.BINARY and frame.fin:
                answer = channel.decode_answer(bytes(frame.data))
                if answer.number == self._number:
                    return answer
        return None

    def _receive(self, deadline: float) -> None:
        sock = self._socket
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left_s)
        data = sock.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the agent has closed the connection")
        self._protocol.receive_data(data)
        self._flush()  # the answer to a ping

    def _flush(self) -> None:
        if data := b"".join(self._protocol.data_to_send()):
            self._socket.sendall(data)

    @property
    def _socket(self) -> socket.socket:
        sock = self._connection.sock
        assert sock is not None, "a channel that is used is open"
        return sock
