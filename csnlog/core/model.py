"""The records of the CSN log as frozen values: the content of a commit record and of other znodes. Pure.

The bytes are made in :mod:`tidelock.csnlog.core.codec` and nowhere else. Field names are short on the wire,
since a record is bounded (384 KiB) and carries many transactions. A reader refuses content that it does not
know and never drops it: a field that an older agent ignored could decide what the record means.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, Stamp, TableId

#: Version of every byte form below, the field ``v`` of each znode. A reader that meets another version stops
#: and never guesses.
VERSION = 1


class AddPart(msgspec.Struct, frozen=True, tag="add", tag_field="k", forbid_unknown_fields=True):
    """Log entry: one immutable part joins a table.

    Attributes:
        table: Full table name, ``namespace.table``.
        part: Part id, unique forever.
        path: Hive-style partition path without slashes at the ends, ``""`` when the table has no partitions.
        rows: Rows of the part.
        length: Bytes of the Parquet range.
        checksum: XXH3-128 of these bytes, 32 hexadecimal digits.
    """

    table: TableId = msgspec.field(name="t")
    part: PartId = msgspec.field(name="p")
    path: str = msgspec.field(name="d")
    rows: int = msgspec.field(name="r")
    length: int = msgspec.field(name="b")
    checksum: str = msgspec.field(name="c")

    @property
    def shared(self) -> tuple[PartId | None, Csn | None]:
        """The part whose bytes it shares, and the CSN whose columns they have; None: the record says it."""
        return None, None


class SharePart(
    AddPart, frozen=True, tag="share", tag_field="k", forbid_unknown_fields=True, omit_defaults=True
):
    """Log entry: as :class:`AddPart`; the new part has the bytes of parts that exist (rule shared-bytes).

    Also rows that have landed, whose bytes may have other columns than the table at the record.

    Attributes:
        source: The part whose bytes they are, or were first: it may be removed, and collected. A part that
            has landed names itself.
        columns_csn: The CSN at which the table had the columns that the bytes have; None: that of the record.
    """

    source: PartId = msgspec.field(name="o")
    columns_csn: Csn | None = msgspec.field(name="w", default=None)

    @property
    def shared(self) -> tuple[PartId | None, Csn | None]:
        """The part whose bytes it shares, and the CSN whose columns they have; None: the record says it."""
        return self.source, self.columns_csn


class RemovePart(msgspec.Struct, frozen=True, tag="del", tag_field="k", forbid_unknown_fields=True):
    """Log entry: a part leaves its table at the CSN of the record; its bytes stay until the horizon."""

    table: TableId = msgspec.field(name="t")
    part: PartId = msgspec.field(name="p")


class DefineTable(msgspec.Struct, frozen=True, tag="ddl", tag_field="k", forbid_unknown_fields=True):
    """Log entry: ``tables/<table>`` gets this definition.

    ``version`` is the data version that the znode has after this commit: 0 for a create, one more for every
    later change, so that a follower knows the version to check without asking ZooKeeper (tables are never
    deleted).
    """

    table: TableId = msgspec.field(name="t")
    version: int = msgspec.field(name="n")
    definition: dict[str, Any] = msgspec.field(name="s")

    @property
    def drops(self) -> bool:
        """Whether the table does not exist from this CSN on."""
        return False


class SkipPart(msgspec.Struct, frozen=True, tag="skip", tag_field="k", forbid_unknown_fields=True):
    """Log entry of an operator: a part that an earlier record adds is lost, and no replica shows it.

    A lost manifest takes its transaction with it: nobody knows the entries, so none of them counts.

    Attributes:
        table: Full table name; empty for a manifest.
        part: The part, or the manifest.
        rows: Its rows; 0 for a manifest.
        csn: The CSN of the record that adds it.
        tid: The transaction that added it.
        by: The operator.
        why: The reason that the operator gave.
        time_ms: The time of this word by the clock of its home (Unix, ms), for people.
        without: Replicas that could not say whether they hold it.
    """

    table: TableId = msgspec.field(name="t")
    part: PartId = msgspec.field(name="p")
    rows: int = msgspec.field(name="r")
    csn: Csn = msgspec.field(name="n")
    tid: str = msgspec.field(name="i")
    by: str = msgspec.field(name="w")
    why: str = msgspec.field(name="y")
    time_ms: int = msgspec.field(name="z")
    without: tuple[ReplicaId, ...] = msgspec.field(name="o", default=())


class ChangeTable(DefineTable, frozen=True, tag="alter", tag_field="k", forbid_unknown_fields=True):
    """Log entry: as :class:`DefineTable`, with a definition that earlier versions would misread.

    They stop at it. It drops a table, gives it another name, or creates one under the name of an earlier one,
    or one with nested types or other names of columns than they know (ADR 0060).
    A definition with ``dropped`` ends the table: all its parts leave it at this CSN, and it has no later one.
    """

    @property
    def drops(self) -> bool:
        """Whether the table does not exist from this CSN on."""
        return bool(self.definition.get("dropped"))


class TagEntry(msgspec.Struct, frozen=True):
    """A log entry that concerns all tables, and no table alone."""

    @property
    def table(self) -> TableId:
        """No table, as of a lost manifest."""
        return TableId("")


class TagCsn(TagEntry, frozen=True, tag="tag", tag_field="k", forbid_unknown_fields=True):
    """Log entry: a CSN gets a name, or a name gets another CSN; the history from it on is kept (rule tags).

    Attributes:
        name: The tag.
        csn: The CSN.
        keep_s: The tag ends so many seconds after this record; None: it stays until it is ended.
    """

    name: str = msgspec.field(name="g")
    csn: Csn = msgspec.field(name="n")
    keep_s: float | None = msgspec.field(name="e", default=None)


class EndTag(TagEntry, frozen=True, tag="untag", tag_field="k", forbid_unknown_fields=True):
    """Log entry: a tag ends, and holds no history any more.

    Attributes:
        name: The tag.
        expired: Its time was over; otherwise a user has ended it.
    """

    name: str = msgspec.field(name="g")
    expired: bool = msgspec.field(name="x", default=False)


#: A definition of a table.
Definition = DefineTable | ChangeTable
Entry = AddPart | SharePart | RemovePart | Definition | SkipPart | TagCsn | EndTag


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entries of a large transaction, stored and replicated like a part under the id ``part``."""

    part: PartId = msgspec.field(name="p")
    length: int = msgspec.field(name="b")
    checksum: str = msgspec.field(name="c")
    entries: int = msgspec.field(name="n")


class TidRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One transaction inside a commit record (rule commit).

    Attributes:
        tid: Textual tid.
        entries: The log entries. With a ``manifest``, which lists the parts that are added and removed, they
            are the others: definitions of tables, declared losses. They precede what the manifest lists.
        manifest: The part with the entries that are too many for the record.
        holders: Replicas that had durable copies when the record was written, home first.
        label: Name that makes a repeated run harmless, or None.
        data_change: False for compaction: the rows visible are the same before and after.
        meta: Up to 1 KiB (as JSON) of the user's own data.
        batch: Number of the batch where the label is a streaming query's; None for any other label.
        carrier: The transaction of the same record in whose parts its rows are, with those of others; None if
            it has parts of its own, or none.
        rows: Number of its rows in each table, where it has a carrier.
        progress: Text of the user's own that is kept with the label, or None.
    """

    tid: str = msgspec.field(name="i")
    entries: tuple[Entry, ...] = msgspec.field(name="e", default=())
    manifest: Manifest | None = msgspec.field(name="m", default=None)
    holders: tuple[ReplicaId, ...] = msgspec.field(name="h", default=())
    label: str | None = msgspec.field(name="l", default=None)
    data_change: bool = msgspec.field(name="x", default=True)
    meta: dict[str, Any] | None = msgspec.field(name="u", default=None)
    batch: int | None = msgspec.field(name="b", default=None)
    carrier: str | None = msgspec.field(name="c", default=None)
    rows: dict[TableId, int] | None = msgspec.field(name="r", default=None)
    progress: str | None = msgspec.field(name="p", default=None)


class RecordKind(enum.Enum):
    """The kind of a record of the log."""

    COMMIT = "commit"
    END = "end"
    GENESIS = "genesis"


class Record(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"
):
    """One znode of the CSN log. Its CSN is not in it: ZooKeeper gives the number when the znode is created.

    Attributes:
        kind: COMMIT; END closes an epoch; GENESIS are the two records that a new log starts with.
        home: The replica that wrote it.
        time_ms: Its wall clock, Unix time in ms; :mod:`tidelock.csnlog.core.log_time` makes the effective
            time of it.
        tids: The transactions that become visible with it; a commit record without any is a tick.
        witnesses: The wall clocks of its peers, likewise. None: a version wrote it that asked none.
    """

    kind: RecordKind = msgspec.field(name="k")
    home: ReplicaId = msgspec.field(name="h")
    time_ms: int = msgspec.field(name="w")
    tids: tuple[TidRecord, ...] = msgspec.field(name="t", default=())
    witnesses: tuple[int, ...] | None = msgspec.field(name="c", default=None)


class LabelState(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"
):
    """Data of ``labels/<hash>``: the transaction that committed under this label last.

    Attributes:
        tid: That transaction.
        batch: Its number, where the label is a streaming query's: such a label moves, upwards only. None for
            any other label, which is made once.
        progress: Whether that commit keeps progress with the label. Catalogs have the text: this tells a
            replica that does not know the commit.
    """

    tid: str
    batch: int | None = None
    progress: bool = False

    @classmethod
    def of(cls, tid: TidRecord) -> LabelState:
        """Return what a transaction writes into its label."""
        return cls(tid.tid, tid.batch, tid.progress is not None)


class LockState(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"
):
    """Data of a removal lock: its holder, and what of the table it locks.

    The path of the lock says whether it locks a part, a table, a partition or a range of keys
    (:mod:`tidelock.csnlog.core.tree`).

    Attributes:
        tid: The transaction that holds it.
        merge: Whether the holder is a compaction, for which another transaction may wait.
        path: Partition path of the part, or of the partition; None for a whole table and for keys.
        low: Smallest key of a range, a JSON value that compares with the keys; None = no bound.
        high: Largest key of a range, inclusive; None = no bound.
    """

    tid: str
    merge: bool = False
    path: str | None = None
    low: Any = None
    high: Any = None


class SkipState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"):
    """Data of ``skips/<part>``: the entry of the record that was made together with it.

    A replica that waits for the part reads it here: the record comes later in the log than it can apply.
    """

    entry: SkipPart


class TagsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"):
    """Data of ``tags``: the CSN of each tag. The data version of the znode orders all changes of tags."""

    tags: dict[str, Csn]


class SkippedRecord(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"
):
    """Data of ``skipped-records/<csn>``: an operator's word that all replicas pass over a record.

    The record stays in the log as it is. It counts as one without transactions (rule skipped-records).

    Attributes:
        csn: Its CSN.
        zxid: The ``czxid`` of its znode.
        digest: SHA-256 of its bytes. Another record at this CSN is not skipped.
        by: The operator.
        why: The reason that the operator gave.
        time_ms: The time of this word by the clock of the operator's machine (Unix, ms), for people.
        tids: The transactions in it, as far as its bytes show them.
        closes: Whether it closes its epoch, as an END record does.
        doubted: Where its bytes may hide transactions, the last boot of each member that one may be of.
    """

    csn: Csn
    zxid: int
    digest: str
    by: str
    why: str
    time_ms: int
    tids: tuple[str, ...] = ()
    closes: bool = False
    doubted: dict[str, int] = {}


class EntryList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"):
    """Content of a manifest: the entries of one transaction that are too large for its record."""

    entries: tuple[Entry, ...]


class LogRecord(msgspec.Struct, frozen=True):
    """A record as it stands in the log.

    Attributes:
        csn: Its CSN.
        record: Its content.
        stamp: When its znode was created. Records in the order of the log have growing zxids.
        digest: SHA-256 of its bytes, 64 hexadecimal digits. With the stamp it tells this record from every
            other record that a ZooKeeper which was set back may hold at the same CSN (rule follow).
        skip: The word of an operator by which this record is skipped; ``record`` is an empty one then.
    """

    csn: Csn
    record: Record
    stamp: Stamp
    digest: str
    skip: SkippedRecord | None = None


#: The states in which a session znode shows its replica.
SERVING: Final = "serving"
#: Registered and never started.
STOPPED: Final = "stopped"
#: Another replica has raised its fence.
FENCED: Final = "fenced"
#: It holds back neither tail nor horizon, and clones before it serves again.
STRUCK: Final = "struck"
#: It was taken out by an operator; its id is never used again.
REMOVED: Final = "removed"
#: Its catalog is to be replaced by that of a peer; meanwhile it acknowledges nothing.
CLONING: Final = "cloning"


class SessionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"):
    """Data of ``replicas/<id>/session``; the data version of that znode is the replica's fence.

    Attributes:
        boot: Start number of the agent; raised at each start, and by another replica that fences this one.
        disk: Id of the data directory; an acknowledgement counts only while this is unchanged.
        nonce: Fresh with every write, so that a writer recognises its own write when the reply was lost.
        state: ``serving``, ``stopped``, ``fenced``, ``struck``, ``removed`` or ``cloning``.
    """

    boot: int
    disk: str
    nonce: str
    state: str


class MemberState(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"
):
    """Data of ``replicas/<id>``: the addresses of a replica, as host names with port."""

    api: str = ""
    data: str = ""
    rack: str = ""
    labels: dict[str, str] = {}


class ClusterState(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"
):
    """Data of ``cluster``: identity and the settings that all replicas of the shard share.

    Attributes:
        incarnation: Random name of this tree in ZooKeeper. A tree that is made again out of the replicas has
            another one, so a replica that took no part in it is refused. Empty in trees of before.
        made_of: The data directories out of which this tree was made again, by their disks: the CSN up to
            which each had applied. Empty in a tree that was never made again.
        founders: The replicas with which the tree was made the first time. Empty in trees of before, and in
            one that was made again.
    """

    cluster_id: str
    format_version: int
    copies: int
    epoch_limit: int
    incarnation: str = ""
    made_of: dict[str, Csn] = {}
    founders: tuple[ReplicaId, ...] = ()

    @property
    def closed(self) -> Csn:
        """The record with which a rebuild has closed the last epoch of the tree before; CSN_NONE if none has.

        It follows the CSN up to which the newest of the sources had applied.
        """
        return Csn(max(self.made_of.values()) + 1) if self.made_of else CSN_NONE


class Roster(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"
):
    """Data of ``replicas``: what decides whose copies count, and how many of them a commit needs.

    The data version of the znode is raised with every change that can take a copy away: of these values, of
    the disk or rack of a replica, and of the replicas that are struck or removed. Commits check it, so copies
    that were counted before such a change are counted again. A cluster of before has no data there: its
    ``copies`` are those of ``cluster``.

    Attributes:
        copies: Durable copies that a commit needs, the home's own among them.
        racks: Whether the acknowledgements of one rack count as one copy.
        draining: Replicas that begin no transactions and whose copies do not count, since they will leave.
    """

    copies: int
    racks: bool = False
    draining: tuple[ReplicaId, ...] = ()


#: Most CSNs of open transactions in the progress of a replica.
PROGRESS_OPEN_MAX = 8


class ReplicaPhase(enum.Enum):
    """How a replica follows the log. Homes wait for a replica that follows, and for no other one."""

    #: It has not yet applied all records that existed when its boot began.
    STARTING = "starting"
    #: It applies the log as it grows.
    FOLLOWING = "following"
    #: A record waits there, and for a while nothing of what the record lacks has arrived.
    BLOCKED = "blocked"
    #: Its disk has no room for copies.
    FULL = "full"


class BlockedBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part that the next record of a replica lacks.

    Attributes:
        csn: The CSN of the record.
        tid: The transaction that adds the part.
        part: The part, or the manifest.
    """

    csn: Csn
    tid: str
    part: PartId


class Progress(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"
):
    """Data of ``replicas/<id>/progress``: how far a replica has applied the log, and what is in use there.

    Attributes:
        snapshot: The snapshot CSN.
        oldest: The oldest S that is still in use.
        open: The S of transactions that have been open for a while, the oldest first: a hint for compaction.
            At most :data:`PROGRESS_OPEN_MAX`; the others are ignored until older ones have ended.
        published_max: The largest snapshot CSN that was ever published for the replica, where this one is
            smaller: its disk was replaced. Called ``told`` in the bytes.
        phase: How it follows the log.
        since_ms: The time since when, by its own wall clock (Unix, ms): for people. A decision about the
            replica takes the time for which its reader has seen it so, by the reader's monotonic clock.
        blocked_by: The part that its next record lacks; None unless the phase is BLOCKED or FULL.
    """

    snapshot: Csn
    oldest: Csn
    open: tuple[Csn, ...] = ()
    published_max: Csn = msgspec.field(name="told", default=CSN_NONE)
    phase: ReplicaPhase = ReplicaPhase.FOLLOWING
    since_ms: int = 0
    blocked_by: BlockedBy | None = None

    @property
    def most(self) -> Csn:
        """The largest snapshot CSN that was ever published for the replica."""
        return max(self.snapshot, self.published_max)


class PinState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=VERSION, tag_field="v"):
    """Data of ``pins/<id>``: the pinned CSN, its lifetime without renewal, and the replica of its client."""

    csn: Csn
    ttl_s: float
    owner: ReplicaId
