"""The command that shows the product on real data: demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelock.cli.target import Json


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Processes of this machine")(demo)


def demo(
    scale_factor: Annotated[
        float, typer.Option("--scale-factor", min=0.001, help="Of TPC-H; 0.1 has 600,000 line items.")
    ] = 0.1,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="An empty folder for everything; default: a temporary one.", show_default=False
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long the writers write at full pace.")] = 20.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running, for you to look at.")
    ] = False,
    as_json: Json = False,
) -> None:
    """See it work: a cluster, TPC-H, concurrent writers, Spark, and a replica killed in mid-query."""
    from tidelock.demo.command import run  # noqa: PLC0415 - DuckDB and Arrow are loaded for nothing else

    if code := run(scale_factor, folder, seconds=seconds, keep=keep, json_out=as_json):
        raise typer.Exit(code)
