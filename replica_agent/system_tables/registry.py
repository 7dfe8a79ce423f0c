"""The list of all system tables."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from tidelock.errors import UnknownTableError
from tidelock.replica_agent.system_tables.catalog_tables import (
    HISTORY,
    PARTITIONS,
    PARTS,
    TABLES,
    TRANSACTIONS,
)
from tidelock.replica_agent.system_tables.columns_table import COLUMNS
from tidelock.replica_agent.system_tables.definition import SystemTable, batch_of
from tidelock.replica_agent.system_tables.live import LiveSource
from tidelock.replica_agent.system_tables.live_tables import LIVE_TABLES
from tidelock.replica_agent.tables.names import SYSTEM_NAMESPACE

#: All system tables by name, in the order in which the documentation shows them.
SYSTEM_TABLES: Final[Mapping[str, SystemTable]] = MappingProxyType(
    {table.name: table for table in (TABLES, COLUMNS, PARTITIONS, PARTS, TRANSACTIONS, HISTORY, *LIVE_TABLES)}
)

#: A system table as SQL names it, in any case and perhaps in quotes.
REFERENCE: Final = re.compile(
    rf'(?<![\w".])("{SYSTEM_NAMESPACE}"|{SYSTEM_NAMESPACE})\s*\.\s*("?)({"|".join(SYSTEM_TABLES)})\2(?![\w"])',
    re.IGNORECASE,
)


def mentioned(sql: str) -> list[SystemTable]:
    """Return the system tables whose names are in a statement, in a text or a comment of it too."""
    names = {match[3].lower() for match in REFERENCE.finditer(sql)}
    return [table for name, table in SYSTEM_TABLES.items() if name in names]


async def live_rows(source: LiveSource, sql: str) -> dict[str, bytes]:
    """Return the live rows of the system tables that a statement may name, as Arrow IPC streams by table."""
    found = {}
    for table in mentioned(sql):
        if table.live is not None:
            batch = batch_of(await table.live(source), table.columns)
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            found[table.name] = sink.getvalue()
    return found


def unknown_in(sql: str, name: str) -> UnknownTableError | None:
    """Return the error about a name that no system table has; None if the statement does not name one so."""
    written = rf'(?<![\w".])"?{SYSTEM_NAMESPACE}"?\s*\.\s*"?{re.escape(name)}(?!\w)'
    if re.search(written, sql, re.IGNORECASE) is None:
        return None
    return UnknownTableError(
        f"there is no table {SYSTEM_NAMESPACE}.{name}; the system tables are {', '.join(SYSTEM_TABLES)}",
        table=f"{SYSTEM_NAMESPACE}.{name}",
    )
