"""docker/compose.yaml as values, so that tests check the services that users start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.support.project import source

PATH = source.ROOT / "docker" / "compose.yaml"
DOCKERFILE = source.ROOT / "docker" / "Dockerfile"

#: `${NAME:-default}`.
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
#: The stage of the agent's image in the Dockerfile.
_AGENT_STAGE = re.compile(r"^FROM runtime AS agent$(.*?)^FROM ", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Service:
    """One service.

    Attributes:
        entry: All of it, as the file has it.
        environment: What compose adds to the image's.
        published: Address and port of this machine, by port of the container.
        networks: Its names on each network, besides its own.
        profiles: Profiles with which it starts; none: it always starts.
    """

    name: str
    entry: Mapping[str, Any]
    environment: Mapping[str, str]
    published: Mapping[int, tuple[str, int]]
    networks: Mapping[str, tuple[str, ...]]
    profiles: tuple[str, ...]


def file(environ: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Return the whole file, with these variables in it, and the defaults of all others."""
    given = environ or {}
    text = _VARIABLE.sub(lambda match: given.get(match[1], match[2]), PATH.read_text(encoding="utf-8"))
    tree: Mapping[str, Any] = yaml.safe_load(text)
    return tree


def services() -> dict[str, Service]:
    """Return the services by name."""
    return {name: _service(name, entry) for name, entry in file()["services"].items()}


def image_environment() -> dict[str, str]:
    """Return the settings that the agent's image sets."""
    stage = _AGENT_STAGE.search(DOCKERFILE.read_text(encoding="utf-8"))
    assert stage is not None, "the Dockerfile has no stage `agent`"
    return dict(re.findall(r"\b(TIDELOCK_\w+)=(\S+)", stage[1]))


def _service(name: str, entry: Mapping[str, Any]) -> Service:
    published = {}
    for port in entry.get("ports", ()):
        host, outside, inside = port.split(":")
        published[int(inside)] = (host, int(outside))
    networks = entry.get("networks", {})
    if not isinstance(networks, dict):
        networks = {network: {} for network in networks}
    return Service(
        name=name,
        entry=entry,
        environment={key: str(value) for key, value in entry.get("environment", {}).items()},
        published=published,
        networks={network: tuple(own.get("aliases", ())) for network, own in networks.items()},
        profiles=tuple(entry.get("profiles", ())),
    )
