"""Containers, networks and volumes by their labels, through the client of the container engine."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from tidelock.errors import UnavailableError
from tidelock.testing import commands
from tidelock.testing.owners import LABEL, ownerless

#: Words that list what there is of a kind, and words that remove it.
_CONTAINERS: Final = (("ps", "--all"), ("rm", "--force", "--volumes"))
_NETWORKS: Final = (("network", "ls"), ("network", "rm"))
_VOLUMES: Final = (("volume", "ls"), ("volume", "rm", "--force"))


def containers(*labels: str) -> list[str]:
    """Return the ids of the containers with these labels, `NAME=value`, running or not."""
    return _ids(_CONTAINERS[0], labels)


def remove(label: str) -> None:
    """Remove the containers, networks and volumes with a label, `NAME=value`."""
    for listed, removed in (_CONTAINERS, _NETWORKS, _VOLUMES):
        if found := _ids(listed, [label]):
            commands.run("docker", *removed, *found)


def sweep() -> None:
    """Remove what dead owners have left behind; nothing of others, and nothing without an owner."""
    shown = f'{{{{.Label "{LABEL}"}}}}'
    owners = {
        owner
        for listed, _ in (_CONTAINERS, _NETWORKS, _VOLUMES)
        for owner in commands.run(
            "docker", *listed, "--filter", f"label={LABEL}", "--format", shown
        ).splitlines()
    }
    for owner in owners:
        if ownerless(owner):
            with contextlib.suppress(UnavailableError):  # another run sweeps it at the same time
                remove(f"{LABEL}={owner}")


def _ids(listed: Sequence[str], labels: Sequence[str]) -> list[str]:
    filters = [word for label in labels for word in ("--filter", f"label={label}")]
    return commands.run("docker", *listed, "--quiet", *filters).split()
