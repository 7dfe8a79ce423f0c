"""The images of docker/, built from this checkout by the container engine, which caches unchanged layers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from demo.containers.engine import answers_yes, run

#: The checkout.
ROOT: Final = Path(__file__).parents[2]
#: The image that docker/base-image.sh makes without a registry.
LOCAL_BASE: Final = "tidelock-base:local"
#: Environment variables of pip's index, which are passed to the build if they are set.
BUILD_VARIABLES: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
#: How long a build may take, in seconds. Without a cache that of Spark loads a gigabyte.
BUILD_TIMEOUT_S: Final = 1800.0


def base(environ: Mapping[str, str]) -> str:
    """Return the image to build on; empty for the image that the Dockerfiles name."""
    if named := environ.get("TIDELOCK_BASE_IMAGE"):
        return named
    return LOCAL_BASE if answers_yes(["docker", "image", "inspect", LOCAL_BASE]) else ""


def build(target: str, tag: str, *, labels: Mapping[str, str] | None = None) -> str:
    """Build a target of docker/Dockerfile, and return the tag; DemoError with the output if that fails."""
    command = ["docker", "build", "--network", "host", "--target", target, "--tag", tag]
    for name, value in (labels or {}).items():
        command += ["--label", f"{name}={value}"]
    if on := base(os.environ):
        command += ["--build-arg", f"BASE={on}"]
    for name in BUILD_VARIABLES:
        if name in os.environ:
            # Without "=", the engine's client takes the value from the environment: no process list shows it.
            command += ["--build-arg", name]
    run([*command, "--file", "docker/Dockerfile", "."], folder=ROOT, timeout_s=BUILD_TIMEOUT_S)
    return tag


def build_zookeeper(tag: str) -> str:
    """Build ZooKeeper's image from the environment of this Python, and return the tag; errors as in `build`."""
    environ = {**os.environ, "PYTHON": sys.executable, "BASE": base(os.environ)}
    run(
        ["bash", "docker/zookeeper-image.sh", tag],
        folder=ROOT,
        timeout_s=BUILD_TIMEOUT_S,
        env=environ,
    )
    return tag
