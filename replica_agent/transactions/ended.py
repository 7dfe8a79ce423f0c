"""An ended transaction in a few bytes: its end, and what its home still answers about it.

A home remembers very many ended transactions (``closed_max``), so each is one text of bytes instead of the
objects of an open one: 3.6 KB became less than 200 bytes. An error is kept besides, up to a bound.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from tidelock.csnlog.core.ids import Csn, TableId, Tid
from tidelock.csnlog.core.results import Committed
from tidelock.errors import RefusedError, TidelockError, from_wire
from tidelock.replica_agent.transactions.transaction import (
    Isolation,
    Transaction,
    TransactionLease,
    TxState,
)

#: Bytes of the error of one ended transaction; a longer message is cut, and its details are left out.
ERROR_BYTES_MAX: Final = 512

_ISOLATIONS: Final = tuple(Isolation)


#: Bits of `_Ended.marks`; those above are the number of the isolation level.
_COMMITTED: Final = 1
_COMMIT_ASKED: Final = 2
_ISOLATION_SHIFT: Final = 2


class _Ended(msgspec.Struct, frozen=True, array_like=True):
    """The fields of an ended transaction; CSNs are differences from its snapshot CSN, which is large.

    Up to 15 fields need one byte to begin with, and each flag of its own would be one more.
    """

    snapshot: int
    ended_s: int
    marks: int
    csn_after: int | None
    time_ms: int
    statement_after: int
    rows: int
    parts: int
    removed: int
    tables: list[str]
    label: str | None
    batch: int | None
    key: str | None
    error: dict[str, Any] | None
    progress: int | None


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Ended)


def pack(tx: Transaction) -> bytes:
    """Return an ended transaction as bytes, without the parts of its tid that all of this boot share."""
    ending, snapshot = tx.ending, tx.tid.snapshot
    rows, parts, removed = ending.totals or (0, 0, 0)
    outcome = ending.outcome
    return _encoder.encode(
        _Ended(
            snapshot=snapshot,
            ended_s=math.ceil(ending.closed_at or 0.0),
            marks=(_COMMITTED if tx.state is TxState.COMMITTED else 0)
            | (_COMMIT_ASKED if ending.commit_asked else 0)
            | _ISOLATIONS.index(tx.isolation) << _ISOLATION_SHIFT,
            csn_after=None if outcome is None else outcome.csn - snapshot,
            time_ms=0 if outcome is None else outcome.time_ms,
            statement_after=max(0, tx.statements.statement_csn - snapshot),
            rows=rows,
            parts=parts,
            removed=removed,
            tables=tx.staged.touched,
            label=tx.label,
            batch=tx.batch,
            key=tx.key,
            error=None if ending.error is None else _bounded(ending.error),
            progress=tx.progress_digest,
        )
    )


def unpack(packed: bytes, tid: Tid) -> Transaction:
    """Return the transaction of :func:`pack` again, for requests that come late.

    Args:
        packed: The bytes.
        tid: A tid with its home, boot and counter; the snapshot CSN is in the bytes.
    """
    kept = _decoder.decode(packed)
    tx = Transaction(
        tid=Tid(Csn(kept.snapshot), tid.home, tid.boot, tid.counter),
        reads_from=Csn(kept.snapshot),
        begun_at=0.0,
        lease=TransactionLease(seconds=0.0, until=0.0),
        label=kept.label,
        batch=kept.batch,
        key=kept.key,
        ended_progress=kept.progress,
        isolation=_ISOLATIONS[kept.marks >> _ISOLATION_SHIFT],
    )
    tx.staged.tables = {TableId(table): 0 for table in kept.tables}
    tx.statements.statement_csn = Csn(kept.snapshot + kept.statement_after)
    if kept.marks & _COMMIT_ASKED:
        tx.ending.seal()
    csn = kept.csn_after
    tx.ending.close(
        TxState.COMMITTED if kept.marks & _COMMITTED else TxState.ROLLED_BACK,
        at=float(kept.ended_s),
        totals=(kept.rows, kept.parts, kept.removed),
        outcome=None if csn is None else Committed(Csn(kept.snapshot + csn), kept.time_ms),
        error=None if kept.error is None else from_wire(RefusedError.http_status, kept.error),
    )
    return tx


def _bounded(error: TidelockError) -> dict[str, Any]:
    wire = error.to_wire()
    if len(_encoder.encode(wire)) <= ERROR_BYTES_MAX:
        return wire
    message = error.message.encode()[: ERROR_BYTES_MAX // 2].decode(errors="ignore")
    details = {name: error.details[name] for name in ("tid", "state", "csn") if name in error.details}
    return wire | {"message": f"{message} ... (cut)", "details": details}
