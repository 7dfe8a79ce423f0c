"""The commands that serve tables by name to Spark."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from typing import Annotated

import typer

from tidelock.cli import output
from tidelock.cli.target import ClusterOptions, on_target
from tidelock.errors import BadRequestError
from tidelock.exits import Exit
from tidelock.metastore import spark_defaults as defaults
from tidelock.metastore.snapshots import IDLE_S, Snapshots, route_to
from tidelock.metastore.transactions import IDLE_S as TRANSACTION_IDLE_S
from tidelock.metastore.transactions import MOST, Transactions

_PANEL = "Reading"

ReadFrom = Annotated[
    str | None,
    typer.Option(help="Replica that Spark reads from as long as it answers.", show_default=False),
]


class Plain(StrEnum):
    """The two ways to answer names without a CSN."""

    VIEWS = "views"
    REFUSE = "refuse"


class Writes(StrEnum):
    """Whether statements that change something are taken."""

    ON = "on"
    OFF = "off"


class Partitions(StrEnum):
    """The two ways in which Spark finds the files of a table with partitions."""

    LISTED = "listed"
    CATALOG = "catalog"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (metastore, spark_defaults):
        app.command(rich_help_panel=_PANEL)(on_target(command))


def metastore(
    target: ClusterOptions,
    host: Annotated[
        str, typer.Option(help="Address to listen at. There is no authentication.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=0, max=65535)] = 9083,
    read_from: ReadFrom = None,
    plain: Annotated[
        Plain, typer.Option(help="Names without a CSN: views of the newest CSN at each look-up, or refused.")
    ] = Plain.VIEWS,
    partitions: Annotated[
        Partitions,
        typer.Option(
            help="Spark lists all folders of a table, or those that a query needs: then it has to be "
            "started with the lines of `tidelock spark-defaults`."
        ),
    ] = Partitions.LISTED,
    connections_max: Annotated[
        int, typer.Option(help="Connections at once; a session has a few.", min=1)
    ] = 200,
    keep_s: Annotated[
        float, typer.Option(help="Seconds for which a CSN stays pinned after the last question.", min=1)
    ] = IDLE_S,
    writes: Annotated[
        Writes, typer.Option(help="INSERT, CREATE and DROP by name: taken, or refused.")
    ] = Writes.ON,
    transactions_max: Annotated[int, typer.Option(help="Transactions that are open at once.", min=1)] = MOST,
    transaction_idle_s: Annotated[
        float,
        typer.Option(help="Seconds for which a transaction stays open after the last question.", min=1),
    ] = TRANSACTION_IDLE_S,
) -> None:
    """Serve tables by name to Spark SQL, as a Hive metastore does, until it is ended."""
    try:
        from tidelock.metastore.calls import Calls
        from tidelock.metastore.changes import Changes
        from tidelock.metastore.server import MetastoreServer
    except ImportError as error:
        raise BadRequestError(
            f"the metastore needs a package that is not installed ({error.name}): "
            "pip install 'tidelock[metastore]'"
        ) from error
    by_catalog = partitions is Partitions.CATALOG
    with target.connect() as db:
        authority = defaults.AUTHORITY if by_catalog else None
        snapshots = Snapshots(db, replica=read_from, authority=authority, idle_s=keep_s)
        snapshots.route()  # a wrong replica is told before Spark asks
        made = Transactions(db, idle_s=transaction_idle_s, most=transactions_max)
        changes = Changes(db, made) if writes is Writes.ON else None
        calls = Calls(snapshots, changes, plain=plain is Plain.VIEWS, by_catalog=by_catalog)
        try:
            with MetastoreServer((host, port), calls, connections_max=connections_max) as server:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.OK))  # so that the pins are released
                output.say(f"listening at thrift://{host}:{server.port}")
                server.serve_forever()
        finally:
            made.close()
            snapshots.close()


def spark_defaults(
    target: ClusterOptions,
    uris: Annotated[
        str, typer.Option("--metastore", help="Metastores, with commas between them.")
    ] = "thrift://127.0.0.1:9083",
    read_from: ReadFrom = None,
) -> None:
    """Print the lines for spark-defaults.conf that `tidelock metastore --partitions catalog` needs."""
    with target.connect() as db:
        route = route_to(db, read_from, defaults.AUTHORITY)
    for name, value in defaults.settings(route, uris).items():
        output.say(f"{name} {value}")
