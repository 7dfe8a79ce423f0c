"""The addresses of agents: as given, from a ZooKeeper address, or in the folder of a local cluster.

This is the only module of the client that imports modules of the agents, and only for a ZooKeeper address: a
single module of the product imports kazoo, and it belongs to the agents (docs/adr/0003-client-discovery.md).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidelock.cluster_layout import FOLDER_DEFAULT, ClusterLayout
from tidelock.errors import BadRequestError, NoConnectionError

#: Environment variable with the address of the cluster, for clients that name none.
URL_VARIABLE: Final = "TIDELOCK_URL"
_DISCOVERY: Final = "tidelock.csnlog.cluster.discovery"


def agents(connect: str, *, timeout_s: float) -> list[str]:
    """Return the API addresses of all replicas of a cluster, those that are alive first.

    Raises:
        ConfigError: `connect` is not of the form `host:port[,host:port...]/root`, or no cluster is below that
            root.
        UnavailableError: ZooKeeper does not answer, or no replica has an address yet.
    """
    addresses: list[str] = importlib.import_module(_DISCOVERY).agents(connect, timeout_s=timeout_s)
    return addresses


def members(connect: str, *, timeout_s: float) -> list[str]:
    """Return the ids of all registered replicas, which is empty without a cluster; errors as `agents`."""
    replicas: list[str] = importlib.import_module(_DISCOVERY).members(connect, timeout_s=timeout_s)
    return replicas


def default_url(environ: Mapping[str, str]) -> str | Path:
    """Return the address for a caller that names none: the variable's, else the folder of `tidelock up`."""
    return environ.get(URL_VARIABLE) or FOLDER_DEFAULT


def agents_of_folder(folder: Path) -> list[str]:
    """Return the API addresses of the agents of the local cluster in a folder that run.

    Raises:
        ConfigError: The folder has no cluster, or its description is damaged.
        NoConnectionError: No agent of the cluster runs.
    """
    running = ClusterLayout.open(folder).running(folder)
    if not running:
        raise NoConnectionError(
            f"no connection to the cluster in {folder.absolute()}: expected an agent that runs, found none; "
            f"start them with `tidelock up --data-dir {folder}`"
        )
    return [ports.address for ports in running]


def addresses_of(urls: Sequence[str | Path]) -> tuple[str, list[str], list[str]]:
    """Return the scheme and the addresses of the first agents, and connect strings of ZooKeeper.

    Raises:
        BadRequestError: An address has another form, or they are not of one kind.
        ConfigError, NoConnectionError: As :func:`agents_of_folder`.
    """
    schemes: set[str] = set()
    addresses: list[str] = []
    zookeepers: list[str] = []
    for url in urls:
        parts = urlsplit(str(url))
        if isinstance(url, Path) or (url and "://" not in url and Path(url).is_dir()):
            schemes.add("http")
            addresses += agents_of_folder(Path(url))
        elif parts.scheme == "zk" and parts.netloc:
            schemes.add("http")
            zookeepers.append(parts.netloc + parts.path)
        elif (
            parts.scheme in {"http", "https"} and parts.netloc and parts.path in {"", "/"} and not parts.query
        ):
            schemes.add(parts.scheme)
            addresses.append(parts.netloc)
        else:
            name = f", and no such folder: `tidelock up --data-dir {url}` makes a cluster there"
            raise BadRequestError(
                "expected http://host:port of an agent, zk://host:port/root, or the folder of a local "
                f"cluster; found {url!r}{name if url and ':' not in str(url) else ''}"
            )
    if len(schemes) != 1:
        raise BadRequestError(f"expected addresses of one kind, found {', '.join(map(str, urls)) or 'none'}")
    return schemes.pop(), addresses, zookeepers
