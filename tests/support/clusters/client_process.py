"""A client with one transaction in a process of its own, so that a test can kill it where it likes.

    python -m tests.support.clusters.client_process URL REPLICA TABLE LEASE_S [LABEL BATCH]

It begins a transaction, inserts `ROWS` and says its tid. On a line of its standard input it commits, and says
how that ended. Without one it keeps its lease, as long as it lives.
"""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import IO, Self

import pyarrow as pa

from tidelock.client import connect
from tidelock.errors import TidelockError

ROWS = pa.table({"k": [1, 2, 3]})
JOIN_S = 60.0


class ClientProcess:
    """A client process whose transaction is open with its rows. Use it as a context manager.

    Args:
        url: The agent that it connects to, or what stands in front of it.
        replica: The home of its transaction.
        table: It has the columns of `ROWS`.
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.clusters.client_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tid = self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def commit(self) -> None:
        """Let it ask for the commit; `told` waits for what comes of that."""
        stdin: IO[str] | None = self._process.stdin
        assert stdin is not None
        stdin.write("commit\n")
        stdin.flush()

    def told(self) -> str:
        """What it was told of its commit: the CSN, or the class of the error."""
        return self._line()

    def kill(self) -> None:
        """SIGKILL; harmless when it has ended."""
        self._process.kill()
        self._process.wait(JOIN_S)

    def _line(self) -> str:
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None
        line = stdout.readline().strip()
        assert line, "the client has ended without a word"
        return line


def _main(
    url: str, replica: str, table: str, lease_s: str, label: str | None = None, batch: str | None = None
) -> None:
    with connect(url, replica=replica) as db:
        tx = db.begin(label, batch=None if batch is None else int(batch), lease=float(lease_s))
        tx.insert(table, ROWS)
        _say(tx.tid)
        if not sys.stdin.readline():
            return
        try:
            _say(str(tx.commit().csn))
        except TidelockError as error:
            _say(type(error).__name__)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
