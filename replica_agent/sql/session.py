"""A database in memory that shows the tables of a snapshot to one request, and reaches nothing else.

A statement can name no file, network, extension, variable of this process or other setting. Types of results:
columns of tables keep their table's Arrow types (all of them nullable); an expression has the type that
DuckDB gives it, e.g. decimal128(38, 0) for a sum of integers.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import duckdb
import pyarrow as pa

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.errors import (
    BadRequestError,
    CorruptError,
    SnapshotTooOldError,
    StandbyError,
    TidelockError,
    TokenRightError,
    TooLargeError,
)
from tidelock.replica_agent.sql.engine import Engine
from tidelock.replica_agent.sql.request import SOME, Request, SomeParts, SqlRequest, quote
from tidelock.replica_agent.sql.scan import Scanned, SnapshotTable, TableSource
from tidelock.replica_agent.sql.system_scan import SystemDataset, SystemSource
from tidelock.replica_agent.storage.catalog_damage import catalog_damage
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.storage.own_tables import after
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.system_tables.catalog_rows import SystemReader
from tidelock.replica_agent.system_tables.definition import View
from tidelock.replica_agent.system_tables.registry import SYSTEM_TABLES, unknown_in
from tidelock.replica_agent.tables.names import (
    DEFAULT_NAMESPACE,
    SYSTEM_NAMESPACE,
    name_in_sql,
    no_table,
)
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import Statistics
from tidelock.wire.ids import TableName

#: Rows of a record batch of the result.
RESULT_ROWS = 32 * 1024
#: Words of statements that list tables, or compute the name of one or a whole query: they can see any table.
_ANY_TABLE = ("show", "describe", "information_schema", "duckdb_", "pg_", "sqlite_", "query")
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
#: The beginning of DuckDB's messages about a wrong statement or wrong values. If the error occurs while rows
#: are read, it comes through Arrow's reader, which raises OSError.
_OF_THE_STATEMENT = re.compile(r"(Binder|Conversion|Invalid Input|Mismatch Type|Out of Range) Error: ")
#: DuckDB's internal errors, after which the state of this process is uncertain.
_BROKEN = (duckdb.InternalException, duckdb.FatalException)


class SqlSession:
    """The database of one request.

    Args:
        engine: The engine of this process.
        request: The request; its snapshot is shown.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self.data_dir = Path(engine.config.data_dir)
        self._held = contextlib.ExitStack()
        self.connection = self._held.enter_context(engine.connection(request))
        #: The place of the user's expressions; for messages.
        self.doing = ""
        #: Limits of this process.
        self.config = engine.config
        self._request = request
        self._only = request.only if isinstance(request, SqlRequest) else None
        self._tables: dict[TableName, TableRow] | None = None
        self._scan_error: Exception | None = None
        self._listing = threading.Lock()
        self._listed: dict[TableId, list[PartRow]] = {}
        #: The oldest CSN at which parts of a table are read.
        self._oldest: dict[TableId, Csn] = {}
        self._not_read: dict[TableId, frozenset[str]] = {}

    def close(self) -> None:
        """Release the memory."""
        self._held.close()

    def catalog(self) -> CatalogReader:
        """Open the catalog for the calling thread."""
        return CatalogReader(self.data_dir)

    def tables(self) -> list[TableRow]:
        """Return the tables of the snapshot, without showing them.

        Raises:
            StandbyError: The snapshot is not applied here yet.
        """
        return list(self._known().values())

    def table_names(self) -> Collection[TableName]:
        """Return the names of the tables of the snapshot; errors as :meth:`tables`."""
        return self._known().keys()

    def table(self, table: TableId) -> TableRow:
        """Return one of :meth:`tables`; UnknownTableError when it is none of them."""
        found = next((row for row in self._known().values() if row.id == table), None)
        if found is None:
            raise self._no_table(table)
        return found

    def named(self, name: TableName) -> TableRow:
        """Return one of :meth:`tables`; UnknownTableError when no table has that name."""
        found = self._known().get(name)
        if found is None:
            raise self._no_table(name)
        return found

    def _known(self) -> dict[TableName, TableRow]:
        if self._tables is None:
            reader = self.catalog()
            try:
                self._require_applied(reader)
                tables = reader.tables(self._request.csn)
                # After the list, as in parts(); below the horizon some tables have a longer history.
                kept = [row for row in tables if reader.keeps(self._request.csn, row.id)]
                self._tables = {
                    row.name: row
                    for row in after(kept, self._request.defined)
                    if self._only is None or row.name in self._only
                }
            finally:
                reader.close()
        return self._tables

    def _no_table(self, name: str) -> TidelockError:
        csn = self._request.csn
        if self._only is not None and name not in self._only:
            return TokenRightError(
                f"the token is for {', '.join(self._only)}, but the query reads {name}; make one for that "
                "table (tx.token(tables=...))",
                table=name,
            )
        reader = self.catalog()
        try:
            reader.require_kept(csn, TableId(name))
        except SnapshotTooOldError as error:
            return error
        finally:
            reader.close()
        return no_table(name, csn, self.table_names())

    def show_named(self, text: str) -> None:
        """Show the tables that SQL text can see, under their names, each in the schema of its namespace.

        These are the tables whose names are in the text, or all. Each table costs 1.2 ms of processor time.
        """
        words = text.lower()
        sees_any = any(word in words for word in _ANY_TABLE)
        seen: dict[str, dict[str, TableRow]] = {}
        for table in self.tables():
            namespace, _, name = table.name.partition(".")
            if sees_any or name in words:
                seen.setdefault(namespace, {})[name] = table
        # The namespace that is entered last is that of names without one.
        seen[DEFAULT_NAMESPACE] = seen.pop(DEFAULT_NAMESPACE, {})
        for namespace, tables in seen.items():
            self._enter(namespace)
            for name, table in tables.items():
                self.view(name, self.source(table, functools.partial(self.parts, table.id)))

    def show_system(self, names: Collection[str]) -> None:
        """Show system tables of the snapshot, in their namespace.

        Raises:
            TokenRightError: The request may see some tables only.
            BadRequestError: The request is no statement of a user, so the agent has sent no rows for it.
        """
        if not names:
            return
        if not isinstance(self._request, SqlRequest):
            raise BadRequestError(
                f"system.{min(names)} is read by queries and by INSERT INTO ... SELECT, and not in the SQL "
                "of a derived table; insert its rows yourself"
            )
        if self._only is not None:
            raise TokenRightError(
                f"the token is for {', '.join(self._only)}, but the query reads system.{min(names)}; system "
                "tables need a token for all tables (tx.token())",
                table=f"{SYSTEM_NAMESPACE}.{min(names)}",
            )
        live = self._request.live
        self._enter(SYSTEM_NAMESPACE)
        for name in sorted(names):
            table = SYSTEM_TABLES[name]
            rows = (
                table.arrow.empty_table() if name not in live else pa.ipc.open_stream(live[name]).read_all()
            )
            self.show(name, SystemDataset(SystemSource(table, self._system_view, rows, self.note)))

    @contextlib.contextmanager
    def _system_view(self) -> Iterator[View]:
        request = self._request
        with contextlib.closing(SystemReader(self.data_dir)) as reader:
            # Below the horizon, tables would be missing, even if others have a longer history.
            reader.require_kept(request.csn)
            yield View(reader, request.csn, self.tables(), request.tid, tuple(request.adopted))

    def show_some(self, some: SomeParts) -> None:
        """Show some of the parts of a table as :data:`SOME`.

        Raises:
            UnknownTableError: The table does not exist.
            CorruptError: The request does not see one of them; the agent knew all of them at this CSN.
        """
        table = self.named(some.table)
        found = {row.part: row for row in self.parts(table.id)}
        if missing := [part for part in some.parts if part not in found]:
            raise CorruptError(f"part {missing[0]} does not belong to table {some.table} at this CSN")
        rows = [found[part] for part in some.parts]
        self.view(SOME, self.source(table, lambda: rows))

    def source(
        self,
        table: TableRow,
        parts: Callable[[], Sequence[PartRow]],
        numbers: Mapping[PartId, int] | None = None,
        *,
        groups: Mapping[PartId, Collection[int]] = MappingProxyType({}),
        others: frozenset[str] = frozenset(),
    ) -> TableSource:
        """Return the source of the rows of some parts of a table; its scans note what they leave out.

        Args:
            table: The table.
            parts: Returns the parts.
            numbers: See :class:`TableSource`.
            groups: See :class:`TableSource`.
            others: Partitions without any of these parts.
        """
        return TableSource(
            TableSchema.from_definition(table.id, table.definition),
            self.data_dir,
            parts,
            self.note,
            statistics=self._statistics,
            pruned=lambda paths: self.note_read(table.id, paths | others),
            numbers=numbers,
            groups=groups,
        )

    def view(self, name: str, source: TableSource) -> None:
        """Show a source as a view of the schema that was entered last."""
        self.show(name, SnapshotTable(source))

    def show(self, name: str, rows: Scanned) -> None:
        """Show rows that can be scanned as a view, likewise."""
        self.connection.from_arrow(rows).create_view(name)

    def stream(self, name: str, rows: pa.RecordBatchReader) -> None:
        """Show rows, which can be read once, as a view."""
        self.connection.from_arrow(rows).create_view(name)

    def bind(self, sql: str, params: Any = None) -> tuple[str, ...]:
        """Check a statement without running it; returns the names of its columns."""
        return tuple(self.connection.sql(sql, params=params or None).columns)

    def run(self, sql: str, params: Any = None) -> None:
        """Run a statement without rows."""
        self.connection.execute(sql, params or None)

    def fetch(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement with few rows, and return them."""
        rows: list[tuple[Any, ...]] = self.connection.sql(sql, params=params or None).fetchall()
        return rows

    def rows(self, sql: str, params: Any = None) -> pa.RecordBatchReader:
        """Begin a statement that runs while its rows are read; :meth:`translate` explains its errors."""
        return self.connection.sql(sql, params=params or None).to_arrow_reader(RESULT_ROWS)

    def parts(self, table: TableId) -> list[PartRow]:
        """List the parts of a table that the request sees: the same list at each call.

        The transaction may remove some of them while one of its statements still reads them.

        Raises:
            SnapshotTooOldError: The snapshot is no longer promised.
        """
        with self._listing:
            if table not in self._listed:
                request = self._request
                self.reads_from(table, request.csn)
                reader = self.catalog()
                try:
                    self._listed[table] = reader.parts(table, request.csn, request.tid, request.adopted)
                    # After the list: while the snapshot is promised, no row of it leaves the catalog, nor
                    # does a row of a merge above it.
                    reader.require_kept(request.csn, table)
                finally:
                    reader.close()
            return self._listed[table]

    def parts_named(self, parts: Iterable[PartId]) -> list[PartRow]:
        """Return parts by their ids, committed or not; CorruptError when an id is unknown."""
        reader = self.catalog()
        try:
            found = {part: reader.part(part) for part in parts}
        finally:
            reader.close()
        if missing := [part for part, row in found.items() if row is None]:
            raise CorruptError(f"part {missing[0]} is unknown here", part=missing[0])
        return [row for row in found.values() if row is not None]

    def reads(self) -> dict[TableId, list[str] | None]:
        """Return the tables read so far; see :class:`tidelock.replica_agent.sql.mutation.MutationResult`."""
        return {table: sorted(paths) or None for table, paths in self._not_read.items()}

    def translate(self, error: Exception) -> TidelockError:
        """Return the error for the caller; the failure is a TidelockError already, or comes from DuckDB."""
        if self._scan_error is not None:
            error = self._scan_error
        if (damage := catalog_damage(error)) is not None:
            return damage
        if isinstance(error, CorruptError):
            # A part that was deleted because the horizon has passed the snapshot was not damaged.
            reader = self.catalog()
            try:
                for name, oldest in self._oldest.items():
                    reader.require_kept(oldest, name)
            except SnapshotTooOldError as reason:
                return reason
            finally:
                reader.close()
        if isinstance(error, TidelockError):
            return error
        text = str(error)
        if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or "Out of Memory Error" in text:
            limit = self.config.memory_bytes
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
                if isinstance(self._request, SqlRequest) and (
                    unknown := unknown_in(self._request.sql, match[1])
                ):
                    return unknown
                return self._no_table(name_in_sql(match[1]))
            where = f" ({self.doing})" if self.doing else ""
            return BadRequestError(f"the statement cannot be run{where}: {text}")
        return TidelockError(f"the SQL process failed: {error!r}")

    def _require_applied(self, reader: CatalogReader) -> None:
        applied, csn = reader.snapshot_csn(), self._request.csn
        if csn > applied:
            raise StandbyError(f"CSN {csn} is not applied here yet, only {applied}", snapshot_csn=applied)

    def _enter(self, namespace: str) -> None:
        self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(namespace)}")
        self.connection.execute(f"SET schema = {quote(namespace)}")

    def _statistics(self, parts: Sequence[PartRow]) -> list[Statistics]:
        """Return the statistics of parts, in the thread of the scan."""
        reader = self.catalog()
        try:
            return [reader.statistics(part.part) for part in parts]
        finally:
            reader.close()

    def reads_from(self, table: TableId, csn: Csn) -> None:
        """Note that parts of a table are read which exist as long as ``csn`` is promised."""
        self._oldest[table] = csn

    def note_read(self, table: TableId, paths: frozenset[str] = frozenset()) -> None:
        """Note that a table was read, except for some partitions."""
        with self._listing:
            self._not_read[table] = self._not_read.get(table, paths) & paths

    def note(self, error: Exception) -> None:
        """Keep the first error of a scan: DuckDB passes on its text only."""
        self._scan_error = self._scan_error or error
