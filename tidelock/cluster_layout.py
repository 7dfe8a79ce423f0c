"""The layout of a local cluster, in `cluster.json` in its folder; a replica may be added to it."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tidelock import processes
from tidelock.errors import ConfigError
from tidelock.ports import HOST, free_ports

#: Folder in which `tidelock up` makes a cluster, and in which clients look for one, if no folder is named.
FOLDER_DEFAULT: Final = Path("tidelock-data")
REPLICAS_DEFAULT: Final = 3
COPIES_DEFAULT: Final = 2
#: Base port with which `tidelock up` makes a cluster.
BASE_PORT_DEFAULT: Final = 8801
#: Largest base port: it leaves ports above it for all replicas.
BASE_PORT_MAX: Final = 65_000
#: Distance from the port of a replica's API to that of its snapshot file system.
DATA_OFFSET: Final = 100
FORMAT: Final = 1
_FILE: Final = "cluster.json"


@dataclass(frozen=True, slots=True)
class ReplicaPorts:
    """A replica's id, and the ports of its API and of its snapshot file system.

    Attributes:
        joins: Whether it was added to the cluster after the bootstrap.
        host: The address at which it listens; another one than this machine's loopback address belongs to a
            network of the machine's own (`tidelock.testing`).
    """

    id: str
    api: int
    data: int
    joins: bool = False
    host: str = HOST

    @property
    def address(self) -> str:
        """The address of its API, `host:port`."""
        return f"{self.host}:{self.api}"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The layout of a whole cluster.

    Attributes:
        replicas: Ids and ports of the replicas.
        copies: Durable copies of a commit.
        zk: Connect string of a separate ZooKeeper; None = the embedded one.
        epoch_limit: Records of an epoch; None = the agents' default.
        base_port: Port that the API of the first replica takes if it is free; see `choose`. 0 = any free
            ports for all.
    """

    replicas: tuple[ReplicaPorts, ...]
    copies: int
    zk: str | None = None
    epoch_limit: int | None = None
    base_port: int = 0

    @classmethod
    def choose(
        cls,
        *,
        replicas: int | None,
        copies: int | None,
        zk: str | None,
        epoch_limit: int | None,
        base_port: int | None = None,
    ) -> ClusterLayout:
        """Lay out a new cluster on ports that are free now.

        With a base port B the replicas r1, r2, ... have their APIs at B, B + 1, ... and their snapshot file
        systems at B + 100, B + 101, ... A free port replaces each of these that is not free. Without B, or
        with 0, all are free ports.

        Raises:
            ConfigError: No cluster can have these values.
            UnavailableError: Too few ports are free.
        """
        count = REPLICAS_DEFAULT if replicas is None else replicas
        if count < 1:
            raise ConfigError(f"expected 1 or more replicas, found {count}")
        if copies is not None and not 1 <= copies <= count:
            raise ConfigError(f"{count} replicas cannot keep {copies} copies; give 1 to {count} copies")
        base = base_port or 0
        if not 0 <= base <= BASE_PORT_MAX:
            raise ConfigError(
                f"expected a base port from 1 to {BASE_PORT_MAX}, or 0 for any free ports; found {base}"
            )
        wanted = [port for number in range(min(count, DATA_OFFSET)) for port in _ports(base, number)]
        ports = free_ports(2 * count, wanted)
        return cls(
            replicas=tuple(
                ReplicaPorts(f"r{number + 1}", ports[2 * number], ports[2 * number + 1])
                for number in range(count)
            ),
            copies=min(COPIES_DEFAULT, count) if copies is None else copies,
            zk=zk,
            epoch_limit=epoch_limit,
            base_port=base,
        )

    def with_replica(self, replica: str, *, host: str = HOST) -> ClusterLayout:
        """Return the layout with one replica more, on the next ports after the base port, or free ones."""
        if any(ports.id == replica for ports in self.replicas):
            raise ConfigError(f"the cluster has a replica {replica} already; choose another id")
        taken = {port for one in self.replicas for port in (one.api, one.data)}
        following = (_ports(self.base_port, number) for number in itertools.count(len(self.replicas)))
        wanted = next(pair for pair in following if not taken.intersection(pair))
        api, data = free_ports(2, wanted)
        return replace(
            self, replicas=(*self.replicas, ReplicaPorts(replica, api, data, joins=True, host=host))
        )

    def without(self, replica: str) -> ClusterLayout:
        """Return the layout without a replica that was removed.

        The cluster exists, so the founders that are left join it: they cannot make it any more.
        """
        left = tuple(replace(one, joins=True) for one in self.replicas if one.id != replica)
        return replace(self, replicas=left)

    def running(self, folder: Path) -> list[ReplicaPorts]:
        """Return the replicas whose agents run, of the cluster in a folder.

        Only their ports are known to be theirs: another cluster may use those of a stopped agent meanwhile.
        """
        found = ((one, processes.load(pid_file(folder, one.id))) for one in self.replicas)
        return [one for one, process in found if process is not None and processes.alive(process)]

    @classmethod
    def open(cls, folder: Path) -> ClusterLayout:
        """Return the layout in a folder; ConfigError if the folder has none, or it is damaged."""
        layout = cls.load(folder)
        if layout is None:
            raise ConfigError(
                f"there is no cluster in {folder.absolute()}; make one with `tidelock up --data-dir "
                f"{folder}`, or name another folder (--data-dir), an agent (--url, TIDELOCK_URL) or a "
                "ZooKeeper (--zk)"
            )
        return layout

    @classmethod
    def load(cls, folder: Path) -> ClusterLayout | None:
        """Return the layout in a folder, None if the folder has none; ConfigError if it is damaged."""
        path = folder / _FILE
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ConfigError(f"{path} was written by another version of tidelock; use that one")
            replicas = tuple(ReplicaPorts(**replica) for replica in fields.pop("replicas"))
            return cls(replicas=replicas, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is damaged ({error}); remove only this file and run `tidelock up` again with the "
                "same number of replicas: the data is kept"
            ) from error

    def save(self, folder: Path) -> None:
        """Write the layout to a folder."""
        fields: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        (folder / _FILE).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")

    def require(
        self,
        folder: Path,
        *,
        replicas: int | None,
        copies: int | None,
        zk: str | None,
        epoch_limit: int | None,
        base_port: int | None = None,
    ) -> None:
        """Raise ConfigError unless the cluster has these values; None accepts any value."""
        for name, wanted, actual in (
            ("replicas", replicas, len(self.replicas)),
            ("copies", copies, self.copies),
            ("zk", zk, self.zk),
            ("epoch_limit", epoch_limit, self.epoch_limit),
            ("base_port", base_port, self.base_port),
        ):
            if wanted not in {None, actual}:
                raise ConfigError(
                    f"the cluster in {folder} has {name}={actual}, not {wanted}; "
                    "omit the setting, or use another folder"
                )


def pid_file(folder: Path, replica: str) -> Path:
    """Return the file that names the process of a replica's agent, in the folder of a cluster."""
    return folder / replica / "agent.pid"


def _ports(base: int, number: int) -> tuple[int, ...]:
    """Return the ports of the API and of the snapshot file system of a replica, counted from 0.

    They are empty where any free ports do.
    """
    return (base + number, base + DATA_OFFSET + number) if base else ()
