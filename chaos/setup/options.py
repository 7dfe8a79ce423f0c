"""The settings of a run besides its plan, which the command line gives. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Tag of the images that a run builds.
BUILT_TAG: Final = "chaos"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a run besides its plan.

    Attributes:
        stall_max_s: Longest time without an acknowledged commit of any client while enough is well, in
            seconds. By the settings of chaos runs a session ends after 4 s and a commit waits 5 s for its
            copies; then a client asks for the outcome and begins again elsewhere. In an hour of such a
            cluster 5.4 s were the longest; 15 s leave room for two such faults one after the other.
        converge_s: How long all replicas may need to serve and to reach the end of the log after the heal.
        disk_bytes: Size of the disk of each replica, in memory.
        image_tag: Tag of the images of agents, ZooKeeper and Spark, for containers; None: their usual names.
    """

    stall_max_s: float = 15.0
    converge_s: float = 180.0
    disk_bytes: int = 512 << 20
    image_tag: str | None = None

    def words(self) -> list[str]:
        """Return the words of the command line that give these; nothing for what is as usual."""
        usual, found = Options(), list[str]()
        if self.stall_max_s != usual.stall_max_s:
            found += ["--stall-s", f"{self.stall_max_s:g}"]
        if self.converge_s != usual.converge_s:
            found += ["--converge-s", f"{self.converge_s:g}"]
        if self.disk_bytes != usual.disk_bytes:
            found += ["--disk-mib", str(self.disk_bytes >> 20)]
        if self.image_tag not in {None, BUILT_TAG}:  # else a repetition builds them as well
            found += ["--image-tag", str(self.image_tag)]
        return found
