"""The agent's process: settings, one boot until a signal, and a new process after a boot was fenced."""

from __future__ import annotations

import gc

# Loading goes without collections, which would look at all modules again and again: a tenth of a start.
gc.disable()

from tidelock.replica_agent.config import lean_start

if __name__ == "__main__":  # not in a process that imports this module
    lean_start.leave_out_packages()
    lean_start.import_aiohttp()

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence

import structlog

from tidelock.csnlog import faults
from tidelock.errors import ConfigError, FencedError, TidelockError
from tidelock.exits import Exit, exit_of
from tidelock.replica_agent.config import stacks
from tidelock.replica_agent.config.allocator import map_large_blocks
from tidelock.replica_agent.config.loading import load
from tidelock.replica_agent.config.logs import configure
from tidelock.replica_agent.config.object_collection import collect_in_quiet_moments
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.lifecycle.agent import Agent, BootEnd

# Modules stay as long as the process: no later collection looks at them.
gc.freeze()
gc.enable()

_log = structlog.get_logger("main")

#: Set for the process that follows a fenced boot: how many boots were fenced one after the other.
ENV_FENCED = "TIDELOCK_FENCED_BOOTS"
#: A boot that has lasted for so long was well, so the next fence is the first of a new series (seconds).
_WELL_S = 600.0
_PAUSE_MAX_S = 60.0
#: The module that is run as an agent.
PROGRAM = "tidelock.replica_agent.main"


async def run(settings: AgentSettings) -> BootEnd:
    """Run one boot of the agent and return why it ended; a signal also ends a boot that is still starting."""
    agent = Agent(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.ask_to_stop)
    stacks.tell_on_signal()
    starting = asyncio.create_task(agent.start(), name="start")
    ending = asyncio.create_task(agent.until_ended(), name="until ended")
    collecting = asyncio.create_task(collect_in_quiet_moments(), name="object collection")
    try:
        await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            with contextlib.suppress(FencedError):  # the end that the fence brings names the owner of the id
                await starting
        return await ending
    finally:
        collecting.cancel()
        # A start can wait for ZooKeeper without limit.
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await agent.close()


def _require_assertions() -> None:
    """Raise ConfigError under ``python -O``: invariants are assert statements (ADR 0014)."""
    if sys.flags.optimize:
        raise ConfigError(
            "expected a Python that runs assertions, found -O or PYTHONOPTIMIZE; start the agent without it"
        )


def _raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: an insert has a file for each partition."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def pause_after(boots: int) -> float:
    """Return the pause before a start, in seconds, after so many boots that were fenced one after the other.

    The first start is at once. Two agents that take the same disk from each other do it ever more slowly.
    """
    return 0.0 if boots <= 1 else min(_PAUSE_MAX_S, 2.0 ** (boots - 2))


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the agent and return the exit code.

    Args:
        argv: Its flags; by default those of this process.
        program: The module that this process runs, which is started again for another boot.
    """
    try:
        _require_assertions()
        settings = load(sys.argv[1:] if argv is None else argv)
        faults.check_armed()
    except ConfigError as error:
        print(f"tidelock agent: {error.message}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        return Exit.USAGE
    _raise_file_limit()
    map_large_blocks()
    configure(settings.replica, settings.log_level, settings.log_format)
    begun = time.monotonic()
    try:
        ended = asyncio.run(run(settings))
    except TidelockError as error:
        _log.error("agent_cannot_run", error=type(error).__name__, reason=error.message)
        return exit_of(error)
    if ended is BootEnd.FENCED:
        boots = 1 if time.monotonic() - begun > _WELL_S else int(os.environ.get(ENV_FENCED, "0")) + 1
        pause_s = pause_after(boots)
        _log.warning("restarting_after_fence", boots=boots, pause_s=pause_s)
        time.sleep(pause_s)
        os.environ[ENV_FENCED] = str(boots)
    if ended in {BootEnd.FENCED, BootEnd.CLONING}:
        # These ends are followed by a new boot. A fresh process cannot carry old state over by mistake.
        flags = sys.argv[1:] if argv is None else argv
        os.execv(sys.executable, [sys.executable, "-m", program, *flags])
    if ended is BootEnd.REPLACED:
        return Exit.USAGE
    return Exit.OK if ended is BootEnd.ASKED else Exit.CORRUPT


if __name__ == "__main__":
    sys.exit(main())
