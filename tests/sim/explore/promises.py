"""The invariants of the design, by name: the exploration of commits checks them in every state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.sim.explore.replay import ReplayView, Returned
from tests.sim.explore.search import Broken
from tests.sim.explore.world import IDLE, NAMES, ORDERS, REJECTED, UNDECIDED, WAITING, CommitTx, CommitWorld
from tidelock.csnlog.core.committer_messages import Rejected
from tidelock.csnlog.core.model import TidRecord
from tidelock.csnlog.core.results import Aborted, Committed

if TYPE_CHECKING:
    from tests.sim.explore.commits import CommitModel


def code(said: object) -> int:
    """A verdict or outcome as the state keeps it."""
    match said:
        case Committed(csn):
            return csn
        case Rejected() | Aborted():
            return REJECTED
    return UNDECIDED


def word(heard: int) -> str:
    """Return the last answer to a client, in words."""
    known = {IDLE: "not asked for", WAITING: "waited for", UNDECIDED: "undecided", REJECTED: "aborted"}
    return known.get(heard, f"committed at {heard}")


def check(txs: Sequence[CommitTx], w: CommitWorld) -> Broken | None:
    """Each transaction stands in the log once or not at all, and what was said of it is so."""
    for tx, (boot, heard, told) in enumerate(zip(w.boots, w.heard, w.told, strict=True)):
        if not boot:
            continue
        tid = txs[tx].name(boot)
        there = [entry.csn for entry in w.log if tid in entry.tids]
        if len(there) > 1:
            return Broken("I1 UNIQUE", f"{tid} has the CSNs {there}")
        if told == REJECTED and there:
            return Broken(
                "I8 DECIDED", f"others were told that {tid} is aborted, it is committed at {there[0]}"
            )
        if told > 0 and there != [told]:
            return Broken("I17 TRUTHFUL", f"others were told that {tid} has CSN {told}, the log says {there}")
        if heard == REJECTED and there:
            return Broken("I17 TRUTHFUL", f"the client of {tid} heard aborted, it is committed at {there[0]}")
        if heard > 0 and there != [heard]:
            return Broken("I17 TRUTHFUL", f"the client of {tid} heard CSN {heard}, the log says {there}")
        for rider in txs[tx].riders(boot):
            found = [entry.csn for entry in w.log if rider.tid in entry.tids]
            if found != there:
                return Broken("I3 ATOMIC", f"{tid} has the CSNs {there}, its rider {rider.tid} has {found}")
    return _labels(txs, w) or _definitions(txs, w)


def _labels(txs: Sequence[CommitTx], w: CommitWorld) -> Broken | None:
    """Under one label one transaction is committed."""
    committed = {tid for entry in w.log for tid in entry.tids}
    under: dict[str, str] = {}
    for tx, boot in zip(txs, w.boots, strict=True):
        if not boot:
            continue
        for one in (TidRecord(tx.name(boot), label=tx.label), *tx.riders(boot)):
            if (
                one.label is not None
                and one.tid in committed
                and under.setdefault(one.label, one.tid) != one.tid
            ):
                return Broken("I7 NOCONFLICT", f"{under[one.label]} and {one.tid} have the label {one.label}")
    return None


def _definitions(txs: Sequence[CommitTx], w: CommitWorld) -> Broken | None:
    """Of definitions that were decided at one state one is committed; no part is made for one of before."""
    at = {tid: entry.csn for entry in w.log for tid in entry.tids}
    there = [
        (at[tx.name(boot)], tx) for tx, boot in zip(txs, w.boots, strict=True) if boot and tx.name(boot) in at
    ]
    defined = sorted(csn for csn, tx in there if tx.alters or tx.creates)
    if len(defined) > 1:
        return Broken("I7 NOCONFLICT", f"definitions at {defined}, each decided before the other")
    changed = [csn for csn, tx in there if tx.alters]
    if late := [csn for csn, tx in there if tx.uses and changed and csn >= changed[0]]:
        return Broken("I7 NOCONFLICT", f"{late} use {ORDERS} as it was before the change at {changed[0]}")
    return None


def unsettled(model: CommitModel, w: CommitWorld) -> Broken | None:
    """Every transaction is decided, every replica can tell its outcome, and all have the same log."""
    end = w.log[-1].csn
    for which, replica in enumerate(w.replicas):
        if which in w.struck:
            continue
        name = NAMES[which]
        if not replica.running:
            return Broken("I14 LIVE", f"{name} does not run")
        pending = model.committers.at(replica.machine).pending
        waiting = sorted(pending.sent | pending.queue.keys())
        if waiting or replica.request is not None:
            return Broken("I14 LIVE", f"{name} does not go on with {waiting or replica.request}")
        if replica.applied != end:
            return Broken("I4 DURABLE", f"{name} has applied up to {replica.applied}, the log ends at {end}")
    for tx, heard in enumerate(w.heard):
        if heard == WAITING:
            return Broken("I8 DECIDED", f"the client of {model.txs[tx].tid(w.boots[tx])} waits for ever")
        if w.boots[tx] and heard == UNDECIDED and (broken := _learned(model, w, tx)):
            return broken
    return None


def _learned(model: CommitModel, w: CommitWorld, tx: int) -> Broken | None:
    """Every replica that runs knows the outcome of a transaction whose client was told nothing."""
    tid = model.txs[tx].tid(w.boots[tx])
    there = [entry.csn for entry in w.log if str(tid) in entry.tids]
    for which, replica in enumerate(w.replicas):
        if which in w.struck or not replica.running:
            continue
        view = ReplayView(w.history[-1])
        turn = model.procedures.outcome(NAMES[which], tid, w.log, (view, view))
        told = turn.value if isinstance(turn, Returned) else turn
        if told != (Committed(there[0]) if there else Aborted()):
            return Broken("I8 DECIDED", f"asked for {tid}, {NAMES[which]} says {told}; the log has {there}")
    return None
