"""The rules of outcomes: every course of questions over small facts, and the conclusions they exclude."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import (
    Aborted,
    Committed,
    CommittedUnseen,
    LogReading,
    NeverBegun,
    NoAnswer,
    NotMine,
    Outcome,
    OwnOutcome,
    Running,
    TooOld,
)
from tidelock.replica_agent.transactions.outcomes.rules import (
    AUDIT,
    AUDIT_UNDECIDED,
    CLIENT,
    LOCK,
    UNDECIDED,
    AskHome,
    FenceHome,
    NeverWas,
    OutcomeFacts,
    OutcomeReading,
    OwnFacts,
    Policy,
    Question,
    SearchLog,
    next_step,
    own_outcome,
)

HERE, HOME = ReplicaId("r1"), ReplicaId("r2")
BOOT = 3
SNAPSHOT = Csn(5)
TID = Tid(SNAPSHOT, HOME, BOOT, 1)
#: The outcomes of what was begun at SNAPSHOT are kept; they are not.
KEPT, FORGOTTEN = SNAPSHOT, Csn(SNAPSHOT + 1)
DONE: Final = Committed(Csn(9), 77)

POLICIES: Final = {
    "client": CLIENT,
    "lock": LOCK,
    "audit": AUDIT,
    "audit, undecided": AUDIT_UNDECIDED,
    "undecided": UNDECIDED,
}
BOOTS: Final = (None, BOOT - 1, BOOT, BOOT + 1)
ANSWERS: Final = (CommittedUnseen(), Aborted(), Running(), NotMine(), NeverBegun(), NoAnswer())
#: The longest course of questions: a look, the home, a look after its answer, a fence, a look, and one more
#: look behind a write.
QUESTIONS_MAX: Final = 6


@dataclass(frozen=True)
class Course:
    """Questions with their answers, and the end."""

    facts: OutcomeFacts
    questions: tuple[Question, ...]
    end: Outcome | NeverWas


def reading(
    boot: int | None, *, commit: Committed | None = None, floor: Csn = KEPT, **more: Any
) -> OutcomeReading:
    """Return the facts of one reading."""
    return OutcomeReading(boot, commit, floor, **more)


def learn(facts: OutcomeFacts, question: Question) -> Iterator[OutcomeFacts]:
    """Return all possible answers to a question: a read may be old, and a floor may rise."""
    match question:
        case SearchLog(newest):
            least = facts.reading.floor if facts.reading is not None else KEPT
            for boot, commit, floor in itertools.product(BOOTS, (None, DONE), (KEPT, FORGOTTEN)):
                if floor >= least:
                    yield facts.with_reading(LogReading(boot, commit), kept=None, floor=floor, newest=newest)
                    yield facts.with_reading(LogReading(boot, None), kept=commit, floor=floor, newest=newest)
            for boot, end in itertools.product(BOOTS, (SNAPSHOT, Csn(SNAPSHOT - 1))):
                log = LogReading(boot, None, end)
                yield facts.with_reading(log, kept=None, floor=least, newest=newest)
        case AskHome():
            for answer in ANSWERS:
                yield facts.answered(answer)
        case FenceHome():
            for raised in (False, True):
                yield facts.fenced(raised=raised)


def courses(facts: OutcomeFacts, policy: Policy, before: tuple[Question, ...] = ()) -> Iterator[Course]:
    """Yield all courses that begin with these facts."""
    step = next_step(facts, policy)
    if not isinstance(step, SearchLog | AskHome | FenceHome):
        yield Course(facts, before, step)
        return
    assert len(before) < QUESTIONS_MAX, before
    for more in set(learn(facts, step)):
        yield from courses(more, policy, (*before, step))


def beginnings() -> Iterator[OutcomeFacts]:
    """Return all facts that can be known before the first question."""
    for other_home, commit in itertools.product((True, False), (None, DONE)):
        tid = TID if other_home else replace(TID, home=HERE)
        owns: tuple[OwnOutcome, ...] = (
            (NotMine(),) if other_home else (NotMine(), DONE, Aborted(), Running(), NeverBegun())
        )
        for own in owns:
            yield OutcomeFacts(tid, other_home, commit, own)


@pytest.fixture(scope="module", params=list(POLICIES.values()), ids=list(POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    """The purpose of the question."""
    chosen: Policy = request.param
    return chosen


@pytest.fixture(scope="module")
def all_courses(policy: Policy) -> list[Course]:
    """Return all courses under the policy."""
    return [course for facts in beginnings() for course in courses(facts, policy)]


# --------------------------------------------------------------------------------- what is never concluded


def test_aborted_needs_the_home_or_a_log_that_was_read_after_its_fence(all_courses: list[Course]) -> None:
    """I8: a tid that was not found is aborted only if it cannot be committed after the look."""
    for course in all_courses:
        if course.end == Aborted():
            facts = course.facts
            read = facts.reading is not None and facts.reading.boot is not None and facts.reading.boot > BOOT
            assert {Aborted(), NeverBegun()} & {facts.own, facts.home} or read, course
            assert facts.commit is None, course
            assert facts.reading is None or facts.reading.commit is None, course


def test_nothing_is_concluded_from_what_was_read_before_an_own_fence(all_courses: list[Course]) -> None:
    """The last question is never the fence, unless another had raised it first and nothing was decided."""
    for course in all_courses:
        if course.questions and isinstance(course.questions[-1], FenceHome):
            assert course.end == Running(), course
            assert course.facts.reading is not None, course  # the fence was not raised by this replica


def test_nothing_below_the_floor_is_running_but_by_the_word_of_its_home_or_for_a_lock(
    policy: Policy, all_courses: list[Course]
) -> None:
    """A client would be told "running" without end of a transaction that was committed and forgotten."""
    for course in all_courses:
        seen = course.facts.reading
        below = seen is not None and seen.floor == FORGOTTEN and not policy.held_here
        if course.end == Running() and below:
            assert course.facts.home == Running() or policy.for_lock, course


def test_what_was_seen_committed_is_committed(all_courses: list[Course]) -> None:
    """I8: a commit in the catalog, in a received record, or in the log stays committed."""
    for course in all_courses:
        seen = course.facts.reading
        if DONE in {course.facts.commit, seen.commit if seen else None}:
            assert course.end == DONE, course
        else:
            assert course.end != DONE or course.facts.own == DONE, course


def test_what_is_held_here_is_never_too_old(policy: Policy, all_courses: list[Course]) -> None:
    """Otherwise its parts would stay forever; no applied record names it, or they would be decided."""
    if policy.held_here:
        assert not any(isinstance(course.end, TooOld) for course in all_courses)


def test_nobody_is_fenced_but_where_the_policy_lets_and_the_home_has_not_said_that_it_lives(
    policy: Policy, all_courses: list[Course]
) -> None:
    """The audit and the look for a lock's holder end no transactions."""
    for course in all_courses:
        if any(isinstance(question, FenceHome) for question in course.questions):
            assert policy.may_fence
            assert course.facts.home in {NotMine(), NoAnswer()}
            assert course.questions.count(FenceHome()) == 1


def test_the_home_is_asked_once_and_never_this_replica_itself(all_courses: list[Course]) -> None:
    """The home is asked once, so a frozen one delays the answer once."""
    for course in all_courses:
        assert course.questions.count(AskHome()) <= int(course.facts.other_home), course


def test_a_boot_that_never_was_is_concluded_behind_a_write(all_courses: list[Course]) -> None:
    """A ZooKeeper server that lags behind shows the former boot of a home that has just started."""
    for course in all_courses:
        if isinstance(course.end, NeverWas) and NeverBegun() not in {course.facts.own, course.facts.home}:
            seen = course.facts.reading
            assert seen is not None
            low = course.end.boot is not None and course.end.boot < BOOT
            above = seen.end is not None and course.end.end == seen.end < SNAPSHOT
            assert course.end.boot is None or (seen.newest and (low or above)), course


def test_a_lock_is_too_old_only_if_its_holder_cannot_commit_or_has_not(
    policy: Policy, all_courses: list[Course]
) -> None:
    """I7: the floor counts as the CSN of the holder, so no commit above it may still come."""
    if not policy.for_lock:
        return
    for course in all_courses:
        if isinstance(course.end, TooOld):
            seen = course.facts.reading
            assert seen is not None
            over = seen.boot is not None and seen.boot > BOOT
            assert over or not course.facts.other_home or (seen.after_home and seen.commit is None), course


# ------------------------------------------------------------------------------------------- more facts


def test_a_final_outcome_stays_what_it_was_when_more_is_learned(
    policy: Policy, all_courses: list[Course]
) -> None:
    """Committed, and aborted by the log, depend neither on answers of homes nor on a floor that rises."""
    for course in all_courses:
        if course.end == DONE or (course.end == Aborted() and course.facts.reading is not None):
            by_log = course.facts.reading is not None and course.facts.reading.boot == BOOT + 1
            for answer in ANSWERS:
                told = next_step(course.facts.answered(answer), policy)
                if course.end == DONE:
                    assert told == DONE, (course, answer)
                elif by_log and isinstance(answer, NotMine | NoAnswer):
                    assert told == Aborted(), (course, answer)


def test_a_commit_that_is_learned_wins_over_everything(policy: Policy, all_courses: list[Course]) -> None:
    """A tid whose record is known is committed, after any other conclusion."""
    for course in all_courses:
        if isinstance(course.facts.own, NotMine):
            assert next_step(replace(course.facts, commit=DONE), policy) == DONE


# --------------------------------------------------------------------------------- cases of the track record

_ASKED = OutcomeFacts(TID, other_home=True)
_LOOKED = replace(_ASKED, reading=reading(BOOT))
_BELOW = replace(_ASKED, reading=reading(BOOT, floor=FORGOTTEN))
_OVER = replace(_ASKED, reading=reading(BOOT + 1))


@pytest.mark.parametrize(
    ("policy", "facts", "step"),
    [
        pytest.param(
            UNDECIDED,
            replace(_OVER, home=NoAnswer(), reading=reading(BOOT + 1, floor=FORGOTTEN)),
            Aborted(),
            id="parts of an undecided transaction stay forever: too old",
        ),
        pytest.param(
            CLIENT,
            replace(_LOOKED, home=NoAnswer()),
            FenceHome(),
            id="a frozen home is asked for longer than clients wait: silence goes on to its fence",
        ),
        pytest.param(
            CLIENT,
            replace(_ASKED, reading=reading(BOOT + 1, floor=FORGOTTEN)),
            TooOld(FORGOTTEN),
            id="aborted for committed: forgotten between the looks at the floor and at the outcomes",
        ),
        pytest.param(LOCK, _BELOW, AskHome(), id="a living lock is taken for one that nobody needs"),
        pytest.param(
            LOCK,
            replace(_BELOW, home=NoAnswer()),
            Running(),
            id="a living lock is taken for dead while its home is silent",
        ),
        pytest.param(
            LOCK,
            replace(_BELOW, home=CommittedUnseen()),
            SearchLog(),
            id="a lock whose holder commits while it is asked about counts as too old",
        ),
        pytest.param(
            CLIENT,
            replace(
                _ASKED, tid=replace(TID, home=HERE), other_home=False, reading=reading(BOOT, floor=FORGOTTEN)
            ),
            TooOld(FORGOTTEN),
            id="running for too old: a home that remembers it as closed",
        ),
        pytest.param(
            UNDECIDED, _ASKED, AskHome(), id="the home of what is undecided here is asked before the log"
        ),
        pytest.param(
            UNDECIDED,
            replace(_ASKED, home=CommittedUnseen()),
            Running(),
            id="a committed one whose record is on its way is not looked for in the log",
        ),
        pytest.param(
            CLIENT,
            replace(_ASKED, reading=reading(BOOT - 1)),
            SearchLog(newest=True),
            id="a boot ahead: read again",
        ),
        pytest.param(
            CLIENT,
            replace(_ASKED, reading=reading(BOOT - 1, newest=True)),
            NeverWas(BOOT - 1),
            id="never was",
        ),
        pytest.param(CLIENT, replace(_ASKED, reading=reading(None)), NeverWas(None), id="no such replica"),
        pytest.param(
            CLIENT,
            replace(_ASKED, reading=reading(BOOT + 1, end=Csn(SNAPSHOT - 1))),
            SearchLog(newest=True),
            id="above the end of the log, by a look that may be old",
        ),
        pytest.param(
            CLIENT,
            replace(_ASKED, reading=reading(BOOT + 1, end=Csn(SNAPSHOT - 1), newest=True)),
            NeverWas(BOOT + 1, Csn(SNAPSHOT - 1)),
            id="above the end of the log",
        ),
        pytest.param(
            CLIENT, replace(_ASKED, home=NeverBegun()), NeverWas(BOOT), id="never begun by its home"
        ),
        pytest.param(LOCK, replace(_ASKED, home=NeverBegun()), Aborted(), id="a lock of nobody"),
        pytest.param(CLIENT, replace(_ASKED, commit=DONE), DONE, id="known here: nothing is read"),
        pytest.param(LOCK, _LOOKED, Running(), id="a lock's holder above the floor: no home is asked"),
    ],
)
def test_each_case_of_the_track_record_has_its_next_step(
    policy: Policy, facts: OutcomeFacts, step: Question | Outcome | NeverWas
) -> None:
    """docs/track-record.md: the bugs of the resolver as facts, and the cases that save requests."""
    assert next_step(facts, policy) == step


# -------------------------------------------------------------------------------------- the own outcome


@pytest.mark.parametrize("registered", [None, Running(), Aborted(), DONE], ids=str)
@pytest.mark.parametrize("commit", [None, DONE], ids=str)
@pytest.mark.parametrize("applied", [Csn(DONE.csn - 1), DONE.csn])
@pytest.mark.parametrize("floor", [KEPT, FORGOTTEN])
@pytest.mark.parametrize("boot", [BOOT - 1, BOOT, BOOT + 1])
@pytest.mark.parametrize("issued", [TID.counter - 1, TID.counter])
def test_a_home_says_only_what_it_knows(
    registered: Committed | Aborted | Running | None,
    commit: Committed | None,
    applied: Csn,
    floor: Csn,
    boot: int,
    issued: int,
) -> None:
    """Aborted only for its present boot, and never for a tid that may be committed and forgotten (I17)."""
    facts = OwnFacts(HOME, boot, commit, registered, applied, floor, issued)
    told = own_outcome(TID, facts)
    assert own_outcome(TID, replace(facts, replica=HERE)) == NotMine()
    if boot < BOOT:
        assert told == NotMine()
    elif commit is not None:
        assert told == commit
    elif registered == DONE:
        assert told == (NotMine() if applied >= DONE.csn else Running())
    elif registered is not None:
        assert told == registered
    elif boot == BOOT and issued < TID.counter:
        assert told == NeverBegun()
    else:
        assert told == (Aborted() if boot == BOOT and floor == KEPT else NotMine())
