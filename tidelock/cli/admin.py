"""Commands of operators: `tidelock admin ...`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Annotated, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tidelock.cli import members, output, trouble
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.client import Database
from tidelock.errors import BadRequestError, TidelockError

#: Value of a partition column that means null, as in the folder's name.
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
#: Pause between two checks of the progress of the work.
_PROGRESS_INTERVAL_S: Final = 1.0


def add_to(app: typer.Typer) -> None:
    """Register the group."""
    group = typer.Typer(no_args_is_help=True, help="Operate a cluster, and find out what holds it back.")
    group.command()(on_target(optimize))
    group.command()(on_target(horizon))
    group.command("set")(on_target(set_switch))
    members.add_to(group)
    trouble.add_to(group)
    app.add_typer(group, name="admin", rich_help_panel="Operating")


def optimize(
    target: ClusterOptions,
    table: Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)],
    partition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COL=VALUE",
            help=f"Only this partition; once for each of its columns ({NULL} is null).",
            show_default=False,
        ),
    ] = None,
    limit_s: Annotated[
        float, typer.Option("--limit", help="Seconds after which no further merge is begun.", min=0.1)
    ] = 3600.0,
    as_json: Json = False,
) -> None:
    """Merge small parts until each partition has at most one; no row changes, at any CSN."""
    values = dict(_value(text) for text in partition or []) or None
    with target.connect() as db:
        name = db.table(table).name
        with _progress(db, name):
            done = db.optimize(table, values, timeout_s=limit_s)
    if as_json:
        shown = {field: value for field, value in done.items() if field != "csn"}
        output.print_json({"table": name, **shown})
        return
    output.say(
        f"{name}: {done.parts_before:,} parts before, {done.parts_after:,} after, "
        f"{done.groups:,} merges of {output.size(done.bytes)}"
    )
    if not done.done:
        output.hint(
            "the time limit ended before everything was merged; run it again, or with a larger --limit"
        )


def horizon(
    target: ClusterOptions,
    csn: Annotated[
        int | None, typer.Option(help="Raise it to this CSN; default: as far as it goes.", min=0)
    ] = None,
    drop_pins: Annotated[
        bool, typer.Option("--drop-pins", help="End the snapshots of clients below it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Raise the horizon: below it nothing can be read, and removed parts are deleted."""
    with target.connect() as db:
        moved = db.raise_horizon(csn, drop_pins=drop_pins)
    if as_json:
        output.print_json(moved)
        return
    held = moved.holding_back
    output.say(f"the horizon is at CSN {moved.horizon}")
    if held.kind != "asked":
        what = {"pin": "a pin", "oldest": "open transactions, snapshots or a lag of replica"}[held.kind]
        output.hint(f"held back by {what} {held.name} at CSN {held.csn}; tidelock status shows more")


def set_switch(
    target: ClusterOptions,
    name: Annotated[
        str,
        typer.Argument(
            help="collection, compaction, lease_sweep, lock_wait_s, log_level.", show_default=False
        ),
    ],
    value: Annotated[str, typer.Argument(help="on, off; seconds; a level.", show_default=False)],
    everywhere: Annotated[bool, typer.Option("--all", help="On all replicas.")] = False,
    as_json: Json = False,
) -> None:
    """Change how agents work until they are started again: on one replica (--replica), or on --all."""
    if everywhere == (target.replica is not None):
        raise BadRequestError("say where: give either --replica, or --all")
    with target.connect() as db:
        done = db.set_switch(name, value)
    if as_json:
        output.print_json(done)
        return
    for replica, switches in sorted(done.items()):
        [switch] = [switch for switch in switches if switch.name == name]
        output.say(f"{replica}: {name} is {switch.value}; a restart restores {switch.configured}")


def _value(text: str) -> tuple[str, str | None]:
    column, equals, value = text.partition("=")
    if not equals or not column:
        raise typer.BadParameter(f"expected the form COL=VALUE, found {text!r}", param_hint="--partition")
    return column, None if value == NULL else value


@contextlib.contextmanager
def _progress(db: Database, table: str) -> Iterator[None]:
    """On a terminal, show how many parts the table has while the work goes on."""
    console = output.err()
    if not console.is_terminal:
        yield
        return
    ended = threading.Event()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{table}: merging")

        def show_progress() -> None:
            while not ended.wait(_PROGRESS_INTERVAL_S):
                with contextlib.suppress(TidelockError):
                    progress.update(task, description=f"{table}: {db.table(table).parts:,} parts")

        watcher = threading.Thread(target=show_progress, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(_PROGRESS_INTERVAL_S)
