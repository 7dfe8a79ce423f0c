"""Lets the faults of a plan happen, each in a thread of its own, and writes down what becomes of them."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Final

from chaos.faults.fault import Aim, Fault, NotPossibleError, Proof
from chaos.planning.plan import Plan, Step
from chaos.planning.tolerance import OF_REPLICAS, Act, Shape, refusal, unharmed
from chaos.record.violation import Violation
from chaos.record.violations import Violations
from chaos.watching.statuses import behind, newest, statuses, until_caught_up
from chaos.world import World

#: How long a fault waits until it is within what is promised, in seconds; then it is spared.
PATIENCE_S: Final = 60.0
#: How long a target may need to serve again, in seconds, on a busy machine.
WELL_TIMEOUT_S: Final = 180.0
#: How long a fault may need to be healed, in seconds: a start may wait for the end of another fault.
_HEAL_TIMEOUT_S: Final = 600.0
_LOOK_S: Final = 0.2


class Injector:
    """The faults of one run.

    Args:
        world: The run.
        plan: Its plan.
        kinds: All kinds of the plan, by name.
        violations: Takes faults without effect, faults that are not healed, and targets that stay away.
    """

    def __init__(
        self, world: World, plan: Plan, kinds: Mapping[str, type[Fault]], violations: Violations
    ) -> None:
        self._world, self._plan, self._kinds, self._violations = world, plan, kinds, violations
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._acting: dict[int, Act] = {}
        self._threads: list[threading.Thread] = []
        #: The members when no change of members is under way, and the planned name of each.
        self._members = plan.shape.replicas
        self._slots = {name: name for name in plan.shape.replicas}
        #: How many faults have begun, and how many had to be left out.
        self.begun = 0
        self.spared = 0

    def run(self) -> None:
        """Let all faults happen; returns when the time of the plan is over and all are healed."""
        begin_s = time.monotonic()
        end_s = begin_s + self._plan.minutes * 60.0
        for step in self._plan.steps:
            self._over.wait(max(0.0, begin_s + step.at_s - time.monotonic()))
            if self._over.is_set() or time.monotonic() > end_s:
                self._spare(step, "the time of the faults was over")
            else:
                self._try(step, end_s)
        self._over.wait(max(0.0, end_s - time.monotonic()))
        self.heal()

    def heal(self) -> None:
        """End all faults, and wait until each was healed."""
        self._over.set()
        deadline = time.monotonic() + _HEAL_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                story = f"{thread.name} was not healed within {_HEAL_TIMEOUT_S:.0f} s"
                self._violations.add(Violation("faults", "a fault is healed", story, time.monotonic_ns()))

    # -- begin ----------------------------------------------------------------------------------------------

    def _try(self, step: Step, end_s: float) -> None:
        """Begin a fault as soon as it is within what is promised, or leave it out."""
        fault = self._kinds[step.kind]
        deadline = min(time.monotonic() + PATIENCE_S, end_s)
        csn = newest(statuses(self._world, self._world.cluster.replicas)) if fault.loses_disk else 0
        while True:
            targets = self._resolved(fault, step.targets)
            why = "a target is no member any more" if targets is None else self._why_not(fault, targets, csn)
            if why is None and targets is not None:
                self._begin(step, fault, targets)
                return
            if self._over.is_set() or time.monotonic() > deadline:
                self._spare(step, why or "")
                return
            with self._changed:
                self._changed.wait(_LOOK_S)

    def _why_not(self, fault: type[Fault], targets: Sequence[str], csn: int) -> str | None:
        """Return why a fault may not begin; for a lost disk also by what others say."""
        shape, acts = self._shape(), [*self._acting.values()]
        fresh = Act.of(fault, targets)
        if why := refusal(shape, acts, fresh):
            return why
        if fault.loses_disk:
            others = set(unharmed(shape, acts)) - set(targets)
            lacking = behind(statuses(self._world, others), others, csn)
            if len(others) - len(lacking) < shape.copies:
                return f"not all that is committed is on {shape.copies} others: {lacking}"
        return None

    def _begin(self, step: Step, fault: type[Fault], targets: tuple[str, ...]) -> None:
        with self._changed:
            self._acting[step.number] = Act.of(fault, targets)
        self.begun += 1
        self._world.journal.note("begin", fault=step.number, kind=step.kind, targets=targets)
        thread = threading.Thread(
            target=self._act, args=(step, fault, targets), name=f"{step.kind} {step.number}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _spare(self, step: Step, why: str) -> None:
        self.spared += 1
        self._world.journal.note("spared", fault=step.number, kind=step.kind, why=why)

    def _shape(self) -> Shape:
        return Shape(self._members, tuple(self._world.cluster.zookeepers), self._plan.copies)

    def _resolved(self, fault: type[Fault], planned: Sequence[str]) -> tuple[str, ...] | None:
        """Return the present names of planned targets; a member takes the place of one that was removed."""
        if fault.aim is Aim.ALL:
            return (*self._members, *self._world.cluster.zookeepers)
        found = [self._slots.get(name, name) for name in planned]
        known = {*self._members, *self._world.cluster.zookeepers}
        return tuple(found) if set(found) <= known else None

    # -- in the thread of a fault ---------------------------------------------------------------------------

    def _act(self, step: Step, fault: type[Fault], targets: tuple[str, ...]) -> None:
        journal, proof, seen = self._world.journal, None, False
        try:
            with fault().inject(self._world, targets, random.Random(step.seed)) as proof:
                journal.note("acting", fault=step.number)
                seen = self._watch(step, proof)
            journal.note("end", fault=step.number)
            seen = seen or self._look(step, proof)
        except NotPossibleError as error:
            self._spare(step, str(error))
            with self._changed:
                del self._acting[step.number]
                self._changed.notify_all()
            return
        except Exception:
            self._tell(step, "a fault is injected and healed", traceback.format_exc())
        else:
            if not seen:
                self._tell(
                    step, "a fault has an effect", f"nothing has shown that {step.kind} had any effect"
                )
        lacking = until_caught_up(self._world, self._awaited(fault, targets), timeout_s=WELL_TIMEOUT_S)
        if lacking:
            self._tell(step, "targets serve again (I14)", f"after {WELL_TIMEOUT_S:.0f} s: {lacking}")
        else:
            journal.note("well", fault=step.number)
        with self._changed:
            del self._acting[step.number]
            self._settle_members()
            self._changed.notify_all()

    def _watch(self, step: Step, proof: Proof) -> bool:
        """Wait until a fault has acted long enough; return whether its effect was seen."""
        deadline, seen = time.monotonic() + step.length_s, False
        while not self._over.is_set() and time.monotonic() < deadline:
            seen = seen or self._look(step, proof)
            self._over.wait(_LOOK_S)
        return seen or self._look(step, proof)

    def _look(self, step: Step, proof: Proof) -> bool:
        if (text := proof.seen()) is None:
            return False
        self._world.journal.note("proof", fault=step.number, proof=text)
        return True

    def _awaited(self, fault: type[Fault], targets: Sequence[str]) -> list[str]:
        """Return the replicas that must serve again: the targets, and members that have come meanwhile."""
        there = self._world.cluster.replicas
        fresh = [replica for replica in there if replica not in self._members]
        touched = targets if fault.aim in {*OF_REPLICAS, Aim.ALL} else ()
        return [*(replica for replica in touched if replica in there), *fresh]

    def _settle_members(self) -> None:
        """Take note of members that have come and gone; new ones stand for those that are gone."""
        there = tuple(self._world.cluster.replicas)
        if set(there) == set(self._members):
            return
        self._members = there
        spare = [replica for replica in there if replica not in self._slots.values()]
        for planned, name in self._slots.items():
            if name not in there and spare:
                self._slots[planned] = spare.pop(0)
        self._world.journal.note("members", replicas=there)

    def _tell(self, step: Step, claim: str, story: str) -> None:
        told = f"fault {step.number}, {step.kind} at {', '.join(step.targets)}: {story}"
        self._violations.add(Violation("faults", claim, told, time.monotonic_ns()))
