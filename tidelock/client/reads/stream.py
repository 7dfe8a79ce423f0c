"""Rows that an agent sends: an Arrow IPC stream that ends without an error only when it is complete.

Two marks must both be received. The first is the end marker of the IPC stream: Arrow's reader does not
require it, and accepts a stream that stops between two messages as finished. The second is the last chunk of
the HTTP answer, which an agent leaves out when it fails in the middle.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from tidelock.errors import CorruptError, NoAnswerError, UnavailableError

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _Body(io.RawIOBase):
    """The bytes of an answer; the last of them are remembered."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        super().__init__()
        self._response = response
        self.tail = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._response.read(None if size < 0 else size)
        self.tail = (self.tail + data[-len(_END_OF_STREAM) :])[-len(_END_OF_STREAM) :]
        return data


class BatchStream(Iterator[pa.RecordBatch]):
    """The record batches of one answer, one in memory at a time.

    Args:
        response: The answer, unread.
        address: Address of the agent, for messages.

    Raises (also from `next`):
        UnavailableError: The answer was truncated (NoAnswerError: the agent fell silent).
        CorruptError: The bytes are no whole Arrow stream.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, address: str) -> None:
        self._response = response
        self._address = address
        self._body = _Body(response)
        self._ending: Callable[[], None] | None = None
        with self._translated():
            self._reader = pa.ipc.open_stream(self._body)
        self.schema: pa.Schema = self._reader.schema

    def __next__(self) -> pa.RecordBatch:
        with self._translated():
            try:
                return self._reader.read_next_batch()
            except StopIteration:
                self._check_end()
        self.close()
        raise StopIteration

    def read_all(self) -> pa.Table:
        """Return all rows."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def at_end(self, ending: Callable[[], None]) -> None:
        """Have a function called once, when the stream has ended or is closed."""
        self._ending = ending

    def close(self) -> None:
        """Abandon the rest of the answer; harmless when it has ended."""
        self._response.close()
        ending, self._ending = self._ending, None
        if ending is not None:
            ending()

    def _check_end(self) -> None:
        """Raise unless the last message and the last chunk were received; then free the connection."""
        tail = self._body.tail
        if self._body.read():
            raise CorruptError(f"the agent at {self._address} sent bytes after the end of the rows")
        if tail != _END_OF_STREAM:
            raise CorruptError(f"the agent at {self._address} ended its answer before the end of the rows")
        self._response.release_conn()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ReadTimeoutError as error:
            self.close()
            raise NoAnswerError(
                f"the agent at {self._address} fell silent in the middle of its answer; rows are missing, "
                "read again",
                address=self._address,
                silent=True,
            ) from error
        except (HTTPError, OSError) as error:
            self.close()
            raise UnavailableError(
                f"the answer of the agent at {self._address} was truncated ({type(error).__name__}); "
                "rows are missing, read again"
            ) from error
        except pa.ArrowException as error:
            self.close()
            raise CorruptError(f"the agent at {self._address} sent no valid Arrow stream: {error}") from error
        except BaseException:
            self.close()
            raise
