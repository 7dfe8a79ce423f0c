"""Forwards requests below /transactions to the protocol process, which alone knows transactions.

Only requests without file content are forwarded: the bytes of files are sent directly to the address in the
answer to a CREATE. Clients still send the requests here, because this is the one address of the file system,
and the server that accepts names in raw UTF-8.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import web
from yarl import URL

from tidelock.errors import BadRequestError, UnavailableError
from tidelock.loopback_names import as_reached
from tidelock.replica_agent.readers.disconnects import while_waiting
from tidelock.replica_agent.readers.paths import RequestTarget


class Forward:
    """Forwards requests.

    Args:
        api: ``host:port`` of the protocol process, on this machine.
    """

    def __init__(self, api: str) -> None:
        """Keep the address; the first request makes the connection."""
        self._api = api
        self._session: aiohttp.ClientSession | None = None

    async def handle(self, request: web.Request, target: RequestTarget) -> web.Response:
        """Return the answer of the protocol process, however long it takes.

        The client decides how long it waits: when it hangs up, the forwarded request is closed too, and the
        protocol process notices that.

        Raises:
            BadRequestError: The request has the bytes of a file.
            UnavailableError: The process does not answer, or the client does not wait any more.
        """
        if "data" in target.query:
            raise BadRequestError("the bytes of a file go to the address that the answer to CREATE names")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=5))
        path = "/".join(quote(segment, safe="") for segment in target.segments)
        url = URL(f"http://{self._api}/{path}?{urlencode(target.query)}", encoded=True)
        try:
            return await while_waiting(request, self._ask(self._session, request, url))
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError("this replica's agent does not answer now; try again") from error

    async def _ask(self, session: aiohttp.ClientSession, request: web.Request, url: URL) -> web.Response:
        async with session.request(request.method, url, allow_redirects=False) as found:
            body = await found.read()
        location = found.headers.get("Location")
        headers = None if location is None else {"Location": as_reached(request.host, location)}
        return web.Response(status=found.status, body=body, headers=headers)
