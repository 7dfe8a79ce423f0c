"""The data port of a replica with one file, as Hadoop's client reads it: it may freeze, or be slow."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from tidelock.replica_agent.readers.signs import SIGN, SIGN_S

#: Bytes of the file.
LENGTH: Final = 100_000


class OpenPort(ThreadingHTTPServer):
    """Answers OPEN of any path; a context manager that ends it.

    Args:
        name: Its name in the list of requests.
        asked: Where each request is noted: the name and the offset, None for none.
        freezes_after: The number of its requests after which it answers nothing; None: never.
        signs: How many signs of life come before each answer, one every `SIGN_S`.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        name: str,
        asked: list[tuple[str, int | None]],
        *,
        freezes_after: int | None = None,
        signs: int = 0,
    ) -> None:
        self.name, self.asked, self.freezes_after, self.signs = name, asked, freezes_after, signs
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Its `host:port`."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def frozen(self) -> bool:
        """Whether it answers nothing any more, the last request included."""
        own = sum(name == self.name for name, _ in self.asked)
        return self.freezes_after is not None and own > self.freezes_after

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OpenPort

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing."""

    def do_GET(self) -> None:
        """Send the file from the offset on."""
        port = self.server
        query = parse_qs(urlsplit(self.path).query)
        offset = int(query["offset"][0]) if "offset" in query else None
        port.asked.append((port.name, offset))
        if port.frozen:
            port.over.wait()
            return
        for _ in range(port.signs):
            port.over.wait(SIGN_S)
            self.wfile.write(SIGN)
        body = bytes(LENGTH - (offset or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
