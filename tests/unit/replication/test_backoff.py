"""Pauses between tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelock.replication.backoff import FIRST_WAIT_S, wait_s


@given(st.integers(0, 10**9), st.floats(0.001, 60))
def test_pauses_grow_and_stay_bounded(failures: int, max_s: float) -> None:
    """A pause is never zero, never above the maximum, and reaches half of it after enough failures."""
    pause = wait_s(failures, max_s)
    assert 0 < pause <= max_s
    assert failures > 1 or pause <= FIRST_WAIT_S
    assert failures < 12 or pause >= max_s / 2
