"""The rule when a difference counts: if every look has it, from the first look until it has lasted."""

from __future__ import annotations

from collections.abc import Iterable

from tidelock.errors import CorruptError
from tidelock.replica_agent.audit.auditor import settled
from tidelock.replica_agent.audit.judgements import CheckResult
from tidelock.wire.audit import AuditFinding, Severity


class Scripted:
    """A check whose looks return the findings of the test; the last look repeats forever."""

    def __init__(self, name: str, *looks: Iterable[str]) -> None:
        self.name = name
        self.looks = 0
        self._looks = looks

    async def run(self) -> CheckResult:
        """Look once; the texts differ each time."""
        files = self._looks[min(self.looks, len(self._looks) - 1)]
        self.looks += 1
        return CheckResult(self.looks, frozenset(self._finding(file) for file in files))

    def _finding(self, file: str) -> AuditFinding:
        return AuditFinding(
            check=self.name, fault="x", severity=Severity.ERROR, expected=f"as in look {self.looks}",
            found="nothing", next_step="none", file=file,
        )  # fmt: skip


class UnreadableStub(Scripted):
    """A check that fails."""

    async def run(self) -> CheckResult:
        """Fail."""
        self.looks += 1
        raise CorruptError("not to be read")


async def _found(*checks: Scripted, settle_s: float, stopped: bool = False) -> dict[str, set[str | None]]:
    looks = await settled(checks, settle_s=settle_s, stopped=lambda: stopped)
    return {name: {one.file for one in result.findings} for name, result in looks.items()}


async def test_what_is_in_order_is_looked_at_once() -> None:
    """An audit without a finding does not wait."""
    check = Scripted("a", [])
    assert await _found(check, settle_s=1000) == {"a": set()}
    assert check.looks == 1


async def test_what_goes_is_no_finding() -> None:
    """A difference that the first look or a later look lacks does not count; other checks continue."""
    gone, done = Scripted("a", ["1", "2"], ["2", "3"], ["1", "3"]), Scripted("b", [])
    assert await _found(gone, done, settle_s=1000) == {"a": set(), "b": set()}
    assert (gone.looks, done.looks) == (3, 1)


async def test_what_lasts_is_a_finding() -> None:
    """A lasting difference is reported as last seen, though its text differs from look to look."""
    lasting, gone = Scripted("a", ["1", "2"], ["1"]), Scripted("b", ["1"], [])
    looks = await settled([lasting, gone], settle_s=0.3, stopped=lambda: False)
    (found,) = looks["a"].findings
    assert (found.file, found.expected) == ("1", f"as in look {lasting.looks}")
    assert lasting.looks > 2
    assert (looks["b"].findings, gone.looks) == (frozenset(), 2)


async def test_one_look_never_suffices() -> None:
    """A second look is made even when the time is over at once."""
    check = Scripted("a", ["1"], [])
    assert await _found(check, settle_s=0.001) == {"a": set()}
    stopped = Scripted("a", ["1"])
    assert await _found(stopped, settle_s=1000, stopped=True) == {"a": {"1"}}
    assert stopped.looks == 2


async def test_what_cannot_be_read_is_a_finding() -> None:
    """An unreadable check is a finding under its name, and the other checks are made."""
    looks = await settled([UnreadableStub("a"), Scripted("b", [])], settle_s=0.001, stopped=lambda: False)
    (found,) = looks["a"].findings
    assert (found.check, found.fault, found.found) == ("a", "unreadable", "not to be read")
