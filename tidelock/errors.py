"""The errors of Tidelock: what a caller may conclude from each, and how each travels over HTTP.

A leaf module: every package may import it, it imports none of them. Certainty comes first in the tree, the
subsystem second (rule errors):

    TidelockError
    ├── RefusedError          certainly nothing happened
    ├── CommitUnknownError    a commit was asked for and its outcome could not be learned in time
    ├── UnavailableError      nothing was decided; the same call may be repeated
    └── CorruptError          data or state contradicts a checksum or an invariant

An agent answers an error as ``{"error": <class name>, "message": ..., "details": {...}}`` with the class's
HTTP status; ``from_wire`` turns that answer back into the same class on the client.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AccessDeniedError",
    "BadRequestError",
    "ClusterMismatchError",
    "CommitUnknownError",
    "ConfigError",
    "CorruptError",
    "DataDirInUseError",
    "DiskFullError",
    "DuplicateKeyError",
    "FencedError",
    "HeadMovedError",
    "LabelExistsError",
    "LabelMovedError",
    "LeaseExpiredError",
    "NoSuchCsnError",
    "NotCommittedError",
    "NotEnoughReplicasError",
    "RefusedError",
    "SchemaMismatchError",
    "SerializationConflictError",
    "SnapshotTooOldError",
    "StandbyError",
    "TableChangedError",
    "TableExistsError",
    "TidelockError",
    "TokenExpiredError",
    "TokenFinishedError",
    "TokenForeignError",
    "TokenForgedError",
    "TokenRightError",
    "TooLargeError",
    "TooManyPartsError",
    "TransactionClosedError",
    "UnavailableError",
    "UnknownTableError",
    "UnknownTransactionError",
    "UnsealedWriteError",
    "UnsupportedInTransactionError",
    "UnsupportedTypeError",
    "UpgradeNeededError",
    "from_wire",
]


class TidelockError(Exception):
    """Root of all errors that Tidelock raises on purpose.

    Args:
        message: What was expected, what was found, and the next step, in one or two sentences.
        details: Machine-readable facts (JSON values only), e.g. ``table``, ``csn``, ``holder``.
    """

    #: Whether the same call may simply be repeated with a chance of success.
    retriable: ClassVar[bool] = False
    #: The HTTP status an agent answers with.
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
        """Keep the message and the machine-readable details."""
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON body of the HTTP answer (docs/protocol.md, "Errors")."""
        return {"error": type(self).__name__, "message": self.message, "details": self.details}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and details, since errors cross process boundaries."""
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(kind: type[TidelockError], message: str, details: dict[str, Any]) -> TidelockError:
    return kind(message, **details)


class RefusedError(TidelockError):
    """The request was refused and certainly changed nothing."""

    http_status = 409


class BadRequestError(RefusedError):
    """The request itself is malformed: an argument is missing, of the wrong form or out of range."""

    http_status = 400


class AccessDeniedError(RefusedError):
    """The shared secret is missing or wrong."""

    http_status = 401


class TokenForgedError(AccessDeniedError):
    """The token is none that this cluster has made: malformed, changed, or signed by another key."""

    http_status = 403


class TokenForeignError(AccessDeniedError):
    """The token is of another cluster, or for a transaction of another home replica (``home``)."""

    http_status = 403


class TokenFinishedError(AccessDeniedError):
    """The token's transaction takes nothing more: its commit was asked for, or it has ended (``tid``)."""

    http_status = 403


class TokenExpiredError(AccessDeniedError):
    """The token's own time is over (``expires_s``), though its transaction may be open."""

    http_status = 403


class TokenRightError(AccessDeniedError):
    """The token does not allow this (``right``), or not in this table (``table``)."""

    http_status = 403


class SerializationConflictError(RefusedError):
    """Another transaction removed, or is removing, the same part (``table``, ``part``, ``holder``)."""

    retriable = True


class HeadMovedError(RefusedError):
    """A commit came between the validation of a serializable transaction and its own; validate again."""

    retriable = True


class LabelExistsError(RefusedError):
    """The label was committed before; ``csn`` is the CSN of that first run, ``tid`` its transaction.

    ``batch`` is the newest one where the label is a streaming query's. ``csn`` and ``tid`` are those of the
    batch asked for, None where that is older than what is kept.
    """


class LabelMovedError(RefusedError):
    """Others moved the label of a streaming query (``label``) again and again; begin again."""

    retriable = True


class SnapshotTooOldError(RefusedError):
    """The CSN lies below the horizon; ``min_csn`` is the oldest that can still be read."""

    http_status = 410


class NoSuchCsnError(RefusedError):
    """The CSN lies above the end of the log (``end_csn``), read after a write barrier."""

    http_status = 404


class TransactionClosedError(RefusedError):
    """The transaction is sealed, committed or rolled back (``state``) and takes no more statements."""


class UnknownTransactionError(RefusedError):
    """This replica has no such transaction; only its home replica knows an open one."""

    http_status = 404


class LeaseExpiredError(TransactionClosedError):
    """No sign of life from the client for the length of the lease, so the transaction was rolled back."""


class UnsealedWriteError(RefusedError):
    """A job that writes to a table has not ended: the transaction would commit a part of it (``table``)."""


class UnknownTableError(RefusedError):
    """There is no such table at that snapshot."""

    http_status = 404


class TableExistsError(RefusedError):
    """A table of this name exists already."""


class TableChangedError(RefusedError):
    """The table's definition changed after the transaction had read it; begin again."""

    retriable = True


class SchemaMismatchError(RefusedError):
    """The rows do not fit the table: a column missing, surplus, of another type, or null where required."""

    http_status = 400


class DuplicateKeyError(RefusedError):
    """Rows of an insert have a key twice, or one that is in the table (``table``, ``key``, ``keys``)."""


class UnsupportedTypeError(RefusedError):
    """The column type is none that Arrow, Parquet, Spark and DuckDB understand alike; the message maps it."""

    http_status = 400


class UnsupportedInTransactionError(RefusedError):
    """The statement cannot run inside a transaction."""

    http_status = 400


class TooLargeError(RefusedError):
    """A configured limit on sizes was passed (``limit``, ``found``)."""

    http_status = 413


class TooManyPartsError(RefusedError):
    """A partition has too many parts for another insert (``table``, ``partition``, ``limit``, ``found``).

    Compaction makes them fewer: insert again later, and in larger batches.
    """

    retriable = True
    http_status = 429


class FencedError(RefusedError):
    """The home replica was fenced by another; all its open transactions are aborted. Begin again."""

    retriable = True
    http_status = 503


class NotEnoughReplicasError(RefusedError):
    """The parts did not reach ``copies`` durable copies within the commit timeout; rolled back."""

    retriable = True
    http_status = 503


class NotCommittedError(RefusedError):
    """The commit could not be carried out now; it is certainly not committed and rolled back. Begin again."""

    retriable = True
    http_status = 503


class DiskFullError(RefusedError):
    """The replica's disk has no room for the rows; the transaction can only be rolled back."""

    http_status = 507


class ConfigError(RefusedError):
    """A setting is missing, unknown or contradicts another."""


class ClusterMismatchError(ConfigError):
    """The data directory belongs to another cluster, or ZooKeeper is older than what this replica saw."""


class DataDirInUseError(ConfigError):
    """Another agent runs on this data directory."""


class CommitUnknownError(TidelockError):
    """The outcome of a commit could not be learned in time; ask ``outcome(tid)`` or repeat ``commit()``."""

    http_status = 504

    @property
    def tid(self) -> str:
        """The transaction whose outcome is open."""
        return str(self.details.get("tid", ""))


class UnavailableError(TidelockError):
    """The service cannot answer now; nothing was decided and the same call may be repeated."""

    retriable = True
    http_status = 503


class StandbyError(UnavailableError):
    """This replica has not reached the CSN asked for (``snapshot_csn``); another may have."""


class CorruptError(TidelockError):
    """Bytes do not match their checksum, or stored state breaks an invariant; nothing doubtful was served."""


class UpgradeNeededError(CorruptError):
    """The bytes are whole but written by a newer version (``version`` or ``reason``); upgrade this replica.

    Where corruption stops an agent this stops it too: what it cannot read it must not skip (I15).
    """


def _classes(root: type[TidelockError]) -> dict[str, type[TidelockError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_classes(child))
    return found


_BY_NAME = _classes(TidelockError)

#: HTTP statuses from the first to below the second say that the request was refused.
_CLIENT_ERROR, _SERVER_ERROR = 400, 500


def from_wire(status: int, body: dict[str, Any]) -> TidelockError:
    """Rebuild the error that an agent answered with.

    An unknown name (a newer agent) becomes the nearest class that the status implies, so that certainty is
    never overstated: 503 is retriable, 4xx refused, anything else the root class.
    """
    kind = _BY_NAME.get(str(body.get("error")))
    if kind is None:
        if status == UnavailableError.http_status:
            kind = UnavailableError
        else:
            kind = RefusedError if _CLIENT_ERROR <= status < _SERVER_ERROR else TidelockError
    details = body.get("details")
    return kind(str(body.get("message", f"HTTP {status}")), **(details if isinstance(details, dict) else {}))
