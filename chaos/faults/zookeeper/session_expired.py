"""A replica's session of ZooKeeper expires while it is well."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.faults.zookeeper.ensemble import end_session, owner
from chaos.watching.waiting import NOTICE_TIMEOUT_S, until
from chaos.world import World


class SessionExpired(Fault):
    """The servers end the session of an agent, which is connected and has noticed nothing.

    Its sign of life is gone. It opens another session, shows itself again, and what it has requested
    meanwhile is decided by the log.
    """

    kind: ClassVar[str] = "session expired"
    aim: ClassVar[Aim] = Aim.REPLICA
    lasts_s: ClassVar[tuple[float, float]] = (2.0, 5.0)

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        found: list[int] = []

        def alive() -> bool:
            with contextlib.suppress(OSError):
                found[:] = [session for session in [_session(world, target)] if session]
            return bool(found)

        until(alive, what=f"a sign of life of {target}", timeout_s=NOTICE_TIMEOUT_S)
        [session] = found

        def expired() -> str | None:
            with contextlib.suppress(OSError):
                now = _session(world, target)
                if now != session:
                    return (
                        f"session {session:#x} is gone; the sign of life is of {hex(now) if now else 'none'}"
                    )
            return None

        def ended() -> bool:
            with contextlib.suppress(OSError):  # there may be an election
                end_session(world, session)
                return True
            return expired() is not None  # the answer may have been lost

        try:
            until(ended, what=f"the end of session {session:#x}", timeout_s=NOTICE_TIMEOUT_S)
            yield shown(Signs(expired))
        finally:
            serve_again(world, target)


def _session(world: World, replica: str) -> int | None:
    return owner(world, f"replicas/{replica}/alive")
