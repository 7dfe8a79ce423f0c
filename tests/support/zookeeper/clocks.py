"""Real ZooKeeper servers whose wall clocks a test sets.

ZooKeeper reads its clocks in one class of its own. The servers here get another class of that name, from
`Time.scala`, on their boot class path, which Java looks at first. The compiler is the one that Spark brings
along.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.zookeeper.servers import OPTIONS, READY_TIMEOUT_S
from tidelock import java, zookeeper

SOURCE: Final = Path(__file__).with_name("Time.scala")
COMPILER: Final = ("scala-compiler", "scala-library", "scala-reflect")
COMPILE_TIMEOUT_S: Final = 120.0


class ServerClocks:
    """Servers that run, and their wall clocks; the monotonic clocks stay as they are."""

    def __init__(self, servers: zookeeper.LocalZooKeeper) -> None:
        self.servers = servers

    def set(self, server: zookeeper.ZooKeeperServer, offset_s: float) -> None:
        """Let a clock jump: from now on it is so many seconds ahead of the true time."""
        path = server.folder / "clock"
        fresh = path.with_suffix(".new")
        fresh.write_text(str(int(offset_s * 1000)))
        fresh.replace(path)


@contextlib.contextmanager
def clocked_servers(folder: Path, *, size: int) -> Iterator[ServerClocks]:
    """Run servers whose clocks are right at first; they end with the context."""
    classes = folder / "classes"
    _compile(classes)
    options = dataclasses.replace(OPTIONS, jvm=(*OPTIONS.jvm, f"-Xbootclasspath/a:{classes}"))
    servers = zookeeper.create(folder / "servers", size=size, options=options)
    clocks = ServerClocks(servers)
    for server in servers.servers:
        clocks.set(server, 0.0)
    try:
        servers.start(timeout_s=READY_TIMEOUT_S)
        yield clocks
    finally:
        servers.kill()


def _compile(classes: Path) -> None:
    """Compile the class into a new folder."""
    classes.mkdir(parents=True)
    jars = next(iter(zookeeper.class_path())).parent
    found = [str(jar) for name in COMPILER for jar in jars.glob(f"{name}-*.jar")]
    subprocess.run(
        [
            str(java.find().executable),
            "-XX:TieredStopAtLevel=1",
            "-cp",
            ":".join(found),
            "scala.tools.nsc.Main",
            "-usejavacp",
            "-d",
            str(classes),
            str(SOURCE),
        ],
        check=True,
        capture_output=True,
        timeout=COMPILE_TIMEOUT_S,
    )
