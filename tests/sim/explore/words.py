"""The moves of the exploration of commits in words, for traces that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.sim.explore.search import Move
from tests.sim.explore.world import NAMES, CommitWorld
from tidelock.csnlog.core import codec
from tidelock.csnlog.core.results import Ok, Refused
from tidelock.csnlog.core.store import Check, Create, Op, SetData

if TYPE_CHECKING:
    from tests.sim.explore.commits import CommitModel

_WORDS = {
    "start": "{r} starts: barrier, then all that a start looks at",
    "answer": "{r} gets the answer to its {request}",
    "lose request": "{r}'s {request} is lost on the way",
    "lose reply": "the answer to {r}'s {request} is lost",
    "delay": "{r} gives up on its {request}, which is still on its way",
    "want": "another multi of {r} ends unknown: its fence is to be raised",
    "resume": "{r} tries again",
    "follow": "{r} follows the log to the next record",
    "too late": "{r} finds that the records it lacks are deleted",
    "apply durably": "{r}'s catalog is durable up to CSN {taken}",
    "fence": "{r} fences {other}",
    "strike": "{r} strikes {other}",
    "tail": "{r} moves the tail behind what all have applied, and deletes the records below",
    "crash": "{r} dies",
    "crash, sent": "{r} dies; its {request} is still on its way",
}


def describe(model: CommitModel, w: CommitWorld, move: Move) -> str:
    """A move, made in this state, in words."""
    kind, about = str(move[0]), cast("int", move[1])
    if kind in {"propose", "again", "expire", "call off", "ask"}:
        tx = model.txs[about]
        tid = tx.tid(w.boots[about] or w.replicas[tx.home].boot)
        return {
            "propose": f"{NAMES[tx.home]} is asked to commit {tid}",
            "again": f"{NAMES[tx.home]} is asked again to commit {tid}",
            "expire": f"the client of {tid} waits no longer",
            "call off": f"a client calls the commit of {tid} off",
            "ask": f"{NAMES[cast('int', move[-1]) % len(NAMES)]} is asked for the outcome of {tid}",
        }[kind]
    if kind == "land":
        ops = model.ensemble.multis.values[about]
        result, _ = model.ensemble.apply(w.history[-1], about)
        return f"a late multi arrives ({_multi(ops)}): {_result(model.ensemble.results.values[result])}"
    replica = w.replicas[about]
    request = replica.request
    if kind in {"read", "session", "look", "learn"}:
        at = cast("int", move[2])
        behind = w.now - at
        age = f", {behind} write{'s' if behind > 1 else ''} behind" if behind else ""
        what = {
            "read": f"does its {request.kind}" if request else "reads",
            "session": "gets a new session",
            "look": "begins to find the outcome out: its first read",
            "learn": "finds the outcome out: its last read",
        }[kind]
        return f"{NAMES[about]} {what}{age}"
    if kind == "apply":
        assert request is not None
        result, _ = model.ensemble.apply(w.history[-1], request.multi)
        ops = model.ensemble.multis.values[request.multi]
        said = _result(model.ensemble.results.values[result])
        return f"ZooKeeper gets {NAMES[about]}'s {request.kind} ({_multi(ops)}): {said}"
    return _WORDS[kind].format(
        r=NAMES[about],
        other=NAMES[1 - about],
        request=request.kind if request else "",
        taken=replica.taken,
    )


def _multi(ops: tuple[Op, ...]) -> str:
    said = []
    for op in ops:
        match op:
            case Check(path, version) if path.endswith("/session"):
                said.append(f"fence {version}")
            case Create(_, data, sequential=True):
                record = codec.decode_record(data)
                tids = " ".join(tid.tid for tid in record.tids)
                said.append(f"record {tids}" if tids else "END")
            case SetData(path, data, version) if path.endswith("/session"):
                state = codec.decode_session(data)
                said.append(f"boot {state.boot}, nonce {state.nonce}, if version is {version}")
    return ", ".join(said)


def _result(result: object) -> str:
    match result:
        case Ok():
            return "applied"
        case Refused(reason, index):
            return f"refused ({reason.value} of element {index})"
    return str(result)
