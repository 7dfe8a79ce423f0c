"""A replica's disk does not take what it has to keep."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from chaos.faults.disks import tracing
from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import LogSince, gone
from chaos.world import World

#: The words of the system, and of SQLite, for EIO.
WORDS: Final = ("Input/output error", "disk I/O error")


class FsyncFailing(Fault):
    """Each fsync of a replica fails with EIO, or each second or fifth one, and flushes nothing.

    strace stops its agent at every system call: a commit takes two to three times as much processor time.

    It acknowledges nothing that was not flushed: it refuses, works again with other files, or stops. Commits
    count the copies of others.
    """

    kind: ClassVar[str] = "fsync failing"
    aim: ClassVar[Aim] = Aim.REPLICA
    hurts_disk: ClassVar[bool] = True

    @classmethod
    def lack(cls) -> str:
        """Return why it cannot be injected here; "" = it can."""
        return tracing.lack()

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        node = world.cluster.node(target)
        pid, log = node.pid, LogSince(node)
        each = chosen.choice((1, 2, 5))

        def noticed() -> str | None:
            if gone(pid):
                return f"process {pid} has ended"
            text = log.text()
            return next((f"{target} has logged: {words}" for words in WORDS if words in text), None)

        try:
            with tracing.injected(node, f"error=EIO:when=1+{each}") as traced:
                yield shown(
                    Signs(lambda: f"{traced.count()} fsyncs failed" if traced.count() else None, noticed)
                )
        finally:
            serve_again(world, target)
