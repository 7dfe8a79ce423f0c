"""A data source that takes filters, to see what PySpark makes of that (tests/integration/test_spark_source).

In a module of its own: executors import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThan, InputPartition
from pyspark.sql.types import StructType

ROWS = 10


class PushingReader(DataSourceReader):
    """Gives the numbers above what it was told, else all."""

    def __init__(self) -> None:
        self._above = -1

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        """Take `n > number`."""
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
    """Numbers below `ROWS`."""

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
