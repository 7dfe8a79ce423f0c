"""The plan of a run: which fault begins when, at what, and for how long; drawn from a seed. Pure.

A plan is a value that is kept as JSON, so a run can be repeated although faults were added to the list since.
Kinds come out of a shuffled bag: each of them comes once before any comes again. Where the kind at the top of
the bag is not possible beside those that act, one behind it is taken, but only a few times; then nothing else
begins until it is possible. So rare kinds are as frequent as the others, and faults overlap all the same.
A kind that ends a run comes once, at the end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from chaos.faults.fault import Aim, Fault
from chaos.planning.tolerance import Act, Shape, choices, refusal

#: Seconds under load before the first fault.
BEGIN_S: Final = 2.0
#: Between the begins of two faults, at most, in seconds; half of it on average.
GAP_MAX_S: Final = 6.0
#: Faults that act at the same time, at most.
AT_ONCE_MAX: Final = 4
#: From the end of a fault until its targets serve again, as the plan reckons, in seconds. The run waits.
RECOVERY_S: Final = 5.0
#: A kind is passed over so often, and then everything waits for it.
PASSED_OVER_MAX: Final = 4
#: Kinds of the bag that are tried at a time.
_LOOK_AHEAD: Final = 6


@dataclass(frozen=True, slots=True)
class Step:
    """One fault of a plan.

    Attributes:
        number: Its number, from 1 on, in the order of begins.
        at_s: When it begins, in seconds after the first moment in which faults come.
        length_s: How long it acts.
        kind: Its kind.
        targets: The nodes, by the names that they have at the begin of the run.
        seed: Seed of what the fault chooses besides.
    """

    number: int
    at_s: float
    length_s: float
    kind: str
    targets: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run depends on.

    Attributes:
        seed: Of the faults, and of what clients choose.
        minutes: How long faults come.
        place: Where it runs: processes, containers.
        replicas: Their number at the begin.
        copies: Durable copies of a commit.
        zookeepers: The number of servers of ZooKeeper.
        workloads: The workloads, by name.
        pace: What the pauses of clients are multiplied by: 0.5 is about twice the load.
        sessions: Sessions of Spark that do jobs of the workloads; 0: no Spark.
        spark_workers: Workers of Spark that the sessions use; 0: each session computes in its own process.
        kinds: The kinds of faults that it was drawn from, in the order of that moment.
        plant: A bug that the agents have; None for the product as it is.
        steps: The faults, in the order of their begins.
    """

    seed: int
    minutes: float
    place: str = "processes"
    replicas: int = 3
    copies: int = 2
    zookeepers: int = 3
    workloads: tuple[str, ...] = ()
    pace: float = 1.0
    sessions: int = 0
    spark_workers: int = 0
    kinds: tuple[str, ...] = ()
    plant: str | None = None
    steps: tuple[Step, ...] = field(default=())

    @property
    def shape(self) -> Shape:
        """Return the cluster at the begin, with the names that `tidelock.testing.Cluster` gives to nodes."""
        return Shape(
            tuple(f"r{number}" for number in range(1, self.replicas + 1)),
            tuple(f"z{number}" for number in range(1, self.zookeepers + 1)),
            self.copies,
        )

    def to_json(self) -> str:
        """Return the plan as text, one fault to a line so that one can be taken out."""
        head = {name: value for name, value in asdict(self).items() if name != "steps"}
        steps = ",\n".join("  " + json.dumps(asdict(step)) for step in self.steps)
        return f'{json.dumps(head)[:-1]}, "steps": [\n{steps}\n]}}\n'

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan back; ValueError, KeyError or TypeError if it is none."""
        found: dict[str, Any] = json.loads(text)
        steps = tuple(Step(**{**step, "targets": tuple(step["targets"])}) for step in found.pop("steps"))
        listed = {name: tuple(found[name]) for name in ("workloads", "kinds")}
        return cls(**{**found, **listed}, steps=steps)


def enabled(
    faults: Sequence[type[Fault]],
    place: str,
    *,
    sessions: int = 0,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> list[type[Fault]]:
    """Return the faults that a run has.

    Args:
        faults: All that exist.
        place: Where the run is: processes, containers.
        sessions: Sessions of Spark; without any there are no clients to aim a fault at.
        only: These kinds alone; none = all.
        without: All but these.

    Raises:
        ValueError: A kind does not exist, or none is left.
    """
    known = {fault.kind for fault in faults}
    if wrong := sorted({*only, *without} - known):
        raise ValueError(f"no such fault: {', '.join(wrong)}; there are {', '.join(sorted(known))}")
    found = [
        fault
        for fault in faults
        if place in fault.places
        and (sessions or fault.aim is not Aim.CLIENT)
        and fault.kind not in without
        and (not only or fault.kind in only)
    ]
    if not found:
        raise ValueError(f"no fault is left to be injected into {place}")
    return found


def draw(bare: Plan, faults: Sequence[type[Fault]]) -> Plan:
    """Return a plan with steps. Kinds that this cluster could not bear even alone are left out.

    Args:
        bare: The plan without steps.
        faults: The kinds that it may have, one of each.
    """
    chance = random.Random(f"plan/{bare.seed}")
    borne = [fault for fault in faults if is_borne(bare.shape, fault)]
    bare = replace(bare, kinds=tuple(fault.kind for fault in borne))
    if not borne:
        return bare
    drawing = _Drawing(bare.shape, chance, [fault for fault in borne if not fault.last])
    end_s, at_s = bare.minutes * 60.0, BEGIN_S
    lasts = [fault for fault in borne if fault.last]
    last = chance.choice(lasts) if lasts else None
    if last is not None:
        end_s -= last.lasts_s[1] + RECOVERY_S
    while at_s < end_s:
        next_s = drawing.step(at_s, end_s)
        at_s = next_s if next_s is not None else at_s + chance.uniform(0.0, GAP_MAX_S)
    if last is not None and end_s > BEGIN_S:
        drawing.end_with(last, max(end_s, at_s))
    return replace(bare, steps=tuple(drawing.steps))


def is_borne(shape: Shape, fault: type[Fault]) -> bool:
    """Return whether a cluster bears a fault that acts alone."""
    return any(refusal(shape, (), Act.of(fault, targets)) is None for targets in choices(shape, fault.aim))


class _Drawing:
    """A plan in the making: the bag, and the faults that act."""

    def __init__(self, shape: Shape, chance: random.Random, faults: Sequence[type[Fault]]) -> None:
        self.steps: list[Step] = []
        self._shape, self._chance, self._faults = shape, chance, faults
        self._bag: list[type[Fault]] = []
        self._passed_over = 0
        #: The faults that act, with the moment when their targets are well again.
        self._acting: list[tuple[float, Act]] = []

    def step(self, at_s: float, end_s: float) -> float | None:
        """Let a fault begin now; if none can, return the moment to try again."""
        self._acting = [(until, act) for until, act in self._acting if until > at_s]
        if len(self._acting) < AT_ONCE_MAX and (found := self._next(end_s - at_s)):
            fault, targets, length_s = found
            self._acting.append((at_s + length_s + RECOVERY_S, Act.of(fault, targets)))
            self._add(fault, targets, at_s, length_s)
            return None
        return min((until for until, _ in self._acting), default=end_s)

    def end_with(self, fault: type[Fault], at_s: float) -> None:
        """Let a fault begin that ends the run, when all others are over."""
        chosen = self._chance.choice(choices(self._shape, fault.aim))
        self._add(fault, chosen, at_s, self._chance.uniform(*fault.lasts_s))

    def _add(self, fault: type[Fault], targets: tuple[str, ...], at_s: float, length_s: float) -> None:
        number, seed = len(self.steps) + 1, self._chance.getrandbits(32)
        self.steps.append(Step(number, round(at_s, 3), round(length_s, 3), fault.kind, targets, seed))

    def _next(self, left_s: float) -> tuple[type[Fault], tuple[str, ...], float] | None:
        """Take the next possible kind out of the bag, with targets and length; None if there is none now."""
        if len(self._bag) < _LOOK_AHEAD:  # without any kind it stays empty
            self._bag += self._chance.sample(self._faults, len(self._faults))
        ahead = 1 if self._passed_over >= PASSED_OVER_MAX else _LOOK_AHEAD
        for place, fault in enumerate(self._bag[:ahead]):
            length_s = self._chance.uniform(*fault.lasts_s)
            targets = self._targets(fault)
            if targets is None or length_s > left_s:
                continue
            del self._bag[place]
            self._passed_over = 0 if place == 0 else self._passed_over + 1
            return fault, targets, length_s
        return None

    def _targets(self, fault: type[Fault]) -> tuple[str, ...] | None:
        acts = [act for _, act in self._acting]
        free = [
            targets
            for targets in choices(self._shape, fault.aim)
            if refusal(self._shape, acts, Act.of(fault, targets)) is None
        ]
        return self._chance.choice(free) if free else None
