"""Nodes that are containers, with an engine that answers as told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidelock.testing.container_nodes import ReplicaContainer


class Container:
    """A running container, each freeze of which ends as told: with an error, or well."""

    def __init__(self, ends: Sequence[str]) -> None:
        self.ends = [*ends]
        self.attrs = {"State": {"Running": True, "Paused": False, "Pid": 7}}

    def reload(self) -> None:
        """Read the state again."""

    def pause(self) -> None:
        """Freeze it, unless an error comes first."""
        if self.ends:
            raise RuntimeError(self.ends.pop(0))
        self.attrs["State"]["Paused"] = True


def node(container: Container) -> ReplicaContainer:
    """Return a node that is this container."""
    engine = SimpleNamespace(containers=SimpleNamespace(create=lambda **_: container))
    return ReplicaContainer(engine, "r1", "127.0.0.1", Path(), options={})


def test_a_freeze_that_the_kernel_refuses_is_tried_again() -> None:
    """The kernel refuses while a process of the group forks."""
    container = Container(["runc: unable to freeze: unknown"] * 2)
    node(container).pause()
    assert container.attrs["State"]["Paused"]
    assert container.ends == []


def test_another_error_of_a_freeze_is_raised_at_once() -> None:
    """A repetition could not mend it."""
    container = Container(["no such container", "never reached"])
    with pytest.raises(RuntimeError, match="no such container"):
        node(container).pause()
    assert container.ends == ["never reached"]
