"""The effective time of records: no single clock moves it, and a time that was wrong heals."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.support.clusters.log_node import R1
from tidelock.csnlog.core import log_time
from tidelock.csnlog.core.log_time import STEP_BACK_MS, agreed, clocking
from tidelock.csnlog.core.model import Record, RecordKind

DAY_MS: Final = 86_400_000
YEAR_MS: Final = 365 * DAY_MS
NOW_MS: Final = 1_700_000_000_000
#: How far the clocks are off that count as right.
FINE_MS: Final = 50

Rule = Callable[[int, Record, int], int]


def record(time_ms: int, *witnesses: int) -> Record:
    """Return a record with the clock of its home and those of its peers."""
    return Record(RecordKind.COMMIT, R1, time_ms, witnesses=witnesses)


def effective(previous_ms: int, one: Record, server_ms: int) -> int:
    """Return the effective time by the rule of the product."""
    return clocking(one, server_ms).after(previous_ms)


@dataclass
class Shard:
    """Machines with an agent each; the ZooKeeper leader is on one of them, or elsewhere (None)."""

    chance: random.Random
    agents: int
    leader: int | None
    rule: Rule = effective
    time_ms: int = 0
    now_ms: int = NOW_MS
    wrong: dict[int | None, int] = field(default_factory=dict)

    def clock(self, machine: int | None) -> int:
        """Return the time that the clock of a machine shows."""
        return self.now_ms + self.wrong.get(machine, self.chance.randint(-FINE_MS, FINE_MS))

    def commit(self, home: int) -> int:
        """Commit at a home; return how far the effective time of the record is ahead of the true time."""
        peers = [self.clock(other) for other in range(self.agents) if other != home]
        self.time_ms = self.rule(self.time_ms, record(self.clock(home), *peers), self.clock(self.leader))
        return self.time_ms - self.now_ms


def error_ms(shard: Shard, steps: int) -> int:
    """Run a shard in which one machine at a time has a wrong clock; return the largest error of a record."""
    errors = [0]
    for _ in range(steps):
        shard.now_ms += shard.chance.choice([1, 1000, 600_000])
        match shard.chance.randrange(4):
            case 0:
                shard.wrong = {}
            case 1:  # a server elsewhere takes over, or one beside an agent
                machines = [None, *range(shard.agents)] if shard.agents > 2 else [None]
                shard.leader = shard.chance.choice(machines)
            case 2:
                machine = shard.chance.choice([None, *range(shard.agents)])
                shard.wrong = {
                    machine: shard.chance.choice([-1, 1]) * shard.chance.randint(1000, 20 * YEAR_MS)
                }
        errors.append(abs(shard.commit(shard.chance.randrange(shard.agents))))
    return max(errors)


@pytest.mark.scenario("S37")
@pytest.mark.parametrize("agents", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(40))
def test_one_wrong_clock_at_a_time_moves_no_effective_time(agents: int, seed: int) -> None:
    """Fast, slow or jumping: a home's, a peer's or the leader's; with three agents all those of a machine."""
    assert error_ms(Shard(random.Random(f"{agents} {seed}"), agents, None), 200) <= FINE_MS


def home_alone(previous_ms: int, one: Record, _server_ms: int) -> int:
    """The rule of earlier versions: the clock of the home."""
    return max(previous_ms, one.time_ms)


def clamped_by_the_server(previous_ms: int, one: Record, server_ms: int) -> int:
    """The home's clock within a bound of the server's, which is then the one that counts."""
    return max(previous_ms, min(max(one.time_ms, server_ms - 5000), server_ms + 5000))


def server_always_counts(previous_ms: int, one: Record, server_ms: int) -> int:
    """The middle of all clocks, the leader's among them although it may share a machine with an agent."""
    clocks = sorted((one.time_ms, *(one.witnesses or ()), server_ms))
    return max(previous_ms, clocks[len(clocks) // 2])


@pytest.mark.parametrize("rule", [home_alone, clamped_by_the_server, server_always_counts])
def test_weaker_rules_are_found(rule: Rule) -> None:
    """The property is one that wrong rules do not have."""
    errors = [error_ms(Shard(random.Random(f"{seed}"), 3, None, rule), 200) for seed in range(40)]
    assert max(errors) > DAY_MS


@pytest.mark.parametrize("wrong_ms", [-20 * YEAR_MS, -DAY_MS, DAY_MS, 20 * YEAR_MS])
@pytest.mark.parametrize("who", ["home", "server"])
def test_with_a_single_replica_the_earlier_of_two_clocks_counts(wrong_ms: int, who: str) -> None:
    """No clock can bring the log's time forward; a slow one lets it stand until it is right again."""
    clocks = {"home": NOW_MS, "server": NOW_MS} | {who: NOW_MS + wrong_ms}
    wrong = effective(NOW_MS - 1000, record(clocks["home"]), clocks["server"])
    assert NOW_MS - 1000 <= wrong <= NOW_MS
    assert effective(wrong, record(NOW_MS + 1000), NOW_MS + 1000) == NOW_MS + 1000


@pytest.mark.parametrize("agents", [1, 2, 3, 5])
def test_a_time_that_was_wrong_heals_with_the_next_record(agents: int) -> None:
    """As that of a log that an earlier version has written under a clock ten years ahead."""
    shard = Shard(random.Random(1), agents, None, time_ms=NOW_MS + 10 * YEAR_MS)
    assert abs(shard.commit(0)) <= FINE_MS


def test_one_clock_that_stays_wrong_does_not_keep_three_replicas_from_healing() -> None:
    """More than two thirds of the clocks are enough."""
    shard = Shard(random.Random(1), 3, None, time_ms=NOW_MS + YEAR_MS, wrong={1: 2 * YEAR_MS})
    assert abs(shard.commit(0)) <= FINE_MS


def test_the_time_waits_where_the_clocks_are_a_little_behind() -> None:
    """Clocks that are right differ; an effective time is never below the one before because of that."""
    behind = NOW_MS - STEP_BACK_MS
    assert effective(NOW_MS, record(behind, behind, behind), behind) == NOW_MS
    assert effective(NOW_MS, record(behind - 1, behind - 1, behind - 1), behind - 1) == behind - 1


def test_slow_clocks_of_one_machine_do_not_let_the_time_step_back() -> None:
    """The home and the leader on one machine are two of four clocks, or of three."""
    slow = NOW_MS - YEAR_MS
    assert effective(NOW_MS, record(slow, NOW_MS, NOW_MS), slow) == NOW_MS
    assert effective(NOW_MS, record(slow, NOW_MS), slow) == NOW_MS


def test_a_record_of_an_earlier_version_keeps_its_rule() -> None:
    """Replicas that have applied it before agree with those that apply it now."""
    old = Record(RecordKind.COMMIT, R1, NOW_MS + YEAR_MS)
    assert effective(NOW_MS, old, NOW_MS) == NOW_MS + YEAR_MS
    assert effective(NOW_MS + 2 * YEAR_MS, old, NOW_MS) == NOW_MS + 2 * YEAR_MS


def test_the_first_record_has_the_time_of_its_clocks() -> None:
    """There is no time before it."""
    assert effective(0, record(NOW_MS), NOW_MS + 1) == NOW_MS


@pytest.mark.parametrize(
    ("agents", "server", "found"),
    [
        ((5,), 3, 3),
        ((5,), None, 5),
        ((5, 9), 7, 7),
        ((5, 9), None, 5),
        ((1, 5, 9), 100, 5),
        ((1, 2, 3, 4), 0, 2),
    ],
)
def test_more_than_half_of_the_clocks_have_reached_the_agreed_time(
    agents: tuple[int, ...], server: int | None, found: int
) -> None:
    """The leader counts where the number of agents is even, or one."""
    assert agreed(agents, server) == found


def test_the_rule_depends_on_no_setting() -> None:
    """All replicas must find the same time, so the bound belongs to the format."""
    assert (log_time.STEP_BACK_MS, log_time.WITNESSES_MAX) == (60_000, 15)
