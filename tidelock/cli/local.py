"""Commands that start and end processes of this machine: up, down, agent, zookeeper."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidelock import zookeeper as embedded
from tidelock.cli import output
from tidelock.cli.target import Json
from tidelock.cluster import LocalCluster
from tidelock.cluster.local import READY_TIMEOUT_S, STOP_GRACE_S
from tidelock.cluster_layout import BASE_PORT_DEFAULT, BASE_PORT_MAX, FOLDER_DEFAULT, ClusterLayout
from tidelock.errors import UnavailableError

#: How often the foreground process checks that its ZooKeeper still runs, in seconds.
_CHECK_INTERVAL_S: Final = 0.5

Where = Annotated[Path, typer.Option("--data-dir", help="Folder of the cluster.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(rich_help_panel="Processes of this machine")(up)
    app.command(rich_help_panel="Processes of this machine")(down)
    app.command(
        rich_help_panel="Processes of this machine",
        add_help_option=False,  # the agent explains its own settings
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(agent)
    app.command(rich_help_panel="Processes of this machine")(zookeeper)


def up(
    folder: Where = FOLDER_DEFAULT,
    replicas: Annotated[int | None, typer.Option(min=1, help="How many; default: 3.")] = None,
    copies: Annotated[
        int | None,
        typer.Option(min=1, help="Durable copies of a commit; default: 2, or 1 with a single replica."),
    ] = None,
    zk: Annotated[
        str | None,
        typer.Option("--zk", help="A running ZooKeeper, host:port/root; default: an embedded one."),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=BASE_PORT_MAX,
            help="First port: the API of r1 takes it, that of r2 the next one; a free port replaces one that "
            f"is taken. 0: any free ports. Default: {BASE_PORT_DEFAULT}, or as the existing cluster.",
        ),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option("--join", metavar="REPLICA", help="Add a replica with this id, which was never used."),
    ] = None,
    replace_disk: Annotated[
        list[str] | None,
        typer.Option(metavar="REPLICA", help="Start this replica on an empty folder: its data is lost."),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds for each step.")
    ] = READY_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Start a cluster on this machine, or its stopped processes; it survives this terminal."""
    if base_port is None and ClusterLayout.load(folder) is None:
        base_port = BASE_PORT_DEFAULT
    cluster = LocalCluster.create(folder, replicas=replicas, copies=copies, zk=zk, base_port=base_port)
    joining = [replica for replica in join or [] if replica not in cluster.replicas]
    steps = len(cluster.replicas) + len(joining) + (cluster.layout.zk is None)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = output.err()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=steps)

        def ready(what: str) -> None:
            progress.update(task, advance=1, description=what)

        cluster.up(timeout_s=timeout_s, ready=ready, replace_disks=replace_disk or ())
        for replica in joining:
            cluster.add_replica(replica)
            cluster.start(replica, timeout_s=timeout_s)
            ready(replica)
    status = cluster.status()
    if as_json:
        output.print_json(status)
        return
    print_replicas(status["replicas"])
    where = "" if folder == FOLDER_DEFAULT else f" --data-dir {folder}"
    output.hint(f"next: tidelock create-table{where} ... · tidelock status{where} · tidelock down{where}")


def down(
    folder: Where = FOLDER_DEFAULT,
    grace_s: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds to drain before an agent is killed.")
    ] = STOP_GRACE_S,
) -> None:
    """Stop the cluster of a folder; its data is kept, and `tidelock up` starts it again."""
    cluster = LocalCluster.open(folder)
    with output.err().status("stopping"):
        cluster.down(grace_s=grace_s)
    output.say(f"the cluster in {folder} is stopped; its data is kept")


def agent(context: typer.Context) -> None:
    """Run one agent in the foreground; `tidelock agent --help` lists its settings."""
    command = [sys.executable, "-m", "tidelock.replica_agent.main", *context.args]
    os.execv(sys.executable, command)  # noqa: S606 - the agent replaces this process


def zookeeper(
    folder: Where = FOLDER_DEFAULT / "zookeeper",
    servers: Annotated[int, typer.Option(help="1, or 3 for an ensemble on this machine.")] = 1,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to be ready.")
    ] = READY_TIMEOUT_S,
) -> None:
    """Run the embedded ZooKeeper in the foreground, until Ctrl-C or SIGTERM."""
    if servers not in {1, 3}:
        raise typer.BadParameter("give 1 or 3", param_hint="--servers")
    ensemble = embedded.create(folder, size=servers)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        ensemble.start(timeout_s=timeout_s)
        output.say(ensemble.connect_string)
        while all(server.alive for server in ensemble.servers):
            time.sleep(_CHECK_INTERVAL_S)
    except KeyboardInterrupt:
        return
    finally:
        ensemble.stop()
    reasons = "; ".join(server.last_words() for server in ensemble.servers)
    raise UnavailableError(f"the ZooKeeper in {folder} has ended by itself: {reasons}")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def print_replicas(replicas: list[dict[str, Any]]) -> None:
    """Print the replicas of a status."""
    output.print_table(
        ["replica", "state", "snapshot CSN", "api", "snapshot file system", "pid"],
        [
            [row["id"], row["state"], row["snapshot_csn"], row["url"], f"webhdfs://{row['data']}", row["pid"]]
            for row in replicas
        ],
    )
