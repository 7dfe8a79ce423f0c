"""The transactions that databases stand for: begun, found and ended by their labels.

All that is known of one is at its home, so any metastore can go on with a transaction that another one has
begun. It belongs to the user who began it, as the clients of a metastore name their users.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelock.client import Database, Transaction
from tidelock.client.values.results import TransactionState
from tidelock.errors import (
    BadRequestError,
    LabelExistsError,
    TidelockError,
    TooLargeError,
    UnknownTransactionError,
)

#: How long a transaction stays open after the last question about it, in seconds. Executors that write ask
#: nothing, so it is more than any job lasts.
IDLE_S: Final = 4 * 3600.0
#: Transactions that one metastore keeps open.
MOST: Final = 50
#: The rights of the token of a table, as of `Transaction.token`.
_RIGHTS: Final = ("append", "replace", "by_name")
#: A path is given out for this part of the time for which its token is valid.
_PATH_S: Final = 1800.0


@dataclass(slots=True)
class _Open:
    """An open transaction, with the paths of its tables and when these were made."""

    tx: Transaction
    user: str
    used: float
    paths: dict[str, tuple[float, str]] = field(default_factory=dict)


class Transactions:
    """Transactions by label; for many threads.

    Args:
        db: The cluster.
        idle_s: How long one stays open after the last question about it.
        most: How many are open at most.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        db: Database,
        *,
        idle_s: float = IDLE_S,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._idle_s = idle_s
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}

    def begin(self, label: str, user: str) -> bool:
        """Begin a transaction; return whether it was open before, and has rows already.

        Raises:
            LabelExistsError: The label is committed.
            BadRequestError: It is the transaction of another user.
            TooLargeError: Too many transactions are open.
            UnavailableError: No replica can begin one.
        """
        self._end_idle()
        if (known := self._found(label, user)) is not None:
            return known.tx.state is not TransactionState.OPEN or self._changed(known) > 0
        if (done := self._db.label(label)) is not None and done.csn is not None:
            raise LabelExistsError(
                f"label {label!r} was committed before, at CSN {done.csn}: its rows are there; use another "
                "label for other rows",
                label=label,
                csn=done.csn,
            )
        with self._lock:
            if len(self._open) >= self._most:
                raise TooLargeError(
                    f"{self._most} transactions are open (--transactions-max); end one: DROP DATABASE "
                    "tx_<label>, or commit it",
                    limit=self._most,
                )
        tx = self._db.begin(label, fresh=True, meta={"user": user})
        with self._lock:
            self._open[label] = _Open(tx, user, self._clock())
        return False

    def get(self, label: str, user: str) -> Transaction:
        """Return an open transaction.

        Raises:
            UnknownTransactionError: There is none; the message says whether it is committed.
            BadRequestError: It is the transaction of another user.
        """
        return self._get(label, user).tx

    def path(self, label: str, user: str, table: str) -> str:
        """Return the folder to which Spark writes rows of a table; errors as `get` and `Transaction.path`.

        It stays the same for a while: Spark asks several times in one statement.
        """
        known = self._get(label, user)
        made, path = known.paths.get(table, (0.0, ""))
        if not path or self._clock() - made > _PATH_S:
            path = known.tx.path(table, _RIGHTS)
            known.paths[table] = self._clock(), path
        return path

    def state(self, label: str, user: str) -> dict[str, str]:
        """Return what is known of a transaction, as texts by names.

        Raises:
            UnknownTransactionError: There was none, as far as this is known.
            BadRequestError: It is the transaction of another user.
        """
        known = self._found(label, user)
        done = self._db.label(label)  # another metastore may have committed it
        if known is not None and (done is None or done.tid != known.tx.tid):
            tx = known.tx
            return {"state": tx.state, "tid": tx.tid, "snapshot_csn": str(tx.snapshot_csn)}
        if done is not None and done.csn is not None:
            self._forget(label)
            return {"state": TransactionState.COMMITTED, "tid": done.tid or "", "csn": str(done.csn)}
        raise UnknownTransactionError(
            f"there is no transaction {label!r}: it was not begun, or was rolled back; CREATE DATABASE "
            f"tx_{label}"
        )

    def commit(self, label: str, user: str) -> None:
        """Commit a transaction, unless it is committed; errors as `Transaction.commit` and `get`."""
        if self.state(label, user)["state"] == TransactionState.COMMITTED:
            return
        tx = self.get(label, user)
        try:
            tx.commit(wait="copies")
        finally:
            if tx.state is not TransactionState.SEALED:  # else it may be asked for again
                self._forget(label)

    def roll_back(self, label: str, user: str) -> None:
        """Roll a transaction back.

        Raises:
            BadRequestError: It is committed, or that of another user.
            UnknownTransactionError: There is none.
        """
        if (csn := self.state(label, user).get("csn")) is not None:
            raise BadRequestError(
                f"transaction {label!r} is committed, at CSN {csn}: there is nothing to roll back",
                label=label,
            )
        tx = self.get(label, user)
        self._forget(label)
        tx.rollback()

    def close(self) -> None:
        """Let the transactions go: another metastore may go on with them before their leases end."""
        with self._lock:
            self._open.clear()

    def _get(self, label: str, user: str) -> _Open:
        if (known := self._found(label, user)) is not None:
            return known
        state = self.state(label, user)
        raise UnknownTransactionError(
            f"transaction {label!r} is {state['state']}, at CSN {state.get('csn')}: it takes no more "
            "statements",
            label=label,
        )

    def _found(self, label: str, user: str) -> _Open | None:
        """Return an open transaction, also one of another metastore; None if there is none."""
        with self._lock:
            known = self._open.get(label)
        if known is None or known.tx.state in {TransactionState.COMMITTED, TransactionState.ROLLED_BACK}:
            known = self._resumed(label)
        if known is None:
            return None
        if known.user != user:
            raise BadRequestError(
                f"transaction {label!r} belongs to user {known.user!r}, and you are {user!r}", label=label
            )
        known.used = self._clock()
        return known

    def _resumed(self, label: str) -> _Open | None:
        self._forget(label)
        for row in self._db.transactions():
            if row.label == label and row.batch is None and row.state == TransactionState.OPEN:
                owner = str((row.meta or {}).get("user", ""))
                known = _Open(self._db.resume(row.tid), owner, self._clock())
                with self._lock:
                    return self._open.setdefault(label, known)
        return None

    def _changed(self, known: _Open) -> int:
        return sum(
            row.parts + row.removed_parts for row in self._db.transactions() if row.tid == known.tx.tid
        )

    def _forget(self, label: str) -> None:
        with self._lock:
            self._open.pop(label, None)

    def _end_idle(self) -> None:
        since = self._clock() - self._idle_s
        with self._lock:
            idle = [label for label, one in self._open.items() if one.used < since]
            ended = [self._open.pop(label) for label in idle]
        for one in ended:
            try:
                one.tx.rollback()
            except TidelockError:
                continue  # its lease ends: this client has let it go
