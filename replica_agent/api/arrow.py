"""Rows as the body of a response: an Arrow IPC stream of unknown length."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from tidelock.replica_agent.sql.pool import RunningStatement

ARROW_STREAM = "application/vnd.apache.arrow.stream"


async def send_rows(
    request: web.Request, running: RunningStatement, *, at_end: Callable[[], None] = lambda: None
) -> web.StreamResponse:
    """Send the rows of a statement as the statement produces them.

    A failure after the first byte cuts the connection without the final chunk, so that no client can mistake
    the cut for the end of the rows.

    Args:
        request: The request that is answered.
        running: The statement.
        at_end: Called when all rows are sent, before the client can see the end of the stream.
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
