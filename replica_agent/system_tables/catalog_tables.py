"""The system tables whose rows are in the catalog: tables, parts, partitions, committed transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.visibility import visible_args
from tidelock.replica_agent.storage.catalog_schema import VISIBLE_OF_TABLE
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.system_tables.definition import (
    COUNT,
    FLAG,
    PROPERTIES,
    SECONDS,
    TEXT,
    TEXTS,
    TIME,
    Column,
    Moment,
    Place,
    Slice,
    SystemTable,
    View,
    made,
    selected,
)
from tidelock.replica_agent.system_tables.live import LiveSource

#: Ranges of CSNs into which a table that is ordered by them is cut, so that a query skips those it needs not.
_RANGES: Final = 64

#: The columns that say which table a row is about.
TABLE: Final = (
    Column("namespace", TEXT, "Namespace of the table.", ":namespace"),
    Column("table_name", TEXT, "Name of the table in its namespace.", ":name"),
)


def table_slice(view: View, table: TableRow, source: str) -> Slice:
    """Return the slice of one table: rows of SQL with the parameters of :func:`seen_args`."""
    return Slice(selected(source, seen_args(view, table), view.reader), equal=named(table), reads=table.id)


def named(table: TableRow) -> dict[str, str]:
    """Return the values of the columns :data:`TABLE`."""
    namespace, _, name = table.name.rpartition(".")
    return {"namespace": namespace, "table_name": name}


def seen_args(view: View, table: TableRow) -> dict[str, Any]:
    """Return the parameters of a query about the visible parts of a table."""
    names = named(table)
    return {
        "table": table.id,
        "namespace": names["namespace"],
        "name": names["table_name"],
        **visible_args(view.csn, view.own, view.adopted),
    }


def csn_slices(view: View, source: str, column: str) -> Iterator[Slice]:
    """Return slices of rows that are ordered by a CSN, up to that of the query.

    Args:
        view: The view.
        source: The table of the catalog; its column ``csn`` has an index.
        column: The name of that column in the system table.
    """
    expressions = ["min(csn)", "max(csn)"]
    ((low, high),) = next(view.reader.selected(expressions, f"{source} WHERE csn <= :s", {"s": view.csn}, 1))
    if low is None:
        return
    width = (high - low) // _RANGES + 1
    for begin in range(low, high + 1, width):
        end = Csn(min(begin + width - 1, high))
        args = {"begin": begin, "end": end}
        where = f"{source} WHERE csn BETWEEN :begin AND :end ORDER BY csn"
        yield Slice(selected(where, args, view.reader), between={column: (begin, end)})


# -- tables --------------------------------------------------------------------------------------------------


def _tables(view: View) -> Iterable[Slice]:
    for table in view.tables:
        yield Slice(made(_described(view, table)), equal=named(table), reads=table.id)


def _described(view: View, table: TableRow) -> Callable[[frozenset[str]], Iterable[Mapping[str, Any]]]:
    def rows(wanted: frozenset[str]) -> Iterable[Mapping[str, Any]]:
        definition = table.definition
        found: dict[str, Any] = {
            **named(table),
            "table_id": table.id,
            "version": table.version,
            "defined_csn": table.from_csn,
            "columns": len(definition["columns"]),
            "partition_by": definition["partition_by"],
            "sort_by": definition["sort_by"],
            "properties": [*definition["properties"].items()],
            "derived_from": None,
            "derived_sql": definition.get("derived_sql"),
        }
        reader = view.reader
        if "defined_time" in wanted:
            time_ms = reader.time_of(table.from_csn)
            found["defined_time"] = None if time_ms is None else time_ms * 1000
        if "derived_from" in wanted and "derived_from" in definition:
            source = reader.table(TableId(definition["derived_from"]), view.csn)
            found["derived_from"] = None if source is None else source.name
        if "changed_csn" in wanted:
            found["changed_csn"] = reader.changed(table.id, view.csn)
        if wanted & {"parts", "rows", "bytes"}:
            parts, count, size = reader.totals(table.id, view.csn, view.own, view.adopted)
            found |= {"parts": parts, "rows": count, "bytes": size}
        return [found]

    return rows


TABLES: Final = SystemTable(
    name="tables",
    doc="The tables that exist, one row each.",
    place=Place.CLUSTER,
    moment=Moment.CSN,
    columns=(
        *TABLE,
        Column("table_id", TEXT, "Its id, which a rename keeps; another table of the same name has another."),
        Column("version", COUNT, "Version of its definition; 0 is the first."),
        Column("defined_csn", COUNT, "CSN from which this version holds."),
        Column("defined_time", TIME, "Time of that CSN; null if it is not kept any more."),
        Column(
            "changed_csn", COUNT, "CSN that last changed its rows or its definition; compaction does neither."
        ),
        Column("columns", COUNT, "Number of its columns."),
        Column("partition_by", TEXTS, "Columns whose values become folders."),
        Column("sort_by", TEXTS, "Columns by which the rows of a file are sorted."),
        Column("properties", PROPERTIES, "Its properties, such as comment, unique_key and retention_s."),
        Column("derived_from", TEXT, "Full name of the table whose inserts it follows."),
        Column("derived_sql", TEXT, "The SELECT that makes its rows of these."),
        Column("parts", COUNT, "Number of its parts."),
        Column("rows", COUNT, "Number of its rows."),
        Column("bytes", COUNT, "Bytes of its parts."),
    ),
    cost=(
        "One row for each table. `parts`, `rows` and `bytes` read the catalog rows of all parts of the "
        "table, and only if the query names them."
    ),
    slices=_tables,
)

# -- parts and partitions ------------------------------------------------------------------------------------

_TIME_OF: Final = "(SELECT time_ms * 1000 FROM csns WHERE csn = {})"

PARTS: Final = SystemTable(
    name="parts",
    doc="The parts (Parquet files) of which the tables consist, one row each.",
    place=Place.CLUSTER,
    moment=Moment.CSN,
    columns=(
        *TABLE,
        Column("part", TEXT, "Its id.", "part"),
        Column("partition", TEXT, "Path of its partition, empty without partitions.", "path"),
        Column("rows", COUNT, "Number of its rows.", "rows"),
        Column("bytes", COUNT, "Bytes of its file.", "length"),
        Column("checksum", TEXT, "XXH3-128 of these bytes.", "checksum"),
        Column(
            "added_csn", COUNT, "CSN that added it; null for a part of the own transaction.", "creation_csn"
        ),
        Column("added_time", TIME, "Time of that CSN.", _TIME_OF.format("creation_csn")),
        Column("added_tid", TEXT, "Transaction that added it.", "creation_tid"),
        Column("merged", FLAG, "Whether compaction made it of other parts.", "NOT creation_change"),
        Column(
            "removed_csn", COUNT, "CSN above that of the query that removed it, if one has.", "removal_csn"
        ),
        Column("removed_tid", TEXT, "Transaction that removed it, or is about to.", "removal_tid"),
        Column(
            "state",
            TEXT,
            "On the replica that answers: `held`; `wanted`, its bytes are on their way; `quarantined`, its "
            "bytes are damaged.",
            "state",
        ),
        Column("file", TEXT, "File below the data directory of the replica that answers.", "file"),
        Column("file_offset", COUNT, "Where it begins in that file.", "iif(file IS NULL, NULL, offset)"),
    ),
    cost=(
        "One catalog row for each part of the tables that the query wants: a condition like `table_name = "
        "'orders'` reads the parts of that table alone. Parts are read 8,192 at a time: the memory does not "
        "grow with their number."
    ),
    slices=lambda view: (table_slice(view, table, VISIBLE_OF_TABLE) for table in view.tables),
)

PARTITIONS: Final = SystemTable(
    name="partitions",
    doc="The partitions that have parts, one row each; a table without partitions is one.",
    place=Place.CLUSTER,
    moment=Moment.CSN,
    columns=(
        *TABLE,
        Column("partition", TEXT, "Its path, empty for a table without partitions.", "path"),
        Column("parts", COUNT, "Number of its parts.", "count(*)"),
        Column("rows", COUNT, "Number of its rows.", "sum(rows)"),
        Column("bytes", COUNT, "Bytes of its parts.", "sum(length)"),
        Column("first_csn", COUNT, "CSN that added its oldest part.", "min(creation_csn)"),
        Column(
            "last_csn", COUNT, "CSN that added its newest part, compaction included.", "max(creation_csn)"
        ),
    ),
    cost="The catalog rows of all parts of the tables that the query wants.",
    slices=lambda view: (
        table_slice(view, table, f"{VISIBLE_OF_TABLE} GROUP BY path ORDER BY path") for table in view.tables
    ),
)

# -- transactions --------------------------------------------------------------------------------------------


async def _open(source: LiveSource) -> list[tuple[Any, ...]]:
    return [
        (
            one.tid,
            one.state,
            one.tid.split("-")[1],
            one.snapshot_csn,
            one.statement_csn,
            one.isolation,
            one.label,
            one.batch,
            one.tables,
            one.rows,
            one.parts,
            one.removed_parts,
            None,
            None,
            None,
            one.error,
            one.lease_left_s,
        )
        for one in await source.open_transactions()
        if one.csn is None
    ]


TRANSACTIONS: Final = SystemTable(
    name="transactions",
    doc=(
        "The transactions that are open at the replica that answers, and those of all replicas that were "
        "committed up to the CSN of the query."
    ),
    place=Place.REPLICA,
    moment=Moment.CSN,
    columns=(
        Column("tid", TEXT, "Its id.", "tid"),
        Column("state", TEXT, "`open`, `failed`, `sealed` or `committed`.", "'committed'"),
        Column("home", TEXT, "Replica at which it was begun.", "tid_home(tid)"),
        Column("snapshot_csn", COUNT, "CSN at which it was begun.", "tid_snapshot(tid)"),
        Column("statement_csn", COUNT, "While open: CSN at which its last statement read.", "NULL"),
        Column("isolation", TEXT, "While open: which commits of others it sees.", "NULL"),
        Column("label", TEXT, "Its label.", "label"),
        Column("batch", COUNT, "Number of the batch of a streaming query.", "batch"),
        Column("tables", TEXTS, "While open: the tables that it has changed.", "NULL"),
        Column("rows", COUNT, "While open: rows that it has added.", "NULL"),
        Column("parts", COUNT, "While open: parts that it has added.", "NULL"),
        Column("removed_parts", COUNT, "While open: parts that it has removed.", "NULL"),
        Column("csn", COUNT, "CSN of its commit.", "csn"),
        Column("time", TIME, "Time of that CSN.", "time_ms * 1000"),
        Column("carrier", TEXT, "Transaction whose parts have its rows too, if another has.", "carrier"),
        Column("error", TEXT, "Why an open one takes no statements any more.", "NULL"),
        Column("lease_left_s", SECONDS, "Seconds until the lease of an open one ends.", "NULL"),
    ),
    cost=(
        "One row for each transaction of the last `outcome_retention_s`, and for each label that is kept. A "
        "condition on `csn` reads only commits near it. What a commit has changed is in `system.history`."
    ),
    slices=lambda view: csn_slices(view, "outcomes", "csn"),
    live=_open,
)

# -- history -------------------------------------------------------------------------------------------------

HISTORY: Final = SystemTable(
    name="history",
    doc=(
        "The changes that each commit has made to each table, one row for each transaction and table: who, "
        "what, when. It is kept longer than the log, the outcomes and the parts "
        "(`commit_history_retention_s`, `commit_history_rows_max`)."
    ),
    place=Place.REPLICA,
    moment=Moment.CSN,
    columns=(
        Column("csn", COUNT, "CSN of the commit.", "csn"),
        Column("time", TIME, "Time of that CSN.", "time_ms * 1000"),
        Column("namespace", TEXT, "Namespace of the table after the commit.", "namespace_of(name)"),
        Column("table_name", TEXT, "Name of the table in its namespace after the commit.", "name_of(name)"),
        Column("table_id", TEXT, "Id of the table, which a rename keeps.", "table_name"),
        Column(
            "action",
            TEXT,
            "`insert`; `delete`: it only removes; `change`: it removes and adds, as an update, a merge and a "
            "delete within parts do; `compact`; `create`, `alter`, `drop`; `lost`: an operator declared a "
            "part lost.",
            "action",
        ),
        Column(
            "rows_added",
            COUNT,
            "Rows of the parts that it adds; a change adds the rows of a part that it keeps again.",
            "rows_added",
        ),
        Column("rows_removed", COUNT, "Rows of the parts that it removes.", "rows_removed"),
        Column(
            "parts_added",
            COUNT,
            "Parts that it adds; 0 if its rows are in parts of a carrier.",
            "parts_added",
        ),
        Column("parts_removed", COUNT, "Parts that it removes.", "parts_removed"),
        Column("tid", TEXT, "The transaction.", "tid"),
        Column("home", TEXT, "Replica at which it was begun.", "tid_home(tid)"),
        Column("label", TEXT, "Its label.", "label"),
        Column("batch", COUNT, "Number of the batch of a streaming query.", "batch"),
        Column(
            "meta",
            TEXT,
            "The user's own data (`begin(meta=...)`) as JSON. Tidelock has no users: put their names there.",
            "meta",
        ),
    ),
    cost=(
        "One row for each transaction and table. A condition on `csn` reads only commits near it; any other "
        "reads all rows, about a second for a million."
    ),
    slices=lambda view: csn_slices(view, "history", "csn"),
)
