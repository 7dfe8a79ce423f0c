"""What the demo asks single agents over HTTP: their metrics, their part lists, and the bytes of parts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import urllib3
import xxhash

from tidelock.cluster import LocalCluster
from tidelock.errors import CorruptError, UnavailableError, from_wire

#: How long an agent may take for an answer, in seconds. A busy machine is slow; a dead agent refuses at once.
TIMEOUT_S: Final = 20.0
_OK: Final = 200
_METRIC: Final = re.compile(r"^(tidelock_\w+) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Served:
    """What the reader processes of one replica have served since its start.

    Attributes:
        opens: Reads of parts that were begun.
        byte_count: Bytes of parts handed to the kernel.
    """

    opens: int
    byte_count: int

    def since(self, before: Served) -> Served:
        """What was served in between."""
        return Served(self.opens - before.opens, self.byte_count - before.byte_count)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a replica's part list.

    Attributes:
        id: Its id.
        path: Its partition, "" for none.
        file: Where it is read, below `/snapshots/<csn>/`.
        rows: How many it holds.
        checksum: XXH3-128 of its bytes, in hexadecimal digits.
    """

    id: str
    path: str
    file: str
    rows: int
    checksum: str


class Agents:
    """All agents of a local cluster; any number of threads may ask."""

    def __init__(self, cluster: LocalCluster, *, token: str | None) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._api = {replica: cluster.url(replica) for replica in cluster.replicas}
        self._data = {ports.id: ports.data for ports in cluster.layout.replicas}
        self._pool = urllib3.PoolManager(
            num_pools=2 * len(self._api), maxsize=16, timeout=TIMEOUT_S, retries=False
        )

    @property
    def replicas(self) -> list[str]:
        """The ids of all replicas."""
        return list(self._api)

    def metrics(self, replica: str) -> Mapping[str, float]:
        """All metrics without labels of an agent; UnavailableError when it does not answer."""
        text = self._get(f"{self._api[replica]}/metrics").decode()
        return {name: float(value) for name, value in _METRIC.findall(text)}

    def served(self, replica: str) -> Served:
        """What an agent's readers have served; UnavailableError when it does not answer."""
        metrics = self.metrics(replica)
        return Served(
            int(metrics["tidelock_reader_opens_total"]), int(metrics["tidelock_reader_bytes_total"])
        )

    def snapshot_csn(self, replica: str) -> int:
        """The snapshot CSN of an agent; UnavailableError when it does not answer."""
        return int(self.metrics(replica)["tidelock_snapshot_csn"])

    def parts(self, replica: str, csn: int, table: str) -> list[Part]:
        """An agent's part list of a table at a CSN, ordered by id; errors as its API answers."""
        listed: list[dict[str, Any]] = json.loads(
            self._get(f"{self._api[replica]}/api/v1/parts?csn={csn}&table={table}")
        )
        parts = [Part(row["part"], row["path"], row["file"], row["rows"], row["checksum"]) for row in listed]
        return sorted(parts, key=lambda part: part.id)

    def download(self, replica: str, csn: int, part: Part, target: Path) -> None:
        """Copy a part's bytes from an agent's snapshot file system into a file.

        CorruptError when they do not have the checksum of the part list.
        """
        data = self._get(f"http://127.0.0.1:{self._data[replica]}/snapshots/{csn}/{part.file}")
        found = xxhash.xxh3_128_hexdigest(data)
        if found != part.checksum:
            raise CorruptError(
                f"{replica} served part {part.id} with checksum {found}, not {part.checksum}", part=part.id
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def _get(self, url: str) -> bytes:
        try:
            response = self._pool.request("GET", url, headers=self._headers)
        except urllib3.exceptions.HTTPError as error:
            raise UnavailableError(f"no answer from {url}: {error}") from error
        if response.status != _OK:
            try:
                wire = json.loads(response.data)
            except ValueError:
                wire = {}
            raise from_wire(response.status, wire if isinstance(wire, dict) else {})
        return response.data
