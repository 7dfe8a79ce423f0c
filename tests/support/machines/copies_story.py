"""Stories of the durable copies: the commands of tests/testdata/copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from tests.support.machines.names import HOME, part, short, tid
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.replication.core import messages as msg
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.messages import NotEnough, Ready
from tidelock.replication.core.model import CopyPlace, CountingRules, Held, PartMeta

R2, R3 = ReplicaId("r2"), ReplicaId("r3")


class CopiesStory:
    """Tells one story of r1 in a shard of three, where a commit needs two copies.

    A machine that was restored from a snapshot says the same in every step.
    """

    def __init__(self) -> None:
        self._machine = three()

    def __call__(self, words: list[str]) -> list[str]:
        """Give the machine an event; return what it said."""
        event = copies_event(words[0], words[1:], self._machine.snapshot().rules)
        twin = three()
        twin.restore(self._machine.snapshot())
        said = told(self._machine.step(event))
        assert told(twin.step(event)) == said
        assert twin.snapshot() == self._machine.snapshot()
        return said


def meta(name: str) -> PartMeta:
    """Describe a part."""
    return PartMeta(part(name), TableId("db.t"), "", 1, 10, "0" * 32)


def rules(copies: int = 2, version: int = 0, **disks: str) -> CountingRules:
    """Return rules of r1 without racks: the other members with their disks."""
    places = tuple((ReplicaId(name), CopyPlace(disk, name)) for name, disk in sorted(disks.items()))
    return CountingRules(version, copies, HOME, places)


def changed(before: CountingRules, replica: ReplicaId, disk: str, rack: str = "") -> CountingRules:
    """Return the rules after a change of one member, at the next version; the disk ``none`` removes it."""
    places = dict(before.places)
    places[replica] = CopyPlace(disk, rack or replica)
    kept = {name: place for name, place in places.items() if place.disk != "none"}
    return replace(
        before, version=before.version + 1, places=tuple(sorted(kept.items(), key=lambda one: one[0]))
    )


def copies_event(command: str, words: list[str], before: CountingRules) -> msg.CopiesEvent:
    """Read one event of a script about copies; ``before`` are the present rules."""
    match command, words:
        case "seal", [name, *parts]:
            return msg.TransactionSealed(tid(name), tuple(map(meta, parts)))
        case "home", [name]:
            return msg.PersistedAtHome(tid(name))
        case "ack", [replica, disk, *tids]:
            held = tuple(str(tid(name)) for name in tids if name[0] == "t")
            refused = {str(tid(name[1:])): "disk full" for name in tids if name[0] == "!"}
            return msg.Ack(Held(ReplicaId(replica), disk, 1, Csn(1), held, refused))
        case "disk", [replica, disk]:
            return msg.RulesChanged(changed(before, ReplicaId(replica), disk))
        case "rack", [replica, disk, rack]:
            return msg.RulesChanged(changed(before, ReplicaId(replica), disk, f"rack {rack}"))
        case "home-rack", [rack]:
            return msg.RulesChanged(replace(before, version=before.version + 1, home=f"rack {rack}"))
        case "need", [copies]:
            return msg.RulesChanged(replace(before, version=before.version + 1, copies=int(copies)))
        case "again", [name, above]:
            return msg.CountAgain(tid(name), int(above))
        case "deadline", [name]:
            return msg.Deadline(tid(name))
        case "rollback", [name]:
            return msg.RolledBack(tid(name))
        case "decided", [name]:
            return msg.TransactionDecided(tid(name))
    raise AssertionError(command)


def told(instructions: Iterable[msg.CopiesInstruction]) -> list[str]:
    """Return the instructions of the machine in the form of a script."""
    said = []
    for item in instructions:
        match item:
            case Ready(who, counted):
                said.append(f"ready {short(str(who))} {','.join(counted.holders)} at {counted.version}")
            case NotEnough(who, have, need, missing):
                said.append(f"short {short(str(who))} {have}/{need} {','.join(missing)}")
            case _:
                assert_never(item)
    return said


def three(copies: int = 2) -> Copies:
    """Return the machine of r1 in a shard of three."""
    return Copies(HOME, rules(copies, r2="d2", r3="d3"))
