"""A client with one transaction in a process of its own, so that a test can kill it at any moment.

    python -m tests.support.clusters.client_process URL REPLICA TABLE LEASE_S [LABEL BATCH]

It begins a transaction, inserts `ROWS` and prints its tid. After a line on its standard input it commits, and
prints the result. Until then it renews its lease.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

import pyarrow as pa

from tidelock.client import connect
from tidelock.errors import TidelockError
from workloads import child
from workloads.child import Child

ROWS = pa.table({"k": [1, 2, 3]})


class ClientProcess:
    """A client process whose transaction is open with its rows. Use it as a context manager.

    Args:
        url: The agent that it connects to, or the proxy in front of it.
        replica: The home of its transaction.
        table: A table with the columns of `ROWS`.
        lease_s: Length of the transaction's lease.
        batch: Label of its streaming query, and number of its batch.
    """

    def __init__(
        self,
        url: str,
        replica: str,
        table: str,
        *,
        lease_s: float = 60.0,
        batch: tuple[str, int] | None = None,
    ) -> None:
        arguments = [url, replica, table, str(lease_s), *map(str, batch or ())]
        self._child = Child("tests.support.clusters.client_process", *arguments)
        self.tid: str = self._child.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def commit(self) -> None:
        """Let it request the commit; `told` waits for the answer."""
        self._child.send("commit")

    def told(self) -> str:
        """The answer to its commit: the CSN, or the class of the error."""
        return str(self._child.receive())

    def kill(self) -> None:
        """Send SIGKILL; harmless when it has ended."""
        self._child.kill()


def _main(
    url: str, replica: str, table: str, lease_s: str, label: str | None = None, batch: str | None = None
) -> None:
    with connect(url, replica=replica) as db:
        tx = db.begin(label, batch=None if batch is None else int(batch), lease=float(lease_s))
        tx.insert(table, ROWS)
        child.answer(tx.tid)
        if next(child.requests(), None) is None:
            return
        try:
            child.answer(str(tx.commit().csn))
        except TidelockError as error:
            child.answer(type(error).__name__)


if __name__ == "__main__":
    _main(*sys.argv[1:])
