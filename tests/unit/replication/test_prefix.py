"""The executed prefix of the log: which records are applied, in which batches, and what holds them back."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machines.scripts import HOME, follow, part, short, tid
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableName
from tidelock.csnlog.core.model import AddPart, Entry, Kind, LogRecord, Manifest, Record, TidRecord
from tidelock.errors import CorruptError
from tidelock.replication.core import prefix
from tidelock.replication.core.prefix import Apply, Blocked, FetchPart, Prefix, ReadManifest, Unblocked


def add(name: str) -> AddPart:
    """Return the entry that adds a part."""
    return AddPart(TableName("db.t"), part(name), "", 1, 10, "0" * 32)


def record(number: int, tids: Iterable[str], kind: Kind = Kind.COMMIT, time_ms: int = 0) -> LogRecord:
    """Return a record whose transactions are written `t1=p1,p2`, or `t1=m1` with a manifest."""
    members = []
    for text in tids:
        name, _, parts = text.partition("=")
        entries: tuple[Entry, ...] = ()
        manifest = None
        if parts.startswith("m"):
            manifest = Manifest(part(parts), 10, "0" * 32, 1)
        elif parts:
            entries = tuple(add(item) for item in parts.split(","))
        members.append(TidRecord(str(tid(name)), entries, manifest, (HOME, ReplicaId("r2"))))
    return LogRecord(Csn(number), Record(kind, HOME, time_ms, tuple(members)))


def prefix_event(command: str, words: list[str]) -> prefix.PrefixEvent:
    """Read one event of a script; `held:` and `known:` are what the catalog answered."""
    facts = {word.split(":")[0]: word.split(":")[1] for word in words if ":" in word}
    words = [word for word in words if ":" not in word]
    held = frozenset(part(name) for name in facts.get("held", "").split(",") if name)
    match command, words:
        case "read", [number, *tids]:
            kind = Kind.END if tids == ["end"] else Kind.COMMIT
            known = frozenset(str(tid(name)) for name in facts.get("known", "").split(",") if name)
            item = record(int(number), [] if kind is Kind.END else tids, kind, int(facts.get("time", "0")))
            return prefix.RecordRead(item, held, known)
        case "held", [name]:
            return prefix.PartHeld(part(name))
        case "lost", [name]:
            return prefix.PartLost(part(name))
        case "manifest", [name, *parts]:
            return prefix.ManifestRead(part(name), tuple(map(add, parts)), held)
        case "applied", [number]:
            return prefix.Applied(Csn(int(number)))
        case "refused", []:
            return prefix.NotApplied()
    raise AssertionError(command)


def wrote(instructions: Iterable[prefix.PrefixInstruction]) -> str:
    """Write what the machine said as in a script."""
    said = []
    for item in instructions:
        match item:
            case FetchPart(wanted):
                said.append(f"fetch {short(wanted.meta.part)} {short(str(wanted.tid))}@{wanted.csn}")
            case ReadManifest(name):
                said.append(f"open {short(name)}")
            case Apply(records):
                said.append(
                    "apply "
                    + " ".join(
                        f"{item.csn}[{','.join(short(member.tid) for member in item.tids)}]"
                        for item in records
                    )
                )
            case Blocked(number, who, name, _):
                said.append(f"blocked {number} {short(who)} {short(name)}")
            case Unblocked():
                said.append("free")
    return "; ".join(said)


PREFIX_SCRIPTS = {
    "what is held is applied at once, and what comes meanwhile together": """
        read 2 t1=p1 held:p1            -> apply 2[t1]
        read 3 t2=p2 held:p2            ->
        read 4 t3=p3 held:p3            ->
        applied 2                       -> apply 3[t2] 4[t3]
        applied 4                       ->
    """,
    "a missing part holds back its record and all later ones, and is named (F13)": """
        read 2 t1=p1 t2=p2,p3 held:p1,p3 -> fetch p2 t2@2; blocked 2 t2 p2
        read 3 t3=p4 held:p4            ->
        held p9                         ->
        held p2                         -> apply 2[t1,t2] 3[t3]; free
        applied 3                       ->
    """,
    "the next part that is missing is named": """
        read 2 t1=p1,p2                 -> fetch p1 t1@2; fetch p2 t1@2; blocked 2 t1 p1
        held p1                         -> blocked 2 t1 p2
        held p2                         -> apply 2[t1]; free
    """,
    "one batch has a bound (F14)": """
        read 2 t1=p1                    -> fetch p1 t1@2; blocked 2 t1 p1
        read 3                          ->
        read 4                          ->
        read 5                          ->
        held p1                         -> apply 2[t1] 3[] 4[]; free
        applied 4                       -> apply 5[]
    """,
    "a tid counts at its first record only (I1)": """
        read 2 t1=p1 held:p1            -> apply 2[t1]
        read 3 t1=p1 t2=p2 held:p2      ->
        applied 2                       -> apply 3[t2]
        read 4 t1=p1 t3=p3 t3=p4 known:t1 held:p3 ->
        applied 3                       -> apply 4[t3]
    """,
    "records that are delivered twice are ignored (S48)": """
        read 2 t1=p1                    -> fetch p1 t1@2; blocked 2 t1 p1
        read 2 t1=p1                    ->
        held p1                         -> apply 2[t1]; free
        held p1                         ->
        applied 2                       ->
        read 2 t1=p1                    ->
    """,
    "a manifest is fetched, opened, and its parts are fetched": """
        read 2 t1=m1                    -> fetch m1 t1@2; blocked 2 t1 m1
        held m1                         -> open m1; blocked 2 t1 m1
        manifest m1 p1 p2 held:p1       -> fetch p2 t1@2; blocked 2 t1 p2
        held p2                         -> apply 2[t1]; free
    """,
    "a manifest that is held is opened at once; one that is damaged is fetched again": """
        read 2 t1=m1 held:m1            -> open m1; blocked 2 t1 m1
        lost m1                         -> fetch m1 t1@2; blocked 2 t1 m1
        held m1                         -> open m1; blocked 2 t1 m1
        manifest m1 p1 held:p1          -> apply 2[t1]; free
        manifest m1 p1 held:p1          ->
    """,
    "a part that is lost while it waits is fetched again": """
        read 2 t1=p1                    -> fetch p1 t1@2; blocked 2 t1 p1
        read 3 t2=p2 held:p2            ->
        lost p2                         -> fetch p2 t2@3
        held p1                         -> apply 2[t1]; free
        applied 2                       -> blocked 3 t2 p2
        lost p1                         ->
    """,
    "a batch that cannot be applied is tried again, without what was lost meanwhile": """
        read 2 t1=p1 held:p1            -> apply 2[t1]
        refused                         -> apply 2[t1]
        lost p1                         -> fetch p1 t1@2
        refused                         -> blocked 2 t1 p1
        held p1                         -> apply 2[t1]; free
        lost p1                         -> fetch p1 t1@2
        applied 2                       ->
        held p1                         ->
    """,
    "the end of an epoch is applied like any record": """
        read 2 end                      -> apply 2[]
        read 2147483648 t1=p1 held:p1   ->
        applied 2                       -> apply 2147483648[t1]
    """,
    "after a start the log may go on in the next epoch": """
        read 2147483648 t1=p1 held:p1   -> apply 2147483648[t1]
    """,
}


@pytest.mark.parametrize("script", PREFIX_SCRIPTS.values(), ids=PREFIX_SCRIPTS)
def test_the_prefix_follows_each_script_to_the_letter(script: str) -> None:
    """Each script is followed to the letter, and a copy of the machine behaves the same."""
    machine = Prefix(Csn(1), 0, apply_records_max=3)

    def step(command: str, words: list[str]) -> str:
        event = prefix_event(command, words)
        twin = machine.copy()
        before = machine.state()
        said = wrote(machine.step(event))
        machine.check_invariants()
        assert twin.state() == before
        assert wrote(twin.step(event)) == said
        assert twin.state() == machine.state()
        return said

    follow(script, step)


def test_what_is_known_together_is_applied_together() -> None:
    """Records and parts that come at once make one batch, not a batch of the first and one of the rest."""
    machine = Prefix(Csn(1), 0, apply_records_max=3)
    events = [("read", ["2", "t1=p1"]), ("read", ["3", "t2=p2"]), ("held", ["p2"]), ("held", ["p1"])]
    said = wrote(machine.step(*(prefix_event(command, words) for command, words in events)))
    assert said == "fetch p1 t1@2; fetch p2 t2@3; apply 2[t1] 3[t2]"


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


def test_effective_time_never_decreases() -> None:
    """The time of a CSN is the larger of its own and that of the CSN before, across batches and restarts."""
    machine = Prefix(Csn(1), 50, apply_records_max=2)
    events: list[prefix.PrefixEvent] = [
        prefix.RecordRead(record(number, [], time_ms=time_ms), frozenset(), frozenset())
        for number, time_ms in ((2, 40), (3, 60), (4, 55), (5, 70))
    ]
    times = []
    while events:
        for said in machine.step(events.pop(0)):
            assert isinstance(said, Apply)
            times += [item.time_ms for item in said.records]
            events.append(prefix.Applied(said.records[-1].csn))
    assert times == [50, 60, 60, 70]
    assert machine.time_ms == 70


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

    def step(event: prefix.PrefixEvent) -> None:
        for item in machine.step(event):
            if isinstance(item, FetchPart):
                missing.append(item.wanted.meta.part)
            elif isinstance(item, Apply):
                for member in (member for found in item.records for member in found.tids):
                    assert held >= {entry.part for entry in member.entries if isinstance(entry, AddPart)}
                batches.append(item)
        machine.check_invariants()

    todo = list(log)
    while todo or missing or batches:
        choices = ["read"] * bool(todo) + ["arrive"] * bool(missing) + ["apply"] * bool(batches)
        match data.draw(st.sampled_from(choices)):
            case "read":
                read = prefix.RecordRead(todo.pop(0), frozenset(held), frozenset(name for _, name in applied))
                step(read)
                if data.draw(st.booleans()):
                    step(read)
            case "arrive":
                name = missing.pop(data.draw(st.integers(0, len(missing) - 1)))
                held.add(name)
                step(prefix.PartHeld(name))
            case "apply":
                batch = batches.pop(0)
                applied += [(found.csn, member.tid) for found in batch.records for member in found.tids]
                step(prefix.Applied(batch.records[-1].csn))
    first: dict[str, Csn] = {}
    for item in log:
        for member in item.record.tids:
            first.setdefault(member.tid, item.csn)
    assert applied == [(at, name) for name, at in first.items()]
    assert machine.applied == log[-1].csn
    assert machine.blocked is None
