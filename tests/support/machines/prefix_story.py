"""Stories of the executed prefix: the commands of tests/testdata/prefix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from tests.support.log_records import in_log
from tests.support.machines.names import HOME, part, short, tid
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.csnlog.core.model import AddPart, Entry, LogRecord, Manifest, Record, RecordKind, TidRecord
from tidelock.replication.core import messages as msg
from tidelock.replication.core.messages import Apply, Blocked, FetchPart, ReadManifest, Unblocked
from tidelock.replication.core.prefix import Prefix


class PrefixStory:
    """Tells one story of a prefix behind CSN 1, whose batches have at most three records.

    A machine that was restored from a snapshot says the same in every step.
    """

    def __init__(self) -> None:
        self._machine = self._new()

    def __call__(self, words: list[str]) -> list[str]:
        """Give the machine an event; return what it said."""
        event = prefix_event(words[0], words[1:])
        twin = self._new()
        twin.restore(self._machine.snapshot())
        said = wrote(self._machine.step(event))
        assert wrote(twin.step(event)) == said
        assert twin.snapshot() == self._machine.snapshot()
        return said

    @staticmethod
    def _new() -> Prefix:
        return Prefix(Csn(1), 0, apply_records_max=3)


def add(name: str) -> AddPart:
    """Return the entry that adds a part."""
    return AddPart(TableId("db.t"), part(name), "", 1, 10, "0" * 32)


def record(
    number: int, tids: Iterable[str], kind: RecordKind = RecordKind.COMMIT, time_ms: int = 0
) -> LogRecord:
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
    return in_log(Csn(number), Record(kind, HOME, time_ms, tuple(members)))


def prefix_event(command: str, words: list[str]) -> msg.PrefixEvent:
    """Read one event of a script; `held:` and `known:` are what the catalog answered."""
    facts = {word.split(":")[0]: word.split(":")[1] for word in words if ":" in word}
    words = [word for word in words if ":" not in word]
    held = frozenset(part(name) for name in facts.get("held", "").split(",") if name)
    match command, words:
        case "read", [number, *tids]:
            kind = RecordKind.END if tids == ["end"] else RecordKind.COMMIT
            known = frozenset(str(tid(name)) for name in facts.get("known", "").split(",") if name)
            item = record(
                int(number), [] if kind is RecordKind.END else tids, kind, int(facts.get("time", "0"))
            )
            return msg.RecordRead(item, held, known)
        case "held", [name]:
            return msg.PartHeld(part(name))
        case "lost", [name]:
            return msg.PartLost(part(name))
        case "manifest", [name, *parts]:
            return msg.ManifestRead(part(name), tuple(map(add, parts)), held)
        case "applied", [number]:
            return msg.Applied(Csn(int(number)))
        case "refused", []:
            return msg.NotApplied()
    raise AssertionError(command)


def wrote(instructions: Iterable[msg.PrefixInstruction]) -> list[str]:
    """Return the instructions of the machine in the form of a script."""
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
            case _:
                assert_never(item)
    return said
