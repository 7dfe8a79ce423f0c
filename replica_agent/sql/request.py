"""Messages between the protocol process and a SQL process: requests, results and errors.

A request is the JSON of :data:`Request`, or :data:`STOP`. An answer is one byte for its kind, then its
content.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import Definition
from tidelock.errors import BadRequestError
from tidelock.replica_agent.sql.mutation import MutationRequest
from tidelock.replica_agent.tables.names import full_name, is_system_table
from tidelock.replica_agent.workers.frames import pack
from tidelock.wire.ids import TableName

#: The view of :class:`SomeParts`; no table has such a name.
SOME = "#some"
#: The content of the frame that has a process give up the statement that it runs. Its answer is the end of
#: that statement, which may have come before.
STOP = b""


class AnswerKind(IntEnum):
    """The content of an answer of a SQL process."""

    #: Bytes of an Arrow IPC stream.
    DATA = 1
    #: The statement has ended, all its data came before; an :class:`MutationResult`.
    END = 2
    #: The statement failed: an error in its HTTP form. The process accepts the next request.
    ERROR = 3
    #: As ERROR, but the process must not be used again.
    FATAL = 4
    #: The statement changes a table: an :class:`Affected`, before any data.
    AFFECTED = 5


class SomeParts(msgspec.Struct, frozen=True):
    """Some of the parts of a table that a request sees, shown as :data:`SOME`."""

    table: TableName
    parts: tuple[PartId, ...]


class SqlRequest(msgspec.Struct, frozen=True, tag="sql"):
    """One statement.

    Attributes:
        csn: The snapshot that it reads.
        tid: Transaction whose own uncommitted parts it sees too, or None.
        sql: One SELECT (or WITH, VALUES, FROM, DESCRIBE, ...) in DuckDB's dialect; inside a transaction also
            INSERT INTO ... SELECT, which is answered like a mutation.
        params: Values of ``?`` or ``$1`` in their order: JSON values.
        adopted: Merges above the snapshot that the transaction has adopted, as textual tids.
        only: Full names of the tables that the statement may see; None: all.
        some: The parts that :data:`SOME` shows; None: no such view.
        live: The rows of system tables that only the agent knows, as Arrow IPC streams.
        defined: The definitions of the transaction, which are not committed, in their order.
    """

    csn: Csn
    tid: str | None
    sql: str
    params: tuple[Any, ...] = ()
    adopted: tuple[str, ...] = ()
    only: tuple[TableName, ...] | None = None
    some: SomeParts | None = None
    live: dict[str, bytes] = {}
    defined: tuple[Definition, ...] = ()


class ChangesRequest(msgspec.Struct, frozen=True, tag="changes"):
    """The changed rows of a table in (since, csn]; see :mod:`tidelock.replica_agent.sql.changes`.

    Attributes:
        csn: The CSN at which the table has the columns of the answer; mostly the last one.
        since: The CSN after which the changes begin.
        table: The table.
        files_max: Parts whose descriptions are kept in memory at a time; a single CSN may have more.
        net: The difference of the rows at the end and those at ``since``, as if one commit had made it.
        until: The last CSN; None: ``csn``.
        tid: None: the changes are those of commits.
        adopted: None, likewise.
        defined: None, likewise.
    """

    csn: Csn
    since: Csn
    table: TableId
    files_max: int
    net: bool = False
    until: Csn | None = None
    tid: None = None
    adopted: tuple[()] = ()
    defined: tuple[()] = ()


#: A request to a SQL process.
Request = SqlRequest | MutationRequest | ChangesRequest


class SqlConfig(msgspec.Struct, frozen=True):
    """Configuration of a SQL process.

    Attributes:
        data_dir: The replica's data directory.
        temp_dir: Empty folder for intermediate results that outgrow the memory.
        memory_bytes: Memory of a statement, besides that of the process itself.
        engine_bytes: The share of DuckDB's own operators; the rest decodes parts and encodes results.
        temp_bytes: Most bytes in ``temp_dir``.
        threads: Threads that run a statement.
        cut_part_bytes_min: A changed part of this length keeps its row groups without changed rows.
    """

    data_dir: str
    temp_dir: str
    memory_bytes: int
    engine_bytes: int
    temp_bytes: int
    threads: int
    cut_part_bytes_min: int


def select_statement(
    table: str, columns: Sequence[str] | None, where: str | None, *, some: bool = False
) -> str:
    """Return the statement that reads a table; ``where`` is SQL, the names are quoted.

    With ``some`` it reads :data:`SOME` under the name of the table. A subquery of the condition still reads
    all rows of the table.

    Raises:
        BadRequestError: The name is not a table name, or no column is selected.
    """
    if columns is not None and not columns:
        raise BadRequestError(f"a read of table {table} asks for no column; leave `columns` out to get all")
    chosen = "*" if columns is None else ", ".join(map(quote, columns))
    names = (table.lower() if is_system_table(table) else full_name(table)).split(".")
    name = f"{quote(SOME)} AS {quote(names[-1])}" if some else ".".join(map(quote, names))
    # On separate lines, so that a comment in it ends before the bracket.
    condition = f"\nWHERE (\n{where}\n)" if where else ""
    return f"SELECT {chosen} FROM {name}{condition}"  # noqa: S608 - `where` is meant to be SQL


def quote(name: str) -> str:
    """Return an identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def pack_answer(kind: AnswerKind, payload: bytes) -> bytes:
    """Return the frame of an answer."""
    return pack(bytes((kind,)), payload)


def read_answer(frame: bytes) -> tuple[AnswerKind, bytes]:
    """Return the kind and the content of an answer."""
    return AnswerKind(frame[0]), frame[1:]
