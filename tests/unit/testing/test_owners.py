"""Leftovers of a cluster for tests are found by their owner, and nothing else is."""

from __future__ import annotations

import dataclasses

import pytest

from tidelock import processes
from tidelock.testing import commands, labelled
from tidelock.testing.owners import ClusterName, left_behind, owner_of, ownerless


def test_an_owner_is_a_process_that_runs() -> None:
    """A process that has ended, or whose number another one has by now, owns nothing any more."""
    me = processes.me()
    assert not ownerless(owner_of(me))
    assert ownerless(owner_of(dataclasses.replace(me, start_ticks=me.start_ticks - 1)))
    assert ownerless(owner_of(dataclasses.replace(me, boot_id="another")))


@pytest.mark.parametrize("label", ["", "tidelock-demo-7", "7", "7@", "7@x@y", "x@7@y"])
def test_other_labels_are_nobodys_leftovers(label: str) -> None:
    """Containers of users have no owner, and kept ones have a name; neither is swept away."""
    assert not ownerless(label)


class Docker:
    """A container engine that holds things by kind and owner, and removes what it is told to."""

    def __init__(self, **owners: list[str]) -> None:
        self.owners = owners
        self.removed: list[tuple[str, ...]] = []

    def run(self, *command: str) -> str:
        """Answer lists with one id for each owner, named by it."""
        kind = {"ps": "containers", "network": "networks", "volume": "volumes", "rm": "containers"}[
            command[1]
        ]
        if "rm" in command[1:3]:
            self.removed.append((kind, *command[4 if kind != "networks" else 3 :]))
            return ""
        owners = self.owners.get(kind, [])
        if "--quiet" in command:
            label = command[command.index("--filter") + 1].removeprefix("label=tidelock.owner=")
            return "\n".join(f"{kind}-of-{owner}" for owner in owners if owner == label)
        return "\n".join(owners)


def test_only_what_has_lost_its_owner_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers go first, since they use the networks and volumes; what others own or keep stays."""
    me = processes.me()
    gone = owner_of(dataclasses.replace(me, boot_id="before"))
    alive = owner_of(me)
    docker = Docker(
        containers=[gone, alive, "", "tidelock-demo-7"], networks=[gone, alive], volumes=[gone, ""]
    )
    monkeypatch.setattr(commands, "run", docker.run)
    labelled.sweep()
    assert [kind for kind, *_ in docker.removed] == ["containers", "networks", "volumes"]
    assert all(ids == [f"{kind}-of-{gone}"] for kind, *ids in docker.removed)


def test_names_of_parts_tell_whose_they_are() -> None:
    """A namespace or a mount is left behind if its owner has ended, and no other name is."""
    mine = ClusterName.fresh()
    before = dataclasses.replace(processes.me(), boot_id="before")
    dead = dataclasses.replace(mine, owner=owner_of(before))
    assert left_behind(str(dead))
    assert left_behind(dead.of("r1"))
    others = ["", "cni-0", "tidelock", "tidelock.", "tidelock.r1", str(dead).removeprefix("tidelock.")]
    assert not any(left_behind(name) for name in [str(mine), mine.of("r1"), *others])


def test_each_cluster_has_a_name_of_its_own() -> None:
    """Two clusters of one process share nothing, and a short name fits an interface of Linux (15 bytes)."""
    one, other = ClusterName.fresh(), ClusterName.fresh()
    assert one.owner == other.owner
    assert one != other
    assert one.short != other.short
    assert len(one.interface) <= 15
