"""Commands that change the rows of a table, each in a transaction of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelock.cli import output
from tidelock.cli.querying import At
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.cli.writing import FormatOption, WaitFor, checked_wait, columns_of, reading, split
from tidelock.client import CommitResult
from tidelock.errors import BadRequestError

_PANEL = "Writing"

Table = Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)]
Where = Annotated[str, typer.Option(help="A condition in SQL, with ? for each --param.", show_default=False)]
Param = Annotated[
    list[str] | None,
    typer.Option("--param", help="Value of a ?, as text; may be repeated.", show_default=False),
]
Files = Annotated[
    list[Path],
    typer.Argument(
        help="Files of rows: Parquet, CSV, TSV, lines of JSON; - is standard input.", show_default=False
    ),
]
On = Annotated[
    list[str], typer.Option("--on", help="Column of the key; may be repeated.", show_default=False)
]
Label = Annotated[
    str | None,
    typer.Option(help="Name of this change: a second one of that name is refused.", show_default=False),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (delete, update, upsert, merge, truncate):
        app.command(rich_help_panel=_PANEL)(on_target(command))
    app.command("restore", rich_help_panel=_PANEL)(on_target(restore))


def delete(
    target: ClusterOptions,
    table: Table,
    where: Where,
    params: Param = None,
    label: Label = None,
    wait: WaitFor = "home",
    as_json: Json = False,
) -> None:
    """Delete the rows for which a condition is true; `truncate` deletes all."""
    options = _options(label, wait)
    with target.connect() as db:
        _tell(db.delete(table, where, params or (), **options), as_json)


def update(
    target: ClusterOptions,
    table: Table,
    values: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="`column=SQL` over the old row, text in quotes or as ?; may be repeated.",
            show_default=False,
        ),
    ],
    where: Annotated[
        str | None,
        typer.Option(help="A condition in SQL; default: all rows.", show_default=False),
    ] = None,
    params: Param = None,
    label: Label = None,
    wait: WaitFor = "home",
    as_json: Json = False,
) -> None:
    """Give columns new values in the rows for which a condition is true.

    The values of --param are for the ? of all --set, then for those of --where.
    """
    options = _options(label, wait)
    new = dict(split(text, "=", "--set column=SQL") for text in values)
    with target.connect() as db:
        _tell(db.update(table, new, where, params or (), **options), as_json)


def upsert(
    target: ClusterOptions,
    table: Table,
    files: Files,
    on: On,
    format_: FormatOption = None,
    label: Label = None,
    wait: WaitFor = "home",
    as_json: Json = False,
) -> None:
    """Insert the rows of files; each replaces the row with the same key."""
    options = _options(label, wait)
    with target.connect() as db, reading(table, files, columns_of(db, table), format_) as rows:
        _tell(db.upsert(table, rows, on=on, **options), as_json)


def merge(
    target: ClusterOptions,
    table: Table,
    files: Files,
    on: On,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="`column=SQL` over `target` and `source`, for rows with the same key; may be repeated.",
            show_default=False,
        ),
    ] = None,
    delete_where: Annotated[
        str | None,
        typer.Option(
            help="Delete rows with the same key for which this condition is true.", show_default=False
        ),
    ] = None,
    insert: Annotated[
        bool, typer.Option("--insert/--no-insert", help="Insert the rows whose key is not in the table.")
    ] = True,
    params: Param = None,
    format_: FormatOption = None,
    label: Label = None,
    wait: WaitFor = "home",
    as_json: Json = False,
) -> None:
    """Merge the rows of files into a table by key; in SQL they are `source`, those of the table `target`."""
    options = _options(label, wait)
    new = dict(split(text, "=", "--set column=SQL") for text in values or []) or None
    with target.connect() as db, reading(table, files, columns_of(db, table), format_) as rows:
        done = db.merge(
            table,
            rows,
            on=on,
            when_matched_update=new,
            when_matched_delete=delete_where,
            when_not_matched_insert=insert or None,
            params=params or (),
            **options,
        )
        _tell(done, as_json)


def truncate(
    target: ClusterOptions, table: Table, label: Label = None, wait: WaitFor = "home", as_json: Json = False
) -> None:
    """Delete all rows of a table."""
    options = _options(label, wait)
    with target.connect() as db:
        _tell(db.truncate(table, **options), as_json)


def restore(
    target: ClusterOptions,
    table: Table,
    to: Annotated[str | None, typer.Option(help="As at this CSN or tag.", show_default=False)] = None,
    at: At = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            help="One partition alone: column=value (JSON, or text) for each of its columns.",
            metavar="COLUMN=VALUE",
            show_default=False,
        ),
    ] = None,
    label: Label = None,
    wait: WaitFor = "home",
    as_json: Json = False,
) -> None:
    """Make a table, or a partition, again as it was; no file is read or written."""
    options = _options(label, wait)
    values = dict(map(_column_value, partition)) if partition else None
    with target.connect() as db:
        _tell(db.restore_table(table, to, at=at, partition=values, **options), as_json)


def _column_value(text: str) -> tuple[str, Any]:
    """Return a column and its value, from `column=value`."""
    column, found, value = text.partition("=")
    if not found:
        raise BadRequestError(f"expected column=value for --partition, found {text!r}")
    try:
        return column, json.loads(value)
    except json.JSONDecodeError:
        return column, value


def _options(label: str | None, wait: str) -> dict[str, Any]:
    return {"label": label, "wait": checked_wait(wait)}


def _tell(done: CommitResult, as_json: bool) -> None:
    rows = {
        "inserted": done.rows_inserted,
        "updated": done.rows_updated,
        "deleted": done.rows_deleted,
    }
    if as_json:
        output.print_json({"tid": done.tid, "csn": done.csn, "rows": rows})
        return
    counts = ", ".join(f"{count:,} {what}" for what, count in rows.items() if count) or "none changed"
    at = "nothing to commit" if done.csn is None else f"at CSN {done.csn}"
    output.say(f"rows: {counts}; {at} (transaction {done.tid})")
