"""Commands that read rows: sql, changes, and snapshots for other readers."""

from __future__ import annotations

import itertools
import json
from typing import Annotated, Any, Final

import typer

from tidelock.cli import output
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.client import Snapshot
from tidelock.client.values.arguments import seconds

#: Rows of a result that are shown to people; --json prints all.
ROWS_SHOWN: Final = 100
_PANEL = "Reading"

Csn = Annotated[
    str | None,
    typer.Option(help="At this CSN or tag; default: the newest.", metavar="CSN", show_default=False),
]
RowsShown = Annotated[int, typer.Option("--rows", min=1, help="Rows to show (not with --json).")]
At = Annotated[
    str | None,
    typer.Option(
        help="At this time: ISO 8601 with Z or an offset, e.g. 2026-11-22T10:00:00Z.",
        metavar="TIME",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (sql, changes):
        app.command(rich_help_panel=_PANEL)(on_target(command))
    snapshots = typer.Typer(no_args_is_help=True, help="Snapshots for Spark, DuckDB, pandas and others.")
    snapshots.command("create")(on_target(create))
    snapshots.command("show")(on_target(show))
    app.add_typer(snapshots, name="snapshot", rich_help_panel=_PANEL)


def sql(
    target: ClusterOptions,
    statement: Annotated[str, typer.Argument(help="One SELECT, in DuckDB's SQL.", show_default=False)],
    params: Annotated[
        list[str] | None,
        typer.Option("--param", help="Value for a `?`: JSON, or text; may be repeated.", show_default=False),
    ] = None,
    csn: Csn = None,
    at: At = None,
    rows_shown: RowsShown = ROWS_SHOWN,
    as_json: Json = False,
) -> None:
    """Run a query over all tables at one CSN."""
    with target.connect() as db, db.snapshot(csn, at=at) as snap:
        rows = snap.sql(statement, [_value(text) for text in params or []])
    if as_json:
        output.print_json(rows.to_pylist())
        return
    shown = rows.slice(0, rows_shown).to_pylist()
    output.print_table(rows.column_names, [[row[name] for name in rows.column_names] for row in shown])
    more = f", {rows.num_rows - rows_shown:,} more (--rows, --json)" if rows.num_rows > rows_shown else ""
    output.hint(f"{rows.num_rows:,} rows at CSN {snap.csn}{more}")


def changes(
    target: ClusterOptions,
    table: Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)],
    from_csn: Annotated[
        int, typer.Option("--from", help="Show the changes after this CSN.", show_default=False)
    ],
    to_csn: Annotated[
        int | None, typer.Option("--to", help="Up to this CSN; default: the newest.", show_default=False)
    ] = None,
    rows_shown: RowsShown = ROWS_SHOWN,
    as_json: Json = False,
) -> None:
    """Show which rows of a table commits have inserted, deleted and updated."""
    with target.connect() as db, db.changes(table, from_csn, to_csn) as feed:
        changed = (row for batch in feed.to_batches() for row in batch.to_pylist())
        rows = list(changed if as_json else itertools.islice(changed, rows_shown + 1))
    if as_json:
        output.print_json(rows)
        return
    columns = {"_commit_csn": "CSN", "_commit_time": "time", "_change_type": "change"}
    columns |= {name: name for row in rows[:1] for name in row if name not in columns}
    shown = rows[:rows_shown]
    output.print_table(list(columns.values()), [[row[name] for name in columns] for row in shown])
    more = "; there are more (--rows, --json)" if len(rows) > rows_shown else ""
    output.hint(f"{len(shown):,} changed rows after CSN {from_csn}, up to {feed.to_csn}{more}")


def create(
    target: ClusterOptions,
    csn: Csn = None,
    at: At = None,
    lease: Annotated[str, typer.Option(help="How long it stays readable, e.g. 10m, 2h.")] = "10m",
    as_json: Json = False,
) -> None:
    """Pin a CSN for a while and show the folder of each table, for any reader that knows WebHDFS."""
    with target.connect() as db:
        # Not closed on purpose: the pin outlives this process and ends with its lease.
        _print(db.snapshot(csn, at=at, lease=lease), as_json=as_json, lease_s=seconds(lease))


def show(
    target: ClusterOptions,
    csn: Annotated[str, typer.Argument(help="The CSN, or a tag.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show the tables at a CSN, and their folders, without keeping it readable."""
    with target.connect() as db, db.snapshot(csn) as snap:
        _print(snap, as_json=as_json, lease_s=None)


def _print(snap: Snapshot, *, as_json: bool, lease_s: float | None) -> None:
    tables = [
        {
            "table": table.name,
            "rows": table.rows,
            "path": f"{snap.root}/{table.name.replace('.', '/')}",
        }
        for table in snap.tables()
    ]
    if as_json:
        output.print_json({"csn": snap.csn, "lease_s": lease_s, "tables": tables})
        return
    output.print_table(
        ["table", "rows", "path"],
        [[table["table"], table["rows"], table["path"]] for table in tables],
        title=f"CSN {snap.csn}",
    )
    if lease_s is not None:
        output.hint(f"readable for {lease_s:.0f} s at least")


def _value(text: str) -> Any:
    """Return a parameter: its value as JSON, or the text if it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
