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

from tests.support.zookeeper.servers import OPTIONS, running
from tidelock import java, zookeeper

SOURCE: Final = Path(__file__).with_name("Time.scala")
COMPILER: Final = ("scala-compiler", "scala-library", "scala-reflect")
COMPILE_TIMEOUT_S: Final = 120.0


def set_server_clock(server: zookeeper.ZooKeeperServer, offset_s: float) -> None:
    """Let a wall clock jump: it is so many seconds ahead of the true time. The monotonic clock stays."""
    fresh = server.folder / "clock.new"
    fresh.write_text(str(offset_s))
    fresh.replace(server.folder / "clock")


@contextlib.contextmanager
def clocked_servers(folder: Path, *, size: int) -> Iterator[zookeeper.LocalZooKeeper]:
    """Run servers whose clocks are right at first; they end with the context."""
    classes = folder / "classes"
    _compile(classes)
    options = dataclasses.replace(OPTIONS, jvm=(*OPTIONS.jvm, f"-Xbootclasspath/a:{classes}"))
    made = zookeeper.create(folder / "servers", size=size, options=options)
    for server in made.servers:
        set_server_clock(server, 0.0)
    with running(made) as servers:
        yield servers


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
