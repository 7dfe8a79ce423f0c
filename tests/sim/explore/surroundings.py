"""Moves of ZooKeeper in the exploration of commits: multis, fences by others, the tail."""

from __future__ import annotations

from tests.sim.explore.committers import Committers
from tests.sim.explore.ensemble import Ensemble, follows
from tests.sim.explore.search import Broken
from tests.sim.explore.world import NAMES, CommitWorld, Reply
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.fence import seize
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import SessionState
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Check, Delete, Op, SetData


class ZooKeeperMoves:
    """The shared ground of a world's moves."""

    def __init__(self, ensemble: Ensemble, committers: Committers) -> None:
        self.ensemble, self.committers = ensemble, committers

    def apply(self, w: CommitWorld, multi: int) -> tuple[CommitWorld, int] | Broken:
        """Let a multi happen; also returns the number of its result."""
        result, state = self.ensemble.apply(w.history[-1], multi)
        if state == w.history[-1]:
            return w, result
        log = w.log
        for entry in self.ensemble.log(state):
            if entry.csn > log[-1].csn:
                if not follows(log[-1], entry):
                    return Broken("I2 MONOTONE", f"CSN {entry.csn} follows CSN {log[-1].csn} in the log")
                log = (*log, entry)
        return w.changed(history=(*w.history, state), log=log), result

    def _send(self, w: CommitWorld, which: int, *ops: Op) -> CommitWorld | None:
        """Let a fenced multi of a replica happen, whose answer always comes; None if it is refused."""
        fence = self.committers.fence(w.replicas[which].machine)
        if fence is None:
            return None
        check = Check(tree.session(NAMES[which]), fence)
        applied = self.apply(w, self.ensemble.multis.number((check, *ops)))
        if isinstance(applied, Broken):
            return None
        after, result = applied
        return after if isinstance(self.ensemble.results.values[result], Ok) else None

    def seize(self, w: CommitWorld, which: int, kind: str) -> CommitWorld | None:
        """One replica fences the other, or strikes it."""
        other = 1 - which
        path = tree.session(NAMES[other])
        found = self.ensemble.read(w.history[-1], path)
        assert isinstance(found, Ok)
        state = codec.decode_session(found.value.data)
        nonce = f"by {NAMES[which]}.{found.value.version}"
        change = seize(path, found.value, state.boot, nonce)
        if change is None or state.state != "serving":
            return None
        if kind == "strike":
            struck = SessionState(boot=state.boot + 1, disk=state.disk, nonce=nonce, state="struck")
            change = SetData(path, codec.encode_session(struck), found.value.version)
        after = self._send(w, which, change)
        if after is None:
            return None
        if kind == "strike":
            after = after.changed(struck=after.struck | {other})
        return self.trimmed(after.less(kind).but(which, seen=after.now))

    def move_tail(self, w: CommitWorld, which: int) -> CommitWorld | None:
        """Move the tail behind what all replicas that are not struck have in their catalogs."""
        end = min(one.applied for number, one in enumerate(w.replicas) if number not in w.struck)
        tail = Csn(end + 1)
        present = self.ensemble.read(w.history[-1], tree.TAIL)
        assert isinstance(present, Ok)
        if codec.decode_csn(present.value.data) >= tail or end <= 1:
            return None
        deletes = tuple(
            Delete(tree.record(entry.csn), 0)
            for entry in self.ensemble.log(w.history[-1])
            if entry.csn < tail
        )
        change = SetData(tree.TAIL, codec.encode_csn(tail), present.value.version)
        after = self._send(w, which, change, *deletes)
        return None if after is None else self.trimmed(after.less("tail").but(which, seen=after.now))

    def trimmed(self, w: CommitWorld) -> CommitWorld:
        """Forget the states of ZooKeeper that nobody can read any more."""
        if w.budget.session:
            return w
        oldest = w.now
        for one in w.replicas:
            if one.running:
                oldest = min(oldest, one.seen)
        if not oldest:
            return w
        replicas = tuple(
            one.changed(
                seen=max(0, one.seen - oldest),
                reply=one.reply and Reply(one.reply.result, max(0, one.reply.at - oldest)),
            )
            for one in w.replicas
        )
        return w.changed(history=w.history[oldest:], replicas=replicas)
