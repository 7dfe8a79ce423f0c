"""The images of docker/, built from this checkout under a tag of the tests."""

from __future__ import annotations

from typing import Final

from demo.containers import images

_TAG: Final = "test"


def build_agent() -> str:
    """Build the agent's image and return its name; DemoError with the end of the output if that fails."""
    return images.build("agent", _TAG)


def build_zookeeper() -> str:
    """Build ZooKeeper's image from the environment that runs the tests; name and errors as `build_agent`."""
    return images.zookeeper(_TAG)
