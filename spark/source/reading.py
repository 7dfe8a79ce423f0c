"""Batch reads: planned once for each DataFrame, at the CSN that it was made with.

What runs where, in processes that share nothing but what is pickled: the source is made beside the driver
when the DataFrame is, and chooses the CSN then; a reader is made, and plans, for the first query on it, and
Spark keeps both for those that follow (where it pushes filters down, each query has a reader of its own);
tasks read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelock.client import Snapshot
from tidelock.errors import UnavailableError
from tidelock.spark.options import READ_MARGIN_S
from tidelock.spark.pinning import pin
from tidelock.spark.source.clusters import connected, replicas_of
from tidelock.spark.source.files import SnapshotFiles
from tidelock.spark.source.options import ReadOptions, Target
from tidelock.spark.source.pieces import Piece, groups, pieces
from tidelock.spark.source.queries import Query
from tidelock.spark.source.rows import columns_of, rows_of


@dataclass(frozen=True, slots=True)
class Way:
    """How tasks reach the files of snapshots.

    Attributes:
        addresses: `host:port` of the replicas' file systems, in the order in which they are asked.
        read_timeout_s: How long one may say nothing.
    """

    addresses: tuple[str, ...]
    read_timeout_s: float

    def files(self, csn: int) -> SnapshotFiles:
        """Return the files at a CSN; the caller closes them."""
        return SnapshotFiles(csn, self.addresses, read_timeout_s=self.read_timeout_s)


class Pieces(InputPartition):
    """What one task reads."""

    def __init__(self, found: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = found


def choose(options: ReadOptions) -> tuple[int, Mapping[str, Any]]:
    """Choose the CSN of a DataFrame and pin it for a while; returns it with the definition of the table.

    Raises:
        UnknownTableError: There is no such table at the CSN.
        NoSuchCsnError, SnapshotTooOldError, StandbyError: The CSN cannot be read.
        BadRequestError: There is no such replica.
        UnavailableError: No replica answers.
    """
    target = options.target
    with connected(target) as db:
        snapshot, _ = pin(db, options.csn, target.replica, at=options.at_ms, lease=options.lease_s)
        try:
            return snapshot.csn, snapshot.table(target.table)
        finally:
            snapshot.leave()


def way_to(status: Mapping[str, Any], target: Target, *, failover: bool) -> Way:
    """Return how tasks reach snapshots; errors as `replicas_of`."""
    replicas = replicas_of(status, target)
    used = replicas if failover else replicas[:1]
    timeout_s = float(status["wait_bound_s"]) + READ_MARGIN_S
    return Way(tuple(replica.data for replica in used), timeout_s)


class TidelockReader(DataSourceReader):
    """Reads a table at one CSN, by one plan; see the module.

    Raises as `choose`, and:
        SchemaMismatchError: The schema does not fit the table.
    """

    def __init__(self, options: ReadOptions, csn: int, schema: StructType) -> None:
        target = options.target
        self._csn = csn
        with connected(target) as db:
            snapshot, status = pin(db, csn, target.replica, lease=options.lease_s)
            try:
                self._columns = columns_of(snapshot.table(target.table), schema)
                self._way = way_to(status, target, failover=options.failover)
                self._query = self._condition(options, status, csn)
                self._plan = _plan(snapshot, options)
            finally:
                snapshot.leave()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        """Leave the plan out: what a task is to read comes to it alone."""
        return {**self.__dict__, "_plan": []}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task is to read; raises rather than give fewer rows."""
        if not isinstance(partition, Pieces):
            return  # what PySpark makes of a table without rows
        if self._query is not None:
            yield from self._query.rows([piece.part for piece in partition.pieces])
            return
        files = self._way.files(self._csn)
        try:
            for piece in partition.pieces:
                yield from rows_of(files, piece, self._columns)
        finally:
            files.close()

    def _condition(self, options: ReadOptions, status: Mapping[str, Any], csn: int) -> Query | None:
        """Return what replicas are asked for where rows have to meet a condition."""
        if options.where is None:
            return None
        target = options.target
        api = {row["id"]: row["api"] for row in status["replicas"]}
        replicas = replicas_of(status, target)[: None if options.failover else 1]
        addresses = tuple(filter(None, (api[replica.id] for replica in replicas)))
        if not addresses:
            names = ", ".join(replica.id for replica in replicas)
            raise UnavailableError(f"{names} has not told the address of its API yet; try again")
        query = Query(
            csn,
            target.table,
            options.where,
            self._columns.wanted,
            target.scheme,
            addresses,
            target.token,
        )
        for _ in query.rows(()):  # of no part: a condition that is wrong is told before any task begins
            pass
        return query


def _plan(snapshot: Snapshot, options: ReadOptions) -> list[Pieces]:
    # Of a part that is read by a query all rows are.
    cut = options.partition_bytes if options.where is None else None
    found = pieces(snapshot.parts(options.target.table), cut)
    return [Pieces(group) for group in groups(found, options.partition_bytes)]
