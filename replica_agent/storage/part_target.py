"""The target of a part's encoded bytes: it hashes them, and keeps them in memory or sends them to a sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidelock.replication.core.digest import RangeDigest

#: Encoded bytes are hashed and passed on in pieces of at least this size: the Parquet writer's own are tiny.
PIECE_BYTES = 256 * 1024


class Sink(Protocol):
    """Receives the bytes of a large part; the caller that opened it makes it durable, or discards it."""

    def write(self, data: bytes, /) -> object:
        """Append bytes."""


class PartTarget:
    """The output of the Parquet writer: keeps a small part in memory, passes a large one on to its sink.

    Args:
        open_sink: Called once, before the first byte leaves memory.
        keep_bytes_max: A part of this size is still small.
    """

    closed = False  # required by pyarrow

    def __init__(self, open_sink: Callable[[], Sink], keep_bytes_max: int) -> None:
        self.digest = RangeDigest()
        self.memory_bytes = 0
        self._open_sink = open_sink
        self._keep_bytes_max = keep_bytes_max
        self._pieces: list[bytes] = []
        self._sink: Sink | None = None
        self._discarding = False

    @property
    def length(self) -> int:
        """Return the number of bytes written so far."""
        return self.digest.length + self.memory_bytes

    def write(self, data: bytes) -> int:
        """Append bytes; raises what opening or writing the sink raises."""
        if self._discarding:
            return len(data)
        self._pieces.append(data)
        self.memory_bytes += len(data)
        if self.memory_bytes > (self._keep_bytes_max if self._sink is None else PIECE_BYTES):
            self.spill()
        return len(data)

    def flush(self) -> None:
        """Do nothing before the end; pyarrow requires this method."""

    def spill(self) -> None:
        """Pass on what is in memory; from now on the part is a file."""
        if self._sink is None:
            self._sink = self._open_sink()
        self._sink.write(self._take())

    def finish(self) -> bytes | None:
        """Hash the rest; return the bytes of a part that never left memory."""
        data = self._take()
        if self._sink is None:
            return data
        self._sink.write(data)
        return None

    def discard(self) -> None:
        """Ignore all bytes from now on."""
        self._discarding = True

    def _take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces, self.memory_bytes = [], 0
        self.digest.update(data)
        return data
