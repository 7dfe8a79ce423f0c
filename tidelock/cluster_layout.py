"""The layout of a local cluster, in `cluster.json` in its folder; a replica may be added to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tidelock.errors import ConfigError
from tidelock.ports import HOST, free_ports

REPLICAS_DEFAULT: Final = 3
COPIES_DEFAULT: Final = 2
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
    """

    replicas: tuple[ReplicaPorts, ...]
    copies: int
    zk: str | None = None
    epoch_limit: int | None = None

    @classmethod
    def choose(
        cls, *, replicas: int | None, copies: int | None, zk: str | None, epoch_limit: int | None
    ) -> ClusterLayout:
        """Lay out a new cluster on ports that are free now."""
        count = REPLICAS_DEFAULT if replicas is None else replicas
        if count < 1:
            raise ConfigError(f"expected 1 or more replicas, found {count}")
        if copies is not None and not 1 <= copies <= count:
            raise ConfigError(f"{count} replicas cannot keep {copies} copies; give 1 to {count} copies")
        ports = free_ports(2 * count)
        return cls(
            replicas=tuple(
                ReplicaPorts(f"r{number + 1}", ports[2 * number], ports[2 * number + 1])
                for number in range(count)
            ),
            copies=min(COPIES_DEFAULT, count) if copies is None else copies,
            zk=zk,
            epoch_limit=epoch_limit,
        )

    def with_replica(self, replica: str, *, host: str = HOST) -> ClusterLayout:
        """Return the layout with one replica more, on ports that are free now."""
        if any(ports.id == replica for ports in self.replicas):
            raise ConfigError(f"the cluster has a replica {replica} already; choose another id")
        api, data = free_ports(2)
        return replace(
            self, replicas=(*self.replicas, ReplicaPorts(replica, api, data, joins=True, host=host))
        )

    def without(self, replica: str) -> ClusterLayout:
        """Return the layout without a replica that was removed.

        The cluster exists, so the founders that are left join it: they cannot make it any more.
        """
        left = tuple(replace(one, joins=True) for one in self.replicas if one.id != replica)
        return replace(self, replicas=left)

    @classmethod
    def open(cls, folder: Path) -> ClusterLayout:
        """Return the layout in a folder; ConfigError if the folder has none, or it is damaged."""
        layout = cls.load(folder)
        if layout is None:
            raise ConfigError(
                f"there is no cluster in {folder}; make one with `tidelock up --data-dir {folder}`, "
                "or name another folder (--data-dir), an agent (--url) or a ZooKeeper (--zk)"
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
    ) -> None:
        """Raise ConfigError unless the cluster has these values; None accepts any value."""
        for name, wanted, actual in (
            ("replicas", replicas, len(self.replicas)),
            ("copies", copies, self.copies),
            ("zk", zk, self.zk),
            ("epoch_limit", epoch_limit, self.epoch_limit),
        ):
            if wanted not in {None, actual}:
                raise ConfigError(
                    f"the cluster in {folder} has {name}={actual}, not {wanted}; "
                    "omit the setting, or use another folder"
                )
