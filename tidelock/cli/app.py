"""The command line's root: all commands, and one place where an error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidelock.cli import (
    admin,
    auditing,
    changing,
    describing,
    files,
    history,
    inspecting,
    local,
    metastore,
    namespaces,
    output,
    querying,
    tagging,
    writing,
)
from tidelock.errors import TidelockError
from tidelock.exits import Exit, exit_of


class _Root(TyperGroup):
    """The root group; it converts the error of a command to an exit code (see `tidelock.exits`)."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. With `--debug` an error keeps its traceback."""
        try:
            return super().invoke(ctx)
        except TidelockError as error:
            if ctx.params["debug"]:
                raise
            notes = [f"({note})" for note in getattr(error, "__notes__", ())]
            output.complain(" ".join([error.message, *notes]))
            raise typer.Exit(exit_of(error)) from error
        except (OSError, RuntimeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            # RuntimeError is also what typer's own Exit and Abort are.
            if ctx.params["debug"] or isinstance(error, typer.Exit | typer.Abort | BrokenPipeError):
                raise
            if isinstance(error, OSError) and error.filename is not None:
                output.complain(
                    f"{error.filename} cannot be used: {error.strerror} (this process has the user id "
                    f"{os.getuid()}); name another path, or change its rights"
                )
                raise typer.Exit(Exit.USAGE) from error
            output.complain(
                f"internal error: {type(error).__name__}: {error}; report it with the traceback of `--debug`"
            )
            raise typer.Exit(Exit.INTERNAL) from error


app = typer.Typer(
    cls=_Root,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: " + " · ".join(f"{code.value} {code.name.lower()}" for code in Exit),
)


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Replicated Parquet tables with atomic multi-table transactions and consistent snapshots for Spark."""


@app.command()
def version() -> None:
    """Print the version."""
    output.say(metadata.version("tidelock"))


for group in (
    local,
    inspecting,
    describing,
    history,
    writing,
    changing,
    querying,
    tagging,
    namespaces,
    metastore,
    files,
    auditing,
    admin,
):
    group.add_to(app)


def main() -> None:
    """Run the command line; ends the process with an exit code of `Exit`."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
