"""How both servers of an agent accept requests: the API of the protocol process, and the data port."""

from __future__ import annotations

from typing import Final, TypedDict

from aiohttp import web

from tidelock.errors import EncodedBodyError


class Acceptance(TypedDict):
    """Arguments of :class:`aiohttp.web.AppRunner`."""

    max_line_size: int
    auto_decompress: bool


#: Longest request line: parameters of a merge are in the query string, and a partition path is
#: percent-encoded twice, which takes nine characters for one byte of UTF-8.
REQUEST_LINE_BYTES_MAX: Final = 64 << 10
#: No body is decompressed: aiohttp would do that in the event loop, even for a request that was refused
#: already, and 1.5 MB of gzip can hold 1.5 GB.
ACCEPTANCE: Final[Acceptance] = {"max_line_size": REQUEST_LINE_BYTES_MAX, "auto_decompress": False}


def require_plain_body(request: web.Request) -> None:
    """Check that the body is not compressed.

    Raises:
        EncodedBodyError: The request has a Content-Encoding other than ``identity``.
    """
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise EncodedBodyError(
            f"Content-Encoding: {encoding!a} is not accepted; nothing was kept: send the body as it is"
        )
