"""One statement in DuckDB: a database in memory that shows the tables of a snapshot and reaches nothing else.

No file, network, extension, variable of this process or other setting can be named by a statement; only a
single SELECT is run. Types of results: columns of tables keep their table's Arrow types (all of them
nullable); an expression has the type that DuckDB gives it, e.g. decimal128(38, 0) for a sum of integers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidelock.errors import (
    BadRequestError,
    CorruptError,
    SnapshotTooOldError,
    StandbyError,
    TidelockError,
    TooLargeError,
    UnknownTableError,
    UnsupportedInTransactionError,
)
from tidelock.replica_agent.catalog_read import CatalogReader, PartRow, TableRow
from tidelock.replica_agent.schema import DEFAULT_NAMESPACE, TableSchema
from tidelock.replica_agent.sql.request import SqlRequest, WorkerConfig, quote
from tidelock.replica_agent.sql.scan import SnapshotTable, TableSource

#: Rows of a record batch of the result.
RESULT_ROWS = 32 * 1024
#: Up to so many tables are all made known, which costs 0.7 ms each; beyond it those that the statement
#: mentions.
TABLES_ALL = 50

#: Words of statements that ask for the tables themselves.
_CATALOG_WORDS = ("show", "information_schema", "duckdb_", "pg_", "sqlite_master")
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
#: How DuckDB begins what is wrong with a statement or its values. Found while rows are read it comes through
#: Arrow's reader, which raises OSError.
_OF_THE_STATEMENT = re.compile(r"(Binder|Conversion|Invalid Input|Mismatch Type|Out of Range) Error: ")
#: DuckDB's own faults, after which nothing in this process is certain.
_BROKEN = (duckdb.InternalException, duckdb.FatalException)


class Session:
    """One request, from its tables to its result.

    Args:
        config: Of this process.
        request: The statement.
    """

    def __init__(self, config: WorkerConfig, request: SqlRequest) -> None:
        self._config = config
        self._data_dir = Path(config.data_dir)
        self._request = request
        self._scan_error: Exception | None = None
        self._connection = _locked_connection(config)

    def close(self) -> None:
        """Give the memory back."""
        self._connection.close()

    def run(self) -> pa.RecordBatchReader:
        """Begin the statement; it runs while the reader is read, whose errors :meth:`translate` explains.

        Raises:
            BadRequestError: Not a single SELECT, or not valid.
            UnknownTableError: It names a table that does not exist at the snapshot.
            StandbyError: The snapshot is not applied here yet.
            SnapshotTooOldError: It is no longer promised.
        """
        self._require_select()
        reader = CatalogReader(self._data_dir)
        try:
            self._require_snapshot(reader)
            tables = _mentioned(reader.tables(self._request.csn), self._request.sql)
        finally:
            reader.close()
        for table in tables:
            self._show(table)
        self._enter(DEFAULT_NAMESPACE)
        self._connection.execute("SET lock_configuration = true")
        params = list(self._request.params)
        relation = self._connection.sql(self._request.sql, params=params or None)
        return relation.to_arrow_reader(RESULT_ROWS)

    def translate(self, error: Exception) -> TidelockError:
        """Return what a failure means to the caller; it is one of ours already, or comes from DuckDB."""
        if self._scan_error is not None:
            error = self._scan_error
        if isinstance(error, CorruptError):
            # A part that is gone because the horizon has passed the snapshot was not damaged.
            reader = CatalogReader(self._data_dir)
            try:
                self._require_snapshot(reader)
            except (SnapshotTooOldError, StandbyError) as reason:
                return reason
            finally:
                reader.close()
        if isinstance(error, TidelockError):
            return error
        text = str(error)
        if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or "Out of Memory Error" in text:
            limit = self._config.memory_bytes
            return TooLargeError(
                f"the statement needs more than {limit} bytes of memory (sql_memory_bytes); "
                f"let it keep less: {text}",
                limit=limit,
            )
        if isinstance(error, duckdb.PermissionException):
            return BadRequestError(f"a statement reads the tables of its snapshot and nothing else: {text}")
        if isinstance(error, _BROKEN):
            return TidelockError(f"the SQL engine failed: {text}")
        statement = isinstance(error, OSError) and _OF_THE_STATEMENT.match(text)
        if statement or isinstance(error, duckdb.Error | pa.ArrowException | ValueError):
            if match := _NO_TABLE.search(text):
                csn = self._request.csn
                return UnknownTableError(
                    f"there is no table {match[1]} at CSN {csn}; a table of another namespace than "
                    f"{DEFAULT_NAMESPACE} is named namespace.table",
                    table=match[1],
                    csn=csn,
                )
            return BadRequestError(f"the statement cannot be run: {text}")
        return TidelockError(f"the SQL process failed: {error!r}")

    def _require_select(self) -> None:
        statements = self._connection.extract_statements(self._request.sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            found = ", ".join(statement.type.name for statement in statements) or "nothing"
            if self._request.tid is not None:
                raise UnsupportedInTransactionError(
                    f"in a transaction SQL is a single SELECT statement; found: {found}. Roll back; rows are "
                    "added by inserts of Arrow rows, tables by create_table, a transaction of its own"
                )
            raise BadRequestError(f"a query is a single SELECT statement; found: {found}")

    def _require_snapshot(self, reader: CatalogReader) -> None:
        csn = self._request.csn
        if csn > (applied := reader.snapshot_csn()):
            raise StandbyError(f"CSN {csn} is not applied here yet, only {applied}", snapshot_csn=applied)
        if csn < (horizon := reader.horizon()):
            raise SnapshotTooOldError(
                f"CSN {csn} can no longer be read; the oldest that can is {horizon}: take a new snapshot",
                min_csn=horizon,
            )

    def _show(self, table: TableRow) -> None:
        """Make a table known under its name, in the schema of its namespace."""
        namespace, _, name = table.name.partition(".")
        source = TableSource(
            TableSchema.from_definition(table.definition),
            self._data_dir,
            lambda: self._parts(table),
            self._note,
        )
        self._enter(namespace)
        self._connection.from_arrow(SnapshotTable(source)).create_view(name)

    def _enter(self, namespace: str) -> None:
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(namespace)}")
        self._connection.execute(f"SET schema = {quote(namespace)}")

    def _parts(self, table: TableRow) -> list[PartRow]:
        """List a table's visible parts, in the thread of the scan."""
        reader = CatalogReader(self._data_dir)
        try:
            parts = reader.parts(table.name, self._request.csn, self._request.tid)
            # After the list: while the snapshot is promised, no row of it is taken out of the catalog.
            self._require_snapshot(reader)
        finally:
            reader.close()
        return parts

    def _note(self, error: Exception) -> None:
        """Keep what a scan raised first: DuckDB hands on its text only."""
        self._scan_error = self._scan_error or error


def _mentioned(tables: list[TableRow], sql: str) -> list[TableRow]:
    text = sql.lower()
    if len(tables) <= TABLES_ALL or any(word in text for word in _CATALOG_WORDS):
        return tables
    return [table for table in tables if table.name.rpartition(".")[2] in text]


def _locked_connection(config: WorkerConfig) -> duckdb.DuckDBPyConnection:
    settings: Iterable[tuple[str, Any]] = (
        ("memory_limit", f"{config.engine_bytes}B"),
        ("threads", config.threads),
        ("temp_directory", config.temp_dir),
        ("max_temp_directory_size", f"{config.temp_bytes}B"),
        ("TimeZone", "UTC"),
        ("python_enable_replacements", False),
        ("autoload_known_extensions", False),
        ("autoinstall_known_extensions", False),
        ("allow_community_extensions", False),
        # Last: it forbids to set the temporary folder.
        ("enable_external_access", False),
    )
    connection = duckdb.connect(":memory:")
    for name, value in settings:
        connection.execute(f"SET {name} = $1", [value])
    return connection
