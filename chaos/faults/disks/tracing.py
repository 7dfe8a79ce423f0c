"""Errors and delays of the system calls of a node's processes, by strace, which is attached from the host."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from chaos.watching.waiting import NOTICE_TIMEOUT_S, until
from tidelock.errors import UnavailableError
from tidelock.testing import Node

CALLS: Final = "fsync,fdatasync"
_END_TIMEOUT_S: Final = 30.0
#: Field of /proc/<pid>/stat after the name of the command: the parent.
_PARENT: Final = 1


def lack() -> str:
    """Return why no system call can be changed here; "" = it can."""
    return "" if shutil.which("strace") else "there is no strace, which changes system calls"


class Traced:
    """Counts the calls that were changed.

    Args:
        output: What strace writes.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._count = 0

    def count(self) -> int:
        """Return how many calls were changed so far."""
        with contextlib.suppress(FileNotFoundError):
            lines = self._output.read_text(encoding="utf-8", errors="replace").splitlines()
            self._count = sum(line.rstrip().endswith(("(INJECTED)", "(DELAYED)")) for line in lines)
        return self._count


@contextlib.contextmanager
def injected(node: Node, change: str) -> Iterator[Traced]:
    """Change the calls that force bytes to the disk, in all processes that a node has now, inside the block.

    Args:
        node: The node.
        change: The end of strace's option `inject`: ``error=EIO:when=1+3``, ``delay_enter=200000``.

    Raises:
        UnavailableError: The processes cannot be traced.
    """
    pids = family(node.pid)
    with tempfile.TemporaryDirectory() as folder:
        output, said = Path(folder, "calls"), Path(folder, "said")
        attach = [option for pid in pids for option in ("-p", str(pid))]
        command = [
            "strace",
            "-f",
            "-o",
            str(output),
            "-e",
            f"trace={CALLS}",
            "-e",
            f"inject={CALLS}:{change}",
        ]
        with said.open("wb") as errors:
            tracer = subprocess.Popen([*command, *attach], stdout=errors, stderr=errors)
        traced = Traced(output)
        try:
            _await_attached(tracer, said, pids)
            yield traced
        finally:
            traced.count()
            _end(tracer)
            traced.count()


def family(pid: int | None) -> list[int]:
    """Return a process and all that descend from it; none for None."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text(encoding="ascii", errors="replace")
                parent = int(stat.rpartition(")")[2].split()[_PARENT])
                children.setdefault(parent, []).append(int(folder.name))
    found = [] if pid is None else [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _await_attached(tracer: subprocess.Popen[bytes], said: Path, pids: Sequence[int]) -> None:
    def attached() -> bool:
        text = said.read_text(encoding="utf-8", errors="replace")
        return tracer.poll() is not None or all(f"Process {pid} attached" in text for pid in pids)

    until(attached, what="strace at its processes", timeout_s=NOTICE_TIMEOUT_S)
    if tracer.poll() is not None:
        raise UnavailableError(
            f"strace has ended: {said.read_text(encoding='utf-8', errors='replace').strip()}"
        )


def _end(tracer: subprocess.Popen[bytes]) -> None:
    """Let strace detach; killed, it would leave its processes as they are, stopped or not."""
    tracer.send_signal(signal.SIGTERM)
    try:
        tracer.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.wait()
