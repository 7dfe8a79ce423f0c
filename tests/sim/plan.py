"""The plan that a seed stands for: the size of the shard, its load, and the faults that befall it.

A plan is a value: the same plan gives the same run, whatever made it. Faults are a list and not a stream of
random numbers, so that one can be left out and the others stay what they were (tests/sim/shrink.py). Which
kinds of fault a seed has at all is drawn first (swarm testing): a run that has all of them has few moments
in which the rarer ones meet a healthy shard.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tidelock.csnlog.testing.memory_store import RequestFault as Lost

#: Virtual seconds in which faults come.
FAULTS_S: Final = 40.0
#: Faults of a burst come within so many seconds.
BURST_S: Final = 4.0
#: So many faults a run has at most.
FAULTS_MAX: Final = 10

#: The faults of one replica, and for how long about (0 = for a moment).
KINDS: Final[dict[str, float]] = {
    "kill": 2.0,  # the process; what it wrote stays
    "power": 2.0,  # the machine: what was not fsynced may be lost
    "replace": 2.0,  # power, and an empty disk afterwards
    "stop": 2.0,  # SIGTERM
    "fence": 0.0,  # another replica raises its fence
    "zookeeper": 3.0,  # no connection; longer than the session timeout it expires
    "expire": 0.0,  # the session, at once
    "mute": 4.0,  # no peer hears it
    "deaf": 4.0,  # it hears no peer
    "slow": 5.0,  # its network
    "slow_disk": 5.0,
    "disk_errors": 2.0,
    "full": 3.0,  # its disk
    "slow_zookeeper": 5.0,  # ZooKeeper's answers to it
    "lag": 4.0,  # the ZooKeeper server of that number is behind for its readers
    "skew": 0.0,  # its wall clock jumps
    "strike": 0.0,  # it is struck: it holds nothing back, and has to clone
    "add": 0.0,  # another replica is registered, and joins
    "remove": 0.0,  # it is removed for good: drained, dead, or while it lives
    "replace_member": 0.0,  # it is removed for good, and another one is registered in one step
    "twin": 14.0,  # a second machine is started under its id, with a disk of its own
    "freeze": 6.0,  # SIGSTOP and SIGCONT: mostly for longer than its session lives
    "set_back": 4.0,  # ZooKeeper becomes what it was so long ago, and its tree is made again
}

#: Kinds by which members come and go.
MEMBERS: Final = frozenset({"add", "remove", "replace_member"})

#: Kinds that came to the plans later: they are drawn last, so that older seeds keep the rest of their plan.
_LATER: Final = frozenset({"full", "slow_zookeeper", "strike", "set_back", "twin", "freeze", *MEMBERS})
#: One in so many runs has a ZooKeeper that is set back, between these times (virtual seconds).
_SET_BACK: Final = 6
_SET_BACK_S: Final = (4.0, 24.0)
#: One in so many runs has two machines with one id, from between these times on.
_TWIN: Final = 6
_TWIN_S: Final = (3.0, 24.0)
#: One in so many runs keeps so many records: more than there are.
_LONG_LOG: Final = 4
_WHOLE_LOG: Final = 10_000
#: One in so many runs has a boot that ends amid its background tasks, on a full disk.
_ENDS_ON_FULL_DISK: Final = 4


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: its time, kind, replica and length (seconds)."""

    at_s: float
    kind: str
    target: int
    length_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All that a run depends on.

    Attributes:
        seed: Of everything that is left to chance: delays, choices of clients, what a power cut leaves.
        transactions: Of each writer.
        epoch_limit: Records of an epoch.
        manifests: Entries travel in a manifest and not in the record.
        tight: Small bounds: a push holds two transactions, a record as well, the follower reads one by one.
        changers: Clients that run everything that removes.
        compaction: Parts are merged as soon as there are a few.
        history_s: How long removed parts stay readable; 0: for longer than a run, and the whole log is kept.
        log_keep: Records that stay in the log, where history is short.
        requests: Share of the requests to ZooKeeper that fail, and how they may.
        loss, twice, late: Shares of the messages between hosts that are lost, doubled, late.
        whole: Share of the writers' transactions that come as one request; these may be doubled, too.
        crowd: So many sessions send such a request to one home at once, and may share parts.
        landers: Clients that land rows.
        definers: Clients that create, rename and drop tables, and insert into them.
        faults: In the order of their times.
    """

    seed: int
    replicas: int = 3
    copies: int = 2
    writers: int = 3
    readers: int = 2
    transactions: int = 10
    epoch_limit: int = 1000
    manifests: bool = False
    tight: bool = False
    requests: float = 0.0
    request_kinds: tuple[str, ...] = ()
    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    changers: int = 0
    compaction: bool = False
    history_s: float = 0.0
    log_keep: int = 1
    whole: float = 0.0
    crowd: int = 1
    landers: int = 0
    definers: int = 0
    faults: tuple[PlannedFault, ...] = field(default=())

    def to_json(self) -> str:
        """Return the plan as one line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RunPlan:
        """Read a plan back; TypeError when it is none."""
        found: dict[str, Any] = json.loads(text)
        found["faults"] = tuple(PlannedFault(**fault) for fault in found["faults"])
        found["request_kinds"] = tuple(found["request_kinds"])
        return cls(**found)

    @property
    def is_calm(self) -> bool:
        """Whether the plan has no faults."""
        return not (self.faults or self.requests or self.loss or self.twice or self.late)

    @property
    def size(self) -> int:
        """How much happens by this plan: shrinking makes it smaller."""
        rates = sum(bool(rate) for rate in (self.requests, self.loss, self.twice, self.late))
        toggles = self.manifests + self.tight + (self.epoch_limit < 1000) + len(self.request_kinds)
        toggles += self.compaction + bool(self.history_s) + bool(self.whole) + (self.crowd > 1)
        clients = self.writers + self.changers + self.landers + self.definers
        load = self.replicas + clients * self.transactions + self.readers
        return 10 * len(self.faults) + load + 5 * rates + toggles


def draw(seed: int) -> RunPlan:
    """Return the plan of a seed."""
    chance = random.Random(f"plan {seed}")
    replicas = chance.choice([2, 3, 3, 3, 3, 4])
    kinds = [kind for kind in KINDS if kind not in _LATER and chance.random() < 0.4]
    count = chance.randint(0, FAULTS_MAX) if kinds else 0
    # Faults of several replicas at about the same time are worse than the same over a minute.
    bursts = [chance.uniform(1.0, FAULTS_S - BURST_S) for _ in range(3)] if chance.random() < 0.5 else []
    faults = [_fault(chance, kinds, replicas, bursts) for _ in range(count)]
    lost = tuple(kind.name for kind in Lost if chance.random() < 0.5)
    plan = RunPlan(
        seed=seed,
        replicas=replicas,
        copies=min(replicas, chance.choice([2, 2, 2, 3])),
        writers=chance.randint(1, 4),
        readers=chance.randint(0, 2),
        transactions=chance.randint(4, 16),
        epoch_limit=chance.choice([10, 25, 1000]),
        manifests=chance.random() < 0.3,
        tight=chance.random() < 0.3,
        requests=chance.choice([0.0, 0.005, 0.03]) if lost else 0.0,
        request_kinds=lost,
        loss=chance.choice([0.0, 0.0, 0.01, 0.1]),
        twice=chance.choice([0.0, 0.0, 0.2]),
        late=chance.choice([0.0, 0.0, 0.05, 0.2]),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )
    short = chance.random() < 0.7
    writers = chance.randint(0, plan.writers)
    drawn = replace(
        plan,
        writers=writers,
        changers=chance.randint(0 if writers else 1, 3),
        compaction=chance.random() < 0.6,
        history_s=chance.choice([1.0, 5.0]) if short else 0.0,
        log_keep=chance.choice([1, 1, 10]),
        faults=_with_full_disks(chance, plan.faults, replicas, bursts),
    )
    drawn = _with_strikes(chance, _with_an_end_on_a_full_disk(chance, drawn), bursts)
    drawn = _with_a_twin(chance, _with_a_set_back(chance, _with_members(chance, drawn, bursts)))
    drawn = _with_freezes(chance, drawn, bursts)
    drawn = replace(drawn, whole=chance.choice([0.0, 0.3, 0.8]), crowd=chance.choice([1, 1, 4, 8]))
    drawn = replace(drawn, landers=chance.choice([0, 1, 2]), definers=chance.choice([0, 0, 1, 3]))
    # The audit compares records with what is collected only while the log outlives the history.
    return drawn if chance.randrange(_LONG_LOG) else replace(drawn, log_keep=_WHOLE_LOG)


def _with_freezes(chance: random.Random, plan: RunPlan, bursts: list[float]) -> RunPlan:
    """Return the plan and, in some runs, processes that stand still for a while."""
    freezes = [_fault(chance, ["freeze"], plan.replicas, bursts) for _ in range(chance.choice([0, 0, 1, 2]))]
    faults = tuple(sorted((*plan.faults, *freezes), key=lambda fault: fault.at_s))
    return replace(plan, faults=faults)


def _with_a_twin(chance: random.Random, plan: RunPlan) -> RunPlan:
    """Return the plan and, in some runs, two machines with one id."""
    if chance.randrange(_TWIN):
        return plan
    at_s, target = round(chance.uniform(*_TWIN_S), 3), chance.randrange(plan.replicas)
    twin = PlannedFault(at_s, "twin", target, KINDS["twin"])
    return replace(plan, faults=tuple(sorted((*plan.faults, twin), key=lambda fault: fault.at_s)))


def _with_a_set_back(chance: random.Random, plan: RunPlan) -> RunPlan:
    """Return the plan and, in some runs, one accident of ZooKeeper."""
    if chance.randrange(_SET_BACK):
        return plan
    length_s = KINDS["set_back"] * chance.choice([0.2, 1.0, 2.0])
    accident = PlannedFault(round(chance.uniform(*_SET_BACK_S), 3), "set_back", 0, round(length_s, 3))
    return replace(plan, faults=tuple(sorted((*plan.faults, accident), key=lambda fault: fault.at_s)))


def _with_members(chance: random.Random, plan: RunPlan, bursts: list[float]) -> RunPlan:
    """Return the plan and, in some runs, replicas that come and go."""
    count = chance.choice([0, 0, 1, 2, 4])
    kinds = ["add", "add", "remove", "remove", "replace_member"]
    changes = [_fault(chance, kinds, plan.replicas, bursts) for _ in range(count)]
    faults = tuple(sorted((*plan.faults, *changes), key=lambda fault: fault.at_s))
    return replace(plan, faults=faults)


def _with_strikes(chance: random.Random, plan: RunPlan, bursts: list[float]) -> RunPlan:
    """Return the plan and, in some runs, replicas that are struck."""
    strikes = [_fault(chance, ["strike"], plan.replicas, bursts) for _ in range(chance.choice([0, 0, 1, 2]))]
    faults = tuple(sorted((*plan.faults, *strikes), key=lambda fault: fault.at_s))
    return replace(plan, faults=faults)


def _with_full_disks(
    chance: random.Random, faults: tuple[PlannedFault, ...], replicas: int, bursts: list[float]
) -> tuple[PlannedFault, ...]:
    """Return the faults and, in some runs, disks that are full for a while beside them."""
    count = chance.choice([0, 0, 0, 1, 2])
    full = [_fault(chance, ["full"], replicas, bursts) for _ in range(count)]
    return tuple(sorted((*faults, *full), key=lambda fault: fault.at_s))


def _with_an_end_on_a_full_disk(chance: random.Random, plan: RunPlan) -> RunPlan:
    """Return the plan and, in some runs, a boot that ends while its tasks wait for ZooKeeper on a full disk.

    Single drawn faults hardly ever end a boot in the milliseconds of a background task, and even less often
    while the clean-up of that task fails.
    """
    if chance.randrange(_ENDS_ON_FULL_DISK):
        return plan
    at_s, target = round(chance.uniform(5.0, FAULTS_S - BURST_S), 3), chance.randrange(plan.replicas)
    ending = PlannedFault(at_s, chance.choice(["stop", "fence"]), target)
    faults = (*plan.faults, *end_on_a_full_disk(ending))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def end_on_a_full_disk(ending: PlannedFault) -> tuple[PlannedFault, ...]:
    """Return the end of a boot amid slow answers of ZooKeeper, with a disk that is full for a while."""
    at_s, target = ending.at_s, ending.target
    slow = PlannedFault(round(at_s - 3.0, 3), "slow_zookeeper", target, 5.0)
    return slow, PlannedFault(round(at_s - 1.0, 3), "full", target, 4.0), ending


def _fault(chance: random.Random, kinds: list[str], replicas: int, bursts: list[float]) -> PlannedFault:
    kind = chance.choice(kinds)
    at_s = chance.choice(bursts) + chance.uniform(0.0, BURST_S) if bursts else chance.uniform(0.5, FAULTS_S)
    length_s = KINDS[kind] * chance.choice([0.2, 1.0, 1.0, 4.0])
    return PlannedFault(round(at_s, 3), kind, chance.randrange(replicas), round(length_s, 3))
