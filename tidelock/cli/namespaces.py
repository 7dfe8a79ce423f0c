"""Commands of namespaces, and of dropped tables that come back."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelock.cli import output
from tidelock.cli.target import ClusterOptions, Json, on_target

Name = Annotated[str, typer.Argument(help="Name of the namespace.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for name, command in (
        ("undrop-table", undrop_table),
        ("create-namespace", create_namespace),
        ("drop-namespace", drop_namespace),
    ):
        app.command(name, rich_help_panel="Changing")(on_target(command))
    app.command(rich_help_panel="Inspecting")(on_target(namespaces))


def undrop_table(
    target: ClusterOptions,
    name: Annotated[str, typer.Argument(help="The name that it had.", show_default=False)],
    to: Annotated[str | None, typer.Option(help="Its name from now on.", show_default=False)] = None,
    dropped_at: Annotated[
        int | None, typer.Option(help="CSN of the drop; default: the last one.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring a dropped table back with its rows, while its history is kept."""
    with target.connect() as db:
        made = db.undrop_table(name, to=to, csn=dropped_at)
    if as_json:
        output.print_json(made)
    else:
        output.say(f"table {made.name} is back at CSN {made.csn} with {made.rows:,} rows")


def namespaces(
    target: ClusterOptions,
    csn: Annotated[int | None, typer.Option(help="Default: the newest.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List the namespaces, with the number of their tables."""
    with target.connect() as db:
        found = db.namespaces(csn=csn)
    if as_json:
        output.print_json([dict(one) for one in found])
        return
    output.print_table(
        ["namespace", "tables", "comment"],
        [[one.name, one.tables, one.properties.get("comment", "")] for one in found],
    )


def create_namespace(
    target: ClusterOptions,
    name: Name,
    comment: Annotated[str | None, typer.Option(help="What it is for.", show_default=False)] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Change nothing if it exists.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a namespace, which exists without tables."""
    properties = None if comment is None else {"comment": comment}
    with target.connect() as db:
        csn = db.create_namespace(name, properties=properties, if_not_exists=if_not_exists)
    _say(name, csn, "created", "exists already", as_json=as_json)


def drop_namespace(
    target: ClusterOptions,
    name: Name,
    cascade: Annotated[bool, typer.Option("--cascade", help="Drop its tables, too.")] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Change nothing if there is no such namespace.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Drop a namespace."""
    with target.connect() as db:
        csn = db.drop_namespace(name, cascade=cascade, if_exists=if_exists)
    _say(name, csn, "dropped", "does not exist", as_json=as_json)


def _say(name: str, csn: int | None, done: str, otherwise: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json({"name": name, "csn": csn})
    elif csn is None:
        output.say(f"namespace {name} {otherwise}")
    else:
        output.say(f"namespace {name} {done} at CSN {csn}")
