"""Batch reads: planned once for each DataFrame, at the CSN that was chosen when the DataFrame was made.

The steps run in separate processes, which share only pickled objects. The source is made beside the driver
with the DataFrame, and chooses the CSN. A reader is made for the first query on the DataFrame, and plans the
read. Spark keeps both for later queries; but if it pushes filters down, each query has a separate reader.
Tasks read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelock.client import Snapshot
from tidelock.errors import UnavailableError
from tidelock.read_route import timeouts_s
from tidelock.spark.pinning import pin
from tidelock.spark.source.connections import connected, replicas_of
from tidelock.spark.source.files import SnapshotFiles
from tidelock.spark.source.options import ReadOptions, TableTarget
from tidelock.spark.source.pieces import Piece, groups, pieces
from tidelock.spark.source.queries import PartQuery
from tidelock.spark.source.rows import columns_of, rows_of
from tidelock.wire.rows import Fields


@dataclass(frozen=True, slots=True)
class SnapshotRoute:
    """The route of tasks to the files of snapshots.

    Attributes:
        addresses: `host:port` of the replicas' file systems, in the order in which they are asked.
        connect_s: Time to wait for a connection to a replica.
        read_s: Time to wait for the next byte of its answer.
    """

    addresses: tuple[str, ...]
    connect_s: float
    read_s: float

    def files(self, csn: int) -> SnapshotFiles:
        """Return the files at a CSN; the caller closes the result."""
        return SnapshotFiles(csn, self.addresses, connect_s=self.connect_s, read_s=self.read_s)


class Pieces(InputPartition):
    """The pieces that one task reads."""

    def __init__(self, group: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = group


def choose(options: ReadOptions) -> tuple[int, Fields]:
    """Choose the CSN of a DataFrame, pin it for a while, and return it with the definition of the table.

    Raises:
        UnknownTableError: The table does not exist at the CSN.
        NoSuchCsnError, SnapshotTooOldError, StandbyError: The CSN cannot be read.
        BadRequestError: The preferred replica does not exist.
        UnavailableError: No replica answers.
    """
    target = options.target
    with connected(target) as db:
        snapshot, _ = pin(db, options.csn, target.replica, at=options.at_ms, lease=options.lease_s)
        try:
            return snapshot.csn, snapshot.table(target.table)
        finally:
            snapshot.leave()


def snapshot_route(status: Fields, target: TableTarget, *, failover: bool) -> SnapshotRoute:
    """Return the route of tasks to snapshots; errors as `replicas_of`."""
    replicas = replicas_of(status, target)
    used = replicas if failover else replicas[:1]
    return SnapshotRoute(tuple(replica.data for replica in used), *timeouts_s(status, len(used)))


class TidelockReader(DataSourceReader):
    """The reader of a table at one CSN, by one plan.

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
                self._route = snapshot_route(status, target, failover=options.failover)
                self._query = self._condition(options, status, csn)
                self._plan = _plan(snapshot, options)
            finally:
                snapshot.leave()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        """Leave the plan out: Spark sends each task its own partition of the plan."""
        return {**self.__dict__, "_plan": []}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task's pieces; raise if not all of them can be read."""
        if not isinstance(partition, Pieces):
            return  # PySpark's placeholder for a table without rows
        if self._query is not None:
            yield from self._query.rows([piece.part for piece in partition.pieces])
            return
        files = self._route.files(self._csn)
        try:
            for piece in partition.pieces:
                yield from rows_of(files, piece, self._columns)
        finally:
            files.close()

    def _condition(self, options: ReadOptions, status: Fields, csn: int) -> PartQuery | None:
        """Return the query that replicas run if the options have a condition, else None."""
        if options.where is None:
            return None
        target = options.target
        api = {row["id"]: row["api"] for row in status["replicas"]}
        replicas = replicas_of(status, target)[: None if options.failover else 1]
        addresses = tuple(filter(None, (api[replica.id] for replica in replicas)))
        if not addresses:
            names = ", ".join(replica.id for replica in replicas)
            raise UnavailableError(f"{names} has not published the address of its API yet; try again")
        query = PartQuery(
            csn,
            target.table,
            options.where,
            self._columns.wanted,
            target.scheme,
            addresses,
            target.token,
        )
        for _ in query.rows(()):  # a query of no part: it reports a wrong condition before any task begins
            pass
        return query


def _plan(snapshot: Snapshot, options: ReadOptions) -> list[Pieces]:
    # A query covers all rows of a part, so its parts are not cut.
    size = options.partition_bytes if options.where is None else None
    ungrouped = pieces(snapshot.parts(options.target.table), size)
    return [Pieces(group) for group in groups(ungrouped, options.partition_bytes)]
