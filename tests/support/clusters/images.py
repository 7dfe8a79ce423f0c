"""The images of docker/, built by the container engine, which caches unchanged layers."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from tests.support.project import source

AGENT: Final = "tidelock-agent:test"
ZOOKEEPER: Final = "tidelock-zookeeper:test"
#: The image that docker/base-image.sh makes without a registry.
LOCAL_BASE: Final = "tidelock-base:local"
#: Environment variables of pip's index, which are passed to the build if they are set.
BUILD_VARIABLES: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
#: How long a build may take, in seconds. Without a cache the agent's loads some hundred megabytes.
BUILD_TIMEOUT_S: Final = 900.0
#: Label of the agent's image, by which images of former checkouts are found.
LABEL: Final = "tidelock.test.image"


def build_agent() -> str:
    """Build the agent's image from this checkout and return its name; its predecessor is deleted."""
    command = ["docker", "build", "--network", "host", "--tag", AGENT, "--label", LABEL]
    if base := _base():
        command += ["--build-arg", f"BASE={base}"]
    for name in BUILD_VARIABLES:
        if (
            name in os.environ
        ):  # without "=", docker takes the value from the environment, so that no process list shows it
            command += ["--build-arg", name]
    _run([*command, "--file", "docker/agent.Dockerfile", "."])
    _run(["docker", "image", "prune", "--force", "--filter", f"label={LABEL}"])
    return AGENT


def build_zookeeper() -> str:
    """Build ZooKeeper's image from the environment that runs the tests, and return its name."""
    _run(["bash", "docker/zookeeper-image.sh", ZOOKEEPER], PYTHON=sys.executable, BASE=_base())
    return ZOOKEEPER


def _base() -> str:
    """Return the image to build on; empty for the image that the Dockerfile names."""
    if base := os.environ.get("TIDELOCK_BASE_IMAGE"):
        return base
    command = ["docker", "image", "inspect", LOCAL_BASE]
    found = subprocess.run(command, capture_output=True, check=False)
    return LOCAL_BASE if found.returncode == 0 else ""


def _run(command: list[str], **environ: str) -> None:
    """Run a command in the top folder; AssertionError with the end of its output if it fails."""
    done = subprocess.run(
        command,
        cwd=source.ROOT,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)} failed:\n" + "\n".join(done.stdout.splitlines()[-40:])
