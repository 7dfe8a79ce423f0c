"""The check whether a container engine exists."""

from __future__ import annotations

import functools
import shutil
import subprocess

#: How long an engine may take to answer, in seconds. One that hangs counts as missing.
ANSWER_TIMEOUT_S = 20


@functools.cache
def answers() -> bool:
    """Return whether `docker version` gets an answer from an engine, asked once per process."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    command = [docker, "version", "--format", "{{.Server.Version}}"]
    try:
        return (
            subprocess.run(command, capture_output=True, timeout=ANSWER_TIMEOUT_S, check=False).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False
