"""The check whether a container engine and its compose exist."""

from __future__ import annotations

import functools
import subprocess

#: How long an engine may take to answer, in seconds. One that hangs counts as missing.
ANSWER_TIMEOUT_S = 20

_ENGINE = ("docker", "version", "--format", "{{.Server.Version}}")
#: The engine's plugin, and a program of its own.
_COMPOSE = (("docker", "compose", "version"), ("docker-compose", "version"))


@functools.cache
def answers() -> bool:
    """Return whether an engine answers and a compose is there, asked once per process."""
    return _succeeds(_ENGINE) and any(_succeeds(command) for command in _COMPOSE)


def _succeeds(command: tuple[str, ...]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
