"""Bodies for people and monitoring: status, log, explain, health, and requests of operators. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

import msgspec

from tidelock.wire.history import TableChangeInfo
from tidelock.wire.rows import Row, instant
from tidelock.wire.transactions import TransactionInfo


class BlockedPart(Row, frozen=True):
    """The next record of a replica, at `csn`, cannot be applied there: `part` of `tid` is missing."""

    csn: int
    tid: str
    part: str


class ReplicaStatus(Row, frozen=True, kw_only=True):
    """A replica as another one sees it.

    Attributes:
        id: Its id.
        api: Address (`host:port`) of its API, empty if it is not known.
        data: Address of its snapshot file system, empty if it is not known.
        rack: The rack of its host.
        alive: Whether it shows a sign of life.
        state: For the replica that answers, the state of its agent; for the others `alive` or `silent`.
        snapshot_csn: The CSN up to which it has applied the log, as far as is known.
        oldest: The oldest CSN in use there, if the replica has published it.
        open: The CSNs of its long transactions.
        phase: How it follows the log, as it has published: `starting`: it has not yet applied the records
            that existed at its start; `following`; `blocked`: a record waits there and nothing arrives;
            `full`: its disk has no room for copies.
        phase_since_ms: The time since when, by its clock (Unix, ms).
        blocked_by: The part that it lacks, if it is blocked or full.
        member: The state of its session: `serving`, `stopped` (never started), `fenced`, `struck`, `cloning`,
            `removed`.
        disk: Id of its data directory.
        draining: Whether an operator has it drained.
        held_records: Records that it holds back in ZooKeeper; 0 if it is struck or removed.
        held_bytes: Memory of ZooKeeper for them, as estimated.
        held_s: For how long it has been silent, or has applied nothing although there was something to apply,
            as the replica that answers has seen it (seconds). At `strike_timeout_s` it is struck.
    """

    shown: ClassVar[tuple[str, ...]] = ("id", "state", "alive", "member", "snapshot_csn", "rack", "draining")

    id: str
    api: str = ""
    data: str = ""
    rack: str = ""
    alive: bool = True
    state: str = ""
    snapshot_csn: int | None = None
    oldest: int | None = None
    open: list[int] = msgspec.field(default_factory=list)
    phase: str | None = None
    phase_since_ms: int | None = None
    blocked_by: BlockedPart | None = None
    member: str = ""
    disk: str = ""
    draining: bool = False
    held_records: int = 0
    held_bytes: int = 0
    held_s: float = 0.0

    @property
    def phase_since(self) -> datetime | None:
        """When this phase began, by the clock of the replica (UTC)."""
        return instant(self.phase_since_ms)


class StrikeBounds(Row, frozen=True, kw_only=True):
    """The settings `strike_timeout_s`, `max_records` and `max_records_bytes` of a replica."""

    timeout_s: float
    records: int
    bytes: int


class BlockedRecord(Row, frozen=True):
    """The next record cannot be applied: `part` of `tid` is missing, for `reason`."""

    csn: int
    tid: str
    part: str
    reason: str


class CloneProgress(Row, frozen=True, kw_only=True):
    """How much of a clone is here: parts and bytes of what is visible, and `percent` of the bytes."""

    percent: float
    bytes: int
    of_bytes: int
    parts: int
    of_parts: int


class HorizonBound(Row, frozen=True):
    """The reason why the horizon does not rise further.

    Attributes:
        csn: The horizon may rise to this CSN, not above it.
        kind: `pin`; `tag`; `oldest`: the oldest CSN that a replica uses, or has not applied; `retention`;
            `asked`: no higher CSN was requested.
        name: Id of the pin or of the replica, or the tag.
    """

    csn: int
    kind: Literal["pin", "tag", "oldest", "retention", "asked"]
    name: str


class ClockInfo(Row, frozen=True):
    """The wall clock of a replica, compared with the clocks that it knows.

    Attributes:
        off: Whether most of them say that it is off by more than `clock_offset_max_s`.
        offset_s: How far it is ahead of the middle one of them, in seconds; null if none is known.
        ahead_s: How far it is ahead of each: of replicas by their ids, of ZooKeeper's leader as `zookeeper`.
    """

    off: bool
    offset_s: float | None
    ahead_s: dict[str, float]


#: The words of a replica about a part.
HolderWord = Literal["holds", "reads", "lacks", "silent"]


class PartHolder(Row, frozen=True):
    """The word of a replica about a part that others miss.

    Attributes:
        replica: The replica.
        word: `holds`: it has read the part, and all bytes are right; `reads`: it reads it still; `lacks`;
            `silent`: it gave no answer.
        snapshot_csn: The CSN up to which it has applied the log, as far as is known.
        alive: Whether it shows a sign of life.
    """

    replica: str
    word: HolderWord
    snapshot_csn: int | None = None
    alive: bool = False


class LostPartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/resolve-lost.

    Attributes:
        part: The part, or the manifest, that replicas wait for.
        confirm: Declare it lost; otherwise the answer only says what would be lost.
        without: Silent replicas that may hold it, and are left out.
        by: The operator.
        why: The reason.
    """

    part: str
    confirm: bool = False
    without: list[str] = []
    by: str = ""
    why: str = ""


class LostPart(Row, frozen=True, kw_only=True, omit_defaults=True):
    """A part that is lost, the rows that go with it, and the word of each replica about it.

    Attributes:
        part: The part.
        kind: `part`, or `manifest`: the list of all changes of its transaction, none of which counts then.
        table: Its table; absent for a manifest, like the next three.
        path: Its partition.
        rows: Its rows.
        length: Its bytes.
        csn: The CSN from which on it would be visible.
        tid: Its transaction.
        label: The label of the transaction.
        replicas: The word of each replica that is not removed.
        why_not: Why it cannot be declared lost; absent if it can.
        declared: Whether it is declared lost now.
        by: The operator that declared it.
        why: The reason.
        without: Replicas that were left out.
        time_ms: When it was declared (Unix, ms).
    """

    part: str
    kind: Literal["part", "manifest"]
    csn: int
    tid: str
    replicas: list[PartHolder]
    table: str | None = None
    path: str | None = None
    rows: int | None = None
    length: int | None = None
    label: str | None = None
    why_not: str | None = None
    declared: bool = False
    by: str | None = None
    why: str | None = None
    without: list[str] = msgspec.field(default_factory=list)
    time_ms: int | None = None

    @property
    def time(self) -> datetime | None:
        """When it was declared lost (UTC)."""
        return instant(self.time_ms)


class SkippedRecordInfo(Row, frozen=True):
    """A record of the log that an operator has had skipped: all replicas pass over it.

    Attributes:
        csn: Its CSN.
        tids: The transactions in it, as far as its bytes show them.
        by: The operator.
        why: The reason.
        time_ms: When it was skipped (Unix, ms), by the clock of the operator's machine.
    """

    shown: ClassVar[tuple[str, ...]] = ("csn", "time", "by", "why", "tids")

    csn: int
    tids: list[str]
    by: str
    why: str
    time_ms: int

    @property
    def time(self) -> datetime | None:
        """When it was skipped (UTC)."""
        return instant(self.time_ms)


class SwitchInfo(Row, frozen=True):
    """A switch of an agent: its name, its value now, and the value that a restart restores."""

    name: str
    value: str
    configured: str


class SwitchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/switches: the name of a switch, and its new value as text."""

    name: str
    value: str


class SwitchesAnswer(msgspec.Struct, frozen=True):
    """All switches of an agent."""

    switches: list[SwitchInfo]


class StatusAnswer(Row, frozen=True, kw_only=True):
    """The state of a replica, and its knowledge of the others.

    Attributes:
        id: The replica that answers.
        cluster_id: Id of the cluster.
        state: State of its agent (docs/protocol.md#agent-states).
        reason: Why it is in this state, if a reason is known.
        boot: Start number of its agent.
        snapshot_csn: The CSN up to which it has applied the log.
        end_csn: The end of the log, as far as it has seen it.
        cluster_csn: The CSN that all replicas that are not struck have applied, as far as is known.
        waiting_for: What keeps it from applying the next record.
        clone: While its state is `cloning`: how much of the clone has arrived.
        replicas: All replicas.
        tables: Number of tables.
        copies: Number of replicas on which a commit is durable.
        wait_bound_s: How long it waits for a CSN before it refers a client to another replica, in seconds.
        read_wait_s: The same for a read of a file of a snapshot.
        open_transactions: Number of transactions that are open here.
        landed: Undecided transactions whose rows landed here; it brings them if their home does not.
        horizon: Below this CSN nothing can be read.
        tail: CSN at which the kept log begins.
        pins: Number of pins that it has last seen.
        holding_back: What keeps the horizon from rising.
        time_ms: Effective time (Unix, ms) of the CSN up to which it has applied the log.
        clock: Its wall clock.
        lost: The parts that operators have declared lost.
        skipped: The records that operators have had skipped.
        switches: What an operator can change, and may have changed, while the agent runs.
        strike: When a replica that holds others back is struck, by the settings of this one.
    """

    shown: ClassVar[tuple[str, ...]] = (
        "id",
        "state",
        "snapshot_csn",
        "cluster_csn",
        "end_csn",
        "time",
        "copies",
        "tables",
        "replicas",
    )

    id: str
    cluster_id: str
    state: str = ""
    reason: str = ""
    boot: int = 0
    snapshot_csn: int
    end_csn: int = 0
    cluster_csn: int = 0
    waiting_for: BlockedRecord | None = None
    clone: CloneProgress | None = None
    replicas: list[ReplicaStatus]
    tables: int = 0
    copies: int = 0
    wait_bound_s: float = 0.0
    read_wait_s: float = 0.0
    open_transactions: int = 0
    landed: list[str] = msgspec.field(default_factory=list)
    horizon: int = 0
    tail: int = 0
    pins: int = 0
    holding_back: HorizonBound | None = None
    time_ms: int = 0
    clock: ClockInfo | None = None
    lost: list[LostPart] = msgspec.field(default_factory=list)
    skipped: list[SkippedRecordInfo] = msgspec.field(default_factory=list)
    switches: list[SwitchInfo] = msgspec.field(default_factory=list)
    strike: StrikeBounds | None = None

    @property
    def time(self) -> datetime | None:
        """Effective time of the CSN up to which the replica has applied the log (UTC)."""
        return instant(self.time_ms)


class ExplainedPart(Row, frozen=True):
    """A part of a transaction on the replica that answers.

    Attributes:
        part: Its id.
        table: Name of its table.
        path: Path of its partition.
        rows: Number of its rows.
        length: Number of its bytes.
        state: `held`, `wanted` or `quarantined`.
        file: Its path below the data directory; null if it is not held.
        csn: CSN of the commit; null before the commit is applied.
    """

    part: str
    table: str
    path: str
    rows: int
    length: int
    state: str
    file: str | None
    csn: int | None


class Explanation(Row, frozen=True):
    """The history of a transaction.

    Attributes:
        tid: Its id.
        home: The replica where it was begun.
        snapshot_csn: The CSN at which it was begun.
        outcome: `committed`, `aborted`, `running` or `too_old`.
        csn: CSN of the commit.
        asked: The replica that answers.
        here: Its state there, if that replica is its home and still knows it.
        parts: Its parts there.
        replicas: The CSN that each replica has applied, as far as is known.
        waiting_for: What keeps this replica from applying the next record.
        time_ms: Effective time of the commit (Unix, ms).
        label: The label of the commit; that of an open transaction is in `here`.
        batch: The number of its batch if the label belongs to a streaming query.
        carrier: The transaction whose parts have its rows, if it has no own ones.
        holders: Replicas that had durable copies when the record was written; empty if it is not kept.
        applied: The replicas that have applied the commit, as far as is known.
        changes: What it has changed in each table.
    """

    tid: str
    home: str
    snapshot_csn: int
    outcome: Literal["committed", "aborted", "running", "too_old"]
    csn: int | None
    asked: str
    here: TransactionInfo | None
    parts: list[ExplainedPart]
    replicas: dict[str, int | None]
    waiting_for: BlockedRecord | None
    time_ms: int | None = None
    label: str | None = None
    batch: int | None = None
    carrier: str | None = None
    holders: list[str] = msgspec.field(default_factory=list)
    applied: list[str] = msgspec.field(default_factory=list)
    changes: list[TableChangeInfo] = msgspec.field(default_factory=list)

    @property
    def time(self) -> datetime | None:
        """Effective time of the commit (UTC)."""
        return instant(self.time_ms)


class Health(msgspec.Struct, frozen=True):
    """The state of an agent, and the reason for it."""

    state: str
    reason: str


class OptimizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/optimize.

    Attributes:
        table: `name` or `namespace.name`.
        partition: The only partition to merge: each partition column with its value.
        timeout_s: No merge begins after this time, in seconds.
        min_csn: Parts up to this CSN are merged.
    """

    table: str
    partition: dict[str, Any] | None = None
    timeout_s: float = 60.0
    min_csn: int | None = None


class OptimizeAnswer(Row, frozen=True):
    """The merges that were made.

    Attributes:
        groups: Number of merges.
        parts_before: Number of parts of the table, or of the partition, before the merges.
        parts_after: The number after the merges.
        bytes: Bytes of the parts that were merged.
        done: Whether nothing more can be merged; false if the time was over.
        csn: The CSN that this replica has applied now.
    """

    groups: int
    parts_before: int
    parts_after: int
    bytes: int
    done: bool
    csn: int


class HorizonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/horizon: `csn` null: as high as possible; `drop_pins`: end the pins below it."""

    csn: int | None = None
    drop_pins: bool = False


class HorizonAnswer(Row, frozen=True):
    """The current horizon, and the bound that keeps it from rising further."""

    horizon: int
    holding_back: HorizonBound
