"""Bodies below /api/v1/transactions that begin, keep and end a transaction; outcomes and labels. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from tidelock.wire.failure import Failure
from tidelock.wire.rows import Row

#: The rights of a token whose request names none.
TOKEN_RIGHTS: Final = ("append", "replace")

# The agent checks these texts itself: its message names the values that it offers.
_Isolation = Annotated[
    str, msgspec.Meta(extra_json_schema={"enum": ["snapshot", "read_committed", "serializable"]})
]
#: Where a commit is to be applied before it is answered.
Wait = Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["home", "copies", "all"]})]
_State = Annotated[
    str,
    msgspec.Meta(extra_json_schema={"enum": ["open", "failed", "sealed", "committed", "rolled_back"]}),
]


class BeginRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /transactions.

    Attributes:
        label: Unique name of this piece of work.
        batch: Number of the batch if the label belongs to a streaming query.
        isolation: Which commits of others its statements see.
        min_csn: Its snapshot must contain this CSN.
        fresh: Its snapshot must contain every commit that was acknowledged before.
        lease_s: How long the home waits for a sign of life, in seconds; null: the agent's default.
        meta: Own data, kept in the commit record.
        progress: Text that the commit keeps with the label.
        key: A repetition with the same key receives the same transaction while that is open.
    """

    label: str | None = None
    batch: int | None = None
    isolation: _Isolation = "snapshot"
    min_csn: int | None = None
    fresh: bool = False
    lease_s: float | None = None
    meta: dict[str, Any] | None = None
    progress: str | None = None
    key: str | None = None


class Begun(msgspec.Struct, frozen=True):
    """A transaction that accepts statements.

    Attributes:
        tid: Its id.
        snapshot_csn: The CSN at which it reads.
        lease_s: How long its home waits for a sign of life, in seconds.
    """

    tid: str
    snapshot_csn: int
    lease_s: float


class TransactionInfo(Row, frozen=True):
    """A transaction as its home shows it.

    Attributes:
        tid: Its id.
        state: Its state.
        snapshot_csn: The CSN at which it was begun.
        statement_csn: The CSN at which its last statement read; it may differ under read_committed.
        isolation: Which commits of others its statements see.
        label: Its label.
        batch: The number of its batch if the label belongs to a streaming query.
        tables: Names of the tables that it has changed.
        rows: Rows that it has added.
        parts: Parts that it has added.
        removed_parts: Parts that it has removed.
        csn: CSN of its commit.
        error: Why it accepts no statements any more.
        lease_left_s: Seconds until its lease ends, if it has one.
        meta: Own data of its client.
    """

    shown: ClassVar[tuple[str, ...]] = (
        "tid",
        "state",
        "label",
        "tables",
        "rows",
        "parts",
        "csn",
        "lease_left_s",
    )

    tid: str
    state: _State
    snapshot_csn: int
    statement_csn: int
    isolation: _Isolation
    label: str | None
    batch: int | None
    tables: list[str]
    rows: int
    parts: int
    removed_parts: int
    csn: int | None
    error: str | None
    lease_left_s: float | None
    meta: dict[str, Any] | None = None


class LeaseAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to a heartbeat.

    Attributes:
        lease_s: The lease that begins now, in seconds.
        state: The state of the transaction.
        why: The error that has ended it, or made it fail; left out if it has no error.
    """

    lease_s: float
    state: _State
    why: Failure | None = None


class CommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /transactions/{tid}/commit.

    Attributes:
        wait: Where the commit is to be applied before it is answered.
        timeout_s: How long the agent may take, in seconds; null: its `commit_timeout_s`.
        label: The label, for a transaction that was begun without one.
        batch: The batch of that label.
        progress: Text that the commit keeps with the label, for a transaction that was begun without it.
    """

    wait: Wait = "home"
    timeout_s: float | None = None
    label: str | None = None
    batch: int | None = None
    progress: str | None = None


class CommitAnswer(msgspec.Struct, frozen=True):
    """A transaction that is committed.

    Attributes:
        tid: Its id.
        csn: CSN of the commit; null for a transaction that changed nothing.
        time_ms: The commit's effective time (Unix, ms); null if `csn` is null, 0 if it is not known here yet.
        state: Always `committed`.
    """

    tid: str
    csn: int | None
    time_ms: int | None = None
    state: _State = "committed"


class EndAnswer(msgspec.Struct, frozen=True):
    """Answer to a rollback: the state of the transaction."""

    tid: str
    state: _State


class OutcomeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a transaction.

    Attributes:
        tid: Its id.
        outcome: Its outcome; `too_old`: older than the outcomes that are kept.
        csn: CSN of a commit; left out of all other outcomes.
        time_ms: Effective time of a commit (Unix, ms), 0 if not applied here yet; left out of all others.
        floor: For `too_old`: the oldest snapshot CSN whose outcomes are still known.
    """

    tid: str
    outcome: Literal["committed", "aborted", "running", "too_old"]
    csn: int | None = None
    time_ms: int | None = None
    floor: int | None = None


class LabelAnswer(msgspec.Struct, frozen=True):
    """The newest commit under a label.

    Attributes:
        label: The label.
        tid: The transaction that committed under it last; null for a label that is free.
        batch: The number of its batch if the label belongs to a streaming query.
        csn: CSN of that commit; null if it is not applied here, or its outcome was deleted.
        time_ms: Effective time of that commit (Unix, ms); null if `csn` is null.
        progress: Text that the commit keeps with the label; null if it keeps none.
    """

    label: str
    tid: str | None
    batch: int | None
    csn: int | None
    time_ms: int | None
    progress: str | None = None


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /transactions/{tid}/token.

    Attributes:
        rights: The rights of the token: append, replace, read, heartbeat, commit, by_name.
        tables: Names of the tables for which it is valid; null: all.
        ttl_s: Seconds after which it expires; null: the agent's `token_ttl_s`.
    """

    rights: tuple[str, ...] = TOKEN_RIGHTS
    tables: list[str] | None = None
    ttl_s: float | None = None


class TokenAnswer(msgspec.Struct, frozen=True):
    """A token of a transaction.

    Attributes:
        token: The token.
        expires_s: Time at which it expires, in seconds since 1970.
        url: The folder to which it gives access, for readers and writers of WebHDFS.
    """

    token: str
    expires_s: int
    url: str


class Confirmed(msgspec.Struct, frozen=True):
    """Answer to POST /transactions/{tid}/confirm/{table}: whether a job has waited for it."""

    waited: bool


class SealRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /transactions/{tid}/seal/{table}.

    Attributes:
        job: UUID of a job; null: everything that was written to the table.
        files: With `job`: exactly these files of the job are kept.
    """

    job: str | None = None
    files: list[str] = []
