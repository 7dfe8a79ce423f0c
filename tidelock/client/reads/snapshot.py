"""A snapshot: all tables at one CSN, for as long as it is open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.agents.transport import segment
from tidelock.client.agents.webhdfs import download
from tidelock.client.reads.export import export_parts
from tidelock.client.reads.scan import RowReader
from tidelock.client.reads.stream import BatchStream
from tidelock.client.values.results import ExportResult
from tidelock.errors import SnapshotClosedError, TidelockError, UnavailableError
from tidelock.loopback_names import reachable
from tidelock.wire.reads import QueryRequest, SnapshotClosed, SnapshotPin, SnapshotRequest
from tidelock.wire.rows import RowList
from tidelock.wire.tables import PartInfo, TableInfo

T = TypeVar("T")


def open_query(connection: Connection, member: KnownMember, request: dict[str, Any], csn: int) -> BatchStream:
    """Run a query (see `scan.RowReader`) at one replica, at a CSN."""
    body = QueryRequest(**{**request, "csn": csn})
    response = connection.transport.stream(member.api, "/query", body, elsewhere=connection.members.others)
    return BatchStream(response, member.api)


class Snapshot(RowReader):
    """All tables at one CSN, pinned; made by `Database.snapshot`.

    Until it is closed, every replica keeps the parts that it needs. A background thread renews the pin; if
    the replica that holds it dies, another one pins the same CSN. Reads go to the replica that holds the pin.
    When that replica does not answer, they go to the others, unless the client is pinned to it: the same CSN
    has the same rows everywhere. Thread-safe.

    Attributes:
        csn: The CSN at which it reads.
        lease_s: How long the pin outlives the last sign of life of this client.
    """

    def __init__(self, connection: Connection, holder: KnownMember, pin: SnapshotPin) -> None:
        self.csn = pin.csn
        self.lease_s = pin.ttl_s
        self._connection = connection
        self._lock = threading.Lock()
        self._holder = holder
        self._pin = pin.id
        self._closed = False
        connection.highest_csn.note(self.csn)
        connection.leases.add(self)

    def __repr__(self) -> str:
        return f"<Snapshot {self.csn}{' closed' if self._closed else ''}>"

    @property
    def holder(self) -> str:
        """The replica that holds the pin."""
        return self._holder.id

    @property
    def closed(self) -> bool:
        """Whether the snapshot was closed."""
        return self._closed

    def tables(self) -> RowList[TableInfo]:
        """Return every table at this CSN.

        Raises:
            SnapshotClosedError: The snapshot was closed.
            UnavailableError: No replica can serve it now.
        """
        self._require_open()
        return RowList(self._ask_here("/tables", list[TableInfo]))

    def table(self, name: str) -> TableInfo:
        """Return one table as `tables` does; UnknownTableError when it does not exist at this CSN."""
        self._require_open()
        return self._ask_here(f"/tables/{segment(name)}", TableInfo)

    def parts(self, table: str) -> RowList[PartInfo]:
        """Return the parts of a table at this CSN, errors as `table`."""
        self._require_open()
        return RowList(self._ask_here("/parts", list[PartInfo], table=table))

    def export(self, table: str, folder: str | Path) -> ExportResult:
        """Write a table at this CSN into a folder on this machine: a Parquet file for each part, as it is.

        Partitions are folders as Spark and Hive name them, so `import_files` and other programs read the
        folder. An empty file `_SUCCESS` comes last. A replica that does not answer is replaced by another.

        Args:
            table: `name` or `namespace.name`.
            folder: The folder; it is made, or is empty.

        Raises:
            BadRequestError: The folder is not empty, or cannot be written.
            UnknownTableError: The table does not exist at this CSN.
            UnavailableError: No replica can serve it now; the folder has some of the files, and no mark.
        """

        def fetch(part: PartInfo, target: Path) -> None:
            path = f"/snapshots/{self.csn}/{part.file}"
            self._ask(lambda member: download(reachable(member.data), path, target, part.file_length))

        return export_parts(self.parts(table), Path(folder), fetch)

    @property
    def root(self) -> str:
        """The folder of all tables at this CSN, on the replica that holds the pin."""
        return f"webhdfs://{reachable(self._holder.data)}/snapshots/{self.csn}"

    def path(self, table: str) -> str:
        """Return the table's folder at this CSN, for any reader that supports WebHDFS.

        The path leads to the one replica that holds the pin; `tidelock.spark` reads with failover.
        UnknownTableError if the table does not exist at this CSN.
        """
        namespace, _, name = self.table(table).name.rpartition(".")
        return f"{self.root}/{namespace}/{name}"

    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query at this CSN (see `scan.RowReader`)."""
        return self._ask(lambda member: self._open(member, request))

    def collect(self, request: dict[str, Any]) -> pa.Table:
        """Run a query at this CSN and return all rows; a truncated answer is requested elsewhere again."""
        return self._ask(lambda member: self._open(member, request).read_all())

    def leave(self) -> None:
        """End this object and leave the pin until its lease ends, for readers that know the CSN.

        The pin is not renewed any more. A replica that reads the CSN after the end of the lease makes an
        implicit pin for a while (`unpinned_ttl_s`).
        """
        with self._lock:
            self._closed = True
        self._connection.leases.remove(self)

    def close(self) -> None:
        """Release the pin; harmless when it was closed. Never raises: an unreachable pin ends by itself."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            holder, pin = self._holder, self._pin
        self._connection.leases.remove(self)
        self._give_back(holder, pin)

    def renew(self, timeout_s: float) -> None:
        """Renew the pin, or make a new one at the same CSN if the pin is lost."""
        path = f"/snapshots/{segment(self._pin)}/renew"
        try:
            self._connection.transport.call(
                self._holder.api, "POST", path, answer=SnapshotPin, timeout_s=timeout_s
            )
        except TidelockError as error:
            if isinstance(error, UnavailableError):
                self._connection.members.note(self._holder, error)
            self._pin_again()

    def _pin_again(self) -> None:
        body = SnapshotRequest(csn=self.csn, ttl_s=self.lease_s)
        holder, pin = self._connection.ask_and_tell("POST", "/snapshots", answer=SnapshotPin, body=body)
        with self._lock:
            if not self._closed:
                self._holder, self._pin = holder, pin.id
                return
        self._give_back(holder, pin.id)

    def _give_back(self, holder: KnownMember, pin: str) -> None:
        members = self._connection.members
        if members.is_silent(holder):
            return  # a reader that has waited for it already need not wait again: the pin ends by itself
        release = self._connection.small(
            "DELETE", f"/snapshots/{segment(pin)}", answer=SnapshotClosed, elsewhere=members.others
        )
        try:
            release(holder)
        except UnavailableError as error:
            members.note(holder, error)
        except TidelockError:
            pass  # the pin has ended already

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, member: KnownMember, request: dict[str, Any]) -> BatchStream:
        return open_query(self._connection, member, request, self.csn)

    def _ask_here(self, path: str, answer: type[T], **query: Any) -> T:
        query["csn"] = self.csn
        return self._connection.ask("GET", path, answer=answer, query=query, first=self.holder)

    def _ask(self, call: Callable[[KnownMember], T]) -> T:
        self._require_open()
        return self._connection.members.ask(call, first=self.holder)

    def _require_open(self) -> None:
        if self._closed:
            raise SnapshotClosedError(
                f"this program has closed the snapshot at CSN {self.csn}; open another one", csn=self.csn
            )
