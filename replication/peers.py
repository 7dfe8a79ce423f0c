"""HTTP to the other agents: their API (docs/protocol.md#peer-routes) and the bytes of their parts.

Every failure is an error of :mod:`tidelock.errors`. A peer that does not answer, answers in part or is no
agent at all is UnavailableError: nothing was learned, and the same call may be repeated, here or elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from tidelock.csnlog.cluster.refusals import refusal
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.results import (
    Aborted,
    Committed,
    CommittedUnseen,
    HomeAnswer,
    NeverBegun,
    NotMine,
    OwnOutcome,
    Running,
)
from tidelock.errors import CorruptError, RefusedError, TidelockError, UnavailableError, from_answer
from tidelock.replication.core.part_frames import FrameReader, PartFrame
from tidelock.replication.peer_channels import NoChannelError, PeerChannels
from tidelock.wire import channel
from tidelock.wire.peers import (
    CloneManifest,
    FailedUploadRequest,
    ForgetRequest,
    Held,
    HintRequest,
    PartMeta,
    PartsRequest,
    PartWord,
    PeerOutcome,
    PeerStatus,
    StateDigest,
    UploadBegun,
    UploadedRequest,
    UploadRequest,
)

T = TypeVar("T")

#: Bytes that one step of a part's stream yields at most.
CHUNK_BYTES = 1 << 20
#: An answer to a small request never needs more; a longer answer is not from an agent.
ANSWER_BYTES_MAX = 16 << 20

#: Longest wait for a machine that may refuse a connection, in seconds. A machine that runs does so at once.
REFUSAL_S = 0.5

_OK, _PARTIAL = 200, 206
#: The answers of a peer whose version does not know ``POST /parts``: versions up to 0.1 say 400.
_NO_GROUPS = frozenset({400, 404, 405})
_BROKEN = (ClientError, OSError, TimeoutError)


#: The answers of ``GET /peer/v1/outcome/{tid}`` on the wire.
_ANSWERS: dict[str, HomeAnswer] = {
    "committed": CommittedUnseen(),
    "aborted": Aborted(),
    "running": Running(),
    "unknown": NotMine(),
    "never": NeverBegun(),
}


class NoGroupsError(RefusedError):
    """A peer of an older version does not know the request for many parts."""


def word_of(outcome: OwnOutcome) -> str:
    """Return the wire text by which a home reports the outcome of its own transaction to a peer."""
    request = CommittedUnseen() if isinstance(outcome, Committed) else outcome
    return next(word for word, answer in _ANSWERS.items() if answer == request)


def answer_of(word: str) -> HomeAnswer:
    """Return the meaning of a home's wire text; a text that this version does not know means NotMine."""
    return _ANSWERS.get(word, NotMine())


class PeerClient:
    """One client for all peers; use it from one event loop and close it at the end.

    Args:
        secret: Shared secret of the shard, or empty.
        connections: Most connections to one address, besides that of its channel.
        timeout_s: Longest silence of the API: for a connection, and between two pieces of an answer.
    """

    def __init__(self, *, secret: str, connections: int, timeout_s: float) -> None:
        self._headers = {"Accept-Encoding": "identity"}
        if secret:
            self._headers["Authorization"] = f"Bearer {secret}"
        self._connections = connections
        self._timeout_s = timeout_s
        self._opened: ClientSession | None = None
        self._channels = PeerChannels(lambda: self._session, self._headers, ANSWER_BYTES_MAX)

    async def close(self) -> None:
        """Close all connections; running calls fail."""
        await self._channels.close()
        if self._opened is not None:
            await self._opened.close()

    # -- the protocol API of a peer: ``api`` is host:port ----------------------------------

    async def stage(self, api: str, body: Sequence[bytes], *, timeout_s: float) -> Held:
        """Push the output of :func:`tidelock.replication.core.wire.encode`, and return the peer's answer."""
        size = sum(map(len, body))
        url = f"http://{api}/peer/v1/stage"
        if size <= channel.BODY_BYTES_MAX:
            try:
                status, raw = await self._channels.ask(api, "/stage", body, timeout_s=timeout_s)
            except NoChannelError:
                pass
            except _BROKEN as error:
                raise _silent(url, error) from error
            else:
                return _decoded(url, status, raw, Held)
        headers = {"Content-Length": str(size), "Content-Type": "application/vnd.tidelock.stage"}
        return await self._call(
            "POST", api, "stage", Held, data=_stream(body), headers=headers, timeout_s=timeout_s
        )

    async def forget(self, api: str, tids: Iterable[Tid]) -> None:
        """Hint that these transactions are rolled back."""
        await self._call("POST", api, "forget", Any, json=ForgetRequest(tids=[str(tid) for tid in tids]))

    async def drop(self, api: str, parts: Iterable[PartId]) -> None:
        """Hint that early copies of these parts are not needed any more, though their transaction goes on."""
        await self._call("POST", api, "forget", Any, json=ForgetRequest(parts=list(parts)))

    async def hint(self, api: str, tid: Tid, holder: ReplicaId, parts: Sequence[PartMeta]) -> None:
        """Hint that these parts of a running transaction are durable at ``holder``, for an early fetch."""
        await self._call("POST", api, "hint", Any, json=HintRequest(str(tid), holder, list(parts)))

    async def outcome(self, api: str, tid: Tid) -> HomeAnswer:
        """Return a home's answer about its own transaction."""
        return answer_of((await self._call("GET", api, f"outcome/{tid}", PeerOutcome)).outcome)

    async def status(self, api: str) -> PeerStatus:
        """Return the replica that answers at the address, and how far it is."""
        return await self._call("GET", api, "status", PeerStatus)

    async def digest(self, api: str, csn: Csn, *, timeout_s: float) -> StateDigest:
        """Return the digest of what a peer shows at a CSN; it may have to read its whole catalog for it."""
        return await self._call("GET", api, f"digests/{csn}", StateDigest, timeout_s=timeout_s)

    async def clone(self, api: str, name: str) -> CloneManifest:
        """Have a peer write its catalog for a clone; the name is the caller's, and repeats the request."""
        return await self._call("POST", api, f"clones/{name}", CloneManifest)

    async def read_clone(self, api: str, name: str, start: int) -> bytes:
        """Return the next bytes of the catalog that a peer has written, from ``start`` on, at least one."""
        url = f"http://{api}/peer/v1/clones/{name}?from={start}"
        try:
            async with self._session.get(url, timeout=ClientTimeout(total=self._timeout_s)) as response:
                raw = await response.read() if response.status == _OK else await _bounded(response)
        except _BROKEN as error:
            raise _silent(url, error) from error
        if response.status != _OK:
            raise _refusal(url, response.status, raw)
        if not raw:
            raise UnavailableError(f"{url} sent no byte of the catalog", url=url)
        return raw

    async def end_clone(self, api: str, name: str) -> None:
        """Tell a peer that its written catalog is not needed any more; a hint."""
        await self._call("DELETE", api, f"clones/{name}", Any)

    async def holds(self, api: str, part: PartId) -> PartWord:
        """Return whether the replica holds a part; it reads all bytes of it first."""
        return await self._call("GET", api, f"parts/{part}", PartWord)

    async def refuses(self, api: str) -> bool:
        """Return whether the machine of an address says that no process listens there."""
        return isinstance(await refusal(api, timeout_s=REFUSAL_S), ConnectionRefusedError)

    async def begin_upload(self, api: str, grant: str, replica: ReplicaId) -> UploadBegun:
        """Notify a home that ``replica`` will receive the file of a grant."""
        asked = UploadRequest(grant, replica)
        return await self._call("POST", api, "uploads", UploadBegun, json=asked)

    async def end_upload(self, api: str, tid: Tid, table: str, replica: ReplicaId, meta: PartMeta) -> None:
        """Notify a home that a file is durable at ``replica``; may be repeated."""
        request = UploadedRequest(str(tid), TableId(table), replica, meta.length, meta.checksum)
        await self._call("POST", api, f"uploads/{meta.part}", Any, json=request)

    async def fail_upload(self, api: str, tid: Tid, table: str, replica: ReplicaId, part: PartId) -> None:
        """Notify a home that a file will not come from ``replica``; a hint."""
        request = FailedUploadRequest(str(tid), TableId(table), replica)
        await self._call("POST", api, f"uploads/{part}/failed", Any, json=request)

    async def _call(
        self,
        method: str,
        api: str,
        route: str,
        answer: type[T],
        *,
        json: msgspec.Struct | None = None,
        data: AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        url = f"http://{api}/peer/v1/{route}"
        sent: dict[str, Any] = {"data": data if json is None else msgspec.json.encode(json)}
        timeout = ClientTimeout(total=self._timeout_s if timeout_s is None else timeout_s)
        try:
            async with self._session.request(
                method, url, headers=headers, timeout=timeout, **sent
            ) as response:
                raw = await _bounded(response)
        except _BROKEN as error:
            raise _silent(url, error) from error
        return _decoded(url, response.status, raw, answer)

    # -- the bytes of a part: ``data`` is host:port of its reader workers ----------------------

    async def read_part(
        self, data: str, meta: PartMeta, start: int, end: int, *, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes ``start`` to ``end`` (exclusive) of a part; an empty range sends no request.

        ``silence_s`` is the longest silence, as ``timeout_s`` of the client is for its API.

        Raises:
            UnavailableError: The peer does not hold it, is not reached, or broke off.
            CorruptError: The peer has another part under this id, by its checksum or length.
        """
        if start == end:
            return
        url = f"http://{data}/parts/{meta.part}"
        timeout = ClientTimeout(total=None, sock_connect=silence_s, sock_read=silence_s)
        headers = {"Range": f"bytes={start}-{end - 1}"}
        try:
            async with self._session.get(url, headers=headers, timeout=timeout) as response:
                await _check_part(url, response, meta, start, end)
                left = end - start
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    left -= len(chunk)
                    if left < 0:
                        raise CorruptError(
                            f"{url} sent more than the bytes {start} to {end} asked for", url=url
                        )
                    yield chunk
        except _BROKEN as error:
            raise _silent(url, error) from error
        if left:
            raise UnavailableError(f"{url} broke off {left} bytes before {end}", url=url)

    async def read_parts(
        self, data: str, parts: Sequence[PartId], *, silence_s: float
    ) -> AsyncGenerator[PartFrame, None]:
        """Yield what a peer says of each of these small parts, in one answer, as soon as it has arrived.

        Raises:
            NoGroupsError: The peer does not know this request; ask for the parts one by one.
            UnavailableError: The peer is not reached, broke off, or is no agent; what came before it counts.
        """
        left, reader = set(parts), FrameReader()
        async with aclosing(self._stream_parts(data, parts, silence_s)) as chunks:
            async for chunk in chunks:
                try:
                    frames = reader.feed(chunk)
                except ValueError as error:  # msgspec's errors too
                    raise UnavailableError(f"{data} does not answer like an agent: {error}") from error
                for frame in frames:
                    if frame.part not in left:
                        raise UnavailableError(f"{data} sent {frame.part}, which was not asked for")
                    left.discard(frame.part)
                    yield frame
        if left:
            raise UnavailableError(f"{data} broke off {len(left)} parts before the end of {len(parts)}")

    async def _stream_parts(
        self, data: str, parts: Sequence[PartId], silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the answer about many parts."""
        url = f"http://{data}/parts"
        timeout = ClientTimeout(total=None, sock_connect=silence_s, sock_read=silence_s)
        body = msgspec.json.encode(PartsRequest(list(parts)))
        try:
            async with self._session.post(url, data=body, timeout=timeout) as response:
                if response.status in _NO_GROUPS:
                    raise NoGroupsError(f"{url} answered {response.status}: it sends single parts only")
                if response.status != _OK:
                    raise _refusal(url, response.status, await _bounded(response))
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
        except _BROKEN as error:
            raise _silent(url, error) from error

    @property
    def _session(self) -> ClientSession:
        if self._opened is None:  # made here, since a session belongs to a running event loop
            connector = TCPConnector(limit=0, limit_per_host=self._connections + 1)  # and the channel
            self._opened = ClientSession(
                connector=connector,
                headers=self._headers,
                auto_decompress=False,
                read_bufsize=CHUNK_BYTES,
            )
        return self._opened


async def _stream(body: Sequence[bytes]) -> AsyncIterator[bytes]:
    for buffer in body:
        yield buffer


async def _bounded(response: ClientResponse) -> bytes:
    """Read an answer; an answer longer than an agent ever sends counts as broken."""
    pieces, length = [], 0
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        length += len(chunk)
        if length > ANSWER_BYTES_MAX:
            raise ClientError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        pieces.append(chunk)
    return b"".join(pieces)


async def _check_part(url: str, response: ClientResponse, meta: PartMeta, start: int, end: int) -> None:
    if response.status != _PARTIAL:
        raise _refusal(url, response.status, await _bounded(response))
    etag = response.headers.get("ETag", "").strip('"')
    found = response.headers.get("Content-Range", "")
    expected = f"bytes {start}-{end - 1}/{meta.length}"
    if found != expected or etag not in {"", meta.checksum}:
        raise CorruptError(
            f"{url} has another part: expected '{expected}' of {meta.checksum}, found '{found}' of"
            f" {etag or 'an unknown checksum'}",
            url=url,
        )


def _decoded(url: str, status: int, raw: bytes, answer: type[T]) -> T:
    if status != _OK:
        raise _refusal(url, status, raw)
    try:
        return msgspec.json.decode(raw, type=answer)
    except ValueError as error:  # msgspec's errors, and bytes that are no UTF-8
        raise UnavailableError(f"{url} does not answer like an agent: {error}", url=url) from error


def _refusal(url: str, status: int, raw: bytes) -> TidelockError:
    """Return the error that the answer holds; a server that answered something else is no agent."""
    error = from_answer(status, raw) or UnavailableError(f"{url} answered {status} and no error of an agent")
    error.details.setdefault("url", url)
    return error


def _silent(url: str, error: BaseException) -> UnavailableError:
    why = str(error) or type(error).__name__
    return UnavailableError(f"{url} does not answer ({why})", url=url)
