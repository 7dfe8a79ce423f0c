"""What became of a transaction, for those who meet its lock, or only look: nobody is fenced for it."""

from __future__ import annotations

from tidelock.csnlog.core.ids import Tid
from tidelock.csnlog.core.results import Aborted, Outcome, Running, TooOld
from tidelock.replica_agent.api.operations import Operations

#: Words of a home about transactions that are in no record.
_OF_NO_RECORD = frozenset({"aborted", "running"})


async def lock_holder(agent: Operations, tid: Tid) -> Outcome:
    """Return what became of a transaction that holds a removal lock.

    One that its living home has rolled back may still be called running: its locks go soon. One that began
    before the oldest outcome that is kept may still run, since nothing bounds how long a client works. So
    its home is asked, and while that does not answer, and may still commit it, it counts as running: a lock
    that is taken for one that nobody needs is a part that is removed twice.
    """
    found: Outcome | None = agent.known(tid)
    if found is not None:
        return found
    if tid.home == agent.replica and tid.boot == agent.session.boot:
        word: str | None = agent.commits.own_word(tid)
        if word in _OF_NO_RECORD:
            return _of(word)
    found = await agent.in_log(tid)
    if not isinstance(found, TooOld) or not isinstance(await agent.in_whole_log(tid), Running):
        return found
    word = await agent.word_of_home(tid)
    if word is None:
        return Running()
    return _of(word) if word in _OF_NO_RECORD else found


async def look_up(agent: Operations, tid: Tid, *, held: bool = False) -> Outcome:
    """Return how a transaction ended.

    Args:
        agent: This replica.
        tid: The transaction.
        held: Something of it is undecided here, so it is never too old (see `Operations.decide_held`).
    """
    found: Outcome | None = agent.known(tid)
    if found is not None:
        return found
    word = agent.commits.own_word(tid)
    if word not in _OF_NO_RECORD:
        found = await (agent.in_whole_log(tid) if held else agent.in_log(tid))
        if tid.home == agent.replica or not isinstance(found, Running | TooOld):
            return found
        word = await agent.ask_home(tid)
        if word not in _OF_NO_RECORD:
            return found
    return _of(word)


def _of(word: str | None) -> Outcome:
    return Aborted() if word == "aborted" else Running()
