"""Access to single agents of a cluster over HTTP: API, metrics, lists and bytes of parts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import urllib3
import xxhash

from tidelock.errors import CorruptError, UnavailableError, from_answer, from_wire

#: How long an agent may take for an answer, in seconds. A busy machine is slow; a dead agent refuses at once.
TIMEOUT_S: Final = 20.0
_OK: Final = 200
#: Copies of parts made at a time.
_COPIES_AT_ONCE: Final = 4
#: Connections are kept for all threads of this process.
_POOL: Final = urllib3.PoolManager(num_pools=32, maxsize=16, retries=False)
_METRIC: Final = re.compile(r"^(tidelock_\w+) (\S+)$", re.MULTILINE)


class Addressed(Protocol):
    """A cluster whose replicas have addresses: a local one, or one in containers."""

    @property
    def replicas(self) -> list[str]:
        """The ids of all replicas."""

    def url(self, replica: str) -> str:
        """Return the address of an agent's API."""

    def data_address(self, replica: str) -> str:
        """Return the address of an agent's snapshot file system, `host:port`."""


@dataclass(frozen=True, slots=True)
class Served:
    """The reads that the reader processes of one replica have served since its start.

    Attributes:
        opens: Number of reads of parts that were begun.
        byte_count: Number of bytes of parts handed to the kernel.
    """

    opens: int
    byte_count: int

    def since(self, before: Served) -> Served:
        """Return the reads that were served in between."""
        return Served(self.opens - before.opens, self.byte_count - before.byte_count)


@dataclass(frozen=True, slots=True)
class ListedPart:
    """One part of a replica's part list.

    Attributes:
        id: Its id.
        path: Its partition, "" for none.
        file: Where it is read, below `/snapshots/<csn>/`.
        rows: How many it holds.
        length: Of its bytes.
        checksum: XXH3-128 of its bytes, in hexadecimal digits.
    """

    id: str
    path: str
    file: str
    rows: int
    length: int
    checksum: str

    @property
    def facts(self) -> tuple[str, str, int, int, str]:
        """The part in the form of a line of a history (workloads/history.py)."""
        return self.id, self.path, self.rows, self.length, self.checksum


def ask(
    cluster: Addressed, replica: str, path: str, *, timeout_s: float = 30.0, token: str | None = None
) -> Any:
    """Return the answer of a replica to GET of a path below /api/v1.

    UnavailableError without an answer in time; an error that the agent answers is raised unchanged.
    """
    return json.loads(get(f"{cluster.url(replica)}/api/v1{path}", timeout_s=timeout_s, token=token))


def get(url: str, *, timeout_s: float = TIMEOUT_S, token: str | None = None) -> bytes:
    """Return the body at an address of an agent; errors as in `ask`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = _POOL.request("GET", url, headers=headers, timeout=timeout_s)
    except urllib3.exceptions.HTTPError as error:
        raise UnavailableError(f"no answer from {url}: {error}") from error
    if response.status != _OK:
        raise from_answer(response.status, response.data) or from_wire(response.status, {})
    return response.data


class Agents:
    """All agents of a cluster; any number of threads may use the object.

    Args:
        token: The agents' shared secret, if they have one.
    """

    def __init__(self, cluster: Addressed, *, token: str | None = None) -> None:
        self._cluster = cluster
        self._token = token

    @property
    def replicas(self) -> list[str]:
        """The ids of all replicas."""
        return self._cluster.replicas

    def metrics(self, replica: str) -> Mapping[str, float]:
        """All metrics without labels of an agent; UnavailableError when it does not answer."""
        text = get(f"{self._cluster.url(replica)}/metrics", token=self._token).decode()
        return {name: float(value) for name, value in _METRIC.findall(text)}

    def served(self, replica: str) -> Served:
        """Return the reads that an agent has served; UnavailableError if it does not answer."""
        metrics = self.metrics(replica)
        return Served(
            int(metrics["tidelock_reader_opens_total"]), int(metrics["tidelock_reader_bytes_total"])
        )

    def snapshot_csn(self, replica: str) -> int:
        """The snapshot CSN of an agent; UnavailableError when it does not answer."""
        return int(self.metrics(replica)["tidelock_snapshot_csn"])

    def parts(self, replica: str, csn: int, table: str) -> list[ListedPart]:
        """Return an agent's part list of a table at a CSN, ordered by id; the agent's errors are raised."""
        listed = ask(
            self._cluster,
            replica,
            f"/parts?csn={csn}&table={table}",
            timeout_s=TIMEOUT_S,
            token=self._token,
        )
        names = ("part", "path", "file", "rows", "length", "checksum")
        return sorted(
            (ListedPart(*(row[name] for name in names)) for row in listed), key=lambda part: part.id
        )

    def read(self, replica: str, csn: int, part: ListedPart) -> bytes:
        """Yield a part's bytes from an agent's snapshot file system as they arrive; errors as in `ask`."""
        url = f"http://{self._cluster.data_address(replica)}/snapshots/{csn}/{quote(part.file, safe='/=')}"
        return get(url, token=self._token)

    def copy_parts(self, replica: str, csn: int, table: str, folder: Path) -> list[Path]:
        """Copy the parts of a table at a CSN below a folder, unless they exist there: parts never change.

        Returns their paths. CorruptError if bytes do not have the checksum of the part list.
        """

        def copy(part: ListedPart) -> Path:
            target = folder / part.file
            if not target.exists():
                self._download(replica, csn, part, target)
            return target

        with ThreadPoolExecutor(_COPIES_AT_ONCE) as threads:
            return list(threads.map(copy, self.parts(replica, csn, table)))

    def _download(self, replica: str, csn: int, part: ListedPart, target: Path) -> None:
        data = self.read(replica, csn, part)
        checksum = xxhash.xxh3_128_hexdigest(data)
        if checksum != part.checksum:
            raise CorruptError(
                f"{replica} served part {part.id} with checksum {checksum}, not {part.checksum}", part=part.id
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
