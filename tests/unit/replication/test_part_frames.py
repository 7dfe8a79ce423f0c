"""Frames of an answer about many parts: any cut of the bytes, and what no agent sends."""

from __future__ import annotations

import random
import struct

import msgspec
import pytest

from tests.support.machines.names import part
from tidelock.replication.core.part_frames import (
    GROUP_BYTES_MAX,
    FrameReader,
    LackedPart,
    PartFrame,
    SentPart,
    encode,
)

FRAMES: list[PartFrame] = [
    SentPart(part("p1"), b"some bytes"),
    LackedPart(part("p2"), "not held"),
    SentPart(part("p3"), b""),
    LackedPart(part("p4"), ""),
    SentPart(part("p5"), random.Random(1).randbytes(5000)),
]


@pytest.mark.parametrize("step", [1, 7, 100, 10_000])
def test_frames_are_read_from_pieces_of_any_size(step: int) -> None:
    """Each frame is given out once, as soon as its last byte is there."""
    raw = b"".join(map(encode, FRAMES))
    reader = FrameReader()
    found = [frame for at in range(0, len(raw), step) for frame in reader.feed(raw[at : at + step])]
    assert found == FRAMES


def test_the_whole_frames_before_a_cut_are_found() -> None:
    """Wherever an answer breaks off, what came whole counts, and no more."""
    ends = [len(b"".join(map(encode, FRAMES[:count]))) for count in range(len(FRAMES) + 1)]
    raw = b"".join(map(encode, FRAMES))
    for cut in range(0, len(raw), 3):
        assert len(FrameReader().feed(raw[:cut])) == sum(end <= cut for end in ends[1:])


def framed(**head: object) -> bytes:
    """Return a frame with any head."""
    raw = msgspec.msgpack.encode(head)
    return struct.pack(">I", len(raw)) + raw


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK",
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        framed(length=3),
        framed(part="r1-1-1", length=-1),
        framed(part="r1-1-1", length=GROUP_BYTES_MAX + 1),
    ],
    ids=["no frame", "no head", "no part", "fewer than none", "too many bytes"],
)
def test_what_no_agent_sends_is_refused(raw: bytes) -> None:
    """Nothing is waited for, or kept in memory, because of a head that cannot be right."""
    with pytest.raises(ValueError, match=r"."):
        FrameReader().feed(raw)


def test_the_parts_of_one_answer_have_a_bound_together() -> None:
    """Many frames that are right by themselves are not more than one answer may have."""
    half = SentPart(part("p1"), bytes(GROUP_BYTES_MAX // 2))
    reader = FrameReader()
    assert reader.feed(encode(half)) == [half]
    assert reader.feed(encode(half)) == [half]
    with pytest.raises(ValueError, match="0 that are left"):
        reader.feed(encode(SentPart(part("p2"), b"x"))[:-1])
