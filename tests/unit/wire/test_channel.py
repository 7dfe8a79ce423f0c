"""Messages of channels: what is sent is what is read, and what is cut is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.wire.channel import (
    Answer,
    Request,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

NUMBERS = st.integers(0, (1 << 32) - 1)


@given(NUMBERS, st.text(max_size=100), st.binary(max_size=200))
def test_a_request_is_read_as_it_was_sent(number: int, target: str, body: bytes) -> None:
    """Whatever target and body hold."""
    assert decode_request(encode_request(number, target, body)) == Request(number, target, body)


@given(NUMBERS, st.integers(0, 999), st.binary(max_size=200))
def test_an_answer_is_read_as_it_was_sent(number: int, status: int, body: bytes) -> None:
    """Whatever the body holds."""
    assert decode_answer(encode_answer(number, status, body)) == Answer(number, status, body)


@pytest.mark.parametrize("length", range(len(encode_request(7, "/commits", b""))))
def test_a_request_that_is_cut_in_its_head_is_refused(length: int) -> None:
    """The error says how many bytes were expected."""
    with pytest.raises(ValueError, match="bytes"):
        decode_request(encode_request(7, "/commits", b"")[:length])


@pytest.mark.parametrize("length", range(len(encode_answer(7, 200, b""))))
def test_an_answer_that_is_cut_in_its_head_is_refused(length: int) -> None:
    """The error says how many bytes were expected."""
    with pytest.raises(ValueError, match="bytes"):
        decode_answer(encode_answer(7, 200, b"{}")[:length])


def test_a_target_that_is_no_text_is_refused() -> None:
    """It is refused as a ValueError, as what is cut."""
    with pytest.raises(ValueError, match="utf-8"):
        decode_request(b"\0\0\0\1\0\1\xff")
