"""The check of the way back: it fails without one, and where something was lacking."""

from __future__ import annotations

from chaos.checks.convergence import lacking
from tests.unit.chaos.lines import S, run


def test_what_was_lacking_when_the_bound_was_over_is_told() -> None:
    """The last wait counts."""
    bad = {"ns": 9 * S, "what": "converged", "seconds": 180.0, "lacking": {"r2": "does not answer"}}
    [found] = lacking([run(), bad])
    assert (found.claim, found.ns) == ("I14 LIVE", 9 * S)
    assert "180.0 s after the heal:\nr2 does not answer" in found.story
    assert lacking([run(), bad, {"ns": 10 * S, "what": "converged", "seconds": 1.0}]) == []


def test_a_run_that_nobody_has_healed_has_not_converged() -> None:
    """A journal without the line proves nothing."""
    assert [one.claim for one in lacking([run()])] == ["I14 LIVE"]
