"""A process that acts as an agent and only runs its readers.

    python -m tests.support.replicas.reader_host JSON

The argument holds the settings. Events go to standard output, commands come from standard input, one JSON
object per line: ``{"port", "pids"}`` when the readers are up and ``{"corrupt", "detail"}`` for each report;
``{"availability", "reason"}`` sets what the "agent" says about a CSN that is not applied, ``{"drain":
seconds}`` drains, and the end of the input closes the pool.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import structlog

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.readers.availability import ReadAvailability
from tidelock.replica_agent.readers.pool import ReaderPool


class Agent:
    """The callbacks of the readers, with the answers that the test sets."""

    def __init__(self) -> None:
        """Begin with the answer that a CSN that is not applied is beyond the end of the log."""
        self.availability = ReadAvailability("beyond", "the log ends before this CSN")

    async def wait(self, csn: Csn) -> ReadAvailability:
        """Return the answer that the test has set."""
        return self.availability

    def read(self, csn: Csn) -> None:
        """Return the answer without pinning the CSN."""

    def corrupt(self, part: PartId, detail: str) -> None:
        """Tell the test."""
        _tell(corrupt=part, detail=detail)


def _tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def _run(settings: AgentSettings) -> None:
    agent = Agent()
    pool = ReaderPool(settings=settings, data_dir=settings.data_dir, callbacks=agent, api="")
    await pool.start()
    await pool.ready()
    _tell(port=pool.port, pids=pool.pids)
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        command = json.loads(line)
        if "availability" in command:
            agent.availability = ReadAvailability(command["availability"], command["reason"])
        else:
            _tell(drained=await pool.drain(command["drain"]))
    await pool.close()


def main() -> None:
    """Run until standard input ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    fields = json.loads(sys.argv[1])
    settings = AgentSettings(**(fields | {"data_dir": Path(fields["data_dir"]), "zk": "unused:2181"}))
    asyncio.run(_run(settings))


if __name__ == "__main__":
    main()
