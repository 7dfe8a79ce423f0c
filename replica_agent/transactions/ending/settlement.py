"""Settlement: makes the proposal of a transaction, and proposes it to the log until the log has decided."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import structlog

from tidelock.csnlog.core.model import TidRecord
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import CsnLog, LogState, Proposal
from tidelock.errors import (
    CommitUnknownError,
    HeadMovedError,
    LabelExistsError,
    LabelMovedError,
    MembersChangedError,
    RefusedError,
    TableChangedError,
    TableExistsError,
    TidelockError,
    UnavailableError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.transactions.ending.definition_order import DefinitionOrder
from tidelock.replica_agent.transactions.ending.head_turns import HeadTurns
from tidelock.replica_agent.transactions.ending.labels import Labels
from tidelock.replica_agent.transactions.ending.proposals import ProposalBuilder, ordered
from tidelock.replica_agent.transactions.ending.validation import Validation
from tidelock.replica_agent.transactions.transaction import Transaction

_log = structlog.get_logger("commit")
_T = TypeVar("_T")
#: Least time for a call to the log, however late it is (seconds).
_CALL_S = 0.1


@dataclass(slots=True)
class _Deadline:
    """The time at which a settlement gives up; the wait for copies has its own bound, and does not count."""

    at: float
    clock: Callable[[], float]

    @property
    def left_s(self) -> float:
        return self.at - self.clock()

    def not_passed(self) -> bool:
        return self.left_s >= 0

    @contextlib.contextmanager
    def stopped(self) -> Iterator[float]:
        """Yield the time that is left, and leave as much after the block."""
        left_s = self.left_s
        yield left_s
        self.at = self.clock() + left_s


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Settlement:
    """Lets the log decide transactions.

    Attributes:
        clock: Monotonic seconds.
    """

    settings: AgentSettings
    log: CsnLog
    proposals: ProposalBuilder
    labels: Labels
    validation: Validation
    order: DefinitionOrder
    clock: Callable[[], float]
    _turns: HeadTurns = field(init=False)

    def __post_init__(self) -> None:
        self._turns = HeadTurns(self.settings.head_turn_s)

    async def settle(self, tx: Transaction, deadline: float, riders: Sequence[TidRecord] = ()) -> Committed:
        """Make the copies, and commit, with the transactions that it carries.

        A serializable transaction is committed only if what it has read is unchanged at the end of the log.

        Raises:
            CommitUnknownError: The log has ended here, and the record was sent: the next boot learns more.
            TidelockError: Certainly not committed.
        """
        tx.require_wanted()
        until = _Deadline(deadline, self.clock)
        with until.stopped() as left_s:
            proposal = await self.proposals.build(tx, left_s)
        if riders:
            proposal = msgspec.structs.replace(proposal, riders=tuple(riders))
        if tx.staged.definitions:
            return await self._settle_in_order(tx, proposal, until)
        return await self._settle_validated(tx, proposal, until)

    async def _settle_in_order(self, tx: Transaction, proposal: Proposal, until: _Deadline) -> Committed:
        """Commit definitions of tables; look at them again after each commit that comes in between."""
        version = tx.staged.defined_at

        async def place() -> None:
            nonlocal version
            async with tx.cuttable_wait():
                version = await self.order.place(tx, until.left_s)

        async def commit_in_order() -> Committed:
            assert version is not None, "the definitions have a place"
            return await self._settle_validated(tx, ordered(proposal, version), until)

        if version is None:
            await place()
        return await retried(
            commit_in_order,
            after=(TableChangedError, TableExistsError),
            may_retry=until.not_passed,
            between=place,
        )

    async def _settle_validated(self, tx: Transaction, proposal: Proposal, until: _Deadline) -> Committed:
        if not tx.depends_on_reads:
            return await self._propose(tx, proposal, until)

        async def validate_and_commit() -> Committed:
            async with tx.cuttable_wait():
                version = await self.validation.validate(tx, until.left_s)
            validated = msgspec.structs.replace(proposal, head_version=version)
            return await self._propose(tx, validated, until)

        async def take_turn() -> Committed:
            async with contextlib.AsyncExitStack() as stack:
                async with tx.cuttable_wait():
                    turn = await stack.enter_async_context(self._turns.taken(tx, until.left_s))
                return await retried(
                    validate_and_commit,
                    after=(HeadMovedError,),
                    may_retry=lambda: turn.lasts() and until.not_passed(),
                )

        try:
            return await validate_and_commit()
        except HeadMovedError as error:
            overtaken = error
        # After a commit in between it validates again, in turns of its own.
        try:
            return await retried(take_turn, after=(HeadMovedError,), may_retry=until.not_passed)
        except TimeoutError as error:
            raise overtaken from error
        except UnavailableError as error:
            if until.not_passed():
                raise
            raise overtaken from error

    async def propose(self, tx: Transaction, proposal: Proposal, deadline: float) -> Committed:
        """Commit; if the label is not in the state that was assumed, read it and judge it again.

        A refusal by that judgement is final. If members, disks or ``copies`` have changed since the copies
        were counted, count them again. Errors as of :meth:`settle`.
        """
        return await self._propose(tx, proposal, _Deadline(deadline, self.clock))

    async def _propose(self, tx: Transaction, proposal: Proposal, until: _Deadline) -> Committed:
        async def place_label() -> None:
            nonlocal proposal
            proposal = await self._place_label(tx, proposal, until)

        if tx.batch is not None:
            await place_label()

        async def count_again() -> None:
            nonlocal proposal
            with until.stopped() as left_s:
                proposal = await self.proposals.count_again(tx, proposal, left_s)

        async def commit_counted() -> Committed:
            return await retried(
                lambda: self._commit_once(tx, proposal, until),
                after=(MembersChangedError,),
                may_retry=until.not_passed,
                between=count_again,
            )

        if tx.label is None:  # a label in the way is a rider's
            return await commit_counted()
        return await retried(
            commit_counted,
            after=(LabelExistsError, LabelMovedError),
            may_retry=until.not_passed,
            between=place_label,
        )

    async def _place_label(self, tx: Transaction, proposal: Proposal, until: _Deadline) -> Proposal:
        assert tx.label is not None
        left = max(_CALL_S, until.left_s)
        async with tx.cuttable_wait():
            move = await self.labels.place(tx.label, tx.batch, proposal.tid, left)
        return msgspec.structs.replace(proposal, move=move)

    async def _commit_once(self, tx: Transaction, proposal: Proposal, until: _Deadline) -> Committed:
        async with tx.cuttable_wait():
            await self._turns.others_over(tx)
        try:
            return await self.log.commit(proposal, timeout_s=max(_CALL_S, until.left_s))
        except CommitUnknownError:
            _log.warning("commit_unknown", tid=proposal.tid)
            return await retried(
                lambda: self._ask_again(tx, proposal), after=(CommitUnknownError,), may_retry=self.log_lives
            )

    async def _ask_again(self, tx: Transaction, proposal: Proposal) -> Committed:
        """Repeat a proposal that was sent and may or may not be in the log.

        The same tid never gets a second CSN.
        """
        if tx.ending.called_off:  # the log may have judged it meanwhile, and then takes it for a new one
            asyncio.get_running_loop().call_soon(self.log.call_off, tx.tid)
        try:
            return await self.log.commit(proposal, timeout_s=self.settings.commit_timeout_s)
        except UnavailableError as error:
            if not self.log_lives():
                raise CommitUnknownError(error.message, tid=proposal.tid) from error
            raise

    async def explained(self, tx: Transaction, error: TidelockError) -> TidelockError:
        """Return the error of a refused commit, with what has happened to a table that it uses.

        The log knows only that a definition is another one than was read. This replica may learn of the
        change, from the log, later than the commit.
        """
        if not isinstance(error, TableChangedError):
            return error
        try:
            await self.order.place(tx, self.settings.wait_bound_s)
        except RefusedError as reason:
            return reason
        except UnavailableError:
            _log.info("refusal_not_explained", tid=str(tx.tid))
        return error

    def call_off(self, tx: Transaction) -> None:
        """Keep a sealed transaction out of the log, if it can still be helped; its commit hears the truth."""
        tx.ending.call_off()
        committing = tx.ending.carrier or tx.tid
        self.proposals.copies.call_off(committing, tx.called_off_error())
        self.log.call_off(committing)

    async def find_out(self, tx: Transaction) -> Committed | None:
        """Return the commit of a transaction whose commit has met an unforeseen error, None if it has none.

        Raises:
            CommitUnknownError: The log has ended here, and the record was sent: the next boot learns more.
        """
        self.log.call_off(tx.tid)
        return await self.log.decided(tx.tid)

    def log_lives(self) -> bool:
        """Return whether the log may still decide transactions of this boot."""
        return self.log.state in {LogState.FOLLOWING, LogState.SUSPENDED, LogState.FENCING}

    def require_following(self) -> None:
        """Raise UnavailableError unless the log decides transactions now, as far as this replica knows."""
        if self.log.state is not LogState.FOLLOWING:
            raise UnavailableError(f"this replica does not follow the log now ({self.log.state.value})")


async def retried(
    attempt: Callable[[], Awaitable[_T]],
    *,
    after: tuple[type[TidelockError], ...],
    may_retry: Callable[[], bool],
    between: Callable[[], Awaitable[None]] | None = None,
) -> _T:
    """Return the result of the first attempt that does not end in one of these errors.

    Args:
        attempt: Called at least once.
        after: Errors after which it is called again.
        may_retry: The bound, called after each such error; if it returns False, the error is raised.
        between: Prepares the next attempt. An error of its own ends the attempts, whatever its kind.
    """
    while True:
        try:
            return await attempt()
        except after:
            if not may_retry():
                raise
            if between is not None:
                await between()
