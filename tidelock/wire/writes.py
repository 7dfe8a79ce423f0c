"""The body of POST /commits: a whole transaction that only adds rows. Pure.

A big-endian uint32 with the length of the head, the head as JSON, then one complete Arrow IPC stream for each
table of the head, in its order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec

from tidelock.wire.transactions import Wait

_LENGTH = struct.Struct(">I")


class TidsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /tids.

    Attributes:
        count: Number of tids.
    """

    count: int = 1


class ReservedTids(msgspec.Struct, frozen=True):
    """Tids for transactions of one request each.

    Attributes:
        first: The first tid. The others have the same fields but the last, which is one higher each time.
        count: Number of tids.
        seconds: How long they stay reserved.
    """

    first: str
    count: int
    seconds: float

    def tids(self) -> Iterator[str]:
        """Yield all tids, the first one first."""
        fields, _, first = self.first.rpartition("-")
        return (f"{fields}-{counter}" for counter in range(int(first), int(first) + self.count))


class TableRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows for one table.

    Attributes:
        table: Name of the table.
        length: Bytes of the Arrow IPC stream.
    """

    table: str
    length: Annotated[int, msgspec.Meta(ge=0)]


class WriteHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Head of the body of POST /commits.

    Attributes:
        tid: A reserved tid.
        rows: The rows, in the order of the streams.
        label: Unique name of this piece of work.
        batch: Number of the batch if the label belongs to a streaming query.
        min_csn: The definitions of the tables must be at least as new as this CSN.
        meta: Own data, kept in the commit record.
        progress: Text that the commit keeps with the label.
        wait: Where the commit is to be applied before it is answered.
        timeout_s: How long the agent may take, in seconds; null: twice its `commit_timeout_s`.
    """

    tid: str
    rows: tuple[TableRows, ...]
    label: str | None = None
    batch: int | None = None
    min_csn: int | None = None
    meta: dict[str, Any] | None = None
    progress: str | None = None
    wait: Wait = "home"
    timeout_s: float | None = None


class LandAnswer(msgspec.Struct, frozen=True):
    """Answer of POST /landings: the rows count as written.

    Attributes:
        rows: Their number.
        tid: The transaction of the home that brings them, with those of others; null where `csn` is known,
            and for no rows.
        csn: The commit that brought them; null if they are durable and not committed yet, and for no rows.
    """

    rows: int
    tid: str | None
    csn: int | None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(WriteHead)


def encode(head: WriteHead, streams: Sequence[bytes]) -> bytes:
    """Return the body for a head and the streams of its tables."""
    text = _encoder.encode(head)
    return b"".join([_LENGTH.pack(len(text)), text, *streams])


def decode(body: bytes) -> tuple[WriteHead, list[bytes]]:
    """Return the head of a body, and the stream of each table.

    Raises:
        ValueError: The body is cut, too long or malformed; the message says where.
    """
    if len(body) < _LENGTH.size:
        raise ValueError(f"expected the length of a head in 4 bytes, found {len(body)} bytes")
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    if end > len(body):
        raise ValueError(f"the head has {length} bytes by its length, and {len(body) - _LENGTH.size} follow")
    head = _decoder.decode(memoryview(body)[_LENGTH.size : end])
    streams = []
    for rows in head.rows:
        streams.append(body[end : end + rows.length])
        end += rows.length
    if end != len(body):
        raise ValueError(f"head and streams have {end} bytes by their lengths, the body has {len(body)}")
    return head, streams
