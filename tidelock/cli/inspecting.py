"""Commands that show the state of a cluster: status, tables, txns, outcome, label, log, explain."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from tidelock.cli import output, remarks
from tidelock.cli.local import print_replicas
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.client import Database
from tidelock.errors import SnapshotTooOldError, TidelockError, UnavailableError
from tidelock.exits import Exit
from tidelock.wire.cluster import ReplicaStatus, StatusAnswer
from tidelock.wire.log import LogEntry
from tidelock.wire.rows import Row, RowList
from tidelock.wire.tables import TableInfo

Tid = Annotated[str, typer.Argument(help="Transaction id.", show_default=False)]
_PANEL = "Inspecting"
#: Ids of parts; those of transactions begin with a digit.
_PART = re.compile(r"[a-z][a-z0-9_]*-[0-9]+-[0-9]+")
#: States of replicas that serve: as they report it, and as the others see them.
_SERVING = frozenset({"serving", "alive"})


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (status, tables, txns, outcome, label, log, explain):
        app.command(rich_help_panel=_PANEL)(on_target(command))


def status(target: ClusterOptions, as_json: Json = False) -> None:
    """Show the replicas: addresses, states and snapshot CSNs. Exit code 3: no replica serves."""
    cluster = target.local()
    seen: StatusAnswer | None = None
    if cluster is not None:
        cluster_status = cluster.status()
        with contextlib.suppress(TidelockError), target.connect() as db:
            seen = db.status()
    else:
        with target.connect() as db:
            seen = db.status()
        cluster_status = _of_agents(seen)
    if as_json:
        output.print_json(cluster_status)
    else:
        print_replicas(cluster_status["replicas"])
        for line in [] if seen is None else remarks.held_back(seen):
            output.say(line)
        with contextlib.suppress(TidelockError), target.connect() as db:
            for row in [] if seen is None else seen.replicas:
                for line in _remarks_of(db, row):
                    output.say(line)
        zookeeper = cluster_status.get("zookeeper")
        if zookeeper:
            output.say(f"ZooKeeper {zookeeper['connect']} {zookeeper.get('state', '')}".rstrip())
    if not _SERVING & {row["state"] for row in cluster_status["replicas"]}:
        raise typer.Exit(Exit.UNAVAILABLE)


def _remarks_of(db: Database, row: ReplicaStatus) -> list[str]:
    """Return what is to be said of a replica, as that replica tells it; nothing if it does not answer."""
    if not row.alive:
        return []
    try:
        return remarks.remarks(db.membership.status_of(row.id))
    except UnavailableError:
        return []


def _of_agents(status: StatusAnswer) -> dict[str, Any]:
    """Return the status that an agent reports, in the form of the status of a local cluster."""
    replicas = [
        {
            "id": row.id,
            "url": f"http://{row.api}",
            "data": row.data,
            "state": row.state if row.phase in {None, "following"} else f"{row.state}, {row.phase}",
            "snapshot_csn": row.snapshot_csn,
            "pid": None,
        }
        for row in status.replicas
    ]
    names = ("cluster_id", "cluster_csn", "end_csn", "copies")
    return {"replicas": replicas, **{name: status[name] for name in names}}


def tables(
    target: ClusterOptions,
    csn: Annotated[int | None, typer.Option(help="At this CSN; default: the newest.")] = None,
    as_json: Json = False,
) -> None:
    """List the tables."""
    with target.connect() as db:
        definitions = db.tables(csn=csn)
    if as_json:
        shown = [{name: part for name, part in one.items() if name != "arrow_schema"} for one in definitions]
        output.print_json(shown)  # the Arrow schema is for programs that read Arrow: db.tables() has it
        return
    columns: dict[str, Callable[[TableInfo], Any]] = {
        "table": lambda table: table.name,
        "columns": lambda table: len(table.columns),
        "partitioned by": lambda table: ", ".join(table.partition_by) or None,
        "unique by": lambda table: table.properties.get("unique_key"),
        "derived from": lambda table: table.derived_from,
        "rows": lambda table: table.rows,
        "size": lambda table: output.size(table.bytes),
        "parts": lambda table: table.parts,
    }
    for name in ("unique by", "derived from"):
        if not any(columns[name](table) for table in definitions):
            del columns[name]
    output.print_table(list(columns), [[cell(table) for cell in columns.values()] for table in definitions])


def txns(target: ClusterOptions, as_json: Json = False) -> None:
    """List open and recently ended transactions of all replicas that answer."""
    with target.connect() as db:
        transactions = db.transactions()
    if as_json:
        output.print_json(transactions)
        return
    names = ["tid", "state", "rows", "parts", "tables", "label", "lease_left_s"]
    rows = [{**row, "tables": ", ".join(row.get("tables") or [])} for row in transactions]
    output.print_table([*names[:-1], "lease left, s"], [[row.get(name) for name in names] for row in rows])


def outcome(target: ClusterOptions, tid: Tid, as_json: Json = False) -> None:
    """Show the outcome of a transaction: committed, aborted, running or too_old."""
    with target.connect() as db:
        result = db.outcome(tid)
    if as_json:
        output.print_json(
            {"tid": result.tid, "outcome": str(result.decision), "csn": result.csn, "time": iso(result.time)}
        )
        return
    where = f" at CSN {result.csn}" if result.csn is not None else ""
    when = f", {iso(result.time)}" if result.time is not None else ""
    output.say(f"{tid} {result.decision}{where}{when}")


def label(
    target: ClusterOptions, name: Annotated[str, typer.Argument(help="The label.")], as_json: Json = False
) -> None:
    """Show the newest commit under a label: its transaction, its batch in a stream, its CSN, its progress.

    Exit code 7: nothing is committed under it.
    """
    with target.connect() as db:
        newest = db.label(name)
    if as_json:
        output.print_json(newest and {**dataclasses.asdict(newest), "time": iso(newest.time)})
    elif newest is None:
        output.say(f"{name}: nothing is committed under this label")
    else:
        batch = f", batch {newest.batch}" if newest.batch is not None else ""
        where = f" at CSN {newest.csn}, {iso(newest.time)}" if newest.csn is not None else ""
        output.say(f"{name}: {newest.tid}{batch}{where}")
        if newest.progress is not None:
            output.say(f"progress: {newest.progress}")
    if newest is None:
        raise typer.Exit(Exit.ABSENT)


def log(
    target: ClusterOptions,
    from_csn: Annotated[
        int | None, typer.Option("--from", help="First CSN to show; default: the last ones.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many records.")] = 20,
    as_json: Json = False,
) -> None:
    """Show records of the CSN log."""
    with target.connect() as db:
        records = _last_records(db, limit) if from_csn is None else db.log(from_csn, limit=limit)
    if as_json:
        output.print_json(records)
        return
    output.print_table(
        ["CSN", "kind", "home", "time", "tids"],
        [_logged(record) for record in records],
    )


def _last_records(db: Database, limit: int) -> RowList[LogEntry]:
    """Return the last records of the log; all that is left, if it was cut there meanwhile."""
    status = db.status()
    begin = status.end_csn - limit + 1
    if begin > status.tail:
        with contextlib.suppress(SnapshotTooOldError):
            return db.log(begin, limit=limit)
    return db.log(0, limit=limit)


def _logged(record: LogEntry) -> list[Any]:
    if word := record.skipped:
        return [record.csn, record.kind, "", "", f"skipped by {word.by}: {word.why}"]
    return [
        record.csn,
        record.kind,
        record.home,
        iso(datetime.fromtimestamp(record.time_ms / 1000, UTC)),
        "\n".join(item.tid for item in record.tids),
    ]


def explain(
    target: ClusterOptions,
    name: Annotated[str, typer.Argument(metavar="TID|PART", help="A transaction, or a part.")],
    csn: Annotated[
        int | None, typer.Option("--at", help="CSN at which the part is judged; default: the newest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the story of a transaction, or why a part is visible at a CSN or not.

    A transaction has its state, label, record and parts, their holders, its changes, the replicas that have
    applied it, and what it waits for.
    """
    with target.connect() as db:
        found = db.explain_part(name, csn=csn) if _PART.fullmatch(name) else db.explain(name)
    if as_json:
        output.print_json(found)
        return
    for field, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], Row):
            columns = list(value[0])
            output.print_table(columns, [[row.get(key) for key in columns] for row in value], title=field)
        elif isinstance(value, dict | Row):
            output.say(
                f"{field}: " + ", ".join(f"{key}={item}" for key, item in value.items() if item is not None)
            )
        else:
            output.say(f"{field}: {'-' if value is None else value}")


def iso(time: datetime | None) -> str | None:
    """Return a time as ISO 8601 in UTC, with milliseconds; None as None."""
    return None if time is None else time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
