"""Rows as an answer: an Arrow IPC stream of unknown length."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from tidelock.replica_agent.sql.pool import Statement

ARROW_STREAM = "application/vnd.apache.arrow.stream"


async def send_rows(
    request: web.Request, running: Statement, *, at_end: Callable[[], None] = lambda: None
) -> web.StreamResponse:
    """Send the rows of a statement as they come.

    A failure after the first byte cuts the connection without the final chunk, which no client can take for
    an end.

    Args:
        request: Who asks.
        running: The statement.
        at_end: Called when all is sent, before the client can know of the end.
    """
    response = web.StreamResponse(headers={"Content-Type": ARROW_STREAM})
    await response.prepare(request)
    try:
        async for chunk in running.pieces():
            await response.write(chunk)
    except BaseException:
        if request.transport is not None:
            request.transport.abort()
        raise
    at_end()
    await response.write_eof()
    return response
