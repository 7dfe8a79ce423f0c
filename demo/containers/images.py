"""The images of docker/, built from this checkout by the container engine, which caches unchanged layers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from demo.containers import engine

#: The checkout.
ROOT: Final = Path(__file__).parents[2]
#: The image that docker/base-image.sh makes without a registry.
LOCAL_BASE: Final = "tidelock-base:local"
#: Environment variables of pip's index, which are passed to the build if they are set.
BUILD_VARIABLES: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
#: How long a build may take, in seconds. Without a cache that of Spark loads half a gigabyte.
BUILD_TIMEOUT_S: Final = 1800.0
#: Label of the images, by which those of former checkouts are found and deleted.
LABEL: Final = "tidelock.image"


def base(environ: Mapping[str, str]) -> str:
    """Return the image to build on; empty for the image that the Dockerfiles name."""
    if named := environ.get("TIDELOCK_BASE_IMAGE"):
        return named
    return LOCAL_BASE if engine.answers_yes(["docker", "image", "inspect", LOCAL_BASE]) else ""


def build(target: str, tag: str) -> str:
    """Build a target of docker/Dockerfile as `tidelock-<target>:<tag>`, and return that name.

    Its predecessor of that name is deleted. DemoError with the output if the build fails.
    """
    name = f"tidelock-{target}:{tag}"
    command = ["docker", "build", "--network", "host", "--target", target, "--tag", name, "--label", LABEL]
    if on := base(os.environ):
        command += ["--build-arg", f"BASE={on}"]
    for variable in BUILD_VARIABLES:
        if variable in os.environ:
            # Without "=", the engine's client takes the value from the environment: no process list shows it.
            command += ["--build-arg", variable]
    command += ["--file", "docker/Dockerfile", "."]
    engine.run(command, folder=ROOT, timeout_s=BUILD_TIMEOUT_S)
    engine.run(["docker", "image", "prune", "--force", "--filter", f"label={LABEL}"])
    return name


def zookeeper(tag: str) -> str:
    """Build ZooKeeper's image from the environment of this Python, and return its name; errors as `build`."""
    name = f"tidelock-zookeeper:{tag}"
    environ = {**os.environ, "PYTHON": sys.executable, "BASE": base(os.environ)}
    command = ["bash", "docker/zookeeper-image.sh", name]
    engine.run(command, folder=ROOT, timeout_s=BUILD_TIMEOUT_S, env=environ)
    return name


def for_compose(tag: str) -> dict[str, str]:
    """Build all images, and return the variables of docker/compose.yaml that name them; errors as `build`."""
    named = {
        "TIDELOCK_IMAGE": build("agent", tag),
        "TIDELOCK_SPARK_IMAGE": build("spark", tag),
        "TIDELOCK_DRIVER_IMAGE": build("demo", tag),
    }
    # A base of one's own says that no registry answers: then ZooKeeper's image is made here as well.
    if base(os.environ):
        named["TIDELOCK_ZOOKEEPER_IMAGE"] = zookeeper(tag)
    return named
