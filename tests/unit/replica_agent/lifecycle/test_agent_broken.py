"""An agent whose state machine contradicts itself stops, and logs the last steps of the machine (I15)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.machines.copies_story import rules
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Tid
from tidelock.csnlog.core.machine import InvariantError
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.lifecycle.agent import Agent, BootEnd
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replication.apply import Applier
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.model import CopyPlace

R1 = ReplicaId("r1")
TID = Tid(Csn(1), R1, 1, 1)


async def test_a_broken_prefix_stops_the_agent() -> None:
    """The applier ends with the contradiction, and the agent ends too."""
    agent = Agent(settings())
    unused: Any = SimpleNamespace(arrived=lambda _part: None)
    applier = Applier(
        unused,
        unused,
        applied=Csn(1),
        time_ms=0,
        apply_records_max=1,
        ahead_records=1,
        missing_parts_max=1,
        retry_wait_max_s=1.0,
        on_applied=lambda _records: None,
    )
    applier._prefix._read = Csn(5)
    with capture_logs() as logs:
        agent.run_forever("apply", applier.run())
        applier.part_held(PartId("r1-1-1"))
        assert await asyncio.wait_for(agent.until_ended(), 30) is BootEnd.STOPPED
    assert agent.condition.state is AgentState.STOPPED
    assert "read to 5, applied to 1, and nothing waits" in agent.condition.reason
    [told] = [line for line in logs if line["event"] == "machine_broken"]
    assert (told["machine"], told["story"]) == ("Prefix", ["> PartHeld(part='r1-1-1')"])
    await agent.close()


async def test_broken_copies_stop_the_agent() -> None:
    """The caller that meets the contradiction gets the error, and the agent ends as well."""
    agent = Agent(settings())
    machine = Copies(R1, rules())
    machine._places[R1] = CopyPlace("d1", R1)
    unused: Any = SimpleNamespace(decided=lambda _tid: None)
    copies = CopyMaker(machine=machine, stager=unused, pusher=unused, fetcher=unused, on_broken=agent.broken)
    with capture_logs() as logs, pytest.raises(InvariantError):
        copies.release(TID)
    assert await asyncio.wait_for(agent.until_ended(), 30) is BootEnd.STOPPED
    [told] = [line for line in logs if line["event"] == "machine_broken"]
    assert told["machine"] == "Copies"
    assert len(told["story"]) == 1
    await agent.close()


async def test_an_agent_that_was_asked_to_stop_says_what_else_stops_it() -> None:
    """Status and log have the contradiction, and not the request that came before it."""
    agent = Agent(settings())
    agent.ask_to_stop()
    assert agent.condition.state is AgentState.STOPPING
    agent.broken(InvariantError("read to 5, applied to 1", machine="Prefix", story=[]))
    assert (agent.condition.state, agent.condition.reason) == (AgentState.STOPPED, "read to 5, applied to 1")
    assert await asyncio.wait_for(agent.until_ended(), 30) is BootEnd.STOPPED
    await agent.close()
