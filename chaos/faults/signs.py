"""A proof that consists of several signs, each of which has to be seen once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaos.faults.fault import Proof
from chaos.watching.waiting import NOTICE_TIMEOUT_S, comes_true

#: Looks for one sign: what was seen, in a few words; None as long as nothing was.
Look = Callable[[], str | None]


class Signs(Proof):
    """Has seen its effect when each sign was seen, not necessarily at the same time.

    Args:
        looks: One for each sign; a sign that was seen is not looked for any more.
    """

    def __init__(self, *looks: Look) -> None:
        self._looks: Sequence[Look] = looks
        self._seen: list[str | None] = [None] * len(looks)

    def seen(self) -> str | None:
        """Return what was seen of all signs; None while one is missing."""
        for number, look in enumerate(self._looks):
            if self._seen[number] is None:
                self._seen[number] = look()
        found = [sign for sign in self._seen if sign is not None]
        return "; ".join(found) if len(found) == len(self._looks) else None


def shown(proof: Proof) -> Proof:
    """Return a proof when its effect was seen, so that a fault acts from there on.

    If it is not seen in a bounded time, nothing is raised: the run tells of a fault without effect.
    """
    comes_true(proof.seen, NOTICE_TIMEOUT_S)
    return proof
