"""Mutations in this process, over a data directory made by hand: the work of a SQL process without one."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.replicas.datadir import DataDir
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import TidelockError
from tidelock.replica_agent.sql.engine import Engine
from tidelock.replica_agent.sql.mutating import MutationRun
from tidelock.replica_agent.sql.mutation import Action, Affected, MutationRequest, MutationResult
from tidelock.replica_agent.sql.request import SqlConfig
from tidelock.replica_agent.sql.scan import SnapshotTable, TableSource
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.schema import TableSchema

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Done:
    """The result that a mutation returned, and the rows that it produced."""

    affected: Affected
    rows: pa.Table
    ended: MutationResult


def config(directory: DataDir, **limits: int) -> SqlConfig:
    """The configuration of a SQL process."""
    temporary = directory.path / "run" / "sql-test"
    temporary.mkdir(parents=True, exist_ok=True)
    given = {
        "memory_bytes": 1 << 30,
        "engine_bytes": 1 << 29,
        "temp_bytes": 1 << 30,
        "threads": 1,
        "cut_part_bytes_min": 1,
    }
    return SqlConfig(data_dir=str(directory.path), temp_dir=str(temporary), **(given | limits))


def run(
    directory: DataDir,
    table: str,
    action: Action,
    *,
    csn: int | None = None,
    tid: str | None = None,
    adopted: tuple[str, ...] = (),
    **limits: int,
) -> Done:
    """Run a mutation at the newest CSN; raise the error that a caller of the agent would get."""
    newest = Csn(directory.meta("snapshot_csn") if csn is None else csn)
    request = MutationRequest(newest, tid, TableId(full_name(table)), action, adopted)
    with closing(SqlSession(Engine(config(directory, **limits)), request)) as session:
        try:
            made = MutationRun(session, request)
            rows = pa.Table.from_batches(made.batches(), made.schema)
        except TidelockError:
            raise
        except Exception as error:
            raise session.translate(error) from error
        return Done(made.plan.affected, rows, made.ended())


def after(directory: DataDir, table: str, done: Done, *, csn: int | None = None) -> Counter[Row]:
    """Return a table's rows after the commit of a mutation.

    They are those of the remaining parts, of the row groups that are kept, and its new rows.
    """
    newest = Csn(directory.meta("snapshot_csn") if csn is None else csn)
    reader = CatalogReader(directory.path)
    try:
        row = reader.require_named(full_name(table), newest)
        schema = TableSchema.from_definition(row.id, row.definition)
        shown = reader.parts(row.id, newest)
    finally:
        reader.close()
    assert set(done.affected.parts) <= {part.part for part in shown}
    stay = [part for part in shown if part.part not in done.affected.parts]
    stay += [part for part in shown if part.part in done.affected.kept]
    source = TableSource(schema, directory.path, lambda: stay, lambda _: None, groups=done.affected.kept)
    left = SnapshotTable(source)
    return as_rows(left.scanner().to_reader().read_all()) + as_rows(done.rows)


def as_rows(table: pa.Table) -> Counter[Row]:
    """Return the rows of a table, in any order. NaN is a text in them, since it is not equal to itself."""
    return Counter(tuple(map(_comparable, row.values())) for row in table.to_pylist())


def _comparable(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def stream_file(path: Path, rows: pa.Table, *, batch_rows: int = 1000) -> str:
    """Write rows into a file, as an agent stores the body of a merge."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch_rows)
    return str(path)
