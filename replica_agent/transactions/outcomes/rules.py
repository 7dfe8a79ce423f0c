"""The rules by which an outcome is found: facts in, the next question or the outcome out. Pure.

:func:`next_step` is called repeatedly, each time with the facts that the last question has brought
(:mod:`tidelock.replica_agent.transactions.outcomes.resolver` asks). The order (rule outcome): the
session znode of the home, then the log to its end, then the own catalog, then its floor. A transaction that
was found is committed. One below the floor is too old to tell. If the boot of its home is higher it is
aborted. Else it is running, unless its home says otherwise.

The order of the questions protects three conclusions:

* Aborted follows only from the answer of the home itself, or from a log that was read after the boot of the
  home was seen to be higher. A replica that has raised the fence of the home forgets what it read before.
* Below the floor, running follows only from the answer of the home, or for a lock. A living holder of a lock
  must not lose it.
* For a lock, too old follows only if the home cannot commit the transaction any more, or if a log that was
  read after the answer of the home does not have it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import (
    Aborted,
    Committed,
    CommittedUnseen,
    HomeAnswer,
    LogReading,
    NeverBegun,
    NoAnswer,
    NotMine,
    Outcome,
    OwnOutcome,
    Running,
    TooOld,
)

# ----------------------------------------------------------------------------------------------- the policies


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The purpose of a question, and the means that are allowed for an answer.

    Attributes:
        may_fence: A home that has long been silent may be fenced, which ends its open transactions.
        held_here: A part or a mark of the transaction is undecided here, so no record that was applied here
            names it. A log without it is proof enough, however few outcomes are kept. It is never too old.
        home_first: The home is asked before the log is read. Its answer costs ZooKeeper nothing.
        for_lock: The transaction holds a removal lock that is in the way of another. The home is asked only
            below the floor. There the holder counts as running while its home is silent.
    """

    may_fence: bool = False
    held_here: bool = False
    home_first: bool = False
    for_lock: bool = False


#: A client asks. A home that has long been silent is fenced for it.
CLIENT: Final = Policy(may_fence=True)
#: A statement has met the transaction's lock, or the lock sweeper wants to delete it. The sweeper fences by
#: itself, since it needs the version that it has written.
LOCK: Final = Policy(for_lock=True)
#: The audit asks. It changes nothing.
AUDIT: Final = Policy()
#: The audit asks about a transaction whose parts are undecided here.
AUDIT_UNDECIDED: Final = Policy(held_here=True)
#: A start or a background task decides a transaction whose parts are undecided here, to drop those.
UNDECIDED: Final = Policy(may_fence=True, held_here=True, home_first=True)


# -------------------------------------------------------------------------------------------- the known facts


class OwnFacts(msgspec.Struct, frozen=True):
    """The knowledge of this replica about a transaction, without a request to another process.

    The commit is looked up first and the floor last, since an outcome that is forgotten raises the floor.

    Attributes:
        replica: This replica.
        boot: Its present boot.
        commit: The commit in the catalog's outcomes, or in a record that was taken and is not applied.
        registered: The outcome in the registry of open and recently ended transactions; None if it does not
            remember the transaction.
        applied: The snapshot CSN.
        floor: The oldest snapshot CSN whose outcomes are kept.
        issued: Number of tids that were given away in the present boot: the largest counter of a tid.
    """

    replica: ReplicaId
    boot: int
    commit: Committed | None
    registered: Committed | Aborted | Running | None
    applied: Csn
    floor: Csn
    issued: int


class OutcomeReading(msgspec.Struct, frozen=True):
    """One reading of ZooKeeper, then of the own catalog, then of the floor.

    Attributes:
        boot: The boot of the home; None if no replica has that name.
        commit: The commit, wherever it was found.
        floor: The floor as it was after that.
        end: The end of the log; None: not known.
        newest: It contains every write that was acknowledged before.
        after_home: It began after the home had answered.
    """

    boot: int | None
    commit: Committed | None
    floor: Csn
    end: Csn | None = None
    newest: bool = False
    after_home: bool = False


class OutcomeFacts(msgspec.Struct, frozen=True):
    """All facts that one question for an outcome has brought so far.

    Attributes:
        tid: The transaction.
        other_home: Its home is another replica.
        commit: The commit, as far as it was known here at the beginning.
        own: The answer of this replica as its home (:func:`own_outcome`).
        reading: The last reading; None before the first one, and after this replica has fenced the home.
        home: The answer of the home; None if it was not asked.
        fence_tried: This replica has tried to raise the fence of the home.
    """

    tid: Tid
    other_home: bool
    commit: Committed | None = None
    own: OwnOutcome = msgspec.field(default_factory=NotMine)
    reading: OutcomeReading | None = None
    home: HomeAnswer | NoAnswer | None = None
    fence_tried: bool = False

    def with_reading(
        self, log: LogReading, *, kept: Committed | None, floor: Csn, newest: bool = False
    ) -> OutcomeFacts:
        """Add a reading: the log, then the outcome that is ``kept`` here, then the floor."""
        reading = OutcomeReading(
            log.boot, log.commit or kept, floor, log.end, newest=newest, after_home=self.home is not None
        )
        return replace(self, reading=reading)

    def answered(self, answer: HomeAnswer | NoAnswer) -> OutcomeFacts:
        """Add the answer of the home, or its silence."""
        return replace(self, home=answer)

    def fenced(self, *, raised: bool) -> OutcomeFacts:
        """Add the attempt to fence the home. A fence that was raised makes the last reading worthless."""
        return replace(self, fence_tried=True, reading=None if raised else self.reading)


def own_outcome(tid: Tid, facts: OwnFacts) -> OwnOutcome:
    """Return what a home says of its own transaction, without a request to another process.

    A commit counts from the moment when its record is taken here; before that the transaction is running.
    """
    if tid.home != facts.replica or tid.boot > facts.boot:
        return NotMine()
    if facts.commit is not None:
        return facts.commit
    match facts.registered:
        case Committed(csn):  # applied and forgotten since, or not applied yet
            return NotMine() if csn <= facts.applied else Running()
        case Aborted() | Running() as found:
            return found
    if tid.boot < facts.boot:
        return NotMine()
    if tid.counter > facts.issued:
        return NeverBegun()
    return NotMine() if tid.snapshot < facts.floor else Aborted()


# ------------------------------------------------------------------------------------------ the next question


class SearchLog(msgspec.Struct, frozen=True):
    """Read the home's session znode, the log to its end, the own catalog, the floor, in this order.

    Attributes:
        newest: A write comes first, so that no older state of ZooKeeper is read.
    """

    newest: bool = False


class AskHome(msgspec.Struct, frozen=True):
    """Ask the home, which may not answer."""


class FenceHome(msgspec.Struct, frozen=True):
    """Raise the fence of the home in the boot of the transaction, if the home has long been silent."""


class NeverWas(msgspec.Struct, frozen=True):
    """No such transaction exists: no replica has that name, or it has not begun it.

    Attributes:
        boot: The present boot of the home; None if no replica has that name. If it is the boot of the tid,
            the home has begun no such transaction in it.
        end: The end of the log, if the tid reads above it.
    """

    boot: int | None
    end: Csn | None = None


Question = SearchLog | AskHome | FenceHome


def next_step(facts: OutcomeFacts, policy: Policy) -> Question | Outcome | NeverWas:
    """Return the outcome if the facts tell it under this policy, else the next question."""
    if facts.commit is not None:
        return facts.commit
    if facts.reading is not None and facts.reading.commit is not None:
        return facts.reading.commit
    if not isinstance(facts.own, NotMine | NeverBegun):
        return facts.own
    if isinstance(facts.own, NeverBegun) or isinstance(facts.home, NeverBegun):
        # The holder of a lock or a part that was never begun will not be committed: that is enough for these.
        return Aborted() if policy.for_lock or policy.held_here else NeverWas(facts.tid.boot)
    if policy.home_first and facts.other_home:
        if facts.home is None:
            return AskHome()
        if isinstance(facts.home, CommittedUnseen):
            return Running()  # its record is on its way here
    if isinstance(facts.home, Aborted | Running):
        return facts.home
    if facts.reading is None:
        return SearchLog()
    end = facts.reading.end
    if facts.reading.boot is not None and end is not None and facts.tid.snapshot > end:
        # No transaction reads at a CSN that does not exist. The read may be old.
        return NeverWas(facts.reading.boot, end) if facts.reading.newest else SearchLog(newest=True)
    if not policy.held_here and facts.tid.snapshot < facts.reading.floor:
        return _below_the_floor(facts, facts.reading, policy)
    return _in_no_record(facts, facts.reading, policy)


def _below_the_floor(
    facts: OutcomeFacts, reading: OutcomeReading, policy: Policy
) -> Question | Outcome | NeverWas:
    """Judge a transaction that may have been committed and forgotten."""
    too_old = TooOld(reading.floor)
    if not facts.other_home or not _may_commit(facts, reading):
        return too_old
    if policy.for_lock and (reading.boot is None or reading.boot < facts.tid.boot):
        return _of_no_boot(reading)
    if facts.home is None:
        return AskHome()
    if not policy.for_lock:
        return too_old
    if isinstance(facts.home, NoAnswer):
        return Running()
    # The home may have committed after the log was read. The CSN of that commit is above the floor.
    return too_old if reading.after_home else SearchLog()


def _in_no_record(
    facts: OutcomeFacts, reading: OutcomeReading, policy: Policy
) -> Question | Outcome | NeverWas:
    """Judge a transaction without a record, whose record would be known."""
    if reading.boot is None or reading.boot < facts.tid.boot:
        return _of_no_boot(reading)
    if not _may_commit(facts, reading):
        return Aborted()
    if not facts.other_home or policy.for_lock:
        return Running()
    if facts.home is None:
        return AskHome()
    if isinstance(facts.home, CommittedUnseen):
        return Running()  # committed after the log was read; the next question finds it
    return FenceHome() if policy.may_fence and not facts.fence_tried else Running()


def _may_commit(facts: OutcomeFacts, reading: OutcomeReading) -> bool:
    """Return whether the home may still be in the boot of the transaction."""
    return reading.boot is None or reading.boot <= facts.tid.boot


def _of_no_boot(reading: OutcomeReading) -> Question | NeverWas:
    """Judge a tid whose boot is above the boot of the home: it never was, unless the read was stale."""
    return NeverWas(reading.boot) if reading.newest or reading.boot is None else SearchLog(newest=True)
