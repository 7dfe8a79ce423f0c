"""A table as a change by Spark reads it: the rows of a snapshot with their files, and rows of taken parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql import types as spark

from tidelock.client import Transaction
from tidelock.errors import BadRequestError, UnsupportedInTransactionError
from tidelock.loopback_names import reachable
from tidelock.read_route import route_of
from tidelock.spark.schema import struct_of
from tidelock.spark.sessions import name_services
from tidelock.spark.values import own
from tidelock.spark.writing import prepare
from tidelock.type_text import quoted
from tidelock.wire.statements import ReplacedPart

#: The column with the name of a row's file.
FILE: Final = own("file")
#: The hidden column of Spark that knows the file.
METADATA: Final = "_metadata"


class TargetTable:
    """A table in an open transaction.

    Args:
        session: The session that reads it.
        tx: The transaction.
        table: `name` or `namespace.name`.

    Attributes:
        definition: Its definition as the transaction sees it.
        schema: The schema of its rows.

    Raises:
        UnknownTableError: The transaction sees no such table.
        BadRequestError: Spark cannot tell the files of its rows.
        UnavailableError: No replica answers.
    """

    def __init__(self, session: SparkSession, tx: Transaction, table: str) -> None:
        self.definition = tx.definition(table)
        self.schema = struct_of(self.definition)
        self._session, self._csn = session, tx.snapshot_csn
        if METADATA in self.schema.names:
            raise BadRequestError(
                f"table {self.name} has a column {METADATA}, which hides the file of a row from Spark: use "
                "tx.merge, tx.update or tx.delete",
                column=METADATA,
            )
        prepare(session, self.definition)
        self._route = route_of(
            tx.status(),
            pinned=None,
            rotation=random.randrange(1 << 16),
            reach=reachable,
            name_services=name_services(session),
        )

    @property
    def name(self) -> str:
        """Its full name."""
        name: str = self.definition["name"]
        return name

    @property
    def alias(self) -> str:
        """Its name without the namespace, by which expressions may call it."""
        return self.name.rpartition(".")[2]

    @property
    def fields(self) -> dict[str, spark.StructField]:
        """Its columns by name."""
        return {one.name: one for one in self.schema.fields}

    def scan(self) -> DataFrame:
        """Return the rows of the snapshot of the transaction, each with its `FILE`.

        Raises:
            UnsupportedInTransactionError: The transaction has created the table, so no snapshot has it.
        """
        try:
            rows = self._read(self._csn)
        except AnalysisException as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            raise UnsupportedInTransactionError(
                f"the transaction has created table {self.name}, which its snapshot does not have; use "
                "tx.merge, tx.update or tx.delete",
                table=self.name,
            ) from error
        # Hidden columns can be asked for only of the relation itself.
        return rows.select(*self._columns(), F.col(f"{METADATA}.file_name").alias(FILE))

    def rows_of(self, parts: Sequence[ReplacedPart]) -> DataFrame:
        """Return the rows of parts that the transaction has taken (`Transaction.replace_files`)."""
        by_csn = groupby(sorted(parts, key=attrgetter("csn")), attrgetter("csn"))
        frames = [self._read(csn, [part.file for part in some]) for csn, some in by_csn]
        return reduce(DataFrame.union, (frame.select(*self._columns()) for frame in frames))

    def _columns(self) -> list[str]:
        return [quoted(name) for name in self.schema.names]

    def _read(self, csn: int, files: Sequence[str] = ()) -> DataFrame:
        namespace, _, name = self.name.rpartition(".")
        folder = self._route.folder(csn, namespace, name)
        reader = self._session.read.options(**self._route.options, basePath=folder).schema(self.schema)
        return reader.parquet(*(f"{folder}/{file}" for file in files) if files else (folder,))
