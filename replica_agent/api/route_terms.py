"""The terms of the table of routes: beginnings of paths, contents, parameters, groups of errors."""

from __future__ import annotations

from typing import Final

from tidelock.errors import (
    CheckViolationError,
    CommitUnknownError,
    DeclaredLostError,
    DiskFullError,
    DuplicateKeyError,
    FencedError,
    HeadMovedError,
    LabelExistsError,
    LabelMovedError,
    MembersChangedError,
    NoSuchCsnError,
    NotCommittedError,
    NotEnoughReplicasError,
    PartDamagedError,
    SchemaMismatchError,
    SerializationConflictError,
    SnapshotTooOldError,
    StandbyError,
    TableChangedError,
    TableModeError,
    TokenExpiredError,
    TokenFinishedError,
    TokenForeignError,
    TokenForgedError,
    TokenRightError,
    TooLargeError,
    TooManyPartsError,
    TransactionClosedError,
    UnknownTableError,
    UnknownTransactionError,
    UnsealedWriteError,
)
from tidelock.replica_agent.api.arrow import ARROW_STREAM
from tidelock.replica_agent.api.peer import BYTES
from tidelock.replica_agent.api.route import Content, Parameter

V1: Final = "/api/v1"
TX: Final = f"{V1}/transactions/{{tid}}"
PEER: Final = "/peer/v1"

ROWS: Final = Content(ARROW_STREAM, "Rows, as one complete Arrow IPC stream.")
WRITE: Final = Content(
    BYTES, "The length of a head (uint32, big-endian), the head (JSON), one Arrow IPC stream for each table."
)
NO_TYPE: Final = Content("*/*", "Bodies of WebHDFS, without a Content-Type: see Hadoop's own description.")

CSN: Final = Parameter(name="csn", kind="integer", meaning="The snapshot; default: what is applied here.")
WAITS: Final = ("home", "copies", "all")

#: Errors of any request about a transaction.
ABOUT_TX: Final = (TransactionClosedError, UnknownTransactionError)
TOKEN: Final = (
    TokenExpiredError,
    TokenFinishedError,
    TokenForeignError,
    TokenForgedError,
    TokenRightError,
)
#: Errors of statements.
STATEMENT: Final = (
    *ABOUT_TX,
    FencedError,
    UnknownTableError,
    TooLargeError,
    DiskFullError,
    PartDamagedError,
)
REMOVAL: Final = (*STATEMENT, SerializationConflictError)
ADDING: Final = (
    *REMOVAL,
    *(SchemaMismatchError, DuplicateKeyError, CheckViolationError, TableModeError, TooManyPartsError),
)
LANDING: Final = (
    *(
        UnknownTableError,
        TableModeError,
        TooLargeError,
        DiskFullError,
        SchemaMismatchError,
        TooManyPartsError,
    ),
    *(SerializationConflictError, CommitUnknownError, FencedError, NoSuchCsnError, StandbyError),
    PartDamagedError,
)
AT_CSN: Final = (NoSuchCsnError, SnapshotTooOldError, StandbyError)
COMMIT: Final = (
    *ABOUT_TX,
    CommitUnknownError,
    DeclaredLostError,
    FencedError,
    HeadMovedError,
    LabelExistsError,
    LabelMovedError,
    MembersChangedError,
    NotCommittedError,
    NotEnoughReplicasError,
    SerializationConflictError,
    TableChangedError,
    TooLargeError,
    UnsealedWriteError,
)
