"""The clocks that an agent knows: what it writes into a record, and when its own one is off."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tidelock.csnlog.core.ids import ReplicaId, Stamp
from tidelock.csnlog.core.store import Written
from tidelock.replication.clocks import Clocks

R2, R3, R4 = (ReplicaId(name) for name in ("r2", "r3", "r4"))
START_S = 1_700_000_000.0
DAY_S = 86_400.0


class Machine:
    """The wall clock of a machine, which may jump, and its uptime."""

    def __init__(self) -> None:
        self.wall_s, self.uptime_s = START_S, 77.0
        self.clocks = Clocks(
            wall=lambda: self.wall_s,
            uptime=lambda: self.uptime_s,
            offset_max_s=5.0,
            kept_s=15.0,
            server_kept_s=180.0,
        )

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.wall_s += seconds
        self.uptime_s += seconds


@pytest.fixture
def machine() -> Machine:
    """A machine whose clock is right."""
    return Machine()


def ms(seconds: float) -> int:
    """Return seconds since 1970 in ms."""
    return int(seconds * 1000)


def test_a_reading_has_the_clocks_of_the_peers_as_they_are_now(machine: Machine) -> None:
    """They go on by the uptime, so a jump of the own wall clock does not change them."""
    machine.clocks.heard(R3, ms(START_S + 1), machine.uptime_s - 0.1)
    machine.clocks.heard(R2, ms(START_S), machine.uptime_s - 0.1)
    machine.pass_s(10)
    machine.wall_s += DAY_S
    reading = machine.clocks.reading()
    assert reading.time_ms == ms(START_S + 10 + DAY_S)
    assert reading.witnesses == (ms(START_S + 10), ms(START_S + 11))


def test_a_clock_that_was_not_heard_of_for_a_while_is_forgotten(machine: Machine) -> None:
    """It may have been set since."""
    machine.clocks.heard(R2, ms(START_S), machine.uptime_s - 0.1)
    machine.pass_s(15.5)
    assert machine.clocks.reading().witnesses == ()


def test_the_uptime_goes_on_while_the_machine_is_suspended() -> None:
    """In a namespace in which the machine was suspended for 1,000 s the uptime says so."""
    code = (
        "import time; from tidelock.replication.clocks import uptime_s; print(uptime_s() - time.monotonic())"
    )
    command = ["unshare", "--time", "--boottime", "1000", sys.executable, "-c", code]
    if not shutil.which("unshare") or subprocess.run([*command[:4], "true"], check=False).returncode:
        pytest.skip("no time namespaces here")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 900


@pytest.mark.parametrize(("time_ms", "took_s"), [(0, 0.1), (ms(START_S), 5.5)])
def test_an_answer_that_says_nothing_about_the_time_is_ignored(
    machine: Machine, time_ms: int, took_s: float
) -> None:
    """A version without clocks says none, and a slow answer says one that is old."""
    machine.clocks.heard(R2, time_ms, machine.uptime_s - took_s)
    assert machine.clocks.reading().witnesses == ()


def test_a_record_names_a_bounded_number_of_clocks(machine: Machine) -> None:
    """The bound is that of the record's size."""
    for number in range(20):
        machine.clocks.heard(ReplicaId(f"p{number:02}"), ms(START_S), machine.uptime_s)
    assert len(machine.clocks.reading().witnesses) == 15


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_the_present_time_is_that_of_most_clocks(machine: Machine, jump_s: float) -> None:
    """The own clock, those of the peers and that of ZooKeeper's leader are asked."""
    machine.clocks.heard(R2, ms(START_S), machine.uptime_s)
    machine.clocks.answered((None, Written(7, Stamp(1, ms(START_S)))), machine.uptime_s)
    machine.wall_s += jump_s
    assert machine.clocks.now_ms() == ms(START_S)


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S, 5.5])
def test_a_clock_that_most_others_contradict_is_off(machine: Machine, jump_s: float) -> None:
    """It says how far, against each of them."""
    machine.clocks.heard(R2, ms(START_S), machine.uptime_s)
    machine.clocks.heard(R3, ms(START_S), machine.uptime_s)
    machine.clocks.answered((None, Written(7, Stamp(1, ms(START_S)))), machine.uptime_s)
    machine.wall_s += jump_s
    check = machine.clocks.check()
    assert check.off
    assert check.offset_s == jump_s
    assert check.ahead_s == {"r2": jump_s, "r3": jump_s, "zookeeper": jump_s}


def test_a_clock_is_not_off_because_of_one_that_is(machine: Machine) -> None:
    """Of two others one agrees with it."""
    machine.clocks.heard(R2, ms(START_S - DAY_S), machine.uptime_s)
    machine.clocks.heard(R3, ms(START_S), machine.uptime_s)
    check = machine.clocks.check()
    assert not check.off
    assert check.ahead_s == {"r2": DAY_S, "r3": 0.0}


def test_clocks_that_contradict_each_other_say_nothing_about_the_own_one(machine: Machine) -> None:
    """One is a day ahead, one a day behind, and one agrees."""
    for peer, jump_s in ((R2, -DAY_S), (R3, DAY_S), (R4, 0.0)):
        machine.clocks.heard(peer, ms(START_S + jump_s), machine.uptime_s)
    check = machine.clocks.check()
    assert not check.off
    assert check.offset_s == 0.0


def test_an_agent_that_knows_no_other_clock_reports_nothing(machine: Machine) -> None:
    """It is alone."""
    check = machine.clocks.check()
    assert (check.off, check.offset_s, check.ahead_s) == (False, None, {})
