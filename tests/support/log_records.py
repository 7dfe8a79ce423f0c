"""Records as they stand in a log that a test made by hand."""

from __future__ import annotations

from tidelock.csnlog.core import codec
from tidelock.csnlog.core.ids import Csn, Stamp
from tidelock.csnlog.core.model import LogRecord, Record


def in_log(csn: Csn, record: Record, *, zxid: int | None = None) -> LogRecord:
    """Return a record at a CSN; its zxid is by default 1,000 above the CSN, its time is its writer's."""
    stamp = Stamp(csn + 1000 if zxid is None else zxid, record.time_ms)
    return LogRecord(csn, record, stamp, codec.digest(codec.encode_record(record)))
