"""How far an answer runs ahead of its client: a little of what the client has read. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.replica_agent.readers.pacing import FIRST_BYTES, ahead, to_read

#: Bytes that a client's kernel takes while the client reads nothing (tcp(7): half of tcp_rmem).
WINDOW = 64 * 1024
SIZES = st.integers(1, 1 << 40)


def test_a_client_that_reads_nothing_gets_its_window_and_little_more() -> None:
    """Bytes that its kernel has confirmed are no reason to send more."""
    sent = 0
    while sent < WINDOW + 2 * ahead(sent, 1 << 20):  # the kernel takes twice the size of its buffer
        sent += 1024
    assert sent == WINDOW + 2 * FIRST_BYTES


def test_a_client_that_reads_on_gets_all_that_is_allowed() -> None:
    """Twelve steps until an answer is sent as fast as it goes, so large reads do not get slower."""
    sent = steps = 0
    while ahead(sent, 256 * 1024) < 256 * 1024:
        sent += ahead(sent, 256 * 1024)
        steps += 1
    assert steps == 12


@given(SIZES, SIZES, SIZES)
def test_more_sent_is_never_a_reason_for_less(sent: int, more: int, most: int) -> None:
    """The pace only grows, and keeps its bound."""
    assert 0 < ahead(sent, most) <= ahead(sent + more, most) <= most


@pytest.mark.parametrize(("sent", "size"), [(1000, 1000), (300_000, 300_000), (5 << 20, 1 << 20)])
def test_no_more_is_read_than_was_sent(sent: int, size: int) -> None:
    """An answer at most doubles what was read for it, up to the limit of one read."""
    assert to_read(sent, 1 << 20) == size
