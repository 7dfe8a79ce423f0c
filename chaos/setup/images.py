"""The images for runs in containers, built from this checkout, with layers from the cache where they are."""

from __future__ import annotations

from chaos.setup.options import BUILT_TAG
from demo.containers import images


def build(*, spark: bool) -> str:
    """Build the images of agents and ZooKeeper, and of Spark if it is wanted, and return their tag.

    ZooKeeper's image is that of docker/zookeeper-image.sh, which needs no registry.

    Raises:
        DemoError: A build failed; the message has its output.
    """
    for target in ("agent", "spark") if spark else ("agent",):
        images.build(target, BUILT_TAG)
    images.zookeeper(BUILT_TAG)
    return BUILT_TAG
