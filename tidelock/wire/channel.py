"""Messages of a channel: requests with small bodies and their answers, over one WebSocket. Pure.

A request is a big-endian uint32 with its number, a uint16 with the length of its target, the target, and the
body. A target is path and query of a POST request, below the root of the routes. An answer is the number of
its request, a uint16 with the status, and the body. Answers come in any order.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

#: Path of the WebSocket, below `/api/v1` and `/peer/v1`.
PATH: Final = "/channel"
#: Largest body of a request; a larger one is sent as a request of HTTP. Both sides must agree on it.
BODY_BYTES_MAX: Final = 1 << 20
#: Largest message to an agent, in bytes.
MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX + (64 << 10)
#: Requests to an agent that has opened no channel go over HTTP for so long (seconds).
REFUSED_S: Final = 60.0

_REQUEST: Final = struct.Struct(">IH")
_ANSWER: Final = struct.Struct(">IH")


class Request(msgspec.Struct, frozen=True):
    """A request.

    Attributes:
        number: Chosen by the side that asks; its answer has the same.
        target: Path and query.
        body: The body.
    """

    number: int
    target: str
    body: bytes


class Answer(msgspec.Struct, frozen=True):
    """An answer.

    Attributes:
        number: That of the request.
        status: As in HTTP.
        body: The body, JSON.
    """

    number: int
    status: int
    body: bytes


def encode_request(number: int, target: str, body: bytes) -> bytes:
    """Return the message of a request."""
    text = target.encode()
    return b"".join((_REQUEST.pack(number, len(text)), text, body))


def decode_request(message: bytes) -> Request:
    """Return the request of a message; ValueError if it is cut, or its target is no UTF-8."""
    if len(message) < _REQUEST.size:
        raise ValueError(f"expected a request of at least {_REQUEST.size} bytes, found {len(message)}")
    number, length = _REQUEST.unpack_from(message)
    end = _REQUEST.size + length
    if end > len(message):
        raise ValueError(
            f"the target has {length} bytes by its length, {len(message) - _REQUEST.size} follow"
        )
    return Request(number, message[_REQUEST.size : end].decode(), message[end:])


def encode_answer(number: int, status: int, body: bytes) -> bytes:
    """Return the message of an answer."""
    return _ANSWER.pack(number, status) + body


def decode_answer(message: bytes) -> Answer:
    """Return the answer of a message; ValueError if it is cut."""
    if len(message) < _ANSWER.size:
        raise ValueError(f"expected an answer of at least {_ANSWER.size} bytes, found {len(message)}")
    number, status = _ANSWER.unpack_from(message)
    return Answer(number, status, message[_ANSWER.size :])
