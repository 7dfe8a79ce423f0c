"""The bytes of the answer to ``POST /parts``: many small parts of one replica (docs/protocol.md#parts). Pure.

One frame for each part that was asked for: a big-endian uint32 with the length of the head, the head as
msgpack, then the bytes of the part if it is sent. Frames describe themselves, so each whole frame of an
answer that broke off counts.
"""

from __future__ import annotations

import struct

import msgspec

from tidelock.csnlog.core.ids import PartId

#: Most parts of one request. Part of the protocol and not a setting: a replica must know what peers accept.
GROUP_PARTS_MAX = 500
#: Most bytes of the parts of one answer, for the same reason; a larger part is asked for alone.
GROUP_BYTES_MAX = 8 << 20
#: Longest head of a frame: a part id and a sentence.
_HEAD_BYTES_MAX = 4096

_LENGTH = struct.Struct(">I")


class SentPart(msgspec.Struct, frozen=True):
    """A part with the bytes that the holder has sent; the receiver verifies them."""

    part: PartId
    data: bytes


class LackedPart(msgspec.Struct, frozen=True):
    """A part that the holder cannot send now; ``why`` is for people."""

    part: PartId
    why: str


PartFrame = SentPart | LackedPart


class _Head(msgspec.Struct, frozen=True, omit_defaults=True):
    part: PartId
    length: int = 0
    why: str | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Head)


def encode(frame: PartFrame) -> bytes:
    """Return the bytes of one frame."""
    if isinstance(frame, SentPart):
        head = _ENCODER.encode(_Head(frame.part, len(frame.data)))
        return b"".join((_LENGTH.pack(len(head)), head, frame.data))
    head = _ENCODER.encode(_Head(frame.part, why=frame.why[: _HEAD_BYTES_MAX // 8]))
    return _LENGTH.pack(len(head)) + head


class FrameReader:
    """Decodes the frames of one answer while its bytes arrive in pieces of any size."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._left = GROUP_BYTES_MAX

    def feed(self, raw: bytes) -> list[PartFrame]:
        """Return the frames that are whole with these bytes.

        Raises:
            ValueError: No agent sends this: a malformed or very long head, or too many bytes of parts.
        """
        self._raw += raw
        frames: list[PartFrame] = []
        at = 0
        while (found := self._frame(at)) is not None:
            frame, at = found
            frames.append(frame)
        del self._raw[:at]
        return frames

    def _frame(self, at: int) -> tuple[PartFrame, int] | None:
        """Return the frame that begins at a place, and where it ends; None if it is not whole yet."""
        raw = self._raw
        if len(raw) < at + _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(raw, at)
        if size > _HEAD_BYTES_MAX:
            raise ValueError(f"a frame claims a head of {size} bytes, the limit is {_HEAD_BYTES_MAX}")
        start = at + _LENGTH.size + size
        if len(raw) < start:
            return None
        head = _DECODER.decode(bytes(raw[at + _LENGTH.size : start]))
        if not 0 <= head.length <= self._left:
            raise ValueError(f"{head.part} claims {head.length} bytes, of at most {self._left} that are left")
        end = start + head.length
        if len(raw) < end:
            return None
        if head.why is not None:
            return LackedPart(head.part, head.why), end
        self._left -= head.length
        return SentPart(head.part, bytes(raw[start:end])), end
