"""Child processes that are spoken to by lines of JSON."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from workloads import child
from workloads.child import Child, ChildEndedError

ME = "tests.unit.workloads.test_child"


def test_a_child_answers_what_it_is_asked_and_ends_with_its_input() -> None:
    """Lines go both ways; nothing is left of a child whose input was closed."""
    process = Child(ME)
    for message in ({"a": 1}, [None, "ü\u2028"], "x" * 100_000):
        process.send(message)
        assert process.receive() == {"heard": message}
    process.end(60.0)
    assert process.process.returncode == 0


def test_a_child_that_has_ended_is_told_with_its_last_words(tmp_path: Path) -> None:
    """The error has the end of its log, whether it is to answer or to be asked."""
    process = Child(ME, log=tmp_path / "log")
    process.send("fail")
    with pytest.raises(ChildEndedError, match=r"exit code 1: .*ValueError: as I was told"):
        process.receive()
    with pytest.raises(ChildEndedError, match="as I was told"):
        process.send("more")
    process.end(60.0)


def test_a_child_may_be_started_by_another_program() -> None:
    """A command in front of Python starts it, as `docker exec` does in a container."""
    process = Child(ME, python=("env", "HEARD=1", sys.executable))
    process.send("hello")
    assert process.receive() == {"heard": "hello"}
    process.end(60.0)
    assert process.process.returncode == 0


def test_a_child_that_does_not_end_is_killed() -> None:
    """A child that ignores the end of its input is killed without further waiting."""
    process = Child(ME)
    process.send("stay")
    assert process.receive() == {"heard": "stay"}
    process.end(0.0)
    assert process.process.returncode == -9


def test_a_child_ends_with_its_parent() -> None:
    """The death of the parent closes the input as well."""
    parent = Child(ME)
    parent.send("parent")
    pid = parent.receive()["heard"]
    parent.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the child's child")


def _main() -> None:
    own: Child | None = None
    for message in child.requests():
        if message == "fail":
            raise ValueError("as I was told")
        if message == "parent":
            own = Child(ME)
            own.send("hello")
            own.receive()
            child.answer({"heard": own.process.pid})
            continue
        child.answer({"heard": message})
        if message == "stay":
            os.read(os.pipe()[0], 1)


if __name__ == "__main__":
    _main()
