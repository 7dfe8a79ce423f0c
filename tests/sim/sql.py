"""Stands for the SQL processes: a few statements, done with pyarrow in the loop, over the simulated disk.

Everything around them is the product's own: the pool with its places, the frames, and the callers. A worker
lists the parts of its snapshot as a SQL process does, says which of them lose or change rows, and reads the
bytes call by call, so that other things happen in between. What it understands are the conditions of
``tests/support/histories/table_model.py`` in their SQL form.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.histories.table_model import (
    PARTITION_BY,
    SCHEMA,
    Condition,
    Everything,
    Floats,
    Keys,
    Partition,
    Remainder,
    Row,
    as_arrow,
    as_rows,
    holds,
)
from tidelock.csnlog.core.ids import TableId
from tidelock.errors import CorruptError, SerializationConflictError, StandbyError, TidelockError
from tidelock.part_layout import FloatColumns
from tidelock.partition_paths import path_of
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.sql.mutation import (
    Affected,
    CompactParts,
    DeleteRows,
    MergeRows,
    MutationRequest,
    MutationResult,
    UpdateRows,
)
from tidelock.replica_agent.sql.request import AnswerKind, Request, SqlRequest
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.tables.partitions import values_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import PartFs

#: The text that `request.select_statement` makes.
_SELECT: Final = re.compile(r'SELECT \* FROM "(\w+)"\."(\w+)"\nWHERE \(\n(.*)\n\)', re.DOTALL)
_CONDITIONS: Final[dict[str, Callable[..., Condition]]] = {
    "true": Everything,
    "k between ? and ?": Keys,
    "p is null": lambda: Partition(None),
    "p = ?": Partition,
    "v % ? = ?": Remainder,
    **{f"f {operator} cast(? as double)": partial(Floats, operator) for operator in ("=", ">", "<=")},
}

#: Rows of a part that stay or take the place of others, and how many of them are new.
_Rewrite = Callable[[Sequence[Row]], tuple[list[Row], int]]


class SimWorker:
    """One SQL process."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.reusable = True

    @classmethod
    async def start(cls, *, settings: AgentSettings, data_dir: Path, number: int) -> SimWorker:  # noqa: ARG003 - as SqlProcess
        """Start a process."""
        await asyncio.sleep(0)
        return cls(data_dir)

    async def end(self) -> None:
        """End it."""
        self.reusable = False

    async def stop(self) -> None:
        """Give up the statement that was left: closing its frames has ended it."""

    async def run(self, request: bytes) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        """Run one statement, and yield its frames."""
        statement = _Statement(self._data_dir, msgspec.json.decode(request, type=Request))
        try:
            async for kind, payload in statement.frames():
                yield kind, payload
        except CorruptError:
            statement.require_kept()  # else the part was not damaged, but is collected
            raise


class _Statement:
    """One statement under way."""

    def __init__(self, data_dir: Path, request: Request) -> None:
        self._data_dir, self._request = data_dir, request
        self._files = PartFs(data_dir)
        self._table: TableId | None = None

    async def frames(self) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        await asyncio.to_thread(self._require_applied)
        match self._request:
            case SqlRequest(sql=sql, params=params):
                frames = self._select(sql, params)
            case MutationRequest(table=table, action=CompactParts(parts=parts)):
                frames = self._compact(table, set(parts))
            case MutationRequest(table=table, action=DeleteRows(where=where, params=params)):
                frames = self._delete(table, _CONDITIONS[where](*params))
            case MutationRequest(table=table, action=UpdateRows() as action):
                frames = self._update(table, action)
            case MutationRequest(table=table, action=MergeRows(upsert=True, source=source)):
                frames = self._upsert(table, Path(source))
            case _:
                raise TidelockError(f"the simulation has no {self._request}")
        async for frame in frames:
            yield frame

    async def _select(
        self, sql: str, params: tuple[Any, ...]
    ) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        found = _SELECT.fullmatch(sql)
        assert found, sql
        table, where = TableId(f"{found[1]}.{found[2]}"), _CONDITIONS[found[3]](*params)
        parts = await self._list(table)
        kept: list[Row] = []
        for part in parts:
            kept += [row for row in await self._rows(part) if holds(where, row)]
        yield AnswerKind.DATA, _stream([_table(kept)])
        yield _ended(MutationResult(reads={table: _left_out(where, parts)}))

    async def _compact(
        self, table: TableId, wanted: set[Any]
    ) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        parts = [part for part in await self._list(table) if part.part in wanted]
        if missing := wanted - {part.part for part in parts}:
            what = f"part {min(missing)} of table {table} does not exist any more"
            raise SerializationConflictError(what, table=table, part=min(missing))
        rows = sum(part.rows for part in parts)
        schema = await asyncio.to_thread(self._schema, table)
        whole = pa.concat_tables([await self._content(schema, part) for part in parts])
        floats = FloatColumns.of(whole)
        yield _affected(Affected(table, tuple(part.part for part in parts), rows, floats=floats))
        if schema.sort_by:
            whole = whole.sort_by([(column, "ascending") for column in schema.sort_by])
        yield AnswerKind.DATA, _stream([whole])
        yield _ended(MutationResult())

    async def _delete(
        self, table: TableId, where: Condition
    ) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        def rest(rows: Sequence[Row]) -> tuple[list[Row], int]:
            return [row for row in rows if not holds(where, row)], 0

        async for frame in self._rewrite(table, where, rest, deletes=True):
            yield frame

    async def _update(
        self, table: TableId, action: UpdateRows
    ) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        given = list(action.params)
        ((column, value),) = action.set.items()
        addend = int(given.pop(0)) if isinstance(value, str) else 0
        where = Everything() if action.where is None else _CONDITIONS[action.where](*given)

        def changed(row: Row) -> Row:
            p, k, v = row
            if isinstance(value, str):
                return p, k, None if v is None else v + addend
            new: Any = value.value
            return (new, k, v) if column == "p" else (p, k, new)

        def rewrite(rows: Sequence[Row]) -> tuple[list[Row], int]:
            matching = [holds(where, row) for row in rows]
            new = [changed(row) if hit else row for row, hit in zip(rows, matching, strict=True)]
            return new, sum(matching)

        async for frame in self._rewrite(table, where, rewrite, deletes=False):
            yield frame

    async def _rewrite(
        self, table: TableId, where: Condition, rewrite: _Rewrite, *, deletes: bool
    ) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        """Rewrite the row groups in which a condition is true for a row: which they are is told first."""
        parts = await self._list(table)
        hits = [_Hit(part, await self._groups(part), partial(holds, where)) for part in parts]
        matched = sum(hit.matched for hit in hits)
        hits = [hit for hit in hits if hit.matched]
        yield _affected(_found(table, hits, matched))
        updated = 0
        tables = []
        for hit in hits:
            rows, new = rewrite(hit.read(await self._groups(hit.part)))  # as a process, which scans twice
            updated += new
            tables += [_table(rows)] if rows else []
        yield AnswerKind.DATA, _stream(tables)
        deleted = matched if deletes else 0
        reads = {table: _left_out(where, parts)}
        yield _ended(MutationResult(reads=reads, rows_deleted=deleted, rows_updated=updated))

    async def _upsert(self, table: TableId, source: Path) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        data = await asyncio.to_thread(source.read_bytes)
        with pa.ipc.open_stream(data) as reader:
            by_key = {row[1]: row for row in rows_of(reader.read_all())}
        found = [(part, await self._groups(part)) for part in await self._list(table)]
        there = {k for _, groups in found for rows in groups for _, k, _ in rows}
        fresh = [row for k, row in by_key.items() if k not in there]
        hits = [_Hit(part, groups, lambda row: row[1] in by_key) for part, groups in found]
        matched = sum(hit.matched for hit in hits)
        hits = [hit for hit in hits if hit.matched]
        yield _affected(_found(table, hits, matched, len(fresh)))
        rows = [by_key.get(row[1], row) for hit in hits for row in hit.read(await self._groups(hit.part))]
        yield AnswerKind.DATA, _stream([_table([*rows, *fresh])])
        yield _ended(MutationResult(reads={table: None}, rows_updated=matched, rows_inserted=len(fresh)))

    # -- what is there ---------------------------------------------------------------------------------------

    def _require_applied(self) -> None:
        with closing(CatalogReader(self._data_dir)) as reader:
            csn = self._request.csn
            if csn > reader.snapshot_csn():
                raise StandbyError(f"CSN {csn} is not applied here yet")

    def require_kept(self) -> None:
        """Raise SnapshotTooOldError if what this statement reads is promised no more."""
        if self._table is not None:
            with closing(CatalogReader(self._data_dir)) as reader:
                reader.require_kept(self._request.csn, self._table)

    async def _list(self, table: TableId) -> list[PartRow]:
        self._table = table

        def read() -> list[PartRow]:
            with closing(CatalogReader(self._data_dir)) as reader:
                request = self._request
                found = reader.parts(table, request.csn, request.tid, request.adopted)
                reader.require_kept(self._request.csn, table)
                return found

        return await asyncio.to_thread(read)

    def _schema(self, table: TableId) -> TableSchema:
        with closing(CatalogReader(self._data_dir)) as reader:
            row = reader.table(table, self._request.csn)
            assert row is not None, f"{table} is read at a CSN at which it exists"
            return TableSchema.from_definition(table, row.definition)

    async def _rows(self, part: PartRow) -> list[Row]:
        return part_rows(await self._bytes(part), part.path)

    async def _groups(self, part: PartRow) -> list[list[Row]]:
        """The rows of each row group."""
        data = await self._bytes(part)
        count = pq.read_metadata(pa.BufferReader(data)).num_row_groups
        return [part_rows(data, part.path, group) for group in range(count)]

    async def _bytes(self, part: PartRow) -> bytes:
        if part.file is None or part.state != "held":
            raise CorruptError(f"part {part.part} is {part.state} here", part=part.part)
        location = Location(part.file, part.offset, part.length, part.blocks)
        try:
            return await asyncio.to_thread(self._files.read, location)
        except CorruptError as error:
            raise CorruptError(error.message, part=part.part) from error

    async def _content(self, schema: TableSchema, part: PartRow) -> pa.Table:
        """All columns of a part, those of its partition too."""
        data = await self._bytes(part)
        found = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        values = values_of(part.path, schema)
        arrays = [
            pa.array([values[field.name]] * part.rows, field.type)
            if field.name in values
            else found.column(field.name).cast(field.type)
            for field in schema.arrow
        ]
        fields = [field.with_nullable(True) for field in schema.arrow]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


class _Hit:
    """A part, and its row groups in which a condition is true for a row.

    Attributes:
        matched: Rows for which it is true.
        kept: The other row groups.
    """

    def __init__(self, part: PartRow, groups: Sequence[Sequence[Row]], where: Callable[[Row], bool]) -> None:
        counts = [sum(map(where, rows)) for rows in groups]
        self.part, self.matched = part, sum(counts)
        self.kept = tuple(group for group, count in enumerate(counts) if not count)

    def read(self, groups: Sequence[Sequence[Row]]) -> list[Row]:
        """Return the rows of the row groups that are not kept."""
        return [row for group, rows in enumerate(groups) if group not in self.kept for row in rows]


def _found(table: TableId, hits: Sequence[_Hit], matched: int, fresh: int = 0) -> Affected:
    kept = {hit.part.part: hit.kept for hit in hits if hit.kept}
    return Affected(table, tuple(hit.part.part for hit in hits), matched, fresh, kept=kept)


def part_rows(data: bytes, path: str, group: int | None = None) -> list[Row]:
    """Return the rows of a part of a table of `table_model`, or of one row group of it."""
    file = pq.ParquetFile(pa.BufferReader(data))
    found = file.read(use_threads=False) if group is None else file.read_row_group(group, use_threads=False)
    p: Any = values_of(path, _MODEL)["p"]
    return as_rows(found.append_column(SCHEMA.field("p"), pa.array([p] * found.num_rows, pa.int32())))


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of a table of `table_model`."""
    return as_rows(table)


_MODEL: Final = TableSchema.from_request("model", SCHEMA, PARTITION_BY)
_NULLABLE: Final = pa.schema([field.with_nullable(True) for field in SCHEMA])


def _table(rows: Sequence[Row]) -> pa.Table:
    return as_arrow(rows, _NULLABLE)


def _stream(tables: Sequence[pa.Table]) -> bytes:
    schema = tables[0].schema if tables else _NULLABLE
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for table in tables:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _left_out(where: Condition, parts: Sequence[PartRow]) -> list[str] | None:
    """The partitions that a statement has certainly not read, by their values."""
    if not isinstance(where, Partition):
        return None
    read = path_of({"p": where.p})
    return sorted({part.path for part in parts} - {read}) or None


def _affected(found: Affected) -> tuple[AnswerKind, bytes]:
    return AnswerKind.AFFECTED, msgspec.json.encode(found)


def _ended(found: MutationResult) -> tuple[AnswerKind, bytes]:
    return AnswerKind.END, msgspec.json.encode(found)
