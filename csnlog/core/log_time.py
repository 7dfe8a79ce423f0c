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
from typing import Final

import msgspec

from tidelock.csnlog.core.model import Record

#: The log's time steps back where the clocks are so far behind it. All replicas must agree on the number, so
#: it belongs to the format and is no setting. Clocks that are right differ by much less.
STEP_BACK_MS: Final = 60_000
#: A time that is not reached: what an earlier version has written never lets the time step back.
NEVER_MS: Final = (1 << 63) - 1
#: Most clocks of peers in a record.
WITNESSES_MAX: Final = 15


class ClockReading(msgspec.Struct, frozen=True):
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


class Clocking(msgspec.Struct, frozen=True):
    """The clocks of one record, as far as they matter for its effective time.

    Attributes:
        time_ms: The agreed time (Unix, ms).
        wrong_above_ms: An effective time of the CSN before that is above this was wrong, because more than
            two thirds of all clocks are more than :data:`STEP_BACK_MS` behind it.
    """

    time_ms: int
    wrong_above_ms: int

    def after(self, previous_ms: int) -> int:
        """Return the effective time of the record (Unix, ms).

        Where it is below that of the CSN before, every catalog makes the times above it again.

        Args:
            previous_ms: The effective time of the CSN before; 0 = there is none.
        """
        return self.time_ms if previous_ms > self.wrong_above_ms else max(previous_ms, self.time_ms)


def clocking(record: Record, server_ms: int) -> Clocking:
    """Return what the clocks of a record say.

    Args:
        record: The record.
        server_ms: The time of the ZooKeeper leader at which its znode was made.
    """
    if record.witnesses is None:
        return Clocking(record.time_ms, NEVER_MS)
    agents = (record.time_ms, *record.witnesses)
    clocks = sorted((*agents, server_ms))
    more_than_two_thirds = 2 * len(clocks) // 3 + 1
    return Clocking(agreed(agents, server_ms), clocks[more_than_two_thirds - 1] + STEP_BACK_MS)
