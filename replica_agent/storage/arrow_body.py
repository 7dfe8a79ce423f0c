"""The body of an insert as a file for the Arrow reader: fed by the event loop, read by a thread."""

from __future__ import annotations

import queue
from collections.abc import Callable

from tidelock.errors import TooLargeError

#: End of an Arrow IPC stream: the marker of a message, and a length of 0.
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class InsertBody:
    """The body as a file for the Arrow reader, whose thread waits in :meth:`read` for the next chunk.

    Args:
        read_bytes_max: The reader requests a whole record batch at once; a larger one is refused.
        taken: Called in the reader's thread for every chunk that it has received.
    """

    closed = False  # required by pyarrow

    def __init__(self, read_bytes_max: int, taken: Callable[[], object]) -> None:
        self._read_bytes_max = read_bytes_max
        self._taken = taken
        self._chunks: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        self._chunk = memoryview(b"")
        self._ended = False
        self._tail = b""

    def feed(self, chunk: bytes | Exception) -> None:
        """Pass on the next chunk, ``b""`` at the end, or an error for the reader to raise. Never blocks."""
        self._chunks.put(chunk)

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer at the end of the body only."""
        if size > self._read_bytes_max:
            raise TooLargeError(
                f"a record batch of the insert has {size} bytes; at most {self._read_bytes_max} "
                "(row_group_bytes) are taken at once: send smaller record batches",
                limit=self._read_bytes_max,
                found=size,
            )
        pieces = []
        missing = size
        while missing and self._more():
            piece = self._chunk[:missing]
            self._chunk = self._chunk[missing:]
            missing -= len(piece)
            pieces.append(piece)
        data = b"".join(pieces)
        self._tail = (self._tail + data[-len(END) :])[-len(END) :]
        return data

    def end(self) -> tuple[bytes, bool]:
        """Return the last bytes that were read, and whether more follow."""
        tail = self._tail
        return tail, bool(self.read(1))

    def _more(self) -> bool:
        """Wait until there is something to read; False at the end of the body."""
        while not self._chunk and not self._ended:
            chunk = self._chunks.get()
            if isinstance(chunk, Exception):
                raise chunk
            self._taken()
            self._chunk = memoryview(chunk)
            self._ended = not chunk
        return bool(self._chunk)
