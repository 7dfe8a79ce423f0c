"""The bytes in ZooKeeper: they read back, they are canonical, and unreadable ones get the right error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core import codec
from tidelock.csnlog.core.ids import CSN_MAX, Csn, PartId, ReplicaId, TableId
from tidelock.csnlog.core.log_time import WITNESSES_MAX, ClockReading
from tidelock.csnlog.core.model import (
    AddPart,
    BlockedBy,
    ClusterState,
    DefineTable,
    EndTag,
    Entry,
    LabelState,
    LockState,
    Manifest,
    MemberState,
    Progress,
    Record,
    RecordKind,
    RemovePart,
    ReplicaPhase,
    SessionState,
    SharePart,
    TagCsn,
    TidRecord,
)
from tidelock.errors import CorruptError, UpgradeNeededError

R1 = ReplicaId("r1")
TEXT = st.text(max_size=12)
INT = st.integers(0, CSN_MAX)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(AddPart, TEXT.map(TableId), TEXT.map(PartId), TEXT, INT, INT, TEXT),
    st.builds(RemovePart, TEXT.map(TableId), TEXT.map(PartId)),
    st.builds(DefineTable, TEXT.map(TableId), INT, OBJECT),
    st.builds(
        SharePart,
        TEXT.map(TableId),
        TEXT.map(PartId),
        TEXT,
        INT,
        INT,
        TEXT,
        source=TEXT.map(PartId),
        columns_csn=st.none() | INT.map(Csn),
    ),
    st.builds(TagCsn, TEXT, INT.map(Csn), st.none() | st.floats(0, 1e9)),
    st.builds(EndTag, TEXT, st.booleans()),
)
TIDS = st.builds(
    TidRecord,
    tid=TEXT,
    entries=st.lists(ENTRIES, max_size=4).map(tuple),
    manifest=st.none() | st.builds(Manifest, TEXT.map(PartId), INT, TEXT, INT),
    holders=st.lists(TEXT.map(ReplicaId), max_size=3).map(tuple),
    label=st.none() | TEXT,
    data_change=st.booleans(),
    meta=st.none() | OBJECT,
    batch=st.none() | INT,
)
RECORDS = st.builds(
    Record, st.sampled_from(RecordKind), TEXT.map(ReplicaId), INT, st.lists(TIDS, max_size=3).map(tuple)
)


@given(RECORDS)
def test_a_record_reads_back(record: Record) -> None:
    """Reading returns the written record, and writing it again gives the same bytes."""
    data = codec.encode_record(record)
    assert codec.decode_record(data) == record
    assert codec.encode_record(codec.decode_record(data)) == data


@given(st.lists(TIDS, min_size=1, max_size=4), INT, st.lists(INT, max_size=WITNESSES_MAX).map(tuple))
def test_a_commit_is_put_together_from_encoded_tids(
    tids: list[TidRecord], time_ms: int, witnesses: tuple[int, ...]
) -> None:
    """Each transaction is encoded once; the record has the canonical bytes, of the computed size."""
    payload = [codec.encode_tid(tid) for tid in tids]
    data = codec.encode_commit(R1, ClockReading(time_ms, witnesses), payload)
    assert data == codec.encode_record(Record(RecordKind.COMMIT, R1, time_ms, tuple(tids), witnesses))
    bound = codec.commit_bytes(R1, [len(one) for one in payload])
    assert len(data) <= bound <= len(data) + 32 + 20 * WITNESSES_MAX


def test_the_bytes_of_a_record() -> None:
    """The format is fixed: version first, short names, defaults left out (docs/protocol.md#bytes)."""
    record = Record(
        RecordKind.COMMIT,
        R1,
        1700000000000,
        (
            TidRecord(
                "7-r1-2-9",
                (
                    AddPart(TableId("d.t"), PartId("r1-2-1"), "y=1994", 3, 4096, "0" * 32),
                    RemovePart(TableId("d.t"), PartId("r2-1-1")),
                    DefineTable(TableId("d.u"), 0, {"name": "d.u"}),
                ),
                holders=(R1, ReplicaId("r2")),
                label="nightly",
                data_change=False,
                meta={"job": 1},
                batch=17,
            ),
        ),
    )
    assert codec.encode_record(record) == (
        b'{"v":1,"k":"commit","h":"r1","w":1700000000000,"t":[{"i":"7-r1-2-9","e":['
        b'{"k":"add","t":"d.t","p":"r1-2-1","d":"y=1994","r":3,"b":4096,"c":"00000000000000000000000000000000"},'
        b'{"k":"del","t":"d.t","p":"r2-1-1"},{"k":"ddl","t":"d.u","n":0,"s":{"name":"d.u"}}],'
        b'"h":["r1","r2"],"l":"nightly","x":false,"u":{"job":1},"b":17}]}'
    )
    assert codec.encode_record(Record(RecordKind.END, R1, 5)) == b'{"v":1,"k":"end","h":"r1","w":5}'


@given(st.lists(ENTRIES, max_size=5))
def test_a_manifest_reads_back(entries: list[Entry]) -> None:
    """The entries of a large transaction come back as they were."""
    data = codec.encode_entries(entries)
    assert codec.decode_entries(data) == tuple(entries)
    assert data.startswith(b'{"v":1,"entries":[')


#: For each form: a value, its writer and its reader.
FORMS: list[tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = [
    (Record(RecordKind.GENESIS, R1, 0), codec.encode_record, codec.decode_record),
    ((RemovePart(TableId("d.t"), PartId("p")),), codec.encode_entries, codec.decode_entries),
    (SessionState(3, "d1", "n1", "serving"), codec.encode_session, codec.decode_session),
    (MemberState("h:1", "h:2", "rack", {"zone": "a"}), codec.encode_member, codec.decode_member),
    (MemberState(), codec.encode_member, codec.decode_member),
    (ClusterState("c", 1, 2, 1000), codec.encode_cluster, codec.decode_cluster),
    (Progress(Csn(7), Csn(3)), codec.encode_progress, codec.decode_progress),
    (Progress(Csn(7), Csn(3), (Csn(3), Csn(5))), codec.encode_progress, codec.decode_progress),
    (Progress(Csn(7), Csn(3), (), Csn(9)), codec.encode_progress, codec.decode_progress),
    (
        Progress(
            *(Csn(7), Csn(3)),
            phase=ReplicaPhase.BLOCKED,
            since_ms=1,
            blocked_by=BlockedBy(Csn(8), "7-r1-1-1", PartId("r1-1-1")),
        ),
        codec.encode_progress,
        codec.decode_progress,
    ),
    (LabelState("1-r1-1-1"), codec.encode_label, codec.decode_label),
    (LabelState("1-r1-1-1", 0), codec.encode_label, codec.decode_label),
    (LockState("1-r1-1-1", merge=True, path="y=1"), codec.encode_lock, codec.decode_lock),
    (LockState("1-r1-1-1", low=[1, "a"], high=None), codec.encode_lock, codec.decode_lock),
]


def test_progress_of_before_the_phases_follows() -> None:
    """A replica that an older version runs publishes no phase: it counts as one that follows."""
    assert codec.decode_progress(b'{"v":1,"snapshot":7,"oldest":3}') == Progress(Csn(7), Csn(3))
    assert Progress(Csn(7), Csn(3)).phase is ReplicaPhase.FOLLOWING


@pytest.mark.parametrize(("value", "encode", "decode"), FORMS)
def test_every_form_reads_back(
    value: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """Each znode's data says its version first and reads back."""
    assert encode(value).startswith(b'{"v":1')
    assert decode(encode(value)) == value


@pytest.mark.parametrize(("value", "encode", "decode"), FORMS)
def test_a_newer_version_asks_for_an_upgrade(
    value: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """Bytes of a newer version are no corruption, and are never read as a known version."""
    data = json.loads(encode(value)) | {"v": 2, "something": "new"}
    with pytest.raises(UpgradeNeededError, match="version 2") as caught:
        decode(json.dumps(data, separators=(",", ":")).encode())
    assert caught.value.details == {"version": 2}


@pytest.mark.parametrize(("value", "encode", "decode"), FORMS)
def test_an_unknown_field_asks_for_an_upgrade(
    value: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """A field that this version does not know may be essential, so it is never dropped."""
    data = encode(value).replace(b'{"v":1', b'{"v":1,"zzz":1', 1)
    with pytest.raises(UpgradeNeededError, match="zzz"):
        decode(data)


def test_an_unknown_kind_that_is_cut_off_is_corrupt() -> None:
    """The decoder stops at the kind, before it meets the end of the bytes."""
    with pytest.raises(CorruptError, match="expected a commit record of version 1, found"):
        codec.decode_record(b'{"v":1,"k":"merge","h":"r1","t":[{')


@pytest.mark.parametrize(("value", "encode", "decode"), FORMS)
@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_bytes_that_are_cut_off_are_corrupt(
    value: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], cut: int
) -> None:
    """A torn value is corruption, not a call for an upgrade."""
    with pytest.raises(CorruptError) as caught:
        decode(encode(value)[:cut])
    assert not isinstance(caught.value, UpgradeNeededError)


@pytest.mark.parametrize(
    "data",
    [
        b'{"v":1,"k":"merge","h":"r1","w":1}',
        b'{"v":1,"k":"commit","h":"r1","w":1,"t":[{"i":"1","e":[{"k":"mov","t":"d.t"}]}]}',
        b'{"v":1,"k":"commit","h":"r1","w":1,"t":[{"i":"1","zzz":0}]}',
        b'{"v":1,"k":"commit","h":"r1","w":1,"t":[{"i":"1","e":[{"k":"del","t":"d.t","p":"p","zzz":1}]}]}',
    ],
)
def test_unknown_kinds_inside_a_record_ask_for_an_upgrade(data: bytes) -> None:
    """Kinds of records and entries, and fields at any depth, are closed lists."""
    with pytest.raises(UpgradeNeededError, match="upgrade this replica"):
        codec.decode_record(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"\xff\xfe\x00",
        b"[]",
        b'"text"',
        b"{}",
        b'{"k":"end","h":"r1","w":5}',
        b'{"v":0,"k":"end","h":"r1","w":5}',
        b'{"v":"1","k":"end","h":"r1","w":5}',
        b'{"v":1,"k":"end","h":"r1"}',
        b'{"v":1,"k":"end","h":"r1","w":"5"}',
        b'{"v":1,"k":"end","h":"r1","w":5} {"v":1}',
        b'{"v":1,"k":"end","h":"r\xff","w":5}',
    ],
)
def test_nonsense_is_corrupt_and_is_shown(data: bytes) -> None:
    """All other bytes are corrupt, and the message shows them."""
    with pytest.raises(CorruptError, match="expected a commit record") as caught:
        codec.decode_record(data)
    assert not isinstance(caught.value, UpgradeNeededError)


@given(st.binary(max_size=64))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    """Any bytes give a value or a typed error."""
    for _, _, decode in FORMS:
        try:
            decode(data)
        except CorruptError:
            continue


@given(INT)
def test_epoch_and_csn_are_decimal_text(number: int) -> None:
    """Both read back, and an operator can read them."""
    assert codec.decode_epoch(codec.encode_epoch(number)) == number
    assert codec.decode_csn(codec.encode_csn(Csn(number))) == number
    assert codec.encode_csn(Csn(number)) == str(number).encode()


@pytest.mark.parametrize("data", [b"", b"-1", b"+1", b"01", b"1 ", b"x", b"\xd9\xa1", b"1_0"])
def test_other_text_is_no_number(data: bytes) -> None:
    """One number has one text."""
    with pytest.raises(CorruptError, match="decimal"):
        codec.decode_epoch(data)
    with pytest.raises(CorruptError, match="decimal"):
        codec.decode_csn(data)


def test_a_csn_has_63_bits() -> None:
    """A larger number is no CSN."""
    with pytest.raises(CorruptError, match="at most"):
        codec.decode_csn(str(CSN_MAX + 1).encode())


def test_the_checksum_is_xxh3_128() -> None:
    """The known value of the empty input, as 32 hexadecimal digits."""
    assert codec.checksum(b"") == "99aa06d3014798d86001c324468d497f"
