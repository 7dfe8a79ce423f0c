"""Random walks over the committer: any order of faults, checked against what really happened.

The world is hostile in every way that ZooKeeper allows and no other: requests are lost, arrive late or twice
lose their reply, sessions change, a new session may read from a server that lags behind, a read never goes
back within a session, and another replica may raise the fence. What must hold is I1 (one CSN per tid), I8 (an
outcome never changes and can be learned) and I17 (what is said is what happened); I2 holds by the numbers of
the log, which :func:`records` checks to be without gap.
"""

from __future__ import annotations

import random

import pytest

from tests.support.machines.committing import LOST, R1, R2, WRITES, Bench, log_of, new_tree, proposal, tid
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.committer_messages import (
    CommitDecision,
    DeadlinePassed,
    Followed,
    LinkChanged,
    LogRead,
    ReadLog,
    Rejected,
    TickWanted,
)
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.results import Committed, Ok, Refused
from tidelock.csnlog.core.store import Op
from tidelock.csnlog.testing.memory_tree import ZnodeTree

LIMITS = LogLimits(batch_tids_max=3, queue_tids_max=20, epoch_limit=5)


class World:
    """Two replicas, all former states of the ensemble, and the requests that are on their way."""

    def __init__(self, seed: int, *, fencing: bool) -> None:
        self.random = random.Random(seed)
        self.fencing = fencing
        shared = new_tree()
        self.history: list[ZnodeTree] = [shared.copy()]
        self.benches = [Bench(shared, home=home, limits=LIMITS) for home in (R1, R2)]
        #: For each replica: the oldest state that its session may still read.
        self.seen = [0, 0]
        self.late: list[tuple[int, tuple[Op, ...]]] = []
        self.counter = 0
        #: The verdicts that callers have received, and the first verdict that each listens to.
        self.heard: dict[str, CommitDecision] = {}
        self.listening: dict[str, int] = {}
        self.sessions = 10
        #: The transactions that each replica had committed when it was fenced.
        self.last: dict[ReplicaId, frozenset[str]] = {}

    @property
    def shared(self) -> ZnodeTree:
        """The ensemble's newest state."""
        return self.benches[0].tree

    def apply(self, ops: tuple[Op, ...]) -> object:
        """Let a multi happen."""
        result, _ = self.shared.apply(ops, 0)
        if isinstance(result, Ok):
            self.history.append(self.shared.copy())
        return result

    def step(self) -> None:
        """Do one random thing."""
        which = self.random.randrange(2)
        bench = self.benches[which]
        do = self.random.choices(
            (
                self.serve,
                self.propose,
                self.lose,
                self.new_session,
                self.land,
                self.expire,
                self.resume,
                self.follow,
                self.tick,
            ),
            (30, 10, 8, 2, 6, 3, 10, 4, 3),
        )[0]
        do(which, bench)
        self.listen(bench)
        if self.fencing and self.random.random() < 0.003 and not bench.fenced:
            node = self.shared.get(tree.session(bench.home))
            assert node is not None
            if codec.decode_session(node.data).nonce != "foreign":
                bench.fence_by_another()
                self.history.append(self.shared.copy())
                self.last[bench.home] = self.own(bench)

    def serve(self, which: int, bench: Bench) -> None:
        """Carry out the request under way; a read sees some state that its session may see."""
        if bench.awaits(*WRITES):
            result = self.apply(bench.ops())
            assert isinstance(result, Ok | Refused)
            self.seen[which] = len(self.history) - 1
            bench.answer_multi(result)
        elif bench.request is not None:
            self.seen[which] = self.random.randint(self.seen[which], len(self.history) - 1)
            bench.serve(self.history[self.seen[which]])

    def tick(self, _: int, bench: Bench) -> None:
        """Ask for a record without transactions."""
        bench.tell(TickWanted())

    def propose(self, _: int, bench: Bench) -> None:
        """Propose a new transaction, or again one whose caller did not get an abort."""
        unsure = sorted(
            one for one, heard in self.heard.items() if not isinstance(heard, Rejected) and bench.home in one
        )
        if unsure and self.random.random() < 0.3:
            number = int(self.random.choice(unsure).rpartition("-")[2])
        else:
            number = self.counter = self.counter + 1
        self.listening[tid(number, bench.home)] = len(bench.verdicts.get(tid(number, bench.home), []))
        bench.propose(proposal(number, home=bench.home))

    def listen(self, bench: Bench) -> None:
        """Give callers the first verdict after their request, and no later one."""
        for one, already in list(self.listening.items()):
            if said := bench.verdicts.get(one, [])[already:]:
                self.heard[one] = said[0]
                del self.listening[one]

    def lose(self, _: int, bench: Bench) -> None:
        """Lose the running request or its reply, or delay the request."""
        if bench.awaits(*WRITES):
            what = self.random.choice(("request", "reply", "late"))
            if what == "reply":
                self.apply(bench.ops())
            elif what == "late":
                self.late.append((bench.session, bench.ops()))
            bench.answer_multi(LOST, session=0)
        elif isinstance(bench.request, ReadLog):
            bench.request = None
            bench.tell(LogRead(None, 0))

    def land(self, _: int, __: Bench) -> None:
        """Deliver a late request."""
        if self.late:
            self.apply(self.late.pop(self.random.randrange(len(self.late)))[1])

    def new_session(self, which: int, bench: Bench) -> None:
        """Expire the session; a new one may read old states."""
        self.sessions += 1
        bench.session = self.sessions
        self.seen[which] = self.random.randint(0, len(self.history) - 1)
        bench.tell(LinkChanged(connected=True, session=self.sessions))

    def expire(self, _: int, bench: Bench) -> None:
        """Let a caller give up."""
        if self.counter:
            bench.tell(DeadlinePassed(f"1-{bench.home}-1-{self.random.randint(1, self.counter)}"))

    def resume(self, _: int, bench: Bench) -> None:
        """End a pause."""
        if bench.paused:
            bench.resume()

    def follow(self, which: int, bench: Bench) -> None:
        """Let the follower read on, in its session, up to some state."""
        self.seen[which] = self.random.randint(self.seen[which], len(self.history) - 1)
        found = log_of(self.history[self.seen[which]])
        own = tuple((one, csns[0]) for one, csns in found.items() if f"-{bench.home}-" in one)
        end = max((csns[0] for csns in found.values()), default=Csn(1))
        bench.tell(Followed(end, own))

    def own(self, bench: Bench) -> frozenset[str]:
        """Return the tids of a replica in the log."""
        return frozenset(one for one in log_of(self.shared) if f"-{bench.home}-" in one)

    def check(self) -> None:
        """Raise AssertionError unless every answer is true."""
        log = log_of(self.shared)
        assert all(len(csns) == 1 for csns in log.values()), f"I1: {log}"
        for bench in self.benches:
            assert not bench.halted, bench.halted
            assert self.fencing or not bench.fenced, "fenced by nobody"
            fenced_with = self.last.get(bench.home)
            assert fenced_with in {None, self.own(bench)}, "F2c: a fenced replica has committed"
            for one, said in bench.verdicts.items():
                last = said[-1]
                if isinstance(last, Committed):
                    assert log[one] == [last.csn], f"I17: {one} {said}"
                committed = [decision for decision in said if isinstance(decision, Committed)]
                assert len(set(committed)) <= 1, f"I8: {one} {said}"
                if isinstance(last, Rejected) and not bench.machine.pending.decides(one):
                    assert one not in log, f"I17: {one} {said}"

    def heal(self) -> None:
        """End all faults: every commit must be decided (I14)."""
        for which, bench in enumerate(self.benches):
            for _ in range(500):
                if bench.request is not None:
                    self.serve(which, bench)
                elif bench.paused:
                    bench.resume()
                else:
                    break
            assert bench.request is None
            assert (bench.machine.pending.batch, bench.machine.pending.queue) == (None, {})
        while self.late:
            self.apply(self.late.pop(0)[1])


@pytest.mark.parametrize("fencing", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_what_is_said_is_what_happened(seed: int, fencing: bool) -> None:
    """After any history, and after the faults, verdicts and log agree and no commit is undecided."""
    world = World(seed, fencing=fencing)
    for _ in range(400):
        world.step()
        world.check()
    world.heal()
    world.check()
    said = [verdicts[-1] for bench in world.benches for verdicts in bench.verdicts.values()]
    assert all(isinstance(one, Committed | Rejected) for one in said)
    assert sum(isinstance(one, Committed) for one in said) > (0 if fencing else 5)
