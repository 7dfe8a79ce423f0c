"""How many durable copies a transaction has, and who lags: the pure core of the way to a commit."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.machines.scripts import HOME, follow, part, short, tid
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableName, csn
from tidelock.replication.core import copies
from tidelock.replication.core.copies import Copies, NotEnough, Ready, csns_behind, lagging
from tidelock.replication.core.model import Held, PartMeta, Peer


def meta(name: str) -> PartMeta:
    """Describe a part."""
    return PartMeta(part(name), TableName("db.t"), "", 1, 10, "0" * 32)


def copies_event(command: str, words: list[str]) -> copies.CopiesEvent:
    """Read one event of a script about copies."""
    match command, words:
        case "seal", [name, *parts]:
            return copies.Sealed(tid(name), tuple(map(meta, parts)))
        case "home", [name]:
            return copies.PersistedAtHome(tid(name))
        case "ack", [replica, disk, *tids]:
            held = tuple(str(tid(name)) for name in tids if name[0] == "t")
            refused = {str(tid(name[1:])): "disk full" for name in tids if name[0] == "!"}
            return copies.Ack(Held(ReplicaId(replica), disk, 1, Csn(1), held, refused))
        case "disk", [replica, disk]:
            return copies.DiskChanged(ReplicaId(replica), None if disk == "none" else disk)
        case "deadline", [name]:
            return copies.Deadline(tid(name))
        case "rollback", [name]:
            return copies.RolledBack(tid(name))
        case "decided", [name]:
            return copies.Decided(tid(name))
    raise AssertionError(command)


def told(instructions: Iterable[copies.CopiesInstruction]) -> str:
    """Write what the machine said as in a script."""
    said = []
    for item in instructions:
        match item:
            case Ready(who, holders):
                said.append(f"ready {short(str(who))} {','.join(holders)}")
            case NotEnough(who, have, need, missing):
                said.append(f"short {short(str(who))} {have}/{need} {','.join(missing)}")
    return "; ".join(said)


def three(copies: int = 2) -> Copies:
    """Return the machine of r1 in a shard of three."""
    return Copies(HOME, copies, {ReplicaId("r2"): "d2", ReplicaId("r3"): "d3"})


COPIES_SCRIPTS = {
    "two copies, whichever comes first": """
        seal t1 p1 p2     ->
        ack r3 d3 t1      ->
        home t1           -> ready t1 r1,r3
        ack r2 d2 t1      ->
        deadline t1       ->
        decided t1        ->
    """,
    "the home's own copy is one of them": """
        seal t1 p1        ->
        ack r2 d2 t1      ->
        ack r3 d3 t1      ->
        deadline t1       -> short t1 2/2 r1
    """,
    "no timeout lowers copies: what is short stays short (F7 a)": """
        seal t1 p1        ->
        home t1           ->
        deadline t1       -> short t1 1/2 r2,r3
        ack r2 d2 t1      ->
        deadline t1       ->
        rollback t1       ->
        ack r2 d2 t1      ->
    """,
    "a copy on a disk that was replaced does not count (F7 c)": """
        seal t1 p1        ->
        ack r2 d2 t1      ->
        disk r2 d9        ->
        home t1           ->
        ack r2 d2 t1      ->
        ack r2 d9 t1      -> ready t1 r1,r2
    """,
    "an answer that is newer than the member list counts when the list shows its disk": """
        seal t1 p1        ->
        home t1           ->
        ack r2 d9 t1      ->
        disk r2 d9        -> ready t1 r1,r2
    """,
    "a peer that lost its row before it answers takes the copy back (F7 b)": """
        seal t1 p1        ->
        ack r2 d2 t1      ->
        ack r2 d2 !t1     ->
        home t1           ->
        deadline t1       -> short t1 1/2 r2,r3
    """,
    "a struck or removed replica's copy does not count, a new member's does": """
        seal t1 p1        ->
        home t1           ->
        disk r2 none      ->
        ack r2 d2 t1      ->
        disk r4 d4        ->
        ack r4 d4 t1      -> ready t1 r1,r4
    """,
    "a definition alone needs no copies": """
        seal t1           -> ready t1 r1
        deadline t1       ->
    """,
    "one answer for many; transactions that are not open change nothing": """
        seal t1 p1        ->
        seal t1 p1        ->
        seal t2 p2        ->
        home t1           ->
        home t2           ->
        home t7           ->
        deadline t7       ->
        ack r2 d2 t1 t2 t7 !t8 -> ready t1 r1,r2; ready t2 r1,r2
        ack r1 d1 t1      ->
    """,
}


@pytest.mark.parametrize("script", COPIES_SCRIPTS.values(), ids=COPIES_SCRIPTS)
def test_copies_follow_each_script_to_the_letter(script: str) -> None:
    """Each script is followed to the letter, and a copy of the machine behaves the same."""
    machine = three()

    def step(command: str, words: list[str]) -> str:
        nonlocal machine
        event = copies_event(command, words)
        twin = machine.copy()
        before = machine.state()
        said = told(machine.step(event))
        machine.check_invariants()
        assert twin.state() == before
        assert told(twin.step(event)) == said
        assert twin.state() == machine.state()
        return said

    follow(script, step)


def test_copies_in_every_order() -> None:
    """In no order of events is a transaction called ready with fewer current copies than asked for."""
    events = [
        copies_event(command, words.split())
        for command, words in (
            *(
                ("home", "t1"),
                ("ack", "r2 d2 t1"),
                ("ack", "r2 d9 t1"),
                ("ack", "r3 d3 t1"),
                ("ack", "r3 d3 !t1"),
            ),
            *(
                ("disk", "r2 d9"),
                ("disk", "r2 d2"),
                ("disk", "r3 none"),
                ("disk", "r3 d3"),
                ("deadline", "t1"),
            ),
        )
    ]
    first = three()
    first.step(copies_event("seal", ["t1", "p1"]))
    seen, todo = {first.state()}, [first]
    ready = 0
    while todo:
        machine = todo.pop()
        for event in events:
            twin = machine.copy()
            for said in twin.step(event):
                if isinstance(said, Ready):
                    ready += 1
                    assert len(said.holders) >= 2
                    assert said.holders == twin.holders(tid("t1"))
            twin.check_invariants()
            if twin.state() not in seen:
                seen.add(twin.state())
                todo.append(twin)
    assert ready
    assert len(seen) > 100


def peer(name: str, snapshot: Csn, *, alive: bool = True, struck: bool = False) -> Peer:
    """Return a member at a snapshot CSN."""
    return Peer(ReplicaId(name), "", "", "d", alive, struck, snapshot)


def test_lagging_replicas_that_live_are_named() -> None:
    """Writers wait for a live replica more than max_lag behind, not for dead or struck ones (F14)."""
    peers = [
        peer("r2", Csn(90)),
        peer("r3", Csn(89)),
        peer("r4", Csn(1), alive=False),
        peer("r5", Csn(1), struck=True),
        peer("r6", Csn(120)),
    ]
    assert lagging(peers, Csn(100), 10, epoch_limit=1000) == ("r3",)


def test_distance_across_epochs_is_one_step() -> None:
    """A roll-over of the log is one step, not 2^31 of them."""
    assert csns_behind(csn(4, 49), csn(5, 1), epoch_limit=50) == 2
    assert csns_behind(csn(3, 49), csn(5, 1), epoch_limit=50) == 52
    assert csns_behind(csn(5, 1), csn(4, 49), epoch_limit=50) == 0
