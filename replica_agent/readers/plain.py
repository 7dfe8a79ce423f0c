"""Plain GET and HEAD with Range: /snapshots for clients other than Hadoop's, /parts for replicas."""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence

import msgspec
from aiohttp import web

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.errors import AccessDeniedError, BadRequestError, StandbyError, TidelockError
from tidelock.replica_agent.readers import ranges
from tidelock.replica_agent.readers.counters import ReaderCounters
from tidelock.replica_agent.readers.messages import ReaderConfig
from tidelock.replica_agent.readers.nodes import FolderNode, PartsNode, Resolver
from tidelock.replica_agent.readers.part_groups import PartGroupAnswers
from tidelock.replica_agent.readers.paths import NoSuchPathError, RequestTarget
from tidelock.replica_agent.readers.shapes import Shape
from tidelock.replica_agent.readers.streams import Streams
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replication.core import digest
from tidelock.replication.core.part_frames import GROUP_PARTS_MAX
from tidelock.wire.peers import PartsRequest

_PARQUET = "application/vnd.apache.parquet"
_JSON = "application/json"
#: Longest body of a request for many parts.
_BODY_BYTES_MAX = 64 << 10


class Plain:
    """Answers plain requests; raises errors that the caller turns into status and JSON."""

    def __init__(
        self, config: ReaderConfig, resolver: Resolver, streams: Streams, counters: ReaderCounters
    ) -> None:
        """Keep the objects that the requests need."""
        self._authorization = f"Bearer {config.secret}".encode() if config.secret else b""
        self._resolver = resolver
        self._streams = streams
        self._counters = counters
        self._groups = PartGroupAnswers(resolver.catalog, streams, counters)

    async def handle(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        """Answer a GET or HEAD, or the POST that asks for many parts."""
        if request.method == "POST" and target.segments == ("parts",):
            self._require_secret(request)
            return await self._groups.send(request, await _asked(request))
        if request.method not in {"GET", "HEAD"}:
            raise BadRequestError(f"{request.method} is not supported: parts and snapshots are read only")
        if target.segments[:1] == ("parts",):
            row = self._part(request, target)
            return await self._send(request, [row.part], row.length, row.checksum)
        node = await self._resolver.resolve(target)
        if isinstance(node, FolderNode):
            self._counters.add("listings")
            return web.Response(body=node.listing, content_type=_JSON)
        if isinstance(node, PartsNode):
            return await self._send(
                request, node.parts, node.length, node.checksum, node.at, shape=node.shape
            )
        response, start, end = _ranged(request, len(node.data), digest.checksum(node.data))
        self._counters.add("opens")
        return web.Response(status=response.status, headers=response.headers, body=node.data[start:end])

    def _part(self, request: web.Request, target: RequestTarget) -> PartRow:
        """Return the part that /parts/<part> names, committed or not.

        Raises:
            AccessDeniedError: A secret is set and the request does not have it.
            NoSuchPathError: The part is not held here.
        """
        self._require_secret(request)
        name = target.segments[1] if len(target.segments) == 2 else ""  # noqa: PLR2004 - /parts/<part>
        row = self._resolver.catalog.part(PartId(name))
        if row is None or row.state != "held":
            raise NoSuchPathError(f"part {name!a} is not held on this replica")
        return row

    def _require_secret(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._authorization and not hmac.compare_digest(given, self._authorization):
            raise AccessDeniedError("expected 'Authorization: Bearer <secret>' with the secret of this shard")

    async def _send(
        self,
        request: web.Request,
        parts: Sequence[PartId],
        length: int,
        checksum: str,
        at: tuple[Csn, TableId] | None = None,
        *,
        shape: Shape | None = None,
    ) -> web.StreamResponse:
        response, start, end = _ranged(request, length, checksum)
        if request.method == "HEAD" or response.status == 416:  # noqa: PLR2004
            response.content_length = end - start
            return response
        return await self._streams.send(
            request, response, parts, start, end, at=at, shape=shape, length=length
        )


def refusal(error: Exception, counters: ReaderCounters) -> web.Response:
    """Return status and JSON for an error (tidelock.errors); 404 is kept for names that do not exist."""
    counters.add("standby_answers" if isinstance(error, StandbyError) else "refusals")
    wire = error if isinstance(error, TidelockError) else TidelockError(str(error))
    status = wire.http_status
    if status == 404 and not isinstance(error, NoSuchPathError):  # noqa: PLR2004
        # Clients that skip missing files must not skip the files of a CSN that this replica cannot serve.
        status = 403
    return web.Response(status=status, body=json.dumps(wire.to_wire()).encode(), content_type=_JSON)


async def _asked(request: web.Request) -> list[PartId]:
    """Return the parts that a POST asks for.

    Raises:
        BadRequestError: The body is too long, malformed, or asks for more than one answer holds.
    """
    length = request.content_length
    if length is None or length > _BODY_BYTES_MAX:
        raise BadRequestError(f"expected a Content-Length of at most {_BODY_BYTES_MAX}, found {length}")
    try:
        asked = msgspec.json.decode(await request.read(), type=PartsRequest)
    except ValueError as error:  # msgspec's errors too
        raise BadRequestError(f"expected {{'parts': [part id]}}: {error}") from error
    if len(asked.parts) > GROUP_PARTS_MAX:
        raise BadRequestError(f"expected at most {GROUP_PARTS_MAX} parts, found {len(asked.parts)}")
    return list(dict.fromkeys(asked.parts))


def _ranged(request: web.Request, length: int, checksum: str) -> tuple[web.StreamResponse, int, int]:
    """Return the head of the response and the bytes [start, end) to send, by Range and If-Range."""
    etag = f'"{checksum}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Type": _PARQUET}
    header = request.headers.get("Range")
    if request.headers.get("If-Range", etag) != etag:
        header = None
    try:
        found = ranges.parse(header, length)
    except ranges.UnsatisfiableRangeError:
        headers["Content-Range"] = f"bytes */{length}"
        return web.StreamResponse(status=416, headers=headers), 0, 0
    if found is None:
        return web.StreamResponse(headers=headers), 0, length
    start, end = found
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{length}"
    return web.StreamResponse(status=206, headers=headers), start, end
