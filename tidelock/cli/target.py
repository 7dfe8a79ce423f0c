"""The cluster that a command uses: `--data-dir`, `--url` or `--zk`, the same options on all commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelock import secret_file
from tidelock.client import Database, connect
from tidelock.client.agents.discovery import URL_VARIABLE
from tidelock.cluster import LocalCluster
from tidelock.cluster_layout import FOLDER_DEFAULT
from tidelock.errors import BadRequestError

Folder = Annotated[
    Path | None,
    typer.Option("--data-dir", help=f"Folder of a local cluster; default: ./{FOLDER_DEFAULT}."),
]
Url = Annotated[str | None, typer.Option("--url", envvar=URL_VARIABLE, help="An agent, http://host:port.")]
Zk = Annotated[str | None, typer.Option("--zk", help="ZooKeeper of the cluster, host:port/root.")]
Replica = Annotated[str | None, typer.Option("--replica", help="Talk to this replica only.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=secret_file.VARIABLE,
        help="Shared secret of the agents; default: in the file that TIDELOCK_SECRET_FILE names.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", help="Seconds to wait for an answer, or for the outcome of a commit.", min=0.1),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The cluster that the options name."""

    folder: Path | None
    url: str | None
    zk: str | None
    replica: str | None
    token: str | None
    timeout_s: float

    def address(self) -> str | Path:
        """Return the address of the cluster, for `connect`; BadRequestError if the options name several."""
        if sum(option is not None for option in (self.folder, self.url, self.zk)) > 1:
            raise BadRequestError("give one of --data-dir, --url and --zk")
        if self.zk is not None:
            return f"zk://{self.zk}"
        return self.url or self.folder or FOLDER_DEFAULT

    def local(self) -> LocalCluster | None:
        """Return the local cluster if the options name one; ConfigError if its folder holds no cluster."""
        address = self.address()
        return LocalCluster.open(address) if isinstance(address, Path) else None

    def connect(self) -> Database:
        """Connect to the cluster.

        Raises:
            BadRequestError: More than one cluster is named, or an address has another form.
            ConfigError: The folder holds no cluster, or the file of the secret has none.
            UnavailableError: No agent answers.
        """
        return connect(
            self.address(), replica=self.replica, token=self.token or None, timeout_s=self.timeout_s
        )


def on_target(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a cluster to a command, which receives them as its argument `target`."""
    signature = inspect.signature(command, eval_str=True)
    options = {
        "folder": (Folder, None),
        "url": (Url, None),
        "zk": (Zk, None),
        "replica": (Replica, None),
        "token": (Token, None),
        "timeout_s": (Timeout, 60.0),
    }
    parameters = [item for name, item in signature.parameters.items() if name != "target"] + [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        target = ClusterOptions(**{name: values.pop(name) for name in options})
        command(target=target, **values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run
