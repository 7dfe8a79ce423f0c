"""The effective time of a record: one rule, which all replicas evaluate alike when they apply it. Pure.

A record carries the clock of its home and the clocks of the home's peers; its znode carries the clock of the
ZooKeeper leader. The rule takes what more than half of them have reached, so one clock that is wrong cannot
move the log's time (ADR 0030 has the attacks). The result depends on the record, its stamp and the time of
the CSN before, on nothing else.

A record without witnesses was written by a version that knew one clock only. It keeps the rule of that
version, so that all replicas agree on its time whenever they apply it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelock.csnlog.core.model import Record

#: The log's time steps back where the clocks are so far behind it. All replicas must agree on the number, so
#: it belongs to the format and is no setting. Clocks that are right differ by much less.
STEP_BACK_MS: Final = 60_000
#: Most clocks of peers in a record.
WITNESSES_MAX: Final = 15


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clocks that a home knows at one moment.

    Attributes:
        time_ms: Its own wall clock, Unix, ms.
        witnesses: Those of its peers, as their last answers and the time since then say; at most
            :data:`WITNESSES_MAX`.
    """

    time_ms: int
    witnesses: tuple[int, ...] = ()


def agreed(agents: Sequence[int], server: int | None) -> int:
    """Return the latest time that more than half of the clocks have reached.

    A machine may carry an agent and the ZooKeeper leader, so the leader's clock counts only where the
    agents alone could not outvote one of them: one agent, or an even number of agents.

    Args:
        agents: The clocks of agents, at least one; Unix, ms.
        server: The clock of the ZooKeeper leader, if it is known.
    """
    outvoted = len(agents) > 1 and len(agents) % 2
    clocks = sorted(agents if outvoted or server is None else (*agents, server))
    return clocks[(len(clocks) - 1) // 2]


def effective(previous_ms: int, record: Record, server_ms: int) -> int:
    """Return the effective time of a record.

    It is below ``previous_ms`` only where more than two thirds of all clocks are more than
    :data:`STEP_BACK_MS` behind that time: then the log's time was wrong. The times of all earlier CSNs above
    the result are lowered to it.

    Args:
        previous_ms: The effective time of the CSN before; 0 = there is none.
        record: The record.
        server_ms: The time of the ZooKeeper leader at which its znode was made.
    """
    if record.witnesses is None:
        return max(previous_ms, record.time_ms)
    agents = (record.time_ms, *record.witnesses)
    now_ms = agreed(agents, server_ms)
    behind = sum(clock < previous_ms - STEP_BACK_MS for clock in (*agents, server_ms))
    return now_ms if 3 * behind > 2 * (len(agents) + 1) else max(previous_ms, now_ms)
