"""A data source that accepts filters, for a test of PySpark's behaviour (in test_spark_source).

It is a separate module, since executors import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThan, InputPartition
from pyspark.sql.types import StructType

ROWS = 10


class PushingReader(DataSourceReader):
    """The reader of the numbers above the pushed limit, by default of all numbers."""

    def __init__(self) -> None:
        self._above = -1

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        """Accept filters of the form `n > number`, and yield the others."""
        for item in filters:
            if isinstance(item, GreaterThan):
                self._above = item.value
            else:
                yield item

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Return the rows."""
        return ((number,) for number in range(self._above + 1, ROWS))

    def partitions(self) -> Sequence[InputPartition]:
        """Return one task."""
        return [InputPartition(0)]


class PushingSource(DataSource):
    """A source of the numbers below `ROWS`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pushing"

    def schema(self) -> str:
        """Return the one column."""
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader."""
        return PushingReader()
