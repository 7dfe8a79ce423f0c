"""Tables of a snapshot as temporary views and DataFrames, all at one pinned CSN, on any Spark session."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from tidelock.client import Database, Snapshot
from tidelock.errors import TransactionClosedError, UnknownTableError
from tidelock.loopback_names import reachable
from tidelock.read_route import ReadRoute, route_of
from tidelock.spark.pinning import pin
from tidelock.spark.schema import has_times, struct_of
from tidelock.spark.sessions import allow_times, name_services, redact_tokens
from tidelock.spark.tables import Definitions, full_name, select, view_names
from tidelock.type_text import quoted


def attach(
    spark: SparkSession,
    db: Database,
    tables: Iterable[str] | None = None,
    prefix: str = "",
    replica: str | None = None,
    failover: bool = True,
    csn: int | str | None = None,
    at: datetime | int | str | None = None,
) -> SparkSnapshot:
    """Make tables of a Tidelock cluster readable in a Spark session: temporary views, all at one CSN.

    A view has the name of its table; for a table outside the namespace `default` it is `<namespace>_<table>`.
    The snapshot is pinned: it stays readable until `close` or the end of a `with` block.

    Args:
        spark: A session of any kind: classic, on a cluster, Spark Connect.
        db: A connected client.
        tables: Names of the tables to attach; None = all tables that exist at the CSN.
        prefix: Put before the name of each view.
        replica: The replica to read from as long as it answers; None = any.
        failover: Go on to another replica, at the same CSN, if a replica is dead, frozen, behind or has a
            damaged part. Without failover such a job fails.
        csn: The CSN to read, or a tag. Default: the newest CSN that is applied on `replica` and on as many
            replicas as a commit has copies, and that contains everything `db` has committed or read.
        at: The newest CSN whose effective time is not after this, in place of `csn`: a datetime with time
            zone, its ISO 8601 text, or ms since 1970.

    Raises:
        BadRequestError: The replica does not exist, two tables would have the same view, both `csn` and `at`
            are given, or `at` has no time zone.
        UnknownTableError: A table does not exist at the CSN.
        NoSuchCsnError, SnapshotTooOldError, StandbyError: The CSN cannot be read; see `Database.snapshot`.
        StandbyError: Also if the replica joins, or is struck, so that nothing can be read from it now.
        UnavailableError: No replica answers.
    """
    wanted = None if tables is None else list(tables)
    return SparkSnapshot(spark, db, wanted, prefix=prefix, replica=replica, failover=failover, csn=csn, at=at)


def read(spark: SparkSession, snap: SparkSnapshot, table: str) -> DataFrame:
    """Return a table of an attached snapshot as a DataFrame, which stays at this CSN after a refresh.

    Raises:
        UnknownTableError: The table is not attached.
        TransactionClosedError: The snapshot was closed.
    """
    return snap.dataframe(table, spark)


@dataclass(frozen=True, slots=True)
class _Attached:
    """One attached CSN: its pin, the route to the replicas, the tables and their views."""

    snapshot: Snapshot
    route: ReadRoute
    definitions: Definitions
    views: Mapping[str, str]

    def path(self, table: str) -> str:
        namespace, _, name = table.rpartition(".")
        return self.route.folder(self.snapshot.csn, namespace, name)

    def dataframe(self, spark: SparkSession, table: str) -> DataFrame:
        schema = struct_of(self.definitions[table])
        if has_times(self.definitions[table]):
            allow_times(spark)
        rows = spark.read.options(**self.route.options).schema(schema).parquet(self.path(table))
        # Spark puts partition columns last; `select *` must give the columns in the table's order.
        return rows.select(*map(quoted, schema.names))


class SparkSnapshot:
    """Tables at one pinned CSN, attached to a session by `attach`. For one thread at a time."""

    def __init__(
        self,
        spark: SparkSession,
        db: Database,
        tables: Sequence[str] | None,
        *,
        prefix: str,
        replica: str | None,
        failover: bool,
        csn: int | str | None,
        at: datetime | int | str | None,
    ) -> None:
        self._spark = spark
        self._db = db
        self._wanted = tables
        self._prefix = prefix
        self._replica = replica
        self._failover = failover
        # Drawn once, so that a refresh stays with the replica whose files have just been read.
        self._rotation = random.randrange(1 << 16)
        redact_tokens(spark)
        self._now = self._attach(csn, at)

    def __repr__(self) -> str:
        return f"<SparkSnapshot {self.csn}: {', '.join(self.tables)}>"

    @property
    def csn(self) -> int:
        """The CSN that all tables are read at."""
        return self._now.snapshot.csn

    @property
    def tables(self) -> list[str]:
        """Full names of the attached tables."""
        return list(self._now.definitions)

    @property
    def views(self) -> dict[str, str]:
        """The view of each table."""
        return dict(self._now.views)

    @property
    def options(self) -> dict[str, str]:
        """The reader options, for reads of `path` with another reader."""
        return dict(self._now.route.options)

    def path(self, table: str) -> str:
        """Return the folder of a table at this CSN, readable with `options` only; errors as `read`."""
        return self._now.path(self._require(table))

    def dataframe(self, table: str, spark: SparkSession | None = None) -> DataFrame:
        """Return a table as a DataFrame, in the attached session or in another one; errors as `read`."""
        return self._now.dataframe(self._spark if spark is None else spark, self._require(table))

    def refresh(self) -> int:
        """Move the views to the newest CSN, never to an older one, and return it.

        DataFrames made before stay at their CSN. Its pin is released; they can be read for ten minutes more.
        Raises as `attach`; in that case nothing has changed.
        """
        self._require_open()
        before, self._now = self._now, self._attach(None, None)
        self._drop_views(set(before.views.values()) - set(self._now.views.values()))
        before.snapshot.close()
        return self.csn

    def close(self) -> None:
        """Drop the views and release the pin; a second call does nothing."""
        if self._now.snapshot.closed:
            return
        try:
            self._drop_views(self._now.views.values())
        finally:
            self._now.snapshot.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attach(self, csn: int | str | None, at: datetime | int | str | None) -> _Attached:
        """Pin a snapshot and make its views; if that fails, nothing remains pinned."""
        snapshot, status = pin(self._db, csn, self._replica, at=at)
        try:
            to_replicas = route_of(
                status,
                pinned=self._replica,
                rotation=self._rotation,
                reach=reachable,
                failover=self._failover,
                name_services=name_services(self._spark),
            )
            definitions = select({row["name"]: row for row in snapshot.tables()}, self._wanted, snapshot.csn)
            attached = _Attached(snapshot, to_replicas, definitions, view_names(definitions, self._prefix))
            # Spark lists the files now, so an unreadable table is found before the first view is replaced.
            frames = {table: attached.dataframe(self._spark, table) for table in definitions}
            for table, view in attached.views.items():
                frames[table].createOrReplaceTempView(view)
        except BaseException:
            snapshot.close()
            raise
        return attached

    def _drop_views(self, views: Iterable[str]) -> None:
        for view in views:
            self._spark.catalog.dropTempView(view)

    def _require(self, table: str) -> str:
        """Return the full name of an attached table; errors as `read`."""
        self._require_open()
        name = full_name(table)
        if name not in self._now.definitions:
            attached = ", ".join(self.tables) or "none"
            raise UnknownTableError(
                f"table {name} is not attached at CSN {self.csn}; attached: {attached}", table=name
            )
        return name

    def _require_open(self) -> None:
        if self._now.snapshot.closed:
            raise TransactionClosedError(
                f"the snapshot at CSN {self.csn} was closed; attach another one", csn=self.csn
            )
