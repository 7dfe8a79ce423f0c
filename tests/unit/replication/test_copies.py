"""Durable copies, beyond their stories (tests/testdata/copies): every order of events."""

from __future__ import annotations

from msgspec.structs import replace

from tests.support.machines.copies_story import copies_event, three
from tests.support.machines.names import HOME, tid
from tidelock.replication.core.messages import Ready, RulesChanged


def test_copies_in_every_order() -> None:
    """In no order of events is a transaction called ready with fewer current copies than asked for."""
    events = [
        (command, words.split())
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
    first.step(copies_event("seal", ["t1", "p1"], first.snapshot().rules))
    seen, todo = {first.snapshot()}, [first]
    ready = 0
    while todo:
        machine = todo.pop()
        for command, words in events:
            twin = three()
            twin.restore(machine.snapshot())
            event = copies_event(command, words, twin.snapshot().rules)
            if isinstance(event, RulesChanged):
                event = RulesChanged(replace(event.rules, version=0))
            for said in twin.step(event):
                if isinstance(said, Ready):
                    ready += 1
                    shown = {replica: place.disk for replica, place in twin.snapshot().rules.places}
                    [state] = twin.snapshot().open
                    acked = {replica for replica, disk in state.acks if shown.get(replica) == disk}
                    assert state.tid == tid("t1")
                    assert state.persisted
                    assert set(said.copies.holders) == {HOME, *acked}
                    assert acked
            if twin.snapshot() not in seen:
                seen.add(twin.snapshot())
                todo.append(twin)
    assert ready
    assert len(seen) > 100
