"""The operations of /webhdfs/v1 (Hadoop 3.5, "WebHDFS REST API") that reading clients use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from tidelock.errors import BadRequestError, StandbyError
from tidelock.replica_agent.readers import hdfs
from tidelock.replica_agent.readers.counters import ReaderCounters
from tidelock.replica_agent.readers.messages import ReaderConfig
from tidelock.replica_agent.readers.nodes import FileNode, FolderNode, Node, PartsNode, Resolver
from tidelock.replica_agent.readers.paths import NoSuchPathError, RequestTarget
from tidelock.replica_agent.readers.streams import Streams

Answer = Awaitable[web.StreamResponse]

#: Largest number that a client may send as offset or length (Java's long).
_LONG_MAX = (1 << 63) - 1


class WebHdfs:
    """Answers one operation; raises errors that the caller turns into a RemoteException."""

    def __init__(
        self, config: ReaderConfig, resolver: Resolver, streams: Streams, counters: ReaderCounters
    ) -> None:
        """Keep the objects that the operations need."""
        self._config = config
        self._resolver = resolver
        self._streams = streams
        self._counters = counters
        self._operations: dict[str, Callable[[web.Request, RequestTarget], Answer]] = {
            "GETFILESTATUS": self._status,
            "LISTSTATUS": self._list,
            "LISTSTATUS_BATCH": self._list_batch,
            "OPEN": self._open,
            "GETFILEBLOCKLOCATIONS": self._locations,
            "GET_BLOCK_LOCATIONS": self._located_blocks,
            "GETCONTENTSUMMARY": self._summary,
            "CHECKACCESS": self._check_access,
            "GETDELEGATIONTOKEN": self._delegation_token,
            "GETHOMEDIRECTORY": self._home,
        }

    async def handle(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        """Run the operation that the query names; ``target`` is the path below /webhdfs/v1."""
        name = target.query.get("op", "").upper()
        operation = self._operations.get(name) if request.method == "GET" else None
        if operation is None:
            raise BadRequestError(
                f"{request.method} {name or '(no op)'} is not supported: snapshots are read only; "
                "insert through a transaction"
            )
        return await operation(request, target)

    async def _status(self, _request: web.Request, target: RequestTarget) -> web.StreamResponse:
        self._counters.add("status_requests")
        return _body(hdfs.file_status((await self._resolver.resolve(target)).entry()))

    async def _list(self, _request: web.Request, target: RequestTarget) -> web.StreamResponse:
        return _body(await self._listing(target))

    async def _list_batch(self, _request: web.Request, target: RequestTarget) -> web.StreamResponse:
        return _body(hdfs.directory_listing(await self._listing(target)))

    async def _listing(self, target: RequestTarget) -> bytes:
        self._counters.add("listings")
        node = await self._resolver.resolve(target)
        return node.listing if isinstance(node, FolderNode) else hdfs.file_statuses([node.entry()])

    async def _open(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        node = _file(await self._resolver.resolve(target), target)
        start = _long(target, "offset", 0)
        if start > node.length:
            raise BadRequestError(
                f"offset {start} lies behind the end of {target.path}, which has {node.length} bytes"
            )
        end = min(node.length, start + _long(target, "length", _LONG_MAX))
        if isinstance(node, PartsNode):
            # Hadoop's client opens a file once only to learn where to read (ReadRunner). A reader of Parquet
            # then seeks to the footer: it hangs up, and the bytes sent until then are wasted.
            connects = "offset" not in target.query
            response = web.StreamResponse()
            return await self._streams.send(
                request,
                response,
                node.parts,
                start,
                end,
                at=node.at,
                shape=node.shape,
                length=node.length,
                may_hang_up="length" not in target.query,
                pause=connects,
            )
        self._counters.add("opens")
        return _body(node.data[start:end])

    async def _locations(self, _request: web.Request, target: RequestTarget) -> web.StreamResponse:
        self._counters.add("status_requests")
        node = _file(await self._resolver.resolve(target), target)
        return _body(hdfs.block_locations(node.length, self._config.host, self._config.port))

    async def _located_blocks(self, _request: web.Request, target: RequestTarget) -> web.StreamResponse:
        self._counters.add("status_requests")
        return _body(hdfs.located_blocks(_file(await self._resolver.resolve(target), target).length))

    async def _summary(self, _request: web.Request, target: RequestTarget) -> web.StreamResponse:
        self._counters.add("status_requests")
        node = await self._resolver.resolve(target)
        totals = node.totals() if isinstance(node, FolderNode) else (0, 1, node.length)
        return _body(hdfs.content_summary(*totals))

    async def _check_access(self, _request: web.Request, target: RequestTarget) -> web.StreamResponse:
        self._counters.add("status_requests")
        await self._resolver.resolve(target)
        if "w" in target.query.get("fsaction", ""):
            raise BadRequestError(f"{target.path} is read only")
        return _body(b"")

    async def _delegation_token(self, _request: web.Request, _target: RequestTarget) -> web.StreamResponse:
        return _body(hdfs.delegation_token())

    async def _home(self, _request: web.Request, _target: RequestTarget) -> web.StreamResponse:
        return _body(hdfs.path_answer("/"))


def refusal(error: Exception, counters: ReaderCounters) -> web.Response:
    """Return the RemoteException for an error."""
    if isinstance(error, StandbyError):
        counters.add("standby_answers")
    elif not isinstance(error, NoSuchPathError):
        counters.add("refusals")
    status, body = hdfs.refusal(error)
    return web.Response(status=status, body=body)


async def no_content_type(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Remove the Content-Type: Hadoop's shaded client lacks the class that parses it, and fails on any."""
    if request.rel_url.raw_path.startswith("/webhdfs/"):
        response.headers.popall("Content-Type", None)


def _body(body: bytes) -> web.Response:
    return web.Response(body=body)


def _file(node: Node, target: RequestTarget) -> FileNode:
    if isinstance(node, FolderNode):
        raise BadRequestError(f"{target.path} is a folder, not a file")
    return node


def _long(target: RequestTarget, name: str, default: int) -> int:
    text = target.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or int(text) > _LONG_MAX:
        raise BadRequestError(f"{name}={text!a} is not a number of bytes from 0 to {_LONG_MAX}")
    return int(text)
