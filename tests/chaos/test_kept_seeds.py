"""Seeds of chaos runs that found something (chaos/planning/kept_seeds.py), again."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.planning.kept_seeds import KEPT
from tests.chaos.runs import require_lists_valid_outside, require_passed, result_of
from tests.support.faults import ability
from tests.support.telling import Tell
from tidelock.testing import commands


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", KEPT, ids=" ".join)
def test_a_seed_that_found_something_finds_it_no_more(
    words: tuple[str, ...], tmp_path: Path, tell: Tell
) -> None:
    """The fault that it found was mended, or the judge was."""
    ability.require(commands.lack())
    require_passed(result_of(tmp_path, tell, *words))
    require_lists_valid_outside(tmp_path, tell)
