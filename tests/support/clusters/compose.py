"""docker/compose.yaml as values, so that tests check and start the services that users start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.support.project import source

PATH = source.ROOT / "docker" / "compose.yaml"
DOCKERFILE = source.ROOT / "docker" / "agent.Dockerfile"

#: `${NAME:-default}` and `${NAME:?message}`.
_VARIABLE = re.compile(r"\$\{(\w+):([-?])([^}]*)\}")


@dataclass(frozen=True)
class Service:
    """One service.

    Attributes:
        environment: What compose adds to the image's.
        published: Address and port of this machine, by port of the container.
        aliases: Names on the network, besides the service's own.
        init: Whether a small init runs in front of the image's program.
        profiles: Profiles with which it starts; none: it always starts.
    """

    name: str
    environment: Mapping[str, str]
    published: Mapping[int, tuple[str, int]]
    aliases: tuple[str, ...]
    init: bool
    profiles: tuple[str, ...]


def services(environ: Mapping[str, str]) -> dict[str, Service]:
    """Return the services by name; KeyError, with the message of the file, if a variable is missing."""

    def value(match: re.Match[str]) -> str:
        name, kind, text = match.groups()
        if name not in environ and kind == "?":
            raise KeyError(f"{name}: {text}")
        return environ.get(name, text)

    tree = yaml.safe_load(_VARIABLE.sub(value, PATH.read_text(encoding="utf-8")))
    return {name: _service(name, entry) for name, entry in tree["services"].items()}


def image_environment() -> dict[str, str]:
    """Return the settings that the agent's image sets."""
    return dict(re.findall(r"\b(TIDELOCK_\w+)=(\S+)", DOCKERFILE.read_text(encoding="utf-8")))


def _service(name: str, entry: Mapping[str, Any]) -> Service:
    published = {}
    for port in entry.get("ports", ()):
        host, outside, inside = port.split(":")
        published[int(inside)] = (host, int(outside))
    network = entry.get("networks", {}).get("default", {})
    return Service(
        name=name,
        environment=entry.get("environment", {}),
        published=published,
        aliases=tuple(network.get("aliases", ())),
        init=bool(entry.get("init", False)),
        profiles=tuple(entry.get("profiles", ())),
    )
