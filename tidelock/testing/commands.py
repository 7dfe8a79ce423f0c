"""Commands of the system and of the container engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from tidelock.errors import ConfigError, UnavailableError

#: How long a command may take, in seconds.
TIMEOUT_S: Final = 120.0
#: The programs that the handles of networks and disks use.
PROGRAMS: Final = ("ip", "iptables", "iptables-restore", "mount", "nsenter", "tc", "umount")


def run(*command: str, given: str = "") -> str:
    """Run a command and return its output; UnavailableError with what it has said if it fails.

    Args:
        command: Its words.
        given: Its standard input.
    """
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"expected `{' '.join(command)}` to run, found: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        raise UnavailableError(
            f"expected `{' '.join(command)}` to succeed, found exit code {done.returncode}: {said}"
        )
    return done.stdout


def lack(programs: Sequence[str] = PROGRAMS) -> str:
    """Return what this process lacks to change networks and mounts; "" if it lacks nothing."""
    if os.geteuid() != 0:
        return "networks and disks of a cluster's own need root, and this process has another user"
    if missing := [program for program in programs if shutil.which(program) is None]:
        return f"networks and disks of a cluster's own need {', '.join(missing)}, which is not on the PATH"
    return ""


def require(what: str) -> None:
    """Raise ConfigError unless this process can change networks and mounts, which `what` needs."""
    if found := lack():
        raise ConfigError(f"{what}: {found}; run the tests as root on Linux, or leave it out")
