"""The bytes of a push: ``POST /peer/v1/stage`` (docs/protocol.md#stage). Pure.

A big-endian uint32 with the length of the header, the header as msgpack, then the bytes of the inline parts
in the order of the header. Parts that are not inline are fetched by the receiver.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidelock.csnlog.core.ids import PartId, ReplicaId, Tid
from tidelock.errors import BadRequestError, TooLargeError
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import PartMeta, SealedTid

#: Largest header; about 15,000 parts with statistics of 1 KiB each. A server allows this and push_bytes_max.
#: It is part of the protocol and not a setting: a home must know what every peer accepts.
HEADER_BYTES_MAX = 16 << 20
#: Buffers below this size are joined before they are sent: a system call for each would cost more than the
#: copy.
_JOIN_BYTES = 64 << 10

_LENGTH = struct.Struct(">I")


class StageRequest(msgspec.Struct, frozen=True):
    """A decoded push.

    Attributes:
        home: The replica that pushes.
        boot: Boot number of its agent.
        cluster_id: The cluster it belongs to; the receiver compares it.
        tids: The transactions that it has sealed.
        inline: Bytes of the parts that were sent inline; length and checksum are right.
        damaged: Tids whose inline bytes do not match a checksum, with the reason; to be answered as refused.
    """

    home: ReplicaId
    boot: int
    cluster_id: str
    tids: tuple[SealedTid, ...]
    inline: dict[PartId, bytes]
    damaged: dict[str, str]


class _StagedPart(PartMeta, frozen=True, omit_defaults=True):
    inline: bool = False

    def meta(self) -> PartMeta:
        return PartMeta(*(getattr(self, name) for name in PartMeta.__struct_fields__))


class _StagedTid(msgspec.Struct, frozen=True):
    tid: str
    parts: tuple[PartId, ...]


class _Header(msgspec.Struct, frozen=True):
    home: ReplicaId
    boot: int
    cluster_id: str
    tids: tuple[_StagedTid, ...]
    parts: tuple[_StagedPart, ...]


_DECODER = msgspec.msgpack.Decoder(_Header)


def encode(
    *, home: ReplicaId, boot: int, cluster_id: str, tids: Sequence[SealedTid], inline: Mapping[PartId, bytes]
) -> list[bytes]:
    """Return the body of a push as buffers to send one after the other; large parts are not copied.

    Args:
        inline: Bytes of those parts of ``tids`` that are sent inline.

    Raises:
        TooLargeError: The header is larger than a peer accepts; push fewer transactions at a time.
    """
    header = _Header(
        home=home,
        boot=boot,
        cluster_id=cluster_id,
        tids=tuple(_StagedTid(str(sealed.tid), tuple(meta.part for meta in sealed.parts)) for sealed in tids),
        parts=tuple(
            _StagedPart(**msgspec.structs.asdict(meta), inline=meta.part in inline)
            for sealed in tids
            for meta in sealed.parts
        ),
    )
    head = msgspec.msgpack.encode(header)
    if len(head) > HEADER_BYTES_MAX:
        raise TooLargeError(
            f"{len(header.parts)} parts need a push header of {len(head)} bytes, the limit is"
            f" {HEADER_BYTES_MAX}; use fewer, larger parts in one transaction",
            limit=HEADER_BYTES_MAX,
            found=len(head),
        )
    bodies = (inline[part.part] for part in header.parts if part.inline)
    return list(_joined([_LENGTH.pack(len(head)), head, *bodies]))


def _joined(buffers: Iterable[bytes]) -> Iterable[bytes]:
    small: list[bytes] = []
    waiting = 0
    for buffer in buffers:
        if len(buffer) < _JOIN_BYTES:
            small.append(buffer)
            waiting += len(buffer)
            if waiting < _JOIN_BYTES:
                continue
        if small:
            yield b"".join(small)
            small, waiting = [], 0
        if len(buffer) >= _JOIN_BYTES:
            yield buffer
    if small:
        yield b"".join(small)


def decode(body: bytes) -> StageRequest:
    """Decode a push; its content cannot cause a larger allocation than ``body`` itself.

    Raises:
        BadRequestError: It is cut, too long, malformed or contradicts itself.
    """
    if len(body) < _LENGTH.size:
        raise BadRequestError(f"the push is cut: expected a header length, found {len(body)} bytes")
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + length
    if length > HEADER_BYTES_MAX or start > len(body):
        raise BadRequestError(
            f"the push claims a header of {length} bytes; {len(body)} bytes came in all,"
            f" and a header has at most {HEADER_BYTES_MAX}"
        )
    try:
        header = _DECODER.decode(memoryview(body)[_LENGTH.size : start])
        tids = {Tid.parse(item.tid): item.parts for item in header.tids}
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRequestError(f"the header of the push is malformed: {error}") from error
    parts = {part.part: part for part in header.parts}
    _check(header, tids, parts)
    sealed = tuple(SealedTid(tid, tuple(parts[name].meta() for name in names)) for tid, names in tids.items())
    inline = _slices(body, start, header.parts)
    return StageRequest(header.home, header.boot, header.cluster_id, sealed, inline, _damaged(sealed, inline))


def _check(
    header: _Header, tids: Mapping[Tid, tuple[PartId, ...]], parts: Mapping[PartId, _StagedPart]
) -> None:
    named = [part for names in tids.values() for part in names]
    if len(tids) != len(header.tids) or len(parts) != len(header.parts) or len(set(named)) != len(named):
        raise BadRequestError("the push names a transaction or a part twice")
    if set(named) != set(parts):
        odd = min(set(named) ^ set(parts))
        raise BadRequestError(f"the push must describe exactly the parts of its transactions; see part {odd}")
    for tid in tids:
        if tid.home != header.home:
            raise BadRequestError(f"{header.home} pushes {tid}, whose home is {tid.home}")


def _slices(body: bytes, start: int, parts: Iterable[_StagedPart]) -> dict[PartId, bytes]:
    inline: dict[PartId, bytes] = {}
    for part in parts:
        if part.inline:
            inline[part.part] = body[start : start + part.length]
            start += part.length
    if start != len(body):
        raise BadRequestError(
            f"the push has {len(body)} bytes, its header says {start}; it was cut or does not belong together"
        )
    return inline


def _damaged(sealed: Iterable[SealedTid], inline: Mapping[PartId, bytes]) -> dict[str, str]:
    damaged: dict[str, str] = {}
    for item in sealed:
        for meta in item.parts:
            if meta.part in inline and (found := checksum(inline[meta.part])) != meta.checksum:
                damaged[str(item.tid)] = f"part {meta.part} came with checksum {found}, not {meta.checksum}"
    return damaged
