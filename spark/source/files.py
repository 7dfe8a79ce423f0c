"""Reads of the files of a snapshot by a task, from any replica that has them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import urllib3
from urllib3.exceptions import HTTPError

from tidelock.errors import CorruptError, StandbyError, TidelockError, UnavailableError, from_answer
from tidelock.loopback_names import reachable
from tidelock.ranged_file import RangedFile
from tidelock.read_route import ROUNDS
from tidelock.spark.source import silent

#: Pause after every replica has refused or failed once, in seconds.
PAUSE_S: Final = 0.5

_WHOLE, _PARTIAL = 200, 206


class SnapshotFiles:
    """The files of one CSN; for one thread at a time.

    Args:
        csn: CSN of the snapshot.
        addresses: `host:port` of the snapshot file systems, in the order in which they are asked. One that
            has not answered a task of this process lately is asked after the others.
        connect_s: Time to wait for a connection.
        read_s: Time to wait for the next byte of an answer, also of an interim one.
    """

    def __init__(self, csn: int, addresses: Sequence[str], *, connect_s: float, read_s: float) -> None:
        self._csn = csn
        self._addresses = silent.last(addresses)
        timeout = urllib3.Timeout(connect=connect_s, read=read_s)
        self._pool = urllib3.PoolManager(num_pools=len(addresses), timeout=timeout, retries=False)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    @property
    def replicas(self) -> int:
        """The number of replicas that can be asked."""
        return len(self._addresses)

    def prefer_next(self) -> None:
        """Ask the next replica first from now on."""
        self._addresses.append(self._addresses.pop(0))

    def read(self, file: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of a file, whose path is relative to the folder of the snapshot.

        Raises:
            UnavailableError: No replica can return them now.
            TidelockError: A replica refuses the snapshot itself: it is too old, or beyond the end.
        """
        if start >= end:
            return b""
        failures: dict[str, TidelockError] = {}
        for attempt in range(ROUNDS * len(self._addresses)):
            if attempt and attempt % len(self._addresses) == 0:
                time.sleep(PAUSE_S)
            address = self._addresses[0]
            try:
                return self._ask(address, file, start, end)
            except (UnavailableError, CorruptError) as error:
                failures[address] = error
                self.prefer_next()
        reasons = "; ".join(f"{address}: {error.message}" for address, error in failures.items())
        raise UnavailableError(f"no replica returns {file} at CSN {self._csn} ({reasons}); run the job again")

    def _ask(self, address: str, file: str, start: int, end: int) -> bytes:
        url = f"http://{reachable(address)}/snapshots/{self._csn}/{quote(file)}"
        try:
            answer = self._pool.request(
                "GET", url, headers={"Range": f"bytes={start}-{end - 1}"}, redirect=False
            )
        except (HTTPError, OSError) as error:
            silent.note(address)
            raise UnavailableError(f"no complete answer ({type(error).__name__})") from error
        if answer.status not in {_WHOLE, _PARTIAL}:
            raise _refusal(answer.status, answer.data)
        data: bytes = answer.data if answer.status == _PARTIAL else answer.data[start:end]
        if len(data) != end - start:
            raise CorruptError(f"expected {end - start} bytes, received {len(data)}")
        return data


def _refusal(status: int, body: bytes) -> TidelockError:
    """Return the error in an answer; StandbyError for a missing file, since another replica may have it."""
    error = from_answer(status, body)
    if error is None:
        return UnavailableError(f"HTTP {status} without an error of an agent")
    missing = status == 404  # noqa: PLR2004 - HTTP's own number
    return StandbyError(error.message) if missing else error


class RemoteFile(RangedFile):
    """One file of a snapshot; every read is one request."""

    def __init__(self, files: SnapshotFiles, file: str, length: int) -> None:
        super().__init__(length)
        self._files, self._file = files, file

    def read_range(self, start: int, size: int) -> bytes:
        """Request bytes; errors as `SnapshotFiles.read`."""
        return self._files.read(self._file, start, start + size)
