"""Commands that describe one table at a CSN: table, parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tidelock.cli import output
from tidelock.cli.querying import ROWS_SHOWN, At, Csn, RowsShown
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.wire.rows import Fields

Name = Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)]
#: Fields of a definition that a line of its own shows, and how it begins.
_LINES = {
    "partition_by": "partitioned by",
    "sort_by": "sorted by",
    "properties": "properties",
    "derived_from": "derived from",
    "derived_sql": "by",
    "dependents": "followed by",
}


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (table, parts):
        app.command(rich_help_panel="Inspecting")(on_target(command))


def table(
    target: ClusterOptions,
    name: Name,
    csn: Csn = None,
    at: At = None,
    rows_shown: RowsShown = ROWS_SHOWN,
    as_json: Json = False,
) -> None:
    """Show a table: its definition, rows, bytes and parts, in all and by partition."""
    with target.connect() as db, db.snapshot(csn, at=at) as snap:
        found, listed = dict(snap.table(name)), snap.parts(name)
    partitions = partitions_of(listed)
    if as_json:
        del found["arrow_schema"]  # for programs that read Arrow: db.table() has it
        output.print_json({**found, "csn": snap.csn, "partitions": partitions})
        return
    size = output.size(found["bytes"])
    output.say(
        f"{found['name']} at CSN {snap.csn}: {found['rows']:,} rows, {size} in {found['parts']:,} parts, "
        f"version {found['version']} of its definition"
    )
    for field, begin in _LINES.items():
        if value := found.get(field):
            output.say(f"{begin} {_text(value)}")
    output.print_table(
        ["column", "type", "null"],
        [[one["name"], one["type"], "yes" if one["nullable"] else "no"] for one in found["columns"]],
    )
    if found["partition_by"]:
        output.print_table(
            ["partition", "rows", "size", "parts"],
            [[*row.values()] for row in _with_sizes(partitions[:rows_shown])],
        )
        _hint_rest(len(partitions) - rows_shown, "partitions")


def parts(
    target: ClusterOptions,
    name: Name,
    csn: Csn = None,
    at: At = None,
    rows_shown: RowsShown = ROWS_SHOWN,
    as_json: Json = False,
) -> None:
    """List the parts of a table: each is a Parquet file below the folder of the snapshot."""
    with target.connect() as db, db.snapshot(csn, at=at) as snap:
        listed = snap.parts(name)
    if as_json:
        output.print_json({"csn": snap.csn, "parts": listed})
        return
    output.print_table(
        ["part", "partition", "rows", "size", "file"],
        [
            [one["part"], one["path"] or None, one["rows"], output.size(one["length"]), one["file"]]
            for one in listed[:rows_shown]
        ],
        title=f"CSN {snap.csn}",
    )
    _hint_rest(len(listed) - rows_shown, "parts")


def partitions_of(listed: Sequence[Fields]) -> list[dict[str, Any]]:
    """Return `path`, `rows`, `bytes` and `parts` of each partition of these parts, in the order of paths."""
    found: dict[str, dict[str, Any]] = {}
    for one in sorted(listed, key=lambda one: str(one["path"])):
        counts = found.setdefault(one["path"], {"path": one["path"], "rows": 0, "bytes": 0, "parts": 0})
        counts["rows"] += one["rows"]
        counts["bytes"] += one["length"]
        counts["parts"] += 1
    return [*found.values()]


def _with_sizes(partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "bytes": output.size(one["bytes"])} for one in partitions]


def _text(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{key}={item}" for key, item in value.items())
        case list():
            return ", ".join(value)
        case _:
            return str(value)


def _hint_rest(count: int, what: str) -> None:
    if count > 0:
        output.hint(f"{count:,} more {what} (--rows, --json)")
