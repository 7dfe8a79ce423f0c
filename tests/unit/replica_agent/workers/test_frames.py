"""Frames between the agent and its worker processes."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tidelock.replica_agent.workers.frames import pack, read_frame, receive_frame


@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 70_000])
async def test_a_frame_arrives_as_it_was_sent(payload: bytes) -> None:
    """Both sides read a frame back, however it was cut in transit."""
    reader = asyncio.StreamReader()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frame = pack(payload)
        reader.feed_data(frame[:3])
        reader.feed_data(frame[3:])
        theirs.sendall(frame)
        assert await read_frame(reader) == payload
        assert receive_frame(ours) == payload


def test_a_frame_of_pieces_is_the_frame_of_their_bytes() -> None:
    """Pieces are joined, so that no caller has to copy them first."""
    assert pack(b"a", b"", b"bc") == pack(b"abc")


async def test_the_end_is_told_from_a_frame() -> None:
    """An incomplete frame is not a frame: the other side has ended."""
    reader = asyncio.StreamReader()
    reader.feed_data(pack(b"half")[:-1])
    reader.feed_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await read_frame(reader)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(pack(b"half")[:-1])
        theirs.close()
        with pytest.raises(EOFError):
            receive_frame(ours)
