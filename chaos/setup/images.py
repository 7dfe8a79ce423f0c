"""The images for runs in containers, built from this checkout, with layers from the cache where they are."""

from __future__ import annotations

from typing import Final

from demo.containers import images

#: Tag of the images that a run builds.
TAG: Final = "chaos"


def build(*, spark: bool) -> str:
    """Build the images of agents and ZooKeeper, and of Spark if it is wanted, and return their tag.

    ZooKeeper's image is that of docker/zookeeper-image.sh, which needs no registry.

    Raises:
        DemoError: A build failed; the message has its output.
    """
    for target in ("agent", "spark") if spark else ("agent",):
        images.build(target, TAG)
    images.zookeeper(TAG)
    return TAG
