"""A proof that consists of several signs, each of which has to be seen once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaos.faults.fault import Proof

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
