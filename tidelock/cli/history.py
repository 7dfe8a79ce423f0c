"""The command that lists what commits have changed, which is kept longer than the log."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from tidelock.cli import output
from tidelock.cli.inspecting import iso
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.wire.history import TableChangeInfo


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Inspecting")(on_target(history))


def history(
    target: ClusterOptions,
    name: Annotated[
        str | None,
        typer.Argument(help="`name` or `namespace.name`; default: all tables.", show_default=False),
    ] = None,
    from_csn: Annotated[
        int | None,
        typer.Option("--from", help="First CSN to show; default: the last changes.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many changes.")] = 20,
    as_json: Json = False,
) -> None:
    """List what commits have changed: when, in which table, how many rows, which transaction, its label.

    Merges of compaction change no row and are left out; `log` has every record.
    """
    with target.connect() as db:
        found = db.history(name, from_csn=from_csn, limit=limit)
    if as_json:
        output.print_json([_facts(one) for one in found])
        return
    output.print_table(
        ["time", "CSN", "table", "action", "rows added", "rows removed", "tid", "label", "meta"],
        [_row(one) for one in found],
    )


def _facts(one: TableChangeInfo) -> dict[str, Any]:
    return {**msgspec.to_builtins(one), "time": iso(one.time)}


def _row(one: TableChangeInfo) -> list[Any]:
    label = one.label if one.batch is None else f"{one.label}, batch {one.batch}"
    counts = [f"{count:,}" for count in (one.rows_added, one.rows_removed)]
    return [iso(one.time), one.csn, one.table, one.action, *counts, one.tid, label, one.meta]
