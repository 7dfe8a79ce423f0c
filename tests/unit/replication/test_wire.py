"""The bytes of a push: what is encoded is decoded, and nothing malformed gets through."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid, part_id
from tidelock.errors import BadRequestError, TooLargeError
from tidelock.replication.core import wire
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import PartMeta, SealedTid

HOME = ReplicaId("r1")
STATS = {"a": {"min": 1, "max": "ü"}}
FORM = "0123456789abcdef"


def meta(number: int, data: bytes, **changes: object) -> PartMeta:
    """Describe part `number` of table db.t as having these bytes."""
    described = PartMeta(part_id(HOME, 3, number), TableId("db.t"), "", 1, len(data), checksum(data))
    return msgspec.structs.replace(described, **changes)


def tid(counter: int, home: ReplicaId = HOME) -> Tid:
    """Return transaction `counter` of a replica."""
    return Tid(Csn(7), home, 3, counter)


def body(tids: list[SealedTid], inline: dict[PartId, bytes], home: ReplicaId = HOME) -> bytes:
    """Encode a push into one piece."""
    return b"".join(wire.encode(home=home, boot=3, cluster_id="c", tids=tids, inline=inline))


def tampered(**changes: object) -> bytes:
    """Encode a push of one part whose header is changed after the checks of the encoder."""
    data = b"abc"
    whole = body([SealedTid(tid(1), (meta(1, data),))], {part_id(HOME, 3, 1): data})
    (length,) = struct.unpack(">I", whole[:4])
    header = msgspec.msgpack.decode(whole[4 : 4 + length]) | changes
    head = msgspec.msgpack.encode(header)
    return struct.pack(">I", len(head)) + head + data


@given(
    st.lists(
        st.lists(st.tuples(st.binary(max_size=200_000), st.booleans()), max_size=3), min_size=1, max_size=4
    )
)
def test_what_is_encoded_is_decoded(contents: list[list[tuple[bytes, bool]]]) -> None:
    """Every push comes out as it went in, whichever of its parts travel inline and however large they are."""
    number = 0
    tids, inline = [], {}
    for counter, parts in enumerate(contents):
        metas = []
        for data, travels in parts:
            number += 1
            metas.append(meta(number, data, stats=STATS if travels else None, form=FORM if travels else None))
            if travels:
                inline[metas[-1].part] = data
        tids.append(SealedTid(tid(counter), tuple(metas)))
    request = wire.decode(body(tids, inline))
    assert request == wire.StageRequest(HOME, 3, "c", tuple(tids), inline, {})


def test_large_parts_are_not_copied() -> None:
    """Small buffers are joined, a large one is handed on as the same object."""
    small, large = b"s" * 100, b"l" * (1 << 20)
    sealed = SealedTid(tid(1), (meta(1, small), meta(2, large), meta(3, small)))
    contents = {item.part: data for item, data in zip(sealed.parts, (small, large, small), strict=True)}
    buffers = wire.encode(home=HOME, boot=3, cluster_id="c", tids=[sealed], inline=contents)
    assert len(buffers) == 3
    assert buffers[1] is large


def test_a_flipped_byte_damages_its_transaction_only() -> None:
    """A part with wrong bytes damages its transaction; the others of the push are fine."""
    good, bad = b"a" * 300, b"b" * 300
    tids = [SealedTid(tid(1), (meta(1, good),)), SealedTid(tid(2), (meta(2, bad),))]
    whole = bytearray(body(tids, {tids[0].parts[0].part: good, tids[1].parts[0].part: bad}))
    whole[-1] ^= 1
    request = wire.decode(bytes(whole))
    assert list(request.damaged) == [str(tid(2))]
    assert request.inline[tids[0].parts[0].part] == good


def test_any_cut_is_refused() -> None:
    """A push that ends early or goes on too long is refused at whatever byte."""
    data = b"abc"
    whole = body([SealedTid(tid(1), (meta(1, data),))], {part_id(HOME, 3, 1): data})
    for length in range(len(whole)):
        with pytest.raises(BadRequestError):
            wire.decode(whole[:length])
    with pytest.raises(BadRequestError, match="does not belong together"):
        wire.decode(whole + b"x")


@pytest.mark.parametrize(
    "changes",
    [
        {"tids": []},
        {"tids": [{"tid": "7-r1-3-1", "parts": []}]},
        {"tids": [{"tid": "7-r1-3-1", "parts": ["r1-3-1", "r1-3-1"]}]},
        {"tids": [{"tid": "7-r1-3-1", "parts": ["r1-3-1"]}, {"tid": "7-r1-3-1", "parts": []}]},
        {"tids": [{"tid": "7-r1-3-1", "parts": ["r1-3-2"]}]},
        {"tids": [{"tid": "7-r1-3", "parts": ["r1-3-1"]}]},
        {"tids": [{"tid": "7-r2-3-1", "parts": ["r1-3-1"]}]},
        {"tids": "none"},
        {"parts": []},
    ],
)
def test_headers_that_contradict_themselves_are_refused(changes: dict[str, object]) -> None:
    """A header that names parts or transactions twice, not at all, or of another home is refused."""
    with pytest.raises(BadRequestError):
        wire.decode(tampered(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"part": "../../etc/passwd"},
        {"part": "r1-3-1\n"},
        {"checksum": "0"},
        {"length": -1},
        {"rows": -1},
        {"kind": "other"},
    ],
)
def test_a_malformed_part_is_refused(changes: dict[str, object]) -> None:
    """A part id that would name another file, and other impossible facts, are refused."""
    part = {"part": "r1-3-1", "table": "db.t", "path": "", "rows": 1, "length": 3} | {
        "checksum": checksum(b"abc"),
        "inline": True,
    }
    tids = [{"tid": "7-r1-3-1", "parts": [changes.get("part", "r1-3-1")]}]
    assert wire.decode(tampered(tids=[{"tid": "7-r1-3-1", "parts": ["r1-3-1"]}], parts=[part])).damaged == {}
    with pytest.raises(BadRequestError):
        wire.decode(tampered(tids=tids, parts=[part | changes]))


def test_a_header_that_no_peer_takes_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of the receiver is kept by the sender, with the size it found."""
    monkeypatch.setattr(wire, "HEADER_BYTES_MAX", 50)
    with pytest.raises(TooLargeError) as raised:
        body([SealedTid(tid(1), (meta(1, b"abc"),))], {})
    assert raised.value.details["limit"] == 50
