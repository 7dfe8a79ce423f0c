"""A reader process, started by the pool only.

It accepts connections on a socket that it shares with its siblings, and ends at
once when its agent does. Signals that are sent to the agent's process group are the agent's business: it
drains and closes its workers itself.
"""

from __future__ import annotations

from tidelock.replica_agent.config import lean_start

if __name__ == "__main__":  # not in a process that imports this module
    lean_start.import_aiohttp()

import asyncio
import signal
import traceback
from pathlib import Path

import msgspec
from aiohttp import http_parser, web

from tidelock.errors import StandbyError, TidelockError
from tidelock.replica_agent.readers import plain, signs, webhdfs
from tidelock.replica_agent.readers.counters import ReaderCounters
from tidelock.replica_agent.readers.forward import Forward
from tidelock.replica_agent.readers.link import AgentLink
from tidelock.replica_agent.readers.messages import ReaderConfig
from tidelock.replica_agent.readers.nodes import Resolver
from tidelock.replica_agent.readers.paths import RequestTarget, parse_target
from tidelock.replica_agent.readers.requests import ACCEPTANCE, require_plain_body
from tidelock.replica_agent.readers.streams import Streams
from tidelock.replica_agent.workers.child import Given, begin

#: Connections that the kernel keeps for the workers.
BACKLOG = 1024
#: Connections accepted per iteration of the event loop. A burst (all tasks of a stage) has to spread over the
#: workers.
ACCEPT_BATCH = 1

_WEBHDFS = ("webhdfs", "v1")


class Worker:
    """The request handler of one process."""

    def __init__(self, config: ReaderConfig, link: AgentLink) -> None:
        """Open the catalog and the counters."""
        self._config = config
        self._link = link
        self._counters = ReaderCounters(Path(config.counters_file))
        resolver = Resolver(config, link)
        self._streams = Streams(
            data_dir=Path(config.data_dir),
            catalog=resolver.catalog,
            link=link,
            counters=self._counters,
            chunk_bytes=config.read_chunk_bytes,
            ahead_bytes=config.send_buffer_bytes,
            threads=config.threads,
            footers_max=config.footer_cache_entries,
        )
        self._webhdfs = webhdfs.WebHdfs(config, resolver, self._streams, self._counters)
        self._plain = plain.Plain(config, resolver, self._streams, self._counters)
        self._forward = Forward(config.api)
        self._draining = False
        link.on_drain = self._drain
        link.on_released = self._streams.released

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request. No error is left to aiohttp, whose own answers Hadoop's client may misread."""
        speaks_webhdfs = request.raw_path.startswith("/webhdfs/")
        try:
            require_plain_body(request)
            with signs.during(request, self._config.read_wait_s):
                return await self._answer(request, parse_target(request.raw_path))
        except TidelockError as error:
            failure: Exception = error
        except Exception as error:
            self._link.log("reader.failed", target=request.raw_path, error=traceback.format_exc())
            failure = TidelockError(
                f"replica {self._config.replica} failed to answer ({error!r}); see its agent's log"
            )
        refusal = webhdfs.refusal if speaks_webhdfs else plain.refusal
        return refusal(failure, self._counters)

    async def _answer(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        if self._draining:
            raise StandbyError(
                f"replica {self._config.replica} is stopping; another replica serves this snapshot"
            )
        if target.segments[:3] == (*_WEBHDFS, "transactions"):
            return await self._forward.handle(request, target)
        if target.segments[:2] == _WEBHDFS:
            return await self._webhdfs.handle(request, RequestTarget(target.segments[2:], target.query))
        return await self._plain.handle(request, target)

    def _drain(self) -> None:
        """Refuse new reads, and report when the last running answer has ended."""
        self._draining = True
        self._streams.on_idle = self._link.drained
        if not self._streams.running:
            self._link.drained()


async def _serve(given: Given) -> None:
    config = msgspec.json.decode(given.config, type=ReaderConfig)
    link = await AgentLink.connect(given.connection, read_report_s=config.read_report_s)
    app = web.Application()
    app.on_response_prepare.append(signs.end_before_answer)
    app.on_response_prepare.append(webhdfs.no_content_type)
    app.router.add_route("*", "/{path:.*}", Worker(config, link).handle)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, **ACCEPTANCE)
    await runner.setup()
    (listener,) = given.sockets
    await web.SockSite(runner, listener, backlog=ACCEPT_BATCH).start()
    # asyncio uses one number for both the batch and the kernel's queue; the queue needs another length.
    listener.listen(BACKLOG)
    link.ready()
    await link.listen()


def main() -> None:
    """Serve until the agent has ended."""
    given = begin(ignored=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    assert http_parser.HttpRequestParser is http_parser.HttpRequestParserPy, (
        "AIOHTTP_NO_EXTENSIONS=1 is not set"
    )
    asyncio.run(_serve(given))


if __name__ == "__main__":
    main()
