"""Fault points: each kind acts at the pass for which it was armed, and unarmed points do nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.aio import until
from tests.support.waiting import eventually
from tidelock.csnlog import faults
from tidelock.errors import ConfigError

STEP = faults.step("tests.faults")
BEFORE = "tests.faults.before"
AFTER = "tests.faults.after"


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.release_all()


def passes(count: int) -> list[str]:
    """Pass the blocking `before` point this number of times; return the error of each pass, or ''."""
    raised = []
    for _ in range(count):
        try:
            STEP.before_blocking()
        except (faults.Injected, faults.LostReply, OSError) as error:
            raised.append(type(error).__name__)
        else:
            raised.append("")
    return raised


async def test_an_unarmed_point_lets_everything_pass() -> None:
    """Nothing is armed by default."""
    await STEP.before()
    await STEP.after()
    assert passes(2) == ["", ""]
    STEP.after_blocking()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("once", ["Injected", "", ""]),
        ("once@2", ["", "Injected", ""]),
        ("always", ["Injected", "Injected", "Injected"]),
        ("always@2", ["", "Injected", "Injected"]),
        ("lost-reply", ["LostReply", "", ""]),
        ("lost-reply@3", ["", "", "LostReply"]),
        ("enospc@2", ["", "OSError", "OSError"]),
        ("eio", ["OSError", "OSError", "OSError"]),
    ],
)
def test_a_fault_acts_at_its_pass(fault: str, expected: list[str]) -> None:
    """Single kinds act once, lasting ones from their pass on; every pass is counted."""
    with faults.armed(BEFORE, fault):
        assert passes(3) == expected
    assert faults.hits(BEFORE) == 3
    assert faults.fired(BEFORE) == sum(1 for raised in expected if raised)
    assert passes(1) == [""]


@pytest.mark.parametrize(("fault", "number"), [("enospc", errno.ENOSPC), ("eio", errno.EIO)])
def test_disk_faults_look_like_the_disk(fault: str, number: int) -> None:
    """The error of a full or broken disk has its errno, so that the code handles it as usual."""
    with (
        faults.armed(BEFORE, fault),
        pytest.raises(OSError, match=r"fault point tests\.faults\.before") as raised,
    ):
        STEP.before_blocking()
    assert raised.value.errno == number


async def test_before_and_after_are_points_of_their_own() -> None:
    """A fault behind the step does not act in front of it."""
    earlier = faults.hits(BEFORE)
    with faults.armed(AFTER, "lost-reply"):
        await STEP.before()
        with pytest.raises(faults.LostReply):
            await STEP.after()
    assert faults.hits(BEFORE) == earlier


async def test_a_pause_lasts_until_it_is_released() -> None:
    """A pause holds the task, not the event loop, and everything goes on after the release."""
    faults.arm(AFTER, "pause@2")
    await STEP.after()
    held = asyncio.create_task(STEP.after())
    await until(lambda: faults.fired(AFTER) == 1)
    assert not held.done()
    faults.release(AFTER)
    await asyncio.wait_for(held, 20)


def test_a_pause_in_a_thread_lasts_while_its_file_exists(tmp_path: Path) -> None:
    """The thread waits while the file exists, so that other processes can release it."""
    hold = tmp_path / "hold"
    hold.touch()
    with faults.armed(BEFORE, f"pause:{hold}"):
        thread = threading.Thread(target=STEP.before_blocking)
        thread.start()
        eventually(lambda: faults.fired(BEFORE) == 1)
        assert thread.is_alive()
        hold.unlink()
        thread.join(20)
        assert not thread.is_alive()


def test_a_fault_with_a_file_is_armed_only_while_the_file_exists(tmp_path: Path) -> None:
    """Without its file a fault neither acts nor counts; with the file the count goes on."""
    file = tmp_path / "armed"
    with faults.armed(BEFORE, f"always@2:{file}"):
        assert passes(3) == ["", "", ""]
        file.touch()
        assert passes(3) == ["", "Injected", "Injected"]
        file.unlink()
        assert passes(2) == ["", ""]
        file.touch()
        assert passes(1) == ["Injected"]
        assert (faults.hits(BEFORE), faults.fired(BEFORE)) == (4, 3)


def test_counters_start_anew_with_each_arming() -> None:
    """A fault armed at pass n counts from its own arming."""
    faults.arm(BEFORE, "once")
    passes(5)
    faults.arm(BEFORE, "once@2")
    assert passes(3) == ["", "Injected", ""]
    assert faults.hits(BEFORE) == 3
    assert faults.hits("tests.never.before") == 0


@pytest.mark.parametrize(
    "fault", ["", "twice", "once@0", "once@-1", "once@x", "once:", "pause@", "crash@1:", "once @1"]
)
def test_a_malformed_fault_is_refused(fault: str) -> None:
    """A mistyped fault is an error at once, which lists the kinds that exist."""
    with pytest.raises(ConfigError, match="fault"):
        faults.arm(BEFORE, fault)


@pytest.mark.parametrize("text", ["csnlog.commit.after", "csnlog.commit.after:once"])
def test_a_malformed_environment_is_refused(text: str) -> None:
    """An entry without '=' names no fault."""
    with pytest.raises(ConfigError, match="TIDELOCK_FAULTS"):
        faults.arm_from({"TIDELOCK_FAULTS": text})


def test_the_environment_arms_several_points() -> None:
    """Entries are joined by semicolons; blanks and an empty end do not matter."""
    faults.arm_from({"TIDELOCK_FAULTS": f"{BEFORE}=once@2 ; {AFTER}=always;"})
    assert passes(2) == ["", "Injected"]
    with pytest.raises(faults.Injected):
        STEP.after_blocking()


def test_an_unknown_point_is_reported_when_asked() -> None:
    """A name that no module has registered is an error as soon as all are loaded; a known one is not."""
    faults.arm(BEFORE, "once")
    faults.check_armed()
    faults.arm("tests.fautls.before", "once")
    with pytest.raises(ConfigError, match=r"tests\.fautls\.before; there are: .*tests\.faults\.before"):
        faults.check_armed()
    faults.release("tests.fautls.before")
    faults.check_armed()


def test_points_are_listed_and_registered_once() -> None:
    """A step has two points; its name gives the same step again."""
    assert {BEFORE, AFTER} <= set(faults.names())
    assert faults.step("tests.faults") is STEP
    assert list(faults.names()) == sorted(faults.names())


@pytest.mark.parametrize("name", ["commit", "a.b.c", "A.b", "a.", ".b", "a-b.c", ""])
def test_a_step_is_named_component_step(name: str) -> None:
    """Other names would not fit into the environment's form."""
    with pytest.raises(ValueError, match=r"component\.step"):
        faults.step(name)


def test_a_crash_kills_the_process_at_its_pass_and_leaves_a_note(tmp_path: Path) -> None:
    """The third pass ends in SIGKILL, and the journal outlives the dead process."""
    program = (
        "from tidelock.csnlog.faults import step\nfor n in range(9): step('a.b').before_blocking(); print(n)"
    )
    journal = tmp_path / "journal"
    environment = os.environ | {
        "TIDELOCK_FAULTS": "a.b.before=crash@3",
        "TIDELOCK_FAULTS_JOURNAL": str(journal),
    }
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert out.split() == ["0", "1"]
    assert journal.read_text() == f"a.b.before crash 3 {process.pid}\n"


def test_a_process_with_a_malformed_fault_does_not_start() -> None:
    """A mistyped kind ends the process at its start, so that no test runs without its fault."""
    done = subprocess.run(
        [sys.executable, "-c", "import tidelock.csnlog.faults"],
        env=os.environ | {"TIDELOCK_FAULTS": "a.b.before=crush"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "'crush' is not a fault" in done.stderr
