"""Reading of rows: the methods that transactions and snapshots share."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidelock.client.reads.stream import BatchStream
from tidelock.client.values.arguments import full_name
from tidelock.errors import ConfigError

#: Values for the `?` of a statement: None, bool, int, float or str. Others are passed as text and cast in
#: SQL.
Params = Sequence[Any]


class RowReader(ABC):
    """A place where queries run: inside a transaction, or at a snapshot's CSN."""

    def read(
        self, table: str, columns: Sequence[str] | None = None, where: str | None = None, params: Params = ()
    ) -> pa.Table:
        """Return rows of a table; see `scan`."""
        return self.scan(table, columns, where, params).to_table()

    def scan(
        self, table: str, columns: Sequence[str] | None = None, where: str | None = None, params: Params = ()
    ) -> Scan:
        """Return a scan of a table: at the snapshot and, inside a transaction, with its own changes.

        Args:
            table: `name` or `namespace.name`.
            columns: Names of the columns wanted; None = all.
            where: A condition in SQL, with `?` for each of `params`.
            params: Their values.

        Raises nothing by itself; its methods raise the errors that `Scan` lists.
        """
        return Scan(self, table, None if columns is None else tuple(columns), where, tuple(params))

    def sql(self, sql: str, params: Params = ()) -> pa.Table:
        """Run one SELECT (DuckDB's SQL) over all tables: at the snapshot's CSN, on a replica's host.

        Inside a transaction it sees the transaction's own changes, and INSERT INTO table [(columns)] SELECT
        ... is accepted too: the rows are staged for the table and never leave the home; the result is one row
        with `rows_inserted` and `parts_added`. A wrong statement leaves a transaction open for rollback()
        only, and one that was joined by a token unchanged.

        Raises:
            BadRequestError, UnknownTableError: The statement is wrong; at a snapshot, or it is not a query.
            UnsupportedInTransactionError: Inside a transaction: the statement is neither.
            TooLargeError: It needs more memory or time than a replica allows for one statement.
            UnavailableError: The home of the transaction does not answer, or no replica can serve the
                snapshot now; a SELECT may be repeated.
            PartDamagedError: The home fetches a damaged part again; in a transaction: rollback() only.
        """
        return self.collect({"sql": sql, "params": list(params)})

    @abstractmethod
    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query and return its rows as they arrive."""

    def collect(self, request: dict[str, Any]) -> pa.Table:
        """Run a query and return all its rows."""
        return self.stream(request).read_all()


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a table; every call reads them again.

    Every method raises UnknownTableError, BadRequestError (a column or the condition is wrong),
    UnavailableError (no answer, or a truncated one: never fewer rows; PartDamagedError: a part is damaged at
    the only replica that could be asked, and fetched again) and CorruptError (damage that is not mended by
    itself).
    """

    reader: RowReader
    table: str
    columns: tuple[str, ...] | None
    where: str | None
    params: tuple[Any, ...]

    def to_batches(self) -> BatchStream:
        """Return an iterator over record batches that holds one in memory at a time.

        Close a stream that is not read to its end with `.close()`.
        """
        return self.reader.stream(self._request())

    def to_table(self) -> pa.Table:
        """Return all rows as a pyarrow Table."""
        return self.reader.collect(self._request())

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame whose columns have the types of Arrow (`pandas.ArrowDtype`).

        So every value is as in the table: an integer beside a null stays an integer, and NaN is no null.
        `to_table().to_pandas()` gives pandas' own types, which are not exact in this.

        Raises:
            ConfigError: pandas is not installed.
        """
        pandas = library("pandas")
        return self.to_table().to_pandas(types_mapper=pandas.ArrowDtype)

    def to_polars(self) -> Any:
        """Return all rows as a polars DataFrame.

        Raises:
            ConfigError: polars is not installed.
        """
        polars = library("polars")
        return polars.from_arrow(self.to_table())

    def count(self) -> int:
        """Return the number of rows; no row is sent."""
        # On separate lines, so that a comment in the condition ends before the bracket.
        condition = f" where (\n{self.where}\n)" if self.where is not None else ""
        sql = f"select count(*) from {quoted(self.table)}{condition}"  # noqa: S608 - the caller's own condition
        rows = self.reader.collect({"sql": sql, "params": list(self.params)})
        return int(rows.column(0)[0].as_py())

    def _request(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "columns": None if self.columns is None else list(self.columns),
            "where": self.where,
            "params": list(self.params),
        }


def library(name: str) -> Any:
    """Return an optional library, which the extra of its name installs; ConfigError if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"expected the package {name} for data frames, found: {error}; "
            f"install the extra 'tidelock[{name}]'"
        ) from error


def quoted(table: str) -> str:
    """Return a table's full name, quoted for SQL: a name may be any word, also a reserved word of SQL."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in full_name(table).split("."))
