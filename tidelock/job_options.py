"""Options and settings of Spark's writer, for jobs that write into a transaction. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Settings of the session during the write; the Parquet writer reads these from the session alone.
SESSION: Final[Mapping[str, str]] = {
    # Spark's default is int96, which has no order, and no unit that a type of a table could name.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Parts hold proleptic Gregorian dates.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
#: Options of each job.
OPTIONS: Final[Mapping[str, str]] = {
    # Version 2 moves the files of a task to their final paths before its job has ended.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    # A job whose folder remains looks unfinished.
    "mapreduce.fileoutputcommitter.cleanup.skipped": "false",
    "parquet.summary.metadata.level": "NONE",
}
_MARK: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
_READ_TIMEOUT: Final = "dfs.webhdfs.socket.read-timeout"
#: Options of a job that writes no `_SUCCESS`: its caller seals it. A session may have a short timeout, for
#: reads; Hadoop keeps the one of the first use of an address.
UNMARKED: Final[Mapping[str, str]] = {_MARK: "false", _READ_TIMEOUT: "60s"}
#: Options of a job that is sealed by its last request, whose answer may take long.
MARKED: Final[Mapping[str, str]] = {_MARK: "true", _READ_TIMEOUT: "30m"}
