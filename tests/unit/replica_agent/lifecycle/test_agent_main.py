"""The agent's process: its start and its end."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys

import pytest

from tests.support.rows import settings
from tidelock.errors import FencedError, UnavailableError
from tidelock.exits import Exit
from tidelock.replica_agent import main
from tidelock.replica_agent.config import stacks
from tidelock.replica_agent.lifecycle.agent import BootEnd


class StuckAgent:
    """An agent whose start waits for a ZooKeeper that does not answer."""

    def __init__(self, _: object) -> None:
        self.ended: asyncio.Future[BootEnd] = asyncio.get_running_loop().create_future()
        self.cancelled = self.closed = False
        agents.append(self)

    async def start(self) -> None:
        """Wait without end."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.cancelled = True

    async def until_ended(self) -> BootEnd:
        """Wait for the end."""
        return await self.ended

    def ask_to_stop(self) -> None:
        """End the wait."""
        self.ended.set_result(BootEnd.ASKED)

    async def close(self) -> None:
        """Release everything."""
        assert self.cancelled
        self.closed = True


agents: list[StuckAgent] = []


async def test_a_start_that_waits_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ends an agent that is still starting, without a wait for its ZooKeeper."""
    monkeypatch.setattr(main, "Agent", StuckAgent)
    life = asyncio.create_task(main.run(settings()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    agents[-1].ask_to_stop()
    assert await life is BootEnd.ASKED
    assert agents[-1].closed


#: A program with a task that waits forever in a function of its own, and a thread of its own.
HANGING = """
import asyncio, threading
from tidelock.replica_agent.config import logs, stacks

async def deepest():
    await asyncio.Event().wait()

async def main():
    stacks.tell_on_signal()
    hanging = asyncio.create_task(deepest(), name="hanging")
    threading.Thread(target=threading.Event().wait, name="waiting", daemon=True).start()
    print("ready", flush=True)
    await hanging

logs.configure("r1", "info", "json")
asyncio.run(main())
"""


def test_an_agent_that_hangs_says_where_on_a_signal() -> None:
    """Each task with the chain of its awaits, and all threads; it goes on, and says it again."""
    command = [sys.executable, "-c", HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        try:
            for _ in range(2):
                process.send_signal(stacks.SIGNAL)
                told = list(itertools.takewhile(lambda line: '"event": "tasks"' not in line, process.stderr))
                events = [json.loads(line) for line in told if line.startswith("{")]
                (hanging,) = [event for event in events if event["name"] == "hanging"]
                assert [place.split()[-1] for place in hanging["at"][:2]] == ["deepest", "Event.wait"]
                assert sum(line.startswith(("Thread 0x", "Current thread 0x")) for line in told) == 2
        finally:
            process.kill()


async def test_a_start_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process reports the error that prevented its start."""

    class Failing(StuckAgent):
        async def start(self) -> None:
            self.cancelled = True
            raise UnavailableError("no ZooKeeper")

    monkeypatch.setattr(main, "Agent", Failing)
    with pytest.raises(UnavailableError, match="no ZooKeeper"):
        await main.run(settings())
    assert agents[-1].closed


async def test_a_start_that_is_fenced_ends_as_the_fence_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end that the fence brings names the owner of the id; the error of the start cannot."""

    class Fenced(StuckAgent):
        async def start(self) -> None:
            self.cancelled = True
            asyncio.get_running_loop().call_later(0.01, self.ended.set_result, BootEnd.REPLACED)
            raise FencedError("fenced by another", replica="r1")

    monkeypatch.setattr(main, "Agent", Fenced)
    assert await main.run(settings()) is BootEnd.REPLACED
    assert agents[-1].closed


def test_an_agent_without_assertions_refuses_to_start() -> None:
    """With ``python -O`` the machines check no invariant, so a broken one would go on (I15)."""
    command = [sys.executable, "-O", "-m", "tidelock.replica_agent.main", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (Exit.USAGE, "")
    assert "expected a Python that runs assertions, found -O" in ended.stderr


def test_fenced_boots_start_again_with_growing_pauses() -> None:
    """Two agents on copies of one disk take the id from each other ever more slowly (finding 8)."""
    assert [main.pause_after(boots) for boots in (1, 2, 3, 4, 8, 50)] == [0.0, 1.0, 2.0, 4.0, 60.0, 60.0]
