"""Commands that move tables as files: import, export."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from tidelock.cli import output
from tidelock.cli.querying import At, Csn
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.cli.writing import WaitFor, checked_wait
from tidelock.client.writes.lake_files import Lake
from tidelock.errors import BadRequestError


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("import", rich_help_panel="Changing")(on_target(import_files))
    app.command(rich_help_panel="Inspecting")(on_target(export))


def import_files(
    target: ClusterOptions,
    table: Annotated[str, typer.Argument(help="The table that gets the rows.", show_default=False)],
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Parquet files, or folders of them; the folder of a Delta table; the `.metadata.json` of an "
            "Iceberg table.",
            show_default=False,
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(help="Name of this load: a second one of that name is refused.", show_default=False),
    ] = None,
    wait: WaitFor = "home",
    as_json: Json = False,
) -> None:
    """Make Parquet files parts of a table as they are, in one transaction; `insert` converts others."""
    until = checked_wait(wait)
    source = _lake(paths[0]) if len(paths) == 1 else None
    with target.connect() as db:
        done = db.import_files(table, paths if source is None else source, label=label, wait=until)
    if as_json:
        output.print_json({"tid": done.tid, "csn": done.csn, "rows": done.rows_inserted})
        return
    output.say(f"{done.rows_inserted:,} rows into {table} at CSN {done.csn} (transaction {done.tid})")


def _lake(path: Path) -> Lake | None:
    """Return the table of Delta Lake or Iceberg at a path, opened by its library; None if there is none."""
    delta = (path / "_delta_log").is_dir()
    if not delta and not path.name.endswith(".metadata.json"):
        return None
    library = "deltalake" if delta else "pyiceberg"
    try:
        if delta:
            return importlib.import_module("deltalake").DeltaTable(path)
        return importlib.import_module("pyiceberg.table").StaticTable.from_metadata(str(path))
    except ImportError:
        raise BadRequestError(
            f"{path} belongs to a table of another system, and {library}, which reads it, is not installed; "
            "run pip install 'tidelock[lakes]'",
            path=str(path),
        ) from None
    except Exception as error:  # each library has its own
        raise BadRequestError(f"{path} cannot be opened by {library}: {error}", path=str(path)) from error


def export(
    target: ClusterOptions,
    table: Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)],
    into: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.", show_default=False)
    ],
    csn: Csn = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Write a table into a folder of Parquet files, with the folders of its partitions."""
    with target.connect() as db:
        done = db.export(table, into, csn=csn, at=at)
    if as_json:
        output.print_json({"files": done.files, "rows": done.rows, "bytes": done.bytes})
        return
    output.say(f"{done.rows:,} rows of {table} in {done.files:,} files ({done.bytes:,} bytes) below {into}")
