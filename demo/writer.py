"""One writer: commits batches of new orders until each is certainly committed, and records the history.

A batch that is certainly not committed (its replica was killed, and its transaction with it) is sent
again, under a new transaction and with the same order keys: if the first one was committed nevertheless, the
order would exist twice, and the checks would detect it. If the answer to a commit was lost, the outcome is
requested by the tid, from any replica, until it is decided.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tidelock.client import Database, Decision, Transaction
from tidelock.errors import (
    CommitUnknownError,
    RefusedError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)
from workloads.history import CallEnd, Recorder
from workloads.tpch.orders import OrderBatch, TpchScale, new_batch

#: Pause before a batch is sent again, in seconds.
AGAIN_PAUSE_S: Final = 0.2
#: How long the outcome of a lost commit is requested, in seconds. It is decided when its home is back.
OUTCOME_TIMEOUT_S: Final = 120.0
#: How long a writer waits for the others of its wave, in seconds.
WAVE_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class OrderKeys:
    """Order keys of all batches of all writers: no two share one, and all lie above the loaded keys.

    Attributes:
        last_loaded: The largest key that was loaded.
        writers: How many writers there are in all.
        orders: Orders of one batch.
    """

    last_loaded: int
    writers: int
    orders: int

    def first(self, writer: int, batch: int) -> int:
        """The first key of the n-th batch of a writer, both counted from 0."""
        return self.last_loaded + 1 + (batch * self.writers + writer) * self.orders


class WriterPace:
    """How often each writer begins a transaction, and whether it goes on. Shared by the writers of a process.

    Args:
        interval_s: Between the beginnings of two transactions of one writer.
        calm_after_s: After so long, counted from now ...
        calm_interval_s: ... it is this.
    """

    def __init__(
        self, interval_s: float = 0.0, calm_after_s: float = 0.0, calm_interval_s: float = 0.0
    ) -> None:
        self._interval_s = interval_s
        self._calm_interval_s = calm_interval_s
        self._calm_at = time.monotonic() + calm_after_s
        self._stop = threading.Event()

    @property
    def interval_s(self) -> float:
        """The interval that holds now."""
        return self._interval_s if time.monotonic() < self._calm_at else self._calm_interval_s

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Let every writer finish its batch and end."""
        self._stop.set()

    def pause(self, duration_s: float) -> None:
        """Wait, or return at once when stopped."""
        self._stop.wait(duration_s)


class Waves:
    """Waves of commits: each writer stages a batch, waits for the others, and then all commit at once.

    Args:
        shares: Number of batches of each writer; a writer with fewer batches takes no part in the last waves.
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self._barriers = [
            threading.Barrier(sum(share > wave for share in shares)) for wave in range(max(shares))
        ]

    def wait(self, wave: int) -> None:
        """Wait for the writers of a wave, counted from 0; the wait times out if one of them has failed."""
        with contextlib.suppress(threading.BrokenBarrierError):
            self._barriers[wave].wait(WAVE_TIMEOUT_S)


@dataclass
class Tally:
    """The counts of a writer: batches sent more than once, and outcomes requested."""

    sent_again: int = 0
    asked: int = 0


@dataclass
class BatchWriter:
    """Writes batches to one replica.

    Attributes:
        number: Which writer, from 0; it seeds its random numbers.
        home: Client of its replica.
        all_replicas: Client of all replicas, for outcomes when the home does not answer.
        pace: Its pace.
        waves: What its n-th batch waits for before the commit; None = nothing.
    """

    number: int
    scale: TpchScale
    keys: OrderKeys
    home: Database
    all_replicas: Database
    pace: WriterPace
    waves: Waves | None = None
    tally: Tally = field(default_factory=Tally)
    _last_csn: int = 0

    def run(self, history: Recorder, batches: int | None = None) -> None:
        """Commit batches, one each interval, until the pace is stopped or the given number is done.

        RefusedError if a batch is refused for a reason that a repetition cannot mend.
        """
        random = Random(f"writer {self.number}")
        # The first batches are spread over an interval, as if the writers had begun one after the other.
        due = time.monotonic() + self.pace.interval_s * random.random()
        number = 0
        while batches is None or number < batches:
            self.pace.pause(due - time.monotonic())
            if self.pace.stopped:
                return
            key = self.keys.first(self.number, number)
            batch = new_batch(random, self.scale, key, self.keys.orders)
            note = _Notes(history, f"writer-{self.number}", batch)
            note.invoked()
            if not self._write(batch, number, note):
                note.ended(CallEnd.FAIL, error="the writers were stopped")
                return
            number += 1
            # Missed batches (its replica was down for a while) are not sent later.
            due = max(due + self.pace.interval_s, time.monotonic())

    def _write(self, batch: OrderBatch, number: int, note: _Notes) -> bool:
        """Commit a batch; False when the writers were stopped and it is certainly not committed."""
        for attempt in itertools.count():
            if self.pace.stopped:
                break
            self.tally.sent_again += attempt == 1
            try:
                with self.home.begin(min_csn=self._last_csn) as tx:
                    tx.insert("orders", batch.orders)
                    tx.insert("lineitem", batch.lineitem)
                    if self.waves is not None and attempt == 0:
                        self.waves.wait(number)
                    note.commit(tx)
                return self._committed(note, tx.tid, tx.csn)
            except CommitUnknownError as error:
                if self._ask(error.tid, note):
                    return True
            except (UnavailableError, RefusedError) as error:
                # A closed or unknown transaction: its home was killed or fenced, and has forgotten it.
                gone = isinstance(error, TransactionClosedError | UnknownTransactionError)
                if not (error.retriable or gone):
                    raise
            self.pace.pause(AGAIN_PAUSE_S)
        return False

    def _ask(self, tid: str, note: _Notes) -> bool:
        """Request the outcome of a commit until it is decided; False if it is certainly not committed."""
        self.tally.asked += 1
        deadline = time.monotonic() + OUTCOME_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                outcome = self.all_replicas.outcome(tid)
            except UnavailableError:
                pass
            else:
                if outcome.decision is Decision.COMMITTED:
                    return self._committed(note, tid, outcome.csn)
                if outcome.decision is Decision.ABORTED:
                    return False
            time.sleep(AGAIN_PAUSE_S)
        note.ended(CallEnd.INFO, tid=tid)
        return True

    def _committed(self, note: _Notes, tid: str, csn: int | None) -> bool:
        note.ended(CallEnd.OK, tid=tid, csn=csn)
        self._last_csn = max(self._last_csn, csn or 0)
        return True


@dataclass(frozen=True, slots=True)
class _Notes:
    """The notes of a writer about one batch; each order of the batch is a separate write."""

    history: Recorder
    process: str
    batch: OrderBatch

    def invoked(self) -> None:
        """Note that it is about to be written."""
        self.history.note("invoke", "write", self.process, keys=self.batch.keys, rows=self.batch.rows)

    def commit(self, tx: Transaction) -> None:
        """Note that its commit is about to be requested."""
        self.history.note(
            "invoke", "commit", self.process, keys=self.batch.keys, tid=tx.tid, snapshot=tx.snapshot_csn
        )

    def ended(self, end: CallEnd, **fields: Any) -> None:
        """Note how it has ended."""
        self.history.note(end, "write", self.process, keys=self.batch.keys, **fields)
