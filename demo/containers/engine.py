"""Commands of the container engine and of compose, run on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from demo.failure import DemoError
from tidelock.errors import ConfigError

#: How long the engine may take for one command, in seconds, unless it is told otherwise.
TIMEOUT_S: Final = 120.0
_TAIL_LINES: Final = 40


def run(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    given: str = "",
) -> str:
    """Run a command and return its standard output; DemoError with the end of its output if it fails.

    Args:
        command: The words of the command.
        folder: Its working directory.
        timeout_s: How long it may take.
        env: Its environment; None = that of this process.
        given: Its standard input.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DemoError(f"{' '.join(command)} has not ended after {timeout_s:.0f} s") from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()[-_TAIL_LINES:]
        raise DemoError(f"{' '.join(command)} ended with exit code {done.returncode}:\n" + "\n".join(lines))
    return done.stdout


def answers_yes(command: Sequence[str]) -> bool:
    """Return whether a command succeeds; False if it cannot be run or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def compose() -> list[str]:
    """Return the words that start compose: the engine's plugin, or a program of its own.

    ConfigError if there is no engine that answers, or no compose.
    """
    if not answers_yes(["docker", "version"]):
        raise ConfigError(
            "a container engine is needed, and `docker version` gets no answer; install and start one "
            "(Debian: apt-get install docker.io)"
        )
    for words in (["docker", "compose"], ["docker-compose"]):
        if answers_yes([*words, "version"]):
            return words
    raise ConfigError(
        "compose is needed, and neither `docker compose` nor `docker-compose` works; install one "
        "(Debian: apt-get install docker-compose)"
    )
