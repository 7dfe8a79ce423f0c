"""The bytes of everything that the CSN log keeps in ZooKeeper, and their decoding. Pure.

This is the only module that makes or reads these bytes (docs/protocol.md#bytes). The form is JSON, so that
an operator can read a znode with any tool, with the version ``v`` first, the fields in the order of
:mod:`tidelock.csnlog.core.model` and defaults left out: equal values have equal bytes.

Reading has three possible ends; unknown content is never skipped:

* the value;
* :class:`~tidelock.errors.UpgradeNeededError`: complete JSON of a newer version, or with a kind or field that
  this version does not know;
* :class:`~tidelock.errors.CorruptError`: anything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import xxhash

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import CSN_MAX, Csn, ReplicaId, Stamp
from tidelock.csnlog.core.log_time import WITNESSES_MAX, ClockReading
from tidelock.csnlog.core.model import (
    VERSION,
    ClusterState,
    Entry,
    EntryList,
    LabelState,
    LockState,
    LogRecord,
    MemberState,
    PinState,
    Progress,
    Record,
    RecordKind,
    Roster,
    SessionState,
    SkippedRecord,
    SkipState,
    TagsState,
    TidRecord,
)
from tidelock.errors import CorruptError, UpgradeNeededError

_T = TypeVar("_T")

#: The first bytes of every form: the version is first, so that the first bytes identify any later version.
_VERSION_FIRST = b'{"v":'
#: Beginnings of msgspec's messages for complete JSON that says something this version does not know.
_UNKNOWN_TO_US = ("Object contains unknown field", "Invalid enum value", "Invalid value")
#: Widest text of the clocks of a record; its size must not depend on the time of day, nor on the peers.
_WIDEST_CLOCK = ClockReading((1 << 63) - 1, ((1 << 63) - 1,) * WITNESSES_MAX)
_SHOWN_BYTES = 64

_encoder = msgspec.json.Encoder()


class _RawRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag=VERSION, tag_field="v"):
    """:class:`~tidelock.csnlog.core.model.Record` around transactions that are already encoded."""

    kind: RecordKind = msgspec.field(name="k")
    home: ReplicaId = msgspec.field(name="h")
    time_ms: int = msgspec.field(name="w")
    tids: tuple[msgspec.Raw, ...] = msgspec.field(name="t", default=())
    witnesses: tuple[int, ...] | None = msgspec.field(name="c", default=None)


class _Version(msgspec.Struct, frozen=True):
    v: int


def _form(kind: type[_T], what: str) -> tuple[Callable[[_T], bytes], Callable[[bytes], _T]]:
    """Return encoder and decoder for a kind; the decoder raises UpgradeNeededError or CorruptError."""
    decoder = msgspec.json.Decoder(kind)

    def decode(data: bytes) -> _T:
        return _decode(data, decoder, what)

    return _encoder.encode, decode


#: A record of the log.
encode_record, decode_record = _form(Record, "commit record")
#: ``replicas/<id>/session``.
encode_session, decode_session = _form(SessionState, "session state")
#: ``replicas/<id>``.
encode_member, decode_member = _form(MemberState, "member")
#: ``cluster``.
encode_cluster, decode_cluster = _form(ClusterState, "cluster state")
#: ``replicas``, once an operator has changed something there.
encode_roster, decode_roster = _form(Roster, "roster")
#: ``replicas/<id>/progress``.
encode_progress, decode_progress = _form(Progress, "progress")
#: ``labels/<hash>``.
encode_label, decode_label = _form(LabelState, "label")
#: ``pins/<id>``.
encode_pin, decode_pin = _form(PinState, "pin")
#: ``locks/<table>/...``.
encode_lock, decode_lock = _form(LockState, "removal lock")
#: ``skips/<part>``.
encode_skip, decode_skip = _form(SkipState, "lost part")
#: ``skipped-records/<csn>``.
encode_skipped, decode_skipped = _form(SkippedRecord, "skipped record")
_encode_tags, _decode_tags = _form(TagsState, "tags")
_encode_entry_list, _decode_entry_list = _form(EntryList, "manifest")


def encode_tags(tags: Mapping[str, Csn]) -> bytes:
    """Return the bytes of ``tags``."""
    return _encode_tags(TagsState(dict(tags)))


def decode_tags(data: bytes) -> Mapping[str, Csn]:
    """Decode ``tags``, which is empty before the first tag; raise UpgradeNeededError or CorruptError."""
    return _decode_tags(data).tags if data else {}


def decode_log_record(csn: Csn, data: bytes, stamp: Stamp) -> LogRecord:
    """Decode the bytes of the record at ``csn``; raise UpgradeNeededError or CorruptError."""
    return LogRecord(csn, decode_record(data), stamp, digest(data))


def digest(data: bytes) -> str:
    """Return the digest of a record's bytes: SHA-256, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Return the bytes of a manifest."""
    return _encode_entry_list(EntryList(tuple(entries)))


def decode_entries(data: bytes) -> tuple[Entry, ...]:
    """Decode a manifest; raise UpgradeNeededError or CorruptError."""
    return _decode_entry_list(data).entries


def encode_tid(tid: TidRecord) -> bytes:
    """Return the bytes of one transaction as a record contains them."""
    return _encoder.encode(tid)


def encode_commit(home: ReplicaId, clock: ClockReading, tids: Sequence[bytes]) -> bytes:
    """Return the bytes of a commit record from transactions encoded by :func:`encode_tid`.

    They equal ``encode_record(Record(Kind.COMMIT, home, clock.time_ms, tids, clock.witnesses))``: each
    transaction is encoded once, for its size and for its record.
    """
    raw = tuple(map(msgspec.Raw, tids))
    return _encoder.encode(_RawRecord(RecordKind.COMMIT, home, clock.time_ms, raw, clock.witnesses))


def commit_bytes(home: ReplicaId, tids: Sequence[int]) -> int:
    """Return the most bytes of a commit record whose transactions have these sizes in bytes."""
    return len(encode_commit(home, _WIDEST_CLOCK, (b"",))) + sum(tids) + len(tids)


def encode_definition(definition: Mapping[str, Any]) -> bytes:
    """Return the bytes of ``tables/<table>``."""
    return _encoder.encode({"v": VERSION, **definition})


def encode_epoch(epoch: int) -> bytes:
    """Return the bytes of ``csn/epoch``: decimal text."""
    return str(epoch).encode()


def decode_epoch(data: bytes) -> int:
    """Decode ``csn/epoch``; raise CorruptError when it is not a decimal number."""
    return _decimal(data, "epoch")


def encode_csn(csn: Csn) -> bytes:
    """Return the bytes of ``csn/tail`` and ``csn/horizon``: decimal text."""
    return str(csn).encode()


def decode_csn(data: bytes) -> Csn:
    """Decode ``csn/tail`` or ``csn/horizon``; CorruptError when it is not a decimal number of 63 bits."""
    value = _decimal(data, "CSN")
    if value > CSN_MAX:
        raise CorruptError(f"expected a CSN of at most {CSN_MAX}, found {value}")
    return Csn(value)


def checksum(data: bytes) -> str:
    """Return the XXH3-128 of some bytes as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def _decode(data: bytes, decoder: msgspec.json.Decoder[_T], what: str) -> _T:
    if data.startswith(_VERSION_FIRST):
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            raise _refused(data, what, str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptError(f"expected a {what} as JSON, found {_shown(data)}: {error}") from error
    raise CorruptError(f"expected a {what} as JSON with its version first, found {_shown(data)}")


def _refused(data: bytes, what: str, reason: str) -> CorruptError:
    """Return the error for refused bytes: UpgradeNeededError for a newer version, else CorruptError."""
    try:
        version = msgspec.json.decode(data, type=_Version).v
    except msgspec.DecodeError:  # also behind the place where the decoder has stopped: a record cut short
        version = 0
    if version > VERSION:
        return UpgradeNeededError(
            f"the {what} has version {version}, this agent reads up to {VERSION}: upgrade this replica",
            version=version,
        )
    if version == VERSION and reason.startswith(_UNKNOWN_TO_US):
        return UpgradeNeededError(
            f"the {what} holds what this agent does not know ({reason}): upgrade this replica", reason=reason
        )
    return CorruptError(f"expected a {what} of version {VERSION}, found {_shown(data)}: {reason}")


def _decimal(data: bytes, what: str) -> int:
    try:
        return tree.number(data.decode("ascii"))
    except ValueError as error:
        raise CorruptError(f"expected a {what} as decimal text, found {_shown(data)}") from error


def _shown(data: bytes) -> str:
    """Return the first bytes as text for a message."""
    return repr(data if len(data) <= _SHOWN_BYTES else data[:_SHOWN_BYTES] + b"...")
