"""Failures of the demo: a failed check is a finding, a demo that cannot continue is an error."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelock.errors import UnavailableError


class DemoError(UnavailableError):
    """The demo could not reach its end; this implies nothing about the rows, and it may be run again."""


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check that did not hold: its name, and the first error that it found."""

    check: str
    finding: str

    def __str__(self) -> str:
        return f"{self.check}: {self.finding}"


@dataclass
class Findings:
    """All checks that were made, and those that did not hold."""

    checks: int = 0
    violations: list[FailedCheck] = field(default_factory=list)

    def check(self, name: str, finding: str | None) -> FailedCheck | None:
        """Count a check; `finding` is None if it holds, otherwise the error that it found."""
        self.checks += 1
        if finding is None:
            return None
        violation = FailedCheck(name, finding)
        self.violations.append(violation)
        return violation
