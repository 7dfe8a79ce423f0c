"""How the demo fails: a check that does not hold is a finding, a demo that cannot go on is an error."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelock.errors import UnavailableError


class DemoError(UnavailableError):
    """The demo could not show what it is to show; nothing is said about the rows, and it may be run again."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A check that did not hold: which one, and the first thing that was wrong."""

    check: str
    finding: str

    def __str__(self) -> str:
        return f"{self.check}: {self.finding}"


@dataclass
class Findings:
    """All checks that were made, and those that did not hold."""

    checks: int = 0
    violations: list[Violation] = field(default_factory=list)

    def check(self, name: str, finding: str | None) -> Violation | None:
        """Count a check; `finding` is None when it holds, otherwise what is wrong."""
        self.checks += 1
        if finding is None:
            return None
        violation = Violation(name, finding)
        self.violations.append(violation)
        return violation
