"""Commands of tags, and of tables made of the parts of others: tag, tags, untag, clone-table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from tidelock.cli import output
from tidelock.cli.inspecting import iso
from tidelock.cli.querying import At, Csn
from tidelock.cli.target import ClusterOptions, Json, on_target

Name = Annotated[str, typer.Argument(help="Name of the tag, e.g. 2026Q3.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (tag, untag, clone_table):
        app.command(rich_help_panel="Changing")(on_target(command))
    app.command(rich_help_panel="Inspecting")(on_target(tags))


def tag(
    target: ClusterOptions,
    name: Name,
    csn: Csn = None,
    at: At = None,
    keep: Annotated[
        str | None, typer.Option(help="The tag ends after this time, e.g. 720h.", show_default=False)
    ] = None,
    move: Annotated[bool, typer.Option("--move", help="Move a tag that exists.")] = False,
    as_json: Json = False,
) -> None:
    """Give a CSN a name: all tables stay readable at it until the tag is ended."""
    with target.connect() as db:
        made = db.tag(name, csn, at=at, keep=keep, move=move)
    if as_json:
        output.print_json(dict(made))
        return
    output.say(f"{made.name} names CSN {made.csn}; read it with --csn {made.name}")


def tags(target: ClusterOptions, as_json: Json = False) -> None:
    """List the tags: the CSN of each, since when, and for how long."""
    with target.connect() as db:
        found = db.tags()
    if as_json:
        output.print_json([dict(one) for one in found])
        return
    output.print_table(
        ["tag", "CSN", "since", "kept for"],
        [
            [
                one.name,
                one.csn,
                iso(datetime.fromtimestamp(one.made_ms / 1000, UTC)),
                None if one.keep_s is None else f"{one.keep_s:,.0f} s",
            ]
            for one in found
        ],
    )


def clone_table(
    target: ClusterOptions,
    source: Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Name of the new table.", show_default=False)],
    csn: Csn = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Create a table with the rows of another one; they share files, and no byte is written."""
    with target.connect() as db:
        made = db.clone_table(source, name, csn=csn, at=at)
    if as_json:
        output.print_json({"name": made.name, "csn": made.csn, "rows": made.rows})
        return
    output.say(f"table {made.name} with {made.rows or 0:,} rows created at CSN {made.csn}")


def untag(target: ClusterOptions, name: Name, as_json: Json = False) -> None:
    """End a tag: the history that it alone has kept may be forgotten."""
    with target.connect() as db:
        csn = db.untag(name)
    if as_json:
        output.print_json({"name": name, "csn": csn})
        return
    output.say(f"tag {name} has ended")
