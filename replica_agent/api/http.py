"""Helpers of all handlers: typed bodies, errors as JSON, the shared secret."""

from __future__ import annotations

import contextlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
import structlog
from aiohttp import web

from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    EncodedBodyError,
    TidelockError,
    TooLargeError,
)
from tidelock.replica_agent.readers.requests import require_plain_body

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = structlog.get_logger("api")
encode = msgspec.json.Encoder().encode
_WRONG_FIELD = re.compile(r"Expected `([^`]+)`, got `([^`]+)` - at `\$\.([^`]+)`")
_PIECE_BYTES = 256 * 1024
_OPEN_PATHS = frozenset({"/healthz", "/readyz"})


def answer(value: Any, status: int = 200) -> web.Response:
    """Return ``value`` as JSON."""
    return web.Response(body=encode(value), status=status, content_type="application/json")


async def send_json(request: web.Request, value: bytes) -> web.StreamResponse:
    """Answer with what is JSON already, and may have many megabytes.

    In pieces: the event loop would copy what the kernel does not take at once, 20 MB in 15 to 70 ms.
    """
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(value)
    with contextlib.suppress(ConnectionError):  # the client has hung up
        await response.prepare(request)
        for at in range(0, len(value), _PIECE_BYTES):
            await response.write(memoryview(value)[at : at + _PIECE_BYTES])
        await response.write_eof()
    return response


def plain(problem: str) -> str:
    """Return msgspec's text about a wrong field in the form: field, expected, found."""
    match = _WRONG_FIELD.fullmatch(problem)
    return f"{match[3]} is {match[2]}, expected {match[1]}" if match else problem


async def body(request: web.Request, kind: type[T]) -> T:
    """Read the JSON body as ``kind``.

    A BadRequestError names the wrong field. An empty body is ``{}``.
    """
    return decoded(await request.read(), kind, f"{request.method} {request.path}")


def decoded(raw: bytes, kind: type[T], what: str) -> T:
    """Return the JSON body of the request ``what`` as ``kind``; errors as of :func:`body`."""
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except ValueError as error:  # msgspec's errors, and bytes that are not UTF-8
        msg = f"the body of {what} is not as expected: {plain(str(error))}; docs/openapi.json describes it"
        raise BadRequestError(msg) from error


def number(query: Mapping[str, str], name: str) -> int | None:
    """Return an integer query parameter; BadRequestError when it is not an integer."""
    return _parsed(query, name, int, "an integer")


def seconds(query: Mapping[str, str], name: str) -> float | None:
    """Return a query parameter in seconds; BadRequestError when it is not a number."""
    return _parsed(query, name, float, "a number of seconds")


def flag(query: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return a parameter of the query that is 0 or 1; BadRequestError when it is neither."""
    text = query.get(name)
    match text:
        case None:
            return default
        case "0" | "1":
            return text == "1"
    raise BadRequestError(f"query parameter {name}={text!r} is neither 0 nor 1")


def _parsed(query: Mapping[str, str], name: str, parse: Callable[[str], T], what: str) -> T | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        msg = f"query parameter {name}={text!r} is not {what}"
        raise BadRequestError(msg) from error


#: Stops the agent if an error of a request says that its catalog is damaged, and returns the error for the
#: client then; None: it is another error.
Damage = Callable[[Exception], TidelockError | None]


def errors(damage: Damage) -> Any:
    """Return the middleware that answers every error as ``{"error", "message", "details"}`` with a status."""

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:
            refusal = _refusal(request, error, damage)
            if request.content.exception() is not None:
                # The unread rest of a broken body would block the next request of the connection.
                refusal.force_close()
            return refusal

    return answered


def _refusal(request: web.Request, error: Exception, damage: Damage) -> web.Response:
    what = f"{request.method} {request.path}"
    match error:
        case web.HTTPException():
            kind = TooLargeError if isinstance(error, web.HTTPRequestEntityTooLarge) else BadRequestError
            msg = f"{what}: {error.reason}; docs/protocol.md lists the routes"
            return answer(kind(msg).to_wire(), error.status)
        case web.RequestPayloadError() | ConnectionError():
            why = " ".join(str(error).split())
            msg = f"the body of {what} ended early: {why}"
            return answer(BadRequestError(msg).to_wire(), BadRequestError.http_status)
        case _:
            status, wire = failure(error, what, damage)
            return answer(wire, status)


def failure(error: Exception, what: str, damage: Damage) -> tuple[int, dict[str, Any]]:
    """Return the status and the body for an error of a request; one that nobody has foreseen is logged.

    Args:
        error: The error.
        what: The request, as the log names it.
        damage: See there.
    """
    told = damage(error) or error
    if isinstance(told, TidelockError):
        return told.http_status, told.to_wire()
    _log.error("request_failed", request=what, exc_info=error)
    return TidelockError.http_status, TidelockError(
        "internal error; the agent's log has the details"
    ).to_wire()


def plain_bodies(refused: Callable[[str, TidelockError], None]) -> Any:
    """Return the middleware that refuses compressed bodies.

    Args:
        refused: Called with the tid in the path of such a request, and with the error.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            require_plain_body(request)
        except EncodedBodyError as error:
            if (tid := request.match_info.get("tid")) is not None:
                refused(tid, error)
            raise
        return await handler(request)

    return check


def authentication(
    secret: str,
    *,
    open_routes: frozenset[str] = frozenset(),
    admit: Callable[[web.Request, str], bool],
) -> Any:
    """Return the middleware that demands ``Authorization: Bearer <secret>`` when a secret is set.

    Args:
        secret: The shared secret; empty: no secret is set.
        open_routes: Names of routes that authenticate their requests themselves.
        admit: Called with the credential that a request has in place of the secret. Returns whether it is a
            token, and raises if that token does not open the route.
    """
    expected = f"Bearer {secret}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        opened = request.path in _OPEN_PATHS or request.match_info.route.name in open_routes
        shown = request.headers.get("Authorization", "")
        given = shown.encode("utf-8", "surrogateescape")
        if not (opened or (secret and hmac.compare_digest(given, expected))):
            admitted = admit(request, shown.removeprefix("Bearer "))
            if secret and not admitted:
                msg = (
                    "the shared secret is missing or wrong; pass token= to connect(), or set TIDELOCK_SECRET"
                )
                raise AccessDeniedError(msg)
        return await handler(request)

    return check
