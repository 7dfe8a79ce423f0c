"""Commands that show the state of a cluster: status, tables, txns, outcome, label, log, explain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from tidelock.cli import output
from tidelock.cli.local import print_replicas
from tidelock.cli.target import ClusterOptions, Json, on_target

Tid = Annotated[str, typer.Argument(help="Transaction id.", show_default=False)]
_PANEL = "Looking"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (status, tables, txns, outcome, label, log, explain):
        app.command(rich_help_panel=_PANEL)(on_target(command))


def status(target: ClusterOptions, as_json: Json = False) -> None:
    """Show the replicas: addresses, states and snapshot CSNs."""
    cluster = target.local()
    if cluster is not None:
        found = cluster.status()
    else:
        with target.connect() as db:
            found = _of_agents(db.status())
    if as_json:
        output.print_json(found)
        return
    print_replicas(found["replicas"])
    zookeeper = found.get("zookeeper")
    if zookeeper:
        output.say(f"ZooKeeper {zookeeper['connect']} {zookeeper.get('state', '')}".rstrip())


def _of_agents(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status that an agent reports, in the form of the status of a local cluster."""
    replicas = [
        {
            "id": row["id"],
            "url": f"http://{row['api']}",
            "data": row["data"],
            "state": row["state"],
            "snapshot_csn": row["snapshot_csn"],
            "pid": None,
        }
        for row in status["replicas"]
    ]
    kept = ("cluster_id", "cluster_csn", "end_csn", "copies")
    return {"replicas": replicas, **{name: status[name] for name in kept if name in status}}


def tables(
    target: ClusterOptions,
    csn: Annotated[int | None, typer.Option(help="At this CSN; default: the newest.")] = None,
    as_json: Json = False,
) -> None:
    """List the tables."""
    with target.connect() as db:
        found = db.tables(csn=csn)
    if as_json:
        output.print_json(found)
        return
    columns: dict[str, Callable[[dict[str, Any]], Any]] = {
        "table": lambda table: table["name"],
        "columns": lambda table: len(table["columns"]),
        "partitioned by": lambda table: ", ".join(table["partition_by"]) or None,
        "unique by": lambda table: table["properties"].get("unique_key"),
        "derived from": lambda table: table.get("derived_from"),
        "rows": lambda table: table["rows"],
        "size": lambda table: output.size(table["bytes"]),
        "parts": lambda table: table["parts"],
    }
    for name in ("unique by", "derived from"):
        if not any(columns[name](table) for table in found):
            del columns[name]
    output.print_table(list(columns), [[cell(table) for cell in columns.values()] for table in found])


def txns(target: ClusterOptions, as_json: Json = False) -> None:
    """List open and recently ended transactions of all replicas that answer."""
    with target.connect() as db:
        found = db.transactions()
    if as_json:
        output.print_json(found)
        return
    names = ["tid", "state", "rows", "parts", "tables", "label", "lease_left_s"]
    rows = [{**row, "tables": ", ".join(row.get("tables") or [])} for row in found]
    output.print_table([*names[:-1], "lease left, s"], [[row.get(name) for name in names] for row in rows])


def outcome(target: ClusterOptions, tid: Tid, as_json: Json = False) -> None:
    """Show the outcome of a transaction: committed, aborted, running or too_old."""
    with target.connect() as db:
        found = db.outcome(tid)
    if as_json:
        output.print_json(
            {"tid": found.tid, "outcome": str(found.decision), "csn": found.csn, "time": _iso(found.time)}
        )
        return
    where = f" at CSN {found.csn}" if found.csn is not None else ""
    when = f", {_iso(found.time)}" if found.time is not None else ""
    output.say(f"{tid} {found.decision}{where}{when}")


def label(
    target: ClusterOptions, name: Annotated[str, typer.Argument(help="The label.")], as_json: Json = False
) -> None:
    """Show the newest commit under a label: its transaction, its batch in a stream, its CSN."""
    with target.connect() as db:
        found = db.label(name)
    if as_json:
        output.print_json(found and {**dataclasses.asdict(found), "time": _iso(found.time)})
        return
    if found is None:
        output.say(f"{name}: nothing is committed under this label")
        return
    batch = f", batch {found.batch}" if found.batch is not None else ""
    where = f" at CSN {found.csn}, {_iso(found.time)}" if found.csn is not None else ""
    output.say(f"{name}: {found.tid}{batch}{where}")


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
        if from_csn is None:
            status = db.status()
            from_csn = max(int(status["tail"]), int(status["end_csn"]) - limit + 1)
        records = db.log(from_csn, limit=limit)
    if as_json:
        output.print_json(records)
        return
    output.print_table(
        ["CSN", "kind", "home", "time", "tids"],
        [
            [
                record["csn"],
                record["kind"],
                record["home"],
                _iso(datetime.fromtimestamp(record["time_ms"] / 1000, UTC)),
                "\n".join(_tid_of(item) for item in record["tids"]),
            ]
            for record in records
        ],
    )


def _tid_of(item: Any) -> str:
    return str(item.get("tid", item)) if isinstance(item, dict) else str(item)


def explain(target: ClusterOptions, tid: Tid, as_json: Json = False) -> None:
    """Show the hihistory of a transaction: its state, record and parts, their holders, what it waits for."""
    with target.connect() as db:
        history = db.explain(tid)
    if as_json:
        output.print_json(history)
        return
    for name, value in history.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            columns = list(value[0])
            output.print_table(columns, [[row.get(key) for key in columns] for row in value], title=name)
        elif isinstance(value, dict):
            output.say(
                f"{name}: " + ", ".join(f"{key}={item}" for key, item in value.items() if item is not None)
            )
        else:
            output.say(f"{name}: {'-' if value is None else value}")


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
