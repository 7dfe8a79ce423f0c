"""A finding of a checker, and the edges of the cycle that prove it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

#: Number of findings of one name that are reported; more of them would add nothing.
SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a cycle: why the operation ``source`` comes before ``target``."""

    source: int
    target: int
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, or an anomaly.

    Attributes:
        name: The invariant (``EXT``), or the class of the anomaly (``G-single``).
        what: One sentence with what was expected and what was found.
        operations: The indices of the operations that prove it; those of a cycle in its order.
        cycle: The edges of the cycle, if it is one.
    """

    name: str
    what: str
    operations: tuple[int, ...]
    cycle: tuple[Step, ...] = ()

    def __str__(self) -> str:
        steps = [f"\n    {step.source} -{step.kind}-> {step.target}: {step.why}" for step in self.cycle]
        return f"{self.name} {list(self.operations)}: {self.what}{''.join(steps)}"


def first_of_each(found: Iterable[Violation]) -> Iterator[Violation]:
    """Yield the first `SHOWN` findings of each name."""
    count: dict[str, int] = {}
    for violation in found:
        count[violation.name] = count.get(violation.name, 0) + 1
        if count[violation.name] <= SHOWN:
            yield violation
