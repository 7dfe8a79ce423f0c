"""The data source itself: what PySpark asks for by its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tidelock.errors import BadRequestError
from tidelock.spark.schema import struct_of
from tidelock.spark.source.options import check, read_options, streams
from tidelock.spark.source.reading import TidelockReader, choose
from tidelock.spark.source.stream_options import read_stream_options
from tidelock.spark.source.stream_read import TidelockStreamReader, stream_schema
from tidelock.spark.source.stream_write import TidelockStreamWriter
from tidelock.spark.source.writing import TidelockWriter


class TidelockSource(DataSource):
    """`spark.read.format("tidelock")` and its like; see docs/spark-source.md.

    Raises:
        BadRequestError: An option does not exist.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        check(options)
        self._csn: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tidelock"

    def schema(self) -> StructType:
        """Return the table's schema at the CSN that is chosen now; of a stream as it is now."""
        if streams(self.options):
            return stream_schema(read_stream_options(self.options, os.environ))
        self._csn, definition = choose(read_options(self.options, os.environ))
        return struct_of(definition)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a query."""
        options = read_options(self.options, os.environ)
        csn = choose(options)[0] if self._csn is None else self._csn
        reader = TidelockReader(options, csn, schema)
        self.options = {}  # this goes to the tasks with the reader, which has what they need
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin the transaction of a write."""
        return TidelockWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        """Read the table as a stream."""
        reader = TidelockStreamReader(self.options, schema)
        self.options = {}  # as in reader()
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's name
        """Write a micro-batch."""
        return TidelockStreamWriter(self.options, schema, overwrite=overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Fix the CSN at the latest when the source leaves the process that makes it.

        With a schema of the user PySpark does not ask for ours, and makes the source only when the first
        query on the DataFrame is planned. All queries on it are to read the same snapshot from then on, and
        where filters are pushed down each has a reader of its own.

        PySpark makes the source of a stream and of a sink in the same way, and does not say which it is. So
        those without an option that is theirs alone pin a CSN for a while that nobody reads.
        """
        if self._csn is None and self.options:
            with contextlib.suppress(BadRequestError):  # options of a stream, or wrong ones: see reader()
                self._csn, _ = choose(read_options(self.options, os.environ))
        return self.__dict__
