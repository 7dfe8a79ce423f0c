"""Every outcome can be learnt, is the same everywhere, and is what clients were told."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final

from chaos.checks.check import Check
from chaos.record.journal import load
from chaos.record.violation import Violation
from chaos.world import World
from tidelock.client import Database
from tidelock.errors import TidelockError, UnavailableError, UnknownTransactionError

#: How long a running transaction may take to be decided, in seconds: its lease, and the silence of its home.
DECIDED_S: Final = 120.0
_LOOK_S: Final = 0.5
_AT_ONCE: Final = 6
#: The answer of a replica about a tid: its decision and CSN.
Told = tuple[str, int | None]


class Outcomes(Check):
    """Asks every replica for each unknown outcome, and one replica for each known one (I1, I4, I17)."""

    name: ClassVar[str] = "outcomes"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        calls = [line for line in load(world.journal.path) if line["what"] == "call" and line.get("tid")]
        unknown = sorted({line["tid"] for line in calls if line["end"] == "info"})
        known = sorted({line["tid"] for line in calls if line["f"] == "write"} - {*unknown})
        replicas = sorted(world.cluster.replicas)
        told: dict[str, dict[str, Told]] = {tid: {} for tid in [*unknown, *known]}
        questions = [(replica, tid) for tid in unknown for replica in replicas]
        questions += list(zip(itertools.cycle(replicas), known, strict=False))
        dbs = {replica: world.cluster.connect(replica) for replica in replicas}
        try:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                answers = threads.map(lambda question: ask(dbs[question[0]], question[1]), questions)
                for (replica, tid), answer in zip(questions, answers, strict=True):
                    told[tid][replica] = answer
        finally:
            for db in dbs.values():
                db.close()
        for tid in unknown:
            decision, csn = next(iter(told[tid].values()))
            world.journal.note("outcome", tid=tid, outcome=decision, csn=csn)
        return wrong(calls, told)


def ask(db: Database, tid: str) -> Told:
    """Return a replica's answer about a tid, when it is decided; the error's name if it answers none."""
    deadline = time.monotonic() + DECIDED_S
    while True:
        try:
            found = db.outcome(tid)
        except UnknownTransactionError:
            return "aborted", None  # reserved, and never used: nothing of it was or will be visible
        except UnavailableError as error:
            answer: Told = (type(error).__name__, None)
        except TidelockError as error:
            return type(error).__name__, None
        else:
            answer = (str(found.decision), found.csn)
            if answer[0] != "running":
                return answer
        if time.monotonic() > deadline:
            return answer
        time.sleep(_LOOK_S)


def wrong(calls: Iterable[Mapping[str, Any]], told: Mapping[str, Mapping[str, Told]]) -> list[Violation]:
    """Return what contradicts another replica, or what a client was told. Pure.

    Args:
        calls: The calls of a journal that have a tid.
        told: What each replica that was asked has said about each tid.
    """
    found = []
    for call in calls:
        tid, answers = call["tid"], told.get(call["tid"], {})
        if not answers:
            continue
        shown = ", ".join(f"{replica}: {_text(answer)}" for replica, answer in sorted(answers.items()))
        claim = None
        if len({*answers.values()}) > 1:
            claim = "I1 UNIQUE: all replicas tell one outcome"
        elif not {decision for decision, _ in answers.values()} <= {"committed", "aborted"}:
            claim = "I17 TRUTHFUL: every outcome is known in the end"
        elif call["f"] == "write" and call["end"] == "ok" and call.get("csn") is not None:
            if {*answers.values()} != {("committed", call["csn"])}:
                claim = "I4 DURABLE: what was acknowledged is committed"
        elif call["f"] == "write" and call["end"] == "fail" and ("aborted", None) not in answers.values():
            claim = "I17 TRUTHFUL: what was refused is not committed"
        if claim is not None:
            said = (
                f"{call.get('workload')} was told {call['end']}, CSN {call.get('csn')}, {call.get('error')}"
            )
            found.append(Violation(Outcomes.name, claim, f"{tid}: {said}\n{shown}", call["ns"], (tid,)))
    return found


def _text(answer: Told) -> str:
    decision, csn = answer
    return decision if csn is None else f"{decision} at CSN {csn}"
