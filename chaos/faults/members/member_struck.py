"""A member is struck while it is away, and comes back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.members.members import change, member
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs
from chaos.watching.seeing import LogSince
from chaos.world import World


class MemberStruck(Fault):
    """SIGKILL to a replica, which is then struck: it holds nothing back any more. It clones when it is back.

    It keeps the parts that it has; the log may have been cut behind it.
    """

    kind: ClassVar[str] = "member struck"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        node = world.cluster.node(target)
        log = LogSince(node)

        def struck() -> str | None:
            return f"the others say that {target} is struck" if member(world, target) == "struck" else None

        def cloned() -> str | None:
            sources = [line["source"] for line in log.lines("clone_installed")]
            return f"it has got the catalog of {sources[-1]}" if sources else None

        node.kill()
        try:
            change(world, f"{target} is struck", lambda db: db.membership.strike(target))
            yield Signs(struck, cloned)
        finally:
            if there(world, target):
                serve_again(world, target)
