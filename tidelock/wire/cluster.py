"""Bodies for people and monitoring: status, log, explain, health, and what operators order. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidelock.wire.transactions import TransactionInfo


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as another one sees it.

    Attributes:
        id: Its id.
        api: Address (`host:port`) of its API, empty where it is not known.
        data: Of its snapshot file system, likewise.
        rack: Where it stands.
        alive: Whether it shows a sign of life.
        state: Of the replica that answers: the state of its agent; of others `alive` or `silent`.
        snapshot_csn: The CSN up to which it has applied the log, as far as is known.
        oldest: The oldest CSN in use there, where it has said so.
        open: The CSNs of its long transactions.
    """

    id: str
    api: str = ""
    data: str = ""
    rack: str = ""
    alive: bool = True
    state: str = ""
    snapshot_csn: int | None = None
    oldest: int | None = None
    open: list[int] = []


class BlockedRecord(msgspec.Struct, frozen=True):
    """The next record cannot be applied: `part` of `tid` is missing, for `reason`."""

    csn: int
    tid: str
    part: str
    reason: str


class HorizonBound(msgspec.Struct, frozen=True):
    """The reason why the horizon does not rise further.

    Attributes:
        csn: The horizon may rise to it, not above it.
        kind: `pin`; `oldest`: what a replica has in use, or has not applied; `retention`; `asked`: nobody
            wanted more.
        name: Id of the pin, or of the replica.
    """

    csn: int
    kind: Literal["pin", "oldest", "retention", "asked"]
    name: str


class StatusAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a replica, and what it knows of the others.

    Attributes:
        id: The replica that answers.
        cluster_id: Id of the cluster.
        state: Of its agent (docs/protocol.md#agent-states).
        reason: Why it is in this state, where there is something to say.
        boot: Start number of its agent.
        snapshot_csn: The CSN up to which it has applied the log.
        end_csn: The end of the log, as far as it has seen it.
        cluster_csn: The CSN that all replicas have applied which are not struck, as far as is known.
        waiting_for: What keeps it from applying the next record.
        replicas: All replicas.
        tables: How many tables there are.
        copies: On so many replicas a commit is durable.
        wait_bound_s: How long it waits for a CSN before it sends a client on, in seconds.
        open_transactions: How many transactions are open here.
        horizon: Below this CSN nothing can be read.
        tail: Where the log that is kept begins.
        pins: How many pins there are, as it has last seen them.
        holding_back: What keeps the horizon from rising.
    """

    id: str
    cluster_id: str
    state: str = ""
    reason: str = ""
    boot: int = 0
    snapshot_csn: int
    end_csn: int = 0
    cluster_csn: int = 0
    waiting_for: BlockedRecord | None = None
    replicas: list[ReplicaStatus]
    tables: int = 0
    copies: int = 0
    wait_bound_s: float = 0.0
    open_transactions: int = 0
    horizon: int = 0
    tail: int = 0
    pins: int = 0
    holding_back: HorizonBound | None = None


class AddedPart(msgspec.Struct, frozen=True, tag="AddPart", tag_field="action"):
    """A part joins a table; see the record in docs/protocol.md#bytes."""

    table: str
    part: str
    path: str
    rows: int
    length: int
    checksum: str


class RemovedPart(msgspec.Struct, frozen=True, tag="RemovePart", tag_field="action"):
    """A part leaves its table."""

    table: str
    part: str


class DefinedTable(msgspec.Struct, frozen=True, tag="DefineTable", tag_field="action"):
    """A table gets a definition; `version` 0 is the first."""

    table: str
    version: int
    definition: dict[str, Any]


class ManifestInfo(msgspec.Struct, frozen=True):
    """The part that holds the entries of a large transaction, and how many there are."""

    part: str
    length: int
    checksum: str
    entries: int


class LoggedTransaction(msgspec.Struct, frozen=True):
    """One transaction of a record.

    Attributes:
        tid: Its id.
        entries: What it has done; empty where `manifest` names the part that says it.
        manifest: Of a large transaction.
        holders: Replicas that had durable copies when the record was written, the home first.
        label: Its label.
        data_change: False for a merge: no row is different after it.
        meta: The user's own data.
        batch: The number of its batch where the label is a streaming query's.
    """

    tid: str
    entries: list[AddedPart | RemovedPart | DefinedTable]
    manifest: ManifestInfo | None
    holders: list[str]
    label: str | None
    data_change: bool
    meta: dict[str, Any] | None
    batch: int | None


class LogEntry(msgspec.Struct, frozen=True):
    """A record of the CSN log.

    Attributes:
        csn: Its CSN.
        kind: `end` closes an epoch, `genesis` begins the log.
        home: The replica that wrote it.
        time_ms: By its clock (Unix, ms).
        tids: The transactions that become visible with it.
    """

    csn: int
    kind: Literal["commit", "end", "genesis"]
    home: str
    time_ms: int
    tids: list[LoggedTransaction]


class ExplainedPart(msgspec.Struct, frozen=True):
    """A part of a transaction on the replica that answers.

    Attributes:
        part: Its id.
        table: Name of its table.
        path: Of its partition.
        rows: Its rows.
        length: Its bytes.
        state: `held`, `wanted` or `quarantined`.
        file: Where it lies below the data directory; null if it is not held.
        csn: Of the commit; null before it is applied.
    """

    part: str
    table: str
    path: str
    rows: int
    length: int
    state: str
    file: str | None
    csn: int | None


class Explanation(msgspec.Struct, frozen=True):
    """The story of a transaction.

    Attributes:
        tid: Its id.
        home: Where it was begun.
        snapshot_csn: The CSN at which it was begun.
        outcome: `committed`, `aborted`, `running` or `tooold`.
        csn: Of the commit.
        asked: The replica that answers.
        here: What it is there, if that is its home and still knows it.
        parts: Its parts there.
        replicas: The CSN that each replica has applied, as far as is known.
        waiting_for: What keeps this replica from applying the next record.
    """

    tid: str
    home: str
    snapshot_csn: int
    outcome: Literal["committed", "aborted", "running", "tooold"]
    csn: int | None
    asked: str
    here: TransactionInfo | None
    parts: list[ExplainedPart]
    replicas: dict[str, int | None]
    waiting_for: BlockedRecord | None


class Health(msgspec.Struct, frozen=True):
    """The state of an agent, and why it is in it."""

    state: str
    reason: str


class OptimizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/optimize.

    Attributes:
        table: `name` or `namespace.name`.
        partition: Only this one: each partition column with its value.
        timeout_s: No merge begins after this time, in seconds.
        min_csn: Parts up to this CSN take part.
    """

    table: str
    partition: dict[str, Any] | None = None
    timeout_s: float = 60.0
    min_csn: int | None = None


class OptimizeAnswer(msgspec.Struct, frozen=True):
    """The merges that were made.

    Attributes:
        groups: Merges.
        parts_before: Parts of the table, or of the partition, before.
        parts_after: And after.
        bytes: Bytes of the parts that were merged.
        done: Whether nothing more can be merged; else the time was over.
        csn: The CSN that this replica has applied now.
    """

    groups: int
    parts_before: int
    parts_after: int
    bytes: int
    done: bool
    csn: int


class HorizonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/horizon: `csn` null: as far as it goes; `drop_pins`: end the pins below it."""

    csn: int | None = None
    drop_pins: bool = False


class HorizonAnswer(msgspec.Struct, frozen=True):
    """The horizon as it is now, and what keeps it from rising further."""

    horizon: int
    holding_back: HorizonBound
