"""The data source class that PySpark creates for the format `tidelock`."""

from __future__ import annotations

import contextlib
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

from tidelock.errors import BadRequestError, TidelockError
from tidelock.spark.schema import struct_of
from tidelock.spark.source.connections import environment
from tidelock.spark.source.options import check, read_options, streams
from tidelock.spark.source.reading import TidelockReader, choose
from tidelock.spark.source.stream_options import read_stream_options
from tidelock.spark.source.stream_read import TidelockStreamReader, stream_schema
from tidelock.spark.source.stream_write import TidelockStreamWriter
from tidelock.spark.source.writing import TidelockWriter


class TidelockSource(DataSource):
    """The source of `spark.read.format("tidelock")`, and of the same format of writes and streams.

    See docs/spark-source.md.

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
        """Return the table's schema: for a stream the newest, else at the CSN that this call chooses."""
        try:
            if streams(self.options):
                return stream_schema(read_stream_options(self.options, environment()))
            self._csn, definition = choose(read_options(self.options, environment()))
            return struct_of(definition)
        except TidelockError as error:
            raise error.with_traceback(None) from None  # Spark shows users every frame, above the one line

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query, which plans the read."""
        options = read_options(self.options, environment())
        csn = choose(options)[0] if self._csn is None else self._csn
        reader = TidelockReader(options, csn, schema)
        self.options = {}  # Spark sends the source to tasks with the reader; the reader has all they need
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a write, which begins the transaction."""
        return TidelockWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        """Return the reader of the table as a stream."""
        reader = TidelockStreamReader(self.options, schema)
        self.options = {}  # as in reader()
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's name
        """Return the writer of a micro-batch."""
        return TidelockStreamWriter(self.options, schema, overwrite=overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Choose the CSN, if it is not chosen yet, before the source leaves the process that makes it.

        If the user gives a schema, PySpark does not call `schema`, and makes the source only when it plans
        the first query on the DataFrame. From then on all queries on the DataFrame read the same snapshot,
        even if filters are pushed down and each query has a separate reader.

        PySpark makes the source of a stream or of a sink in the same way, and this method cannot distinguish
        them. So a stream or sink whose options are all valid for a batch read pins a CSN for a while,
        although no query reads it.
        """
        if self._csn is None and self.options:
            with contextlib.suppress(BadRequestError):  # options of a stream, or wrong options: see reader()
                self._csn, _ = choose(read_options(self.options, environment()))
        return self.__dict__
