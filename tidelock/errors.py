"""The errors of Tidelock: the conclusion that each allows, and its form over HTTP.

A leaf module: every package may import it, and it imports no other one. The classes are divided by certainty
first, and by subsystem second (rule errors):

    TidelockError
    ├── RefusedError          certainly nothing happened
    ├── CommitUnknownError    a commit was requested and its outcome could not be found in time
    ├── UnavailableError      nothing was decided; the same call may be repeated
    └── CorruptError          data or state contradicts a checksum or an invariant

An agent answers an error as ``{"error": <class name>, "message": ..., "details": {...}}`` with the class's
HTTP status; on the client :func:`from_wire` turns that answer into the same class again.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

__all__ = [
    "AccessDeniedError",
    "BadRequestError",
    "CatalogDamagedError",
    "CheckViolationError",
    "ClusterMismatchError",
    "CommitUnknownError",
    "ConfigError",
    "CorruptError",
    "DataDirInUseError",
    "DeclaredLostError",
    "DiskFullError",
    "DuplicateKeyError",
    "EncodedBodyError",
    "FencedError",
    "HeadMovedError",
    "LabelExistsError",
    "LabelMovedError",
    "LeaseExpiredError",
    "MembersChangedError",
    "MembershipError",
    "NoAnswerError",
    "NoConnectionError",
    "NoSuchCsnError",
    "NotCommittedError",
    "NotEnoughReplicasError",
    "PartDamagedError",
    "RefusedError",
    "SchemaMismatchError",
    "SerializationConflictError",
    "SnapshotClosedError",
    "SnapshotTooOldError",
    "StandbyError",
    "TableChangedError",
    "TableExistsError",
    "TableModeError",
    "TidelockError",
    "TokenExpiredError",
    "TokenFinishedError",
    "TokenForeignError",
    "TokenForgedError",
    "TokenRightError",
    "TooLargeError",
    "TooManyPartsError",
    "TransactionAgeError",
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
    """Base class of all errors that Tidelock raises on purpose.

    Args:
        message: What was expected, what was found, and the next step, in one or two sentences.
        details: Machine-readable facts (JSON values only), e.g. ``table``, ``csn``, ``holder``.
    """

    #: Whether the same call may succeed if it is simply repeated.
    retriable: ClassVar[bool] = False
    #: The HTTP status of an agent's answer.
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


class EncodedBodyError(BadRequestError):
    """The body is compressed (Content-Encoding): an agent accepts bodies only as they are."""

    http_status = 415


class AccessDeniedError(RefusedError):
    """The shared secret is missing or wrong."""

    http_status = 401


class TokenForgedError(AccessDeniedError):
    """The token was not made by this cluster: it is malformed, changed, or signed by another key."""

    http_status = 403


class TokenForeignError(AccessDeniedError):
    """The token belongs to another cluster, or to a transaction of another home replica (``home``)."""

    http_status = 403


class TokenFinishedError(AccessDeniedError):
    """The token's transaction accepts no more writes: its commit was requested, or it has ended (``tid``)."""

    http_status = 403


class TokenExpiredError(AccessDeniedError):
    """The token has expired (``expires_s``), though its transaction may be open."""

    http_status = 403


class TokenRightError(AccessDeniedError):
    """The token does not allow this operation (``right``), or not in this table (``table``)."""

    http_status = 403


class SerializationConflictError(RefusedError):
    """Another transaction removed, or is removing, the same part (``table``, ``part``, ``holder``)."""

    retriable = True


class HeadMovedError(RefusedError):
    """Another commit came between validation and commit of a serializable transaction; validate again."""

    retriable = True


class MembersChangedError(RefusedError):
    """Replicas, disks or ``copies`` kept changing while the copies of a commit were counted; begin again."""

    retriable = True
    http_status = 503


class MembershipError(RefusedError):
    """A change of the members is refused: too few replicas would be left, or the id is not usable."""


class LabelExistsError(RefusedError):
    """The label was committed before; ``csn`` is the CSN of that first run, ``tid`` its transaction.

    If the label belongs to a streaming query, ``batch`` is its newest committed batch. ``csn`` and ``tid``
    are then those of the requested batch, or None if they are not kept any more.
    """


class LabelMovedError(RefusedError):
    """Other transactions kept moving the label of a streaming query (``label``); begin again."""

    retriable = True


class SnapshotTooOldError(RefusedError):
    """The CSN is below the horizon; ``min_csn`` is the oldest CSN that can still be read."""

    http_status = 410


class NoSuchCsnError(RefusedError):
    """The CSN is above the end of the log (``end_csn``), which was read after a write barrier."""

    http_status = 404


class TransactionClosedError(RefusedError):
    """The transaction is sealed, committed or rolled back (``state``) and accepts no more statements."""


class SnapshotClosedError(RefusedError):
    """The program has closed this snapshot (``csn``)."""


class UnknownTransactionError(RefusedError):
    """This replica has no such transaction; only its home replica knows an open one."""

    http_status = 404


class TransactionAgeError(TransactionClosedError):
    """The transaction was open for longer than the agent allows, so it was rolled back (``held_csn``)."""


class LeaseExpiredError(TransactionClosedError):
    """The client did not renew the lease in time, so the transaction was rolled back."""


class UnsealedWriteError(RefusedError):
    """A job that writes to a table has not ended: the transaction would commit a part of it (``table``)."""


class UnknownTableError(RefusedError):
    """The table does not exist at that snapshot."""

    http_status = 404


class TableExistsError(RefusedError):
    """A table of this name exists already."""


class TableChangedError(RefusedError):
    """The table's definition changed after the transaction had read it; begin again."""

    retriable = True


class TagExistsError(RefusedError):
    """The tag names another CSN already (``csn``); move it, or choose another name."""


class TagsMovedError(RefusedError):
    """Other tags were made or ended, or the horizon rose, while a tag was made; try again."""

    retriable = True


class UnknownTagError(RefusedError):
    """There is no tag of this name; it was ended, or it never existed."""

    http_status = 404


class TableModeError(RefusedError):
    """Rows of a landing table come by land() alone, and those of other tables by transactions alone."""


class SchemaMismatchError(RefusedError):
    """The rows do not fit the table: a column is missing, surplus, of another type, or wrongly null."""

    http_status = 400


class DuplicateKeyError(RefusedError):
    """Rows of an insert have a key twice, or a key that is in the table (``table``, ``key``, ``keys``)."""


class CheckViolationError(RefusedError):
    """Rows break a check of their table (``table``, ``check``), or bring other values in a generated column.

    ``check`` is the name of either; ``rows`` and ``row`` tell which ones, if they were counted.
    """


class UnsupportedTypeError(RefusedError):
    """Arrow, Parquet, Spark and DuckDB do not all support the column type; the message names a substitute."""

    http_status = 400


class UnsupportedInTransactionError(RefusedError):
    """The statement cannot run inside a transaction."""

    http_status = 400


class TooLargeError(RefusedError):
    """A configured limit of size was exceeded (``limit``, ``found``)."""

    http_status = 413


class TooManyPartsError(RefusedError):
    """A partition has too many parts for another insert (``table``, ``partition``, ``limit``, ``found``).

    Compaction reduces their number: insert again later, and in larger batches.
    """

    retriable = True
    http_status = 429


class FencedError(RefusedError):
    """The home replica was fenced by another; all its open transactions are aborted. Begin again."""

    retriable = True
    http_status = 503


class NotEnoughReplicasError(RefusedError):
    """The commit lacks durable copies, and no byte of them has come for the commit timeout: rolled back."""

    retriable = True
    http_status = 503


class NotCommittedError(RefusedError):
    """The commit could not run now; the transaction is certainly rolled back. Begin again."""

    retriable = True
    http_status = 503


class DiskFullError(RefusedError):
    """The replica's disk has no room for the rows; the transaction can only be rolled back."""

    http_status = 507


class ConfigError(RefusedError):
    """A setting is missing, unknown or contradicts another setting."""


class ClusterMismatchError(ConfigError):
    """The data directory belongs to another cluster, or ZooKeeper is older than what this replica saw."""


class DataDirInUseError(ConfigError):
    """Another agent runs on this data directory."""


class CommitUnknownError(TidelockError):
    """The outcome of a commit could not be found in time; call ``outcome(tid)`` or repeat ``commit()``."""

    http_status = 504

    @property
    def tid(self) -> str:
        """Id of the transaction whose outcome is unknown."""
        return str(self.details.get("tid", ""))


class UnavailableError(TidelockError):
    """The service cannot answer now; nothing was decided and the same call may be repeated."""

    retriable = True
    http_status = 503


class NoConnectionError(UnavailableError):
    """No connection to the agent was established (``address``), so the request certainly did not leave."""


class NoAnswerError(UnavailableError):
    """The request left, and no whole answer was received (``address``): it may have run, or may still run."""


class StandbyError(UnavailableError):
    """This replica has not reached the requested CSN (``snapshot_csn``); another replica may have."""


class PartDamagedError(UnavailableError):
    """The bytes of a part are wrong at this replica (``part``, ``replica``), which fetches them again.

    Another replica has them: a read goes on there. A transaction whose home met them accepts rollback only:
    begin again.
    """


class CorruptError(TidelockError):
    """Bytes do not match their checksum, or stored state breaks an invariant; no doubtful data was served.

    A part that the replica fetches again by itself is a PartDamagedError.
    """


class CatalogDamagedError(CorruptError):
    """The file of a replica's catalog is no whole database, so its agent has to stop.

    Processes of an agent say so to each other. Clients hear that the replica has stopped (UnavailableError),
    and go on at another one.
    """


class DeclaredLostError(CorruptError):
    """The transaction is committed (``tid``, ``csn``), and an operator has declared it lost, or parts of it.

    No replica shows the rows of these parts (``parts``); ``by`` and ``why`` say who declared it, and the
    reason. What else the transaction has changed stays, unless its manifest is lost or the record of its CSN
    was skipped: then none of it counts.
    """

    http_status = 410


class UpgradeNeededError(CorruptError):
    """The bytes are whole, but a newer version wrote them (``version`` or ``reason``); upgrade this replica.

    The error stops an agent wherever corruption stops it: an agent must not skip data that it cannot read
    (I15).
    """


def _classes(root: type[TidelockError]) -> dict[str, type[TidelockError]]:
    classes = {root.__name__: root}
    for child in root.__subclasses__():
        classes.update(_classes(child))
    return classes


_BY_NAME = _classes(TidelockError)

#: HTTP statuses from the first number up to, not including, the second mean that the request was refused.
_CLIENT_ERROR, _SERVER_ERROR = 400, 500


def from_answer(status: int, body: bytes) -> TidelockError | None:
    """Rebuild the error in the body of an answer; None for a body that no agent has written."""
    try:
        wire = json.loads(body)
    except ValueError:
        return None
    return from_wire(status, wire) if isinstance(wire, dict) and "error" in wire else None


def from_wire(status: int, body: dict[str, Any]) -> TidelockError:
    """Rebuild the error of an agent's answer.

    An unknown name (of a newer agent) becomes the nearest class that the status implies, so that certainty is
    never overstated: 503 is UnavailableError, 4xx RefusedError, anything else the base class.
    """
    kind = _BY_NAME.get(str(body.get("error")))
    if kind is None:
        if status == UnavailableError.http_status:
            kind = UnavailableError
        else:
            kind = RefusedError if _CLIENT_ERROR <= status < _SERVER_ERROR else TidelockError
    details = body.get("details")
    return kind(str(body.get("message", f"HTTP {status}")), **(details if isinstance(details, dict) else {}))
