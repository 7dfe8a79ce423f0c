"""Stories of the outcome resolver: the commands of tests/testdata/resolver."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tests.support.machines.stories import options_of
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, Tid
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
    OwnFacts,
    Question,
    SearchLog,
    next_step,
    own_outcome,
)

#: The replica that is asked, and the boot in which it is.
HERE, BOOT = ReplicaId("r1"), 3

_POLICIES: Final = {
    "client": CLIENT,
    "lock": LOCK,
    "audit": AUDIT,
    "audit-undecided": AUDIT_UNDECIDED,
    "undecided": UNDECIDED,
}
_ANSWERS: Final[dict[str, HomeAnswer | NoAnswer]] = {
    "committed": CommittedUnseen(),
    "aborted": Aborted(),
    "running": Running(),
    "not-mine": NotMine(),
    "silence": NoAnswer(),
}


class ResolverStory:
    """Tells one story of questions to replica `r1` in boot 3, whose catalog has applied CSN 10."""

    def __init__(self) -> None:
        self._own = OwnFacts(HERE, BOOT, None, None, Csn(10), CSN_NONE, issued=9)
        self._facts: OutcomeFacts | None = None
        self._policy = CLIENT

    def __call__(self, words: list[str]) -> list[str]:
        """Carry out a command; return the next question or the outcome, if a transaction is asked about."""
        command, *rest = words
        said: list[str] | None = getattr(self, f"do_{command}")(rest)
        if said is None:
            assert self._facts is not None, "no transaction is asked about"
            said = [_told(next_step(self._facts, self._policy))]
        return said

    def do_here(self, words: list[str]) -> list[str]:
        """Say what `r1` knows: the catalog's or a taken commit, the registry, the floor, the applied CSN."""
        options = options_of(words)
        registry = options.get("registry")
        csn = Csn(int(options.get("registered", "0")))
        known = {None: None, "committed": Committed(csn), "aborted": Aborted(), "running": Running()}
        self._own = replace(
            self._own,
            commit=_commit(options.get("commit")),
            registered=known[registry],
            applied=Csn(int(options.get("applied", self._own.applied))),
            floor=Csn(int(options.get("floor", self._own.floor))),
        )
        return []

    def do_peer(self, words: list[str]) -> list[str]:
        """Let a peer ask `r1` as the home of a transaction; return the answer."""
        return [_outcome(own_outcome(Tid.parse(words[0]), self._own))]

    def do_ask(self, words: list[str]) -> None:
        """Ask for the outcome of a transaction under a policy."""
        tid, self._policy = Tid.parse(words[0]), _POLICIES[words[1]]
        self._facts = OutcomeFacts(tid, tid.home != HERE, self._own.commit, own_outcome(tid, self._own))

    def do_policy(self, words: list[str]) -> None:
        """Judge the same facts under another policy."""
        self._policy = _POLICIES[words[0]]

    def do_log(self, words: list[str]) -> None:
        """Answer a reading: the boot of the home, the commit in the log or kept in the catalog, the floor."""
        options = options_of(words)
        boot = None if options["boot"] == "none" else int(options["boot"])
        assert self._facts is not None
        asked = next_step(self._facts, self._policy)
        assert isinstance(asked, SearchLog), asked
        self._facts = self._facts.with_reading(
            LogReading(boot, _commit(options.get("commit"))),
            kept=_commit(options.get("kept")),
            floor=Csn(int(options.get("floor", self._own.floor))),
            newest=asked.newest,
        )

    def do_home(self, words: list[str]) -> None:
        """Let the home answer, or be silent."""
        assert self._facts is not None
        assert next_step(self._facts, self._policy) == AskHome()
        self._facts = self._facts.answered(_ANSWERS[words[0]])

    def do_fence(self, words: list[str]) -> None:
        """Say whether the fence of the home was raised."""
        assert self._facts is not None
        assert next_step(self._facts, self._policy) == FenceHome()
        self._facts = self._facts.fenced(raised={"raised": True, "refused": False}[words[0]])


def _commit(csn: str | None) -> Committed | None:
    return None if csn is None else Committed(Csn(int(csn)))


def _told(step: Question | Outcome | NeverWas) -> str:
    match step:
        case SearchLog(newest):
            return "? read log, behind a write" if newest else "? read log"
        case AskHome():
            return "? ask home"
        case FenceHome():
            return "? fence home"
        case NeverWas(None):
            return "= error: no replica has that name"
        case NeverWas(boot):
            return f"= error: the home has had boots up to {boot} only"
        case outcome:
            return f"= {_outcome(outcome)}"


def _outcome(found: Outcome | OwnOutcome) -> str:
    match found:
        case Committed(csn):
            return f"committed at {csn}"
        case Aborted():
            return "aborted"
        case Running():
            return "running"
        case TooOld(floor):
            return f"too old, kept from {floor}"
        case NotMine():
            return "not mine"
        case NeverBegun():
            return "never begun"
