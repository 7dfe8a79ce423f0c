"""The rules by which an outcome is found: facts in, the next question or the outcome out. Pure.

:func:`next_step` is asked again and again, each time with what the last question has brought
(:mod:`tidelock.replica_agent.transactions.outcomes.resolver` asks). Design section 4, ``outcome(tid)``: the
session znode of the home, then the log to its end, then the own catalog, then its floor. A transaction that
was found is committed. One below the floor is too old to tell. If the boot of its home is higher it is
aborted. Else it is running, unless its home says otherwise.

The order of the questions protects three conclusions:

* Aborted follows only from the answer of the home itself, or from a log that was read after the boot of the
  home was seen to be higher. Once this replica has fenced the home, what it has read before counts no more.
* Running follows, below the floor, only from the answer of the home, or for a lock: the holder of a lock must
  not be taken for one that nobody needs.
* Too old follows for a lock only if the home cannot commit the transaction any more, or has not up to the end
  of a log that was read after its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import (
    Aborted,
    Committed,
    CommittedUnseen,
    HomeAnswer,
    LogReading,
    NoAnswer,
    NotMine,
    Outcome,
    OwnOutcome,
    Running,
    TooOld,
)

# ------------------------------------------------------------------------------------------------ who asks


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be done for an answer, and what the answer is for.

    Attributes:
        may_fence: A home that has long been silent may be fenced, which ends its open transactions.
        held_here: Something of the transaction is undecided here, so no record that was applied here names
            it: the log without it is proof enough, however few outcomes are kept. It is never too old.
        home_first: The home is asked before the log is read: its word costs ZooKeeper nothing.
        for_lock: The transaction holds a removal lock that is in somebody's way. The home is asked only
            below the floor; there it counts as running while its home lives on and does not say otherwise.
    """

    may_fence: bool = False
    held_here: bool = False
    home_first: bool = False
    for_lock: bool = False


#: A client wants to know, and a dead home is to be decided for it.
CLIENT: Final = Policy(may_fence=True)
#: A statement has met the transaction's lock, or a lock is to be cleared away. Those who clear fence by
#: themselves, since they need the version that they have written.
LOCK: Final = Policy(for_lock=True)
#: The audit looks, and changes nothing.
AUDIT: Final = Policy()
#: The audit looks at a transaction of which something is undecided here.
AUDIT_UNDECIDED: Final = Policy(held_here=True)
#: What is undecided here is to be decided, and dropped if it was aborted.
UNDECIDED: Final = Policy(may_fence=True, held_here=True, home_first=True)


# -------------------------------------------------------------------------------------------- what is known


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """What this replica knows of a transaction without asking anybody.

    The commit is looked up first and the floor last: whoever forgets an outcome raises the floor with that.

    Attributes:
        replica: This replica.
        boot: Its present life.
        commit: The commit in the catalog's outcomes, or in a record that was taken and is not applied.
        registered: What the registry of open and recently ended transactions says; None for one that it
            does not remember.
        applied: The snapshot CSN.
        floor: The oldest snapshot CSN whose outcomes are kept.
    """

    replica: ReplicaId
    boot: int
    commit: Committed | None
    registered: Committed | Aborted | Running | None
    applied: Csn
    floor: Csn


@dataclass(frozen=True, slots=True)
class Look:
    """One look at ZooKeeper, then at the own catalog, then at the floor.

    Attributes:
        boot: The boot of the home; None if no replica has that name.
        commit: The commit, wherever it was found.
        floor: The floor as it was after that.
        newest: It contains every write that was acknowledged before.
        after_home: It began after the home had answered.
    """

    boot: int | None
    commit: Committed | None
    floor: Csn
    newest: bool = False
    after_home: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """All that one question for an outcome has learned so far.

    Attributes:
        tid: The transaction.
        foreign: Its home is another replica.
        commit: The commit, as far as it was known here at the beginning.
        own: What this replica says as its home (:func:`own_outcome`).
        look: The last look; None if there was none since the fence of the home was raised.
        home: What the home has answered; None if it was not asked.
        fence_tried: It was tried to fence the home.
    """

    tid: Tid
    foreign: bool
    commit: Committed | None = None
    own: OwnOutcome = NotMine()  # noqa: RUF009 - a frozen value
    look: Look | None = None
    home: HomeAnswer | NoAnswer | None = None
    fence_tried: bool = False

    def looked(
        self, reading: LogReading, *, kept: Committed | None, floor: Csn, newest: bool = False
    ) -> Facts:
        """Add a look: the log, then what was ``kept`` here, then the floor."""
        look = Look(
            reading.boot, reading.commit or kept, floor, newest=newest, after_home=self.home is not None
        )
        return replace(self, look=look)

    def answered(self, answer: HomeAnswer | NoAnswer) -> Facts:
        """Add what the home has said, or that it said nothing."""
        return replace(self, home=answer)

    def fenced(self, *, raised: bool) -> Facts:
        """Add that the home was fenced, or could not be; what was read before the fence counts no more."""
        return replace(self, fence_tried=True, look=None if raised else self.look)


def own_outcome(tid: Tid, facts: OwnFacts) -> OwnOutcome:
    """Return what a home says of its own transaction, without asking anybody.

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
    forgotten = tid.boot < facts.boot or tid.snapshot < facts.floor
    return NotMine() if forgotten else Aborted()


# ----------------------------------------------------------------------------------------- what comes next


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Look: the home's session znode, the log to its end, the own catalog, the floor, in this order.

    Attributes:
        newest: A write comes first, so that no older state of ZooKeeper is read.
    """

    newest: bool = False


@dataclass(frozen=True, slots=True)
class AskHome:
    """Ask the home, which may not answer."""


@dataclass(frozen=True, slots=True)
class FenceHome:
    """Raise the fence of the life of the home in which the transaction was begun, if it has been silent."""


@dataclass(frozen=True, slots=True)
class NeverWas:
    """There is no such transaction: no replica has that name, or it has never had that boot.

    Attributes:
        boot: The present boot of the home; None if no replica has that name.
    """

    boot: int | None


Question = ReadLog | AskHome | FenceHome


def next_step(facts: Facts, policy: Policy) -> Question | Outcome | NeverWas:
    """Return the outcome if the facts tell it under this policy, else what to ask next."""
    if facts.commit is not None:
        return facts.commit
    if facts.look is not None and facts.look.commit is not None:
        return facts.look.commit
    if not isinstance(facts.own, NotMine):
        return facts.own
    if policy.home_first and facts.foreign:
        if facts.home is None:
            return AskHome()
        if isinstance(facts.home, CommittedUnseen):
            return Running()  # its record is on its way here
    if isinstance(facts.home, Aborted | Running):
        return facts.home
    if facts.look is None:
        return ReadLog()
    if not policy.held_here and facts.tid.snapshot < facts.look.floor:
        return _below_the_floor(facts, facts.look, policy)
    return _in_no_record(facts, facts.look, policy)


def _below_the_floor(facts: Facts, look: Look, policy: Policy) -> Question | Outcome | NeverWas:
    """Judge a transaction that may have been committed and forgotten."""
    too_old = TooOld(look.floor)
    if not _may_live(facts, look):
        return too_old
    if not facts.foreign:
        return too_old
    if policy.for_lock and (look.boot is None or look.boot < facts.tid.boot):
        return _of_no_boot(look)
    if facts.home is None:
        return AskHome()
    if not policy.for_lock:
        return too_old
    if isinstance(facts.home, NoAnswer):
        return Running()
    # The home may have committed it after the log was read, and a floor is no CSN of such a commit.
    return too_old if look.after_home else ReadLog()


def _in_no_record(facts: Facts, look: Look, policy: Policy) -> Question | Outcome | NeverWas:
    """Judge a transaction that stands in no record, though its record would be known."""
    if look.boot is None or look.boot < facts.tid.boot:
        return _of_no_boot(look)
    if not _may_live(facts, look):
        return Aborted()
    if not facts.foreign or policy.for_lock:
        return Running()
    if facts.home is None:
        return AskHome()
    if isinstance(facts.home, CommittedUnseen):
        return Running()  # since the log was read; who asks again finds it
    return FenceHome() if policy.may_fence and not facts.fence_tried else Running()


def _may_live(facts: Facts, look: Look) -> bool:
    """Tell whether the life of the home in which the transaction was begun may still commit it."""
    return look.boot is None or look.boot <= facts.tid.boot


def _of_no_boot(look: Look) -> Question | NeverWas:
    """Judge a boot above that of the home: it never was, unless what was read is older than the question."""
    return NeverWas(look.boot) if look.newest or look.boot is None else ReadLog(newest=True)
