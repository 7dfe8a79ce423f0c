"""A broken promise, with what a person needs to see which one, by whom, and during which fault."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes:
        check: The check or the workload that has found it.
        claim: The invariant, by its name: I4, EXT, G-single, total constant.
        story: What was expected, what was found, and the operations that prove it; several lines.
        ns: The moment that it is about, by the clock of the journal; None if it is about the end.
        tids: The transactions that it is about.
    """

    check: str
    claim: str
    story: str
    ns: int | None = None
    tids: tuple[str, ...] = ()
