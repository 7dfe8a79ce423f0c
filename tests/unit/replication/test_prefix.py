"""The executed prefix of the log, beyond its stories (tests/testdata/prefix): gaps, times, and any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.log_records import in_log
from tests.support.machines.names import HOME, part, tid
from tests.support.machines.prefix_story import add, prefix_event, record, wrote
from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import (
    AddPart,
    DefineTable,
    LogRecord,
    Manifest,
    Record,
    RecordKind,
    TidRecord,
)
from tidelock.errors import CorruptError
from tidelock.replication.core import messages as msg
from tidelock.replication.core.messages import Apply, FetchPart
from tidelock.replication.core.prefix import Prefix


def test_what_is_known_together_is_applied_together() -> None:
    """Records and parts that come at once make one batch, not a batch of the first and one of the rest."""
    machine = Prefix(Csn(1), 0, apply_records_max=3)
    events = [("read", ["2", "t1=p1"]), ("read", ["3", "t2=p2"]), ("held", ["p2"]), ("held", ["p1"])]
    said = wrote(machine.step(*(prefix_event(command, words) for command, words in events)))
    assert said == ["fetch p1 t1@2", "fetch p2 t2@3", "apply 2[t1] 3[t2]"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("read 2", "read 4"),
        ("read 2", "read 2147483648"),
        ("read 2 end", "read 3"),
        ("read 2 end", "read 2147483649"),
        ("read 2147483649", ""),
        ("read 3", ""),
    ],
)
def test_a_gap_in_the_log_stops_the_replica(first: str, second: str) -> None:
    """A record that is not the successor of the last one is never skipped to (I15)."""
    machine = Prefix(Csn(1), 0, apply_records_max=3)
    events = [prefix_event(line.split()[0], line.split()[1:]) for line in (first, second) if line]
    for event in events[:-1]:
        machine.step(event)
    with pytest.raises(CorruptError, match="a record is missing"):
        machine.step(events[-1])


@pytest.mark.parametrize("listed", [(add("p1"),), ()], ids=["read", "declared lost"])
def test_what_a_record_says_beside_its_manifest_counts(listed: tuple[AddPart, ...]) -> None:
    """A table that it defines is there in any case; a manifest that is declared lost lists nothing."""
    machine = Prefix(Csn(1), 0, apply_records_max=3)
    manifest = Manifest(part("m1"), 10, "0" * 32, 1)
    defined = DefineTable(TableId("db.new"), 0, {})
    tids = (TidRecord(str(tid("t1")), (defined,), manifest, (HOME,)),)
    item = in_log(Csn(2), Record(RecordKind.COMMIT, HOME, 0, tids))
    machine.step(msg.RecordRead(item, frozenset({part("m1")}), frozenset()))
    held = frozenset(entry.part for entry in listed)
    done = machine.step(msg.ManifestRead(part("m1"), listed, held))
    [said] = [one for one in done if isinstance(one, Apply)]
    assert said.records[0].tids[0].entries == (defined, *listed)


def test_effective_time_never_decreases() -> None:
    """The time of a CSN is the larger of its own and that of the CSN before, across batches and restarts."""
    machine = Prefix(Csn(1), 50, apply_records_max=2)
    events: list[msg.PrefixEvent] = [
        msg.RecordRead(record(number, [], time_ms=time_ms), frozenset(), frozenset())
        for number, time_ms in ((2, 40), (3, 60), (4, 55), (5, 70))
    ]
    times = []
    while events:
        for said in machine.step(events.pop(0)):
            assert isinstance(said, Apply)
            times += [item.time_ms for item in said.records]
            events.append(msg.Applied(said.records[-1].csn))
    assert times == [50, 60, 60, 70]
    assert machine.time_ms == 70


@pytest.mark.scenario("S48")
@given(st.data())
def test_the_same_prefix_in_any_order(data: st.DataObject) -> None:
    """Whatever the order of records, parts and repetitions, the same records are applied, each once."""
    shape = data.draw(st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=6))
    log: list[LogRecord] = []
    number = 0
    for at, sizes in enumerate(shape):
        tids = []
        for size in sizes:
            number += 1
            tids.append(f"t{number}=" + ",".join(f"p{number * 10 + index}" for index in range(size)))
        repeated = data.draw(st.sampled_from([*tids, ""])) if log else ""
        log.append(record(2 + at, [*tids, *([repeated] if repeated else [])], time_ms=at % 3))
    machine = Prefix(Csn(1), 0, apply_records_max=data.draw(st.integers(1, 4)))
    held: set[PartId] = set()
    applied: list[tuple[Csn, str]] = []
    batches: list[Apply] = []
    missing: list[PartId] = []

    def step(event: msg.PrefixEvent) -> None:
        for item in machine.step(event):
            if isinstance(item, FetchPart):
                missing.append(item.wanted.meta.part)
            elif isinstance(item, Apply):
                for member in (member for found in item.records for member in found.tids):
                    assert held >= {entry.part for entry in member.entries if isinstance(entry, AddPart)}
                batches.append(item)

    todo = list(log)
    while todo or missing or batches:
        choices = ["read"] * bool(todo) + ["arrive"] * bool(missing) + ["apply"] * bool(batches)
        match data.draw(st.sampled_from(choices)):
            case "read":
                read = msg.RecordRead(todo.pop(0), frozenset(held), frozenset(name for _, name in applied))
                step(read)
                if data.draw(st.booleans()):
                    step(read)
            case "arrive":
                name = missing.pop(data.draw(st.integers(0, len(missing) - 1)))
                held.add(name)
                step(msg.PartHeld(name))
            case "apply":
                batch = batches.pop(0)
                applied += [(found.csn, member.tid) for found in batch.records for member in found.tids]
                step(msg.Applied(batch.records[-1].csn))
    first: dict[str, Csn] = {}
    for item in log:
        for member in item.record.tids:
            first.setdefault(member.tid, item.csn)
    assert applied == [(at, name) for name, at in first.items()]
    assert machine.applied == log[-1].csn
    assert machine.blocked is None
