"""The server of the metastore: a thread for each connection, and errors that Hive's client understands."""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import Any, Final

import structlog
from thriftpy2.protocol.cybin import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TProcessor
from thriftpy2.transport import TSocket, TTransportException
from thriftpy2.transport.buffered import TCyBufferedTransport

from tidelock.errors import TidelockError, UnknownTableError, UnknownTransactionError
from tidelock.metastore.calls import Calls
from tidelock.metastore.idl import hive

_log = structlog.get_logger("metastore")
_OF_HIVE: Final = (hive.MetaException, hive.NoSuchObjectException, hive.AlreadyExistsException)
#: Errors about something that does not exist: statements with IF EXISTS go on.
_NOTHING: Final = (UnknownTableError, UnknownTransactionError)


class _Answering(TProcessor):  # type: ignore[misc]
    """Answers calls.

    Each error becomes one that the call declares: another one would cost the connection, and Hive's client
    would repeat the call. Spark shows the text of a MetaException, and of a NoSuchObjectException only that
    there is no such table.
    """

    def process(self, iprot: Any, oprot: Any) -> None:
        call_name, number, result, call = self.process_in(iprot)
        if isinstance(result, TApplicationException):
            _log.warning("unknown_call", call=call_name)
            self.send_exception(oprot, call_name, result, number)
            return
        try:
            result.success = call()
        except Exception as error:
            declared = declared_of(error)
            if not self.handle_exception(declared, result):
                self.handle_exception(hive.MetaException(declared.message), result)
        if not result.oneway:
            self.send_result(oprot, call_name, result, number)


def declared_of(error: Exception) -> Any:
    """Return the exception of Hive that stands for an error."""
    if isinstance(error, _OF_HIVE):
        return error
    if isinstance(error, _NOTHING):
        return hive.NoSuchObjectException(error.message)
    if isinstance(error, TidelockError):
        return hive.MetaException(f"{type(error).__name__}: {error.message}")
    _log.error("call_failed", exc_info=error)
    return hive.MetaException(f"internal error of the metastore: {type(error).__name__}: {error}")


class MetastoreServer(socketserver.ThreadingTCPServer):
    """A metastore that listens.

    Args:
        address: Host and port; port 0: any free one.
        calls: The answers; each connection has calls of its own.
        connections_max: Connections at once; one more is closed at once.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], calls: Calls, *, connections_max: int) -> None:
        self._calls = calls
        self._places = threading.BoundedSemaphore(connections_max)
        self._connections_max = connections_max
        super().__init__(address, socketserver.BaseRequestHandler)

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self.server_address[1])

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as its base
        """Answer the calls of one connection until it is closed."""
        if not self._places.acquire(blocking=False):
            _log.warning("connection_refused", connections_max=self._connections_max)
            return
        try:
            self._serve(request)
        finally:
            self._places.release()

    def _serve(self, connected: socket.socket) -> None:
        # A table is larger than the buffer: without this its last piece would wait 40 ms for an answer.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wrapped = TSocket()
        wrapped.set_handle(connected)
        processor = _Answering(hive.ThriftHiveMetastore, self._calls.connection())
        transport = TCyBufferedTransport(wrapped)
        protocol = TCyBinaryProtocol(transport, strict_read=False)
        try:
            while True:
                processor.process(protocol, protocol)
        except (TTransportException, OSError):
            pass  # the client has left
        except Exception as error:  # of the package: the bytes are no call
            _log.warning("not_a_call", error=repr(error))
