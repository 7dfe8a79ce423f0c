"""Labels as transactions use them: the early answer at begin, the move in the commit multi, the status.

A label makes a piece of work count once. The commit multi decides (:mod:`tidelock.csnlog.core.labels` says
how); the check before it only saves the work of a run that comes too late.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Final

from tidelock.csnlog.core.labels import LANDING, LabelRead, Make, Move, OtherKind, Taken, judge
from tidelock.csnlog.core.model import LabelState
from tidelock.csnlog.log import CsnLog
from tidelock.errors import (
    BadRequestError,
    LabelExistsError,
    RefusedError,
    TidelockError,
    TooLargeError,
    UnavailableError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, OutcomeRow
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.wire.transactions import LabelAnswer

#: Largest number of a batch: 63 bits, as CSNs.
_BATCH_MAX: Final = (1 << 63) - 1


@dataclass(slots=True, eq=False, repr=False)
class Labels:
    """The labels of this replica's transactions."""

    log: CsnLog
    reader: CatalogReader
    waiters: CsnWaiters
    settings: AgentSettings

    def require_own(self, label: str | None, batch: int | None, progress: str | None) -> None:
        """Raise as :meth:`require_form`; BadRequestError also for a label that no client may take.

        The progress of a request to commit may belong to the label of its begin.
        """
        self.require_form(label, batch)
        found, limit = len((progress or "").encode()), self.settings.progress_bytes_max
        if found > limit:
            msg = (
                f"progress has {found} bytes, the limit is progress_bytes_max={limit}; keep a shorter text, "
                "such as the key of a row that has the rest"
            )
            raise TooLargeError(msg, limit=limit, found=found)
        if label is not None and label.startswith(LANDING):
            raise BadRequestError(
                f"label {label!r} begins with {LANDING!r}, which names rows that landed; take another label",
                label=label,
            )

    def require_form(self, label: str | None, batch: int | None) -> None:
        """Raise BadRequestError or TooLargeError if these cannot be a label and the number of a batch."""
        if label is None:
            if batch is not None:
                raise BadRequestError(f"batch={batch} without a label; give the label of its streaming query")
            return
        if not label:
            raise BadRequestError("the label is empty; leave it out, or name the run")
        found, limit = len(label.encode()), self.settings.label_bytes_max
        if found > limit:
            msg = f"label has {found} bytes, the limit is label_bytes_max={limit}; shorten it"
            raise TooLargeError(msg, limit=limit, found=found)
        if batch is not None and not 0 <= batch <= _BATCH_MAX:
            raise BadRequestError(f"batch={batch} is outside 0..{_BATCH_MAX}; give a number in this range")

    async def refuse_repeated(self, label: str, batch: int | None) -> None:
        """Refuse a run that comes too late, before it works. A run that may be the first is not refused.

        Raises:
            LabelExistsError: It was committed before.
            BadRequestError: The label is a stream's and no batch is given, or the reverse.
        """
        try:
            found = await self.log.label(label)
        except UnavailableError:
            return  # the commit checks again
        await self._place(label, batch, found, self.settings.wait_bound_s, "")

    async def place(self, label: str, batch: int | None, tid: str, timeout_s: float) -> Move | None:
        """Return how the commit multi of a transaction moves the label, or None if it creates the label.

        Raises:
            LabelExistsError, BadRequestError: As :meth:`refuse_repeated`.
            UnavailableError: The label could not be read.
        """
        found = await self.log.label(label, patience_s=timeout_s)
        return await self._place(label, batch, found, timeout_s, f"; {tid} was rolled back")

    async def _place(
        self, label: str, batch: int | None, found: LabelRead, timeout_s: float, end: str
    ) -> Move | None:
        match judge(batch, found):
            case Make():
                return None
            case Move() as move:
                return move
            case Taken(state):
                raise await self._taken(label, batch, state, timeout_s, end)
            case OtherKind(state):
                raise _other_kind(label, batch, state, end)

    async def _taken(
        self, label: str, batch: int | None, state: LabelState, timeout_s: float, end: str
    ) -> RefusedError:
        run = await self._run(label, batch, state, timeout_s)
        at = f"at CSN {run.csn}" if run else "at a CSN that is not known here"
        details = {"label": label, "csn": run.csn if run else None, "tid": run.tid if run else None}
        if batch is None:
            msg = f"label {label!r} was committed before, {at}: its rows exist{end}"
            return LabelExistsError(f"{msg}; take another label for other rows", **details)
        if batch == state.batch:
            msg = f"batch {batch} of {label!r} was committed before, {at}: its rows exist{end}"
        else:
            msg = f"{label!r} is at batch {state.batch} already, so batch {batch} is refused{end}"
        return LabelExistsError(msg, **details, batch=state.batch)

    async def status(self, label: str) -> LabelAnswer:
        """Return the last commit under a label; ``tid`` is None for a label that is free.

        The answer includes every commit that was acknowledged on any replica before the call.

        Raises:
            TooLargeError: The name is too long for a label.
            UnavailableError: The log could not be read; or the commit keeps progress, and is not known here.
        """
        self.require_form(label, None)
        found = (await self.log.label(label, newest=True)).state
        if found is None:
            return LabelAnswer(label, None, None, None, None)
        run = await self._run(label, found.batch, found, self.settings.wait_bound_s)
        if run is not None:
            return LabelAnswer(label, run.tid, found.batch, run.csn, run.time_ms, run.progress)
        if found.progress:  # "none" would have its reader begin again with what is committed
            raise UnavailableError(
                f"{found.tid}, the newest commit under {label!r}, is not known at this replica, and it keeps "
                "progress; ask again, or ask another replica",
                label=label,
                tid=found.tid,
            )
        return LabelAnswer(label, found.tid, found.batch, None, None)

    async def _run(
        self, label: str, batch: int | None, state: LabelState, timeout_s: float
    ) -> OutcomeRow | None:
        """Return the commit that last moved a label, or that of an earlier batch; None if not known here.

        It may be of another replica, and so recent that this replica has to apply it first. The record of
        the transaction that the label names may have been passed over: then the batch before is the newest.
        """
        if self.reader.run(state.tid) is None:
            until = time.monotonic() + timeout_s
            with contextlib.suppress(TidelockError, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    end = await self.log.barrier()
                await self.waiters.wait(end, max(0.0, until - time.monotonic()))
        if batch == state.batch and (newest := self.reader.run(state.tid)) is not None:
            return newest
        return None if batch is None else self.reader.run_of_batch(label, batch)


def _other_kind(label: str, batch: int | None, state: LabelState, end: str) -> BadRequestError:
    if batch is None:
        msg = f"label {label!r} belongs to a streaming query, at batch {state.batch}{end}; give the batch too"
    else:
        msg = (
            f"label {label!r} was committed without a batch, by {state.tid}{end}; give the query another name"
        )
    return BadRequestError(msg, label=label, tid=state.tid, batch=state.batch)
