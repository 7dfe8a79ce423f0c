"""Histories of transactions over lists, in the operation format of Elle: one JSON object to a line.

    {"index":7,"type":"ok","f":"txn","process":3,"time":12,"value":[["append","a/17",5],["r","a/2",[1,4]]]}

``type`` is ``invoke``, ``ok``, ``fail`` (certainly not done) or ``info`` (unknown); ``time`` is in
nanoseconds of one monotonic clock; a key is a text such as ``table/key``. The last line of a transaction
repeats what its first line asked for, with the reads filled. An element is appended to a key once.
Micro-operations:

    ["append", key, element]   adds an element to the end of the list
    ["r", key, list or null]   reads the list; null is an empty list where the transaction is ok
    ["w", key, element]        replaces the list by this one element

A last line may have ``tid``, ``snapshot``, ``csn``, ``replica``, ``fresh`` (false: the reader was content
with an old snapshot), and ``serializable`` (true: its reads must hold at its commit as well). A transaction
without a last line counts as ``info``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

Element = int | str
Elements = tuple[Element, ...]

_FACTS: Final[dict[str, type]] = {
    "tid": str,
    "snapshot": int,
    "csn": int,
    "replica": str,
    "fresh": bool,
    "serializable": bool,
}
_FIELDS: Final = frozenset(("index", "type", "f", "process", "time", "value"))


class HistoryError(ValueError):
    """A line that belongs to no history; the message has its number, what was expected, and the finding."""


class End(StrEnum):
    """How a transaction ended."""

    OK = "ok"
    #: Certainly not done.
    FAIL = "fail"
    #: The client does not know.
    INFO = "info"


class Append(NamedTuple):
    """Adds an element to the end of the list."""

    key: str
    element: Element


class Read(NamedTuple):
    """Returned this list; None: the answer is not known."""

    key: str
    elements: Elements | None = None


class Write(NamedTuple):
    """Replaces the list by one element."""

    key: str
    element: Element


MicroOperation = Append | Read | Write

_NAMES: Final[dict[str, type[MicroOperation]]] = {"append": Append, "r": Read, "w": Write}
_NAME_OF: Final = {kind: name for name, kind in _NAMES.items()}


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of a history.

    Attributes:
        index: The index of its last line, or of its first one if it has no last line.
        process: The session that has run it.
        end: How it ended.
        operations: Its micro-operations in order.
        invoked_ns: When it was begun.
        ended_ns: When it ended; None if that is not known.
        tid: Its name in the store.
        snapshot: The CSN that it has read at.
        csn: The CSN of its commit; None if it changed nothing.
        replica: Where it has run.
        fresh: Whether it must see all that was acknowledged before it was begun, in strict modes.
        serializable: Whether it must read at its commit what it has read.
    """

    index: int
    process: int
    end: End
    operations: tuple[MicroOperation, ...]
    invoked_ns: int = 0
    ended_ns: int | None = None
    tid: str | None = None
    snapshot: int | None = None
    csn: int | None = None
    replica: str | None = None
    fresh: bool = True
    serializable: bool = False

    @property
    def changes(self) -> tuple[Append | Write, ...]:
        """Its micro-operations that are not reads."""
        return tuple(one for one in self.operations if not isinstance(one, Read))


@dataclass(frozen=True)
class History:
    """All transactions, in the order in which they were begun.

    Attributes:
        transactions: The transactions.
        writers: The number of the transaction that has appended or written an element, by key and element.
    """

    transactions: tuple[Transaction, ...]
    writers: dict[tuple[str, Element], int] = field(init=False)

    def __post_init__(self) -> None:
        writers: dict[tuple[str, Element], int] = {}
        for number, transaction in enumerate(self.transactions):
            for key, element in transaction.changes:
                if (key, element) in writers:
                    raise HistoryError(
                        f"operation {transaction.index}: expected elements that are unique in {key}, found "
                        f"{element!r} again, from operation {self.transactions[writers[key, element]].index}"
                    )
                writers[key, element] = number
        object.__setattr__(self, "writers", writers)

    def writer(self, key: str, element: Element) -> Transaction | None:
        """Return the transaction that has appended or written an element; None if no one has."""
        number = self.writers.get((key, element))
        return None if number is None else self.transactions[number]


class Recorder:
    """Writes a history; any number of threads may use it.

    A line is handed to the kernel before the call returns, so the history outlives its process.

    Args:
        path: The file, which must not exist: a history has one writer.
        clock_ns: The monotonic clock of all processes, in nanoseconds.

    Raises:
        FileExistsError: The file exists.
    """

    def __init__(self, path: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._file = path.open("x", buffering=1, encoding="utf-8")
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._index = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def invoke(self, process: int, operations: Sequence[MicroOperation]) -> None:
        """Write that a process begins a transaction."""
        self._line("invoke", process, operations, {})

    def end(self, process: int, end: End, operations: Sequence[MicroOperation], **facts: Any) -> None:
        """Write how the transaction of a process ended.

        Args:
            process: The process; after ``info`` it must not be used again.
            end: The end.
            operations: The same as were invoked, with the reads filled.
            facts: ``tid``, ``snapshot``, ``csn``, ``replica``, ``fresh``, ``serializable``, as far as they
                are known.
        """
        self._line(str(end), process, operations, facts)

    def _line(
        self, kind: str, process: int, operations: Sequence[MicroOperation], facts: dict[str, Any]
    ) -> None:
        value = [[_NAME_OF[type(one)], *one] for one in operations]
        with self._lock:
            line = {"index": self._index, "type": kind, "f": "txn", "process": process}
            line |= {"time": self._clock_ns(), "value": value, **facts}
            self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._index += 1


def load(path: Path) -> History:
    """Read a history from its file.

    Raises:
        HistoryError: A line is malformed. A torn last line, left by a process that was killed, is no error.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    torn = lines.pop()
    if torn and _is_json(torn):
        lines.append(torn)
    return parse(lines)


def parse(lines: Iterable[str]) -> History:
    """Make a history from its lines; HistoryError names the first line that is malformed."""
    open_lines: dict[int, tuple[int, dict[str, Any]]] = {}
    retired: set[int] = set()
    pairs: list[Transaction | None] = []
    last = -1
    for number, text in enumerate(lines, 1):
        line = _checked(number, text)
        if line["index"] <= last:
            raise _malformed(number, f"an index above {last}", line["index"])
        last = line["index"]
        process = line["process"]
        if line["type"] == "invoke":
            if process in retired:
                raise _malformed(number, "a new process after the end info", f"process {process} again")
            if process in open_lines:
                raise _malformed(number, f"the end of process {process}'s transaction", "an invocation")
            open_lines[process] = (len(pairs), line)
            pairs.append(None)
            continue
        if process not in open_lines:
            raise _malformed(number, "an invocation before the end", f"type {line['type']}")
        place, invoked = open_lines.pop(process)
        pairs[place] = _ended(number, invoked, line)
        if line["type"] == End.INFO:
            retired.add(process)
    for place, invoked in open_lines.values():
        pairs[place] = Transaction(
            invoked["index"], invoked["process"], End.INFO, invoked["value"], invoked["time"]
        )
    return History(tuple(one for one in pairs if one is not None))


def _ended(number: int, invoked: dict[str, Any], line: dict[str, Any]) -> Transaction:
    asked = [_unfilled(one) for one in invoked["value"]]
    if asked != [_unfilled(one) for one in line["value"]]:
        raise _malformed(number, f"the operations of line index {invoked['index']}", line["value"])
    facts = {name: line[name] for name in _FACTS if line.get(name) is not None}
    value = line["value"]
    if line["type"] == End.OK:
        value = tuple(Read(one.key, one.elements or ()) if isinstance(one, Read) else one for one in value)
    ended_ns = None if line["type"] == End.INFO else line["time"]
    return Transaction(
        line["index"], line["process"], End(line["type"]), value, invoked["time"], ended_ns, **facts
    )


def _unfilled(operation: MicroOperation) -> tuple[object, ...]:
    return (Read, operation.key) if isinstance(operation, Read) else (type(operation), *operation)


def _checked(number: int, text: str) -> dict[str, Any]:
    """Return the fields of a line, with its micro-operations in ``value``."""
    try:
        line = json.loads(text)
    except ValueError:
        raise _malformed(number, "a JSON object", text) from None
    if not isinstance(line, dict) or not line.keys() >= _FIELDS:
        raise _malformed(number, f"an object with {', '.join(sorted(_FIELDS))}", text)
    if line["type"] not in ("invoke", *End):
        raise _malformed(number, "type invoke, ok, fail or info", line["type"])
    if line["f"] != "txn":
        raise _malformed(number, "f txn", line["f"])
    for name in ("index", "process", "time"):
        if type(line[name]) is not int:
            raise _malformed(number, f"a whole number as {name}", line[name])
    for name, kind in _FACTS.items():
        if line.get(name) is not None and type(line[name]) is not kind:
            raise _malformed(number, f"{kind.__name__} or null as {name}", line[name])
    if not isinstance(line["value"], list):
        raise _malformed(number, "a list as value", line["value"])
    line["value"] = tuple(_micro_operation(number, one) for one in line["value"])
    return line


def _micro_operation(number: int, found: Any) -> MicroOperation:
    match found:
        case ["r", str(key), None]:
            return Read(key)
        case ["r", str(key), list(elements)] if all(isinstance(one, int | str) for one in elements):
            return Read(key, tuple(elements))
        case ["append" | "w" as name, str(key), int() | str() as element]:
            return Append(key, element) if name == "append" else Write(key, element)
    raise _malformed(number, '["append"|"w", key, element] or ["r", key, list or null]', found)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _malformed(number: int, expected: str, found: object) -> HistoryError:
    return HistoryError(f"line {number}: expected {expected}, found {found!r}")
