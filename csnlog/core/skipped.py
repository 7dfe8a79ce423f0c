"""Records that an operator has had skipped: when that is allowed, and how replicas pass over them. Pure.

A record that no agent can read, or that contradicts what is applied, stops every replica at the CSN before
it. The word of an operator lets them pass over it as over a record without transactions (rule
skipped-records).

All replicas must take the word for the same record, and none may go on that has not heard of it. So the multi
of the word raises the fence of every member. Each later boot reads all words before the raise of its own
fence, which is a compare-and-set, and keeps them: what a boot knows of skipped records never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

import msgspec

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.fence import seize
from tidelock.csnlog.core.ids import Csn, ReplicaId, Stamp, Tid
from tidelock.csnlog.core.model import (
    REMOVED,
    DefineTable,
    LabelState,
    LogRecord,
    Progress,
    Record,
    RecordKind,
    SessionState,
    SkipPart,
    SkippedRecord,
)
from tidelock.csnlog.core.roster import raised as raised_roster
from tidelock.csnlog.core.store import Check, Create, Delete, Node, Op, SetData
from tidelock.errors import CorruptError

#: The words that a boot knows, by CSN.
Skips = Mapping[Csn, SkippedRecord]
NO_SKIPS: Final[Skips] = MappingProxyType({})

#: A transaction as each version writes it: its tid is the first field.
_TID: Final = re.compile(rb'\{"i":"([0-9A-Za-z_-]{1,200})"')


def advice(csn: Csn) -> str:
    """Return the next step for an operator whose replicas all stop at a record."""
    return (
        f"if all replicas stop here and no upgrade helps, `tidelock admin skip-record {csn}` shows the "
        "record and lets them pass over it"
    )


def passed_over(csn: Csn, data: bytes, stamp: Stamp, word: SkippedRecord) -> LogRecord:
    """Return a skipped record as replicas take it: an empty one, with the stamp and digest of the real one.

    It names no clocks, so its effective time is that of the CSN before.

    Raises:
        CorruptError: The word is about another record.
    """
    found = codec.digest(data)
    if found != word.digest:
        raise CorruptError(
            f"expected the record with digest {word.digest} at CSN {csn}, which {word.by} has had skipped, "
            f"found one with digest {found}: was ZooKeeper set back?",
            csn=csn,
        )
    kind = RecordKind.END if word.closes else RecordKind.COMMIT
    return LogRecord(csn, Record(kind, ReplicaId(""), 0), stamp, found, word)


def shown_instead(applied: Csn, passed: AbstractSet[Csn], skips: Skips) -> Csn | None:
    """Return the first skipped record that a catalog has applied as it was written; None if there is none.

    Args:
        applied: The CSN up to which the catalog has applied the log.
        passed: The records that it has passed over.
        skips: The words of operators.
    """
    return min((csn for csn in skips if csn <= applied and csn not in passed), default=None)


class Member(msgspec.Struct, frozen=True):
    """A replica, as the znodes show it that decide about a word.

    Attributes:
        session: Its session znode.
        progress: Its progress znode.
    """

    replica: ReplicaId
    session: Node
    progress: Node

    @property
    def state(self) -> SessionState:
        """Its session."""
        return codec.decode_session(self.session.data)

    @property
    def reached(self) -> Progress:
        """Its progress."""
        return codec.decode_progress(self.progress.data)


class Facts(msgspec.Struct, frozen=True):
    """All that ZooKeeper shows about a record, as one session has read it behind a barrier.

    Attributes:
        csn: Its CSN.
        node: Its znode.
        epoch: The znode ``csn/epoch``.
        roster: The znode ``replicas``.
        labels_dir: The znode ``labels``.
        closes: Whether a later epoch has begun and no record of its own epoch follows.
        members: The replicas.
        labels: The labels that its multi has written and no later one, by path.
        definitions: The paths of tables and lost parts of which the same holds.
        word: The word by which it is skipped already.
        first: Whether no record was ever skipped.
    """

    csn: Csn
    node: Node
    epoch: Node
    roster: Node
    labels_dir: Node
    closes: bool
    members: tuple[Member, ...]
    labels: Mapping[str, Node]
    definitions: tuple[str, ...]
    word: SkippedRecord | None
    first: bool

    @property
    def record(self) -> Record | None:
        """The record, if this version can read it."""
        try:
            return codec.decode_record(self.node.data)
        except CorruptError:
            return None

    @property
    def unreadable(self) -> str:
        """Why this version cannot read the record; "" if it can."""
        try:
            codec.decode_record(self.node.data)
        except CorruptError as error:
            return error.message
        return ""

    @property
    def tids(self) -> tuple[str, ...]:
        """Its transactions, as far as its bytes show them."""
        if self.record is not None:
            return tuple(tid.tid for tid in self.record.tids)
        return tuple(dict.fromkeys(_tids_in(self.node.data)))

    @property
    def shows_all(self) -> bool:
        """Whether its bytes show all of its transactions: they are whole, if of a newer version."""
        return self.record is not None or _is_json(self.node.data)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _tids_in(data: bytes) -> Iterator[str]:
    for text in _TID.findall(data):
        try:
            yield str(Tid.parse(text.decode()))
        except ValueError:
            continue


def why_not(facts: Facts, *, decodable: bool) -> str:
    """Return why a record cannot be skipped, with the next step; "" if it can.

    Args:
        facts: All that is known of it.
        decodable: The operator knows that this version can read it, so that its commits may be good ones.
    """
    csn, word, record = facts.csn, facts.word, facts.record
    if word is not None:
        return f"it is skipped already: {word.by} has had it skipped ({word.why}); nothing is left to do"
    if record is not None and record.kind is not RecordKind.COMMIT:
        return f"expected a record of commits, found one of kind {record.kind.value}, which holds none"
    shown = [
        f"{member.replica} at CSN {member.reached.most}"
        for member in facts.members
        if member.state.state != REMOVED and member.reached.most >= csn
    ]
    if shown:
        return (
            f"expected that no replica has applied CSN {csn}, found {', '.join(shown)}: what a replica has "
            "shown is not taken back; upgrade or repair the others"
        )
    if facts.definitions or (record is not None and _defines(record)):
        found = ", ".join(facts.definitions) or "an entry of that kind"
        return (
            f"expected a record that only adds and removes parts, found that its commit has written {found}: "
            "a table definition or an operator's word is not taken back; upgrade the agents, or make the "
            "tree again without the record (rebuild-zookeeper)"
        )
    if record is not None and not decodable:
        return (
            "expected a record that cannot be read, found one that this version reads, so its transactions "
            "may be good commits: if they contradict what is applied, add --decodable"
        )
    return ""


def _defines(record: Record) -> bool:
    entries = (entry for tid in record.tids for entry in tid.entries)
    return any(isinstance(entry, DefineTable | SkipPart) for entry in entries)


def word_of(facts: Facts, *, by: str, why: str, time_ms: int) -> SkippedRecord:
    """Return the word about a record."""
    boots = {} if facts.shows_all else {str(one.replica): one.state.boot for one in facts.members}
    return SkippedRecord(
        csn=facts.csn,
        zxid=facts.node.created.zxid,
        digest=codec.digest(facts.node.data),
        by=by,
        why=why,
        time_ms=time_ms,
        tids=facts.tids,
        closes=facts.closes,
        doubted=boots,
    )


def may_hide(word: SkippedRecord, tid: Tid) -> bool:
    """Return whether a transaction that is in no other record may be in the bytes of a skipped one.

    It is of a boot that the word has fenced, and it reads below the record.
    """
    return tid.snapshot < word.csn and tid.boot <= word.doubted.get(tid.home, 0)


def ops_of(facts: Facts, word: SkippedRecord, nonce: str) -> tuple[Op, ...]:
    """Return the multi of a word: it fences every member, and is refused if anything moved that decided it.

    The raise of the roster makes the first boot of a replica that was registered meanwhile read again. The
    labels of its transactions become free, since the work under them does not count; that of a streaming
    query goes back by one batch.
    """
    ops: list[Op] = [
        Check(tree.record(facts.csn), facts.node.version),
        Check(tree.EPOCH, facts.epoch.version),
        raised_roster(facts.roster),
    ]
    for member in facts.members:
        if member.state.state == REMOVED:
            continue
        fenced = seize(tree.session(member.replica), member.session, member.state.boot, nonce)
        assert fenced is not None, "it is seized at the boot that was read"
        ops += (fenced, Check(tree.progress(member.replica), member.progress.version))
    if facts.labels:
        ops.append(SetData(tree.LABELS, facts.labels_dir.data, facts.labels_dir.version))
        ops += (_freed(path, node) for path, node in facts.labels.items())
    if facts.first:
        ops.append(Create(tree.SKIPPED_RECORDS))
    return *ops, Create(tree.skipped_record(facts.csn), codec.encode_skipped(word))


def _freed(path: str, node: Node) -> Op:
    state = codec.decode_label(node.data)
    if not state.batch:
        return Delete(path, node.version)
    # Its former batches must not be committed twice. Whether the one before keeps progress, catalogs know.
    former = LabelState(state.tid, state.batch - 1, progress=True)
    return SetData(path, codec.encode_label(former), node.version)
