"""Durable copies, beyond their stories (tests/testdata/copies): every order of events."""

from __future__ import annotations

from tests.support.machines.copies_story import copies_event, three
from tests.support.machines.names import tid
from tidelock.replication.core.messages import Ready


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
    seen, todo = {first.snapshot()}, [first]
    ready = 0
    while todo:
        machine = todo.pop()
        for event in events:
            twin = three()
            twin.restore(machine.snapshot())
            for said in twin.step(event):
                if isinstance(said, Ready):
                    ready += 1
                    assert len(said.holders) >= 2
                    assert said.holders == twin.holders(tid("t1"))
            if twin.snapshot() not in seen:
                seen.add(twin.snapshot())
                todo.append(twin)
    assert ready
    assert len(seen) > 100
