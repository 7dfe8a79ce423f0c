"""The calls and answers of clients, as they record them; workloads/checker.py checks the record.

One JSON object to a line, after the form of Jepsen's Elle: ``type`` (``invoke``, ``ok``, ``fail`` = certainly
not done, ``info`` = unknown), ``f``, ``process`` (one session of a client), ``ns`` (monotonic clock, the same
for all processes of the machine), and what belongs to ``f``:

    write    key, rows [in table a, in table b]; its end adds tid, csn, error
    commit   key, tid, snapshot (where the client knows it): noted right before the commit is requested; a
             write that is certainly not committed may be sent again, then each attempt has a line
    read     replica, csn, exact (requested by its number), rows [[key, sum a, rows a, sum b, rows b], ...]
    parts    replica, csn, table, parts [[part, path, rows, length, checksum], ...]
    bytes    replica, csn, part, listed, found: the checksum in the list and that of what was downloaded
    outcome  replica, tid, outcome, csn
    log      records [[csn, end, [[tid, added, removed, compaction], ...]], ...], with added
             [[table, part, path, rows, length, checksum], ...] and removed [part, ...]; the last two items of
             a transaction are optional

A write inserts rows into two tables whose numbers add up to 0. One transaction may write several keys:
its lines have ``keys`` and, where it is invoked, a list of ``rows``, one for each of them. A line is handed
to the kernel before the client goes on, so the history outlives its process, and an ``invoke`` without its
end counts as ``info``.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

#: The beginning of every line of a successful call, and of no other line.
_OK: Final = b'{"type":"ok",'


class CallEnd(StrEnum):
    """How a call of a client ended; also the ``type`` of its last line."""

    OK = "ok"
    #: Certainly not done.
    FAIL = "fail"
    #: The client does not know.
    INFO = "info"


class LoggedPart(NamedTuple):
    """A part as the log and the lists name it."""

    table: str
    part: str
    path: str
    rows: int
    length: int
    checksum: str


class Balance(NamedTuple):
    """The rows of one write in a read: their sum and number in both tables."""

    sum_a: int
    rows_a: int
    sum_b: int
    rows_b: int


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction of a client.

    Attributes:
        key: What its rows bear; unique.
        rows: How many it inserts into both tables.
        asked_ns: When its commit was asked for; None if it never was.
        ended_ns: When the client knew of the end; 0 if it never did.
    """

    key: str
    process: str
    rows: tuple[int, int]
    end: CallEnd = CallEnd.INFO
    tid: str | None = None
    snapshot: int | None = None
    csn: int | None = None
    asked_ns: int | None = None
    ended_ns: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class TablesRead:
    """Both tables at one CSN. ``exact``: the client has requested this very CSN, which may be an old one."""

    process: str
    ns: int
    replica: str
    csn: int
    rows: dict[str, Balance]
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The parts of a table at a CSN."""

    replica: str
    csn: int
    table: str
    parts: frozenset[LoggedPart]


@dataclass(frozen=True, slots=True)
class Download:
    """A listed part was downloaded; ``found`` is the checksum of its bytes, or why no bytes were received."""

    replica: str
    csn: int
    part: str
    listed: str
    found: str


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """A replica's answer to outcome(tid)."""

    replica: str
    tid: str
    outcome: str
    csn: int | None = None


class Logged(NamedTuple):
    """A transaction in the log.

    Attributes:
        tid: The transaction.
        added: The parts that it adds.
        removed: The ids of those that it removes.
        compaction: Whether all rows are as before.
        carrier: The transaction of the same record that adds its rows.
    """

    tid: str
    added: tuple[LoggedPart, ...] = ()
    removed: tuple[str, ...] = ()
    compaction: bool = False
    carrier: str | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record of the CSN log; ``end`` closes an epoch."""

    csn: int
    tids: tuple[Logged, ...] = ()
    end: bool = False


@dataclass(frozen=True, slots=True)
class CallHistory:
    """The whole history of a run."""

    writes: tuple[Write, ...] = ()
    reads: tuple[TablesRead, ...] = ()
    listings: tuple[Listing, ...] = ()
    downloads: tuple[Download, ...] = ()
    outcomes: tuple[ReportedOutcome, ...] = ()
    log: tuple[LogLine, ...] = ()
    #: Transactions that another checker judges (tests/support/histories/replay.py).
    elsewhere: frozenset[str] = frozenset()
    #: Replicas that have left before the end: they are not asked for all outcomes.
    gone: frozenset[str] = frozenset()

    def ended(self, end: CallEnd) -> list[Write]:
        """Return the writes that ended in a given way."""
        return [write for write in self.writes if write.end is end]


class Recorder:
    """Writes a history; any number of threads may use it, and several processes one file.

    Args:
        path: The file; what it holds stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        # Line by line: O_APPEND keeps the lines of several processes whole.
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def note(self, kind: CallEnd | str, f: str, process: str, **fields: Any) -> None:
        """Write one line; ``fields`` that are None are left out."""
        given = {name: value for name, value in fields.items() if value is not None}
        line = {"type": str(kind), "f": f, "process": process, "ns": time.monotonic_ns(), **given}
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            self._file.write(text + "\n")


def load(*paths: Path) -> CallHistory:
    """Read a history from its files; ValueError if a line is not one of a history."""
    with ExitStack() as opened:
        files = [opened.enter_context(path.open(encoding="utf-8")) for path in paths]
        return parse(json.loads(line) for line in itertools.chain(*files))


def count_ok(path: Path) -> int:
    """Return how many calls have ended well so far, while others write; 0 without a file."""
    return path.read_bytes().count(_OK) if path.exists() else 0


def tids_per_csn(csns: Sequence[int]) -> float:
    """Return how many of some transactions share a CSN on average, given the CSN of each; 0 for none."""
    return len(csns) / len(set(csns)) if csns else 0.0


def parse(lines: Iterable[dict[str, Any]]) -> CallHistory:
    """Make a history from its lines, which are in the order in which each process wrote them."""
    writes: dict[str, Write] = {}
    reads: list[TablesRead] = []
    listings: list[Listing] = []
    downloads: list[Download] = []
    outcomes: list[ReportedOutcome] = []
    log: list[LogLine] = []
    for line in lines:
        match line["f"], line["type"]:
            case "write" | "commit", _:
                for number, key in enumerate(line["keys"] if "keys" in line else [line["key"]]):
                    writes[key] = _write(writes.get(key), key, number, line)
            case "read", "ok":
                reads.append(_read(line))
            case "parts", "ok":
                parts = frozenset(LoggedPart(line["table"], *part) for part in line["parts"])
                listings.append(Listing(line["replica"], line["csn"], line["table"], parts))
            case "bytes", "ok":
                names = ("replica", "csn", "part", "listed", "found")
                downloads.append(Download(*(line[name] for name in names)))
            case "outcome", "ok":
                outcomes.append(
                    ReportedOutcome(line["replica"], line["tid"], line["outcome"], line.get("csn"))
                )
            case "log", "ok":
                log += [_log_line(record) for record in line["records"]]
            case "read" | "parts" | "bytes" | "outcome" | "log", "invoke" | "fail" | "info":
                pass  # for people
            case _:
                raise ValueError(f"no line of a history: {line}")
    return CallHistory(
        tuple(writes.values()), tuple(reads), tuple(listings), tuple(downloads), tuple(outcomes), tuple(log)
    )


def _write(known: Write | None, key: str, number: int, line: dict[str, Any]) -> Write:
    """Return the known state of a write after one more line, in which its key is the n-th one."""
    if known is None:
        first, second = line["rows"][number] if "keys" in line else line["rows"]
        return Write(key, line["process"], (first, second))
    if line["f"] == "commit":
        return replace(known, tid=line["tid"], snapshot=line.get("snapshot"), asked_ns=line["ns"])
    return replace(
        known,
        end=CallEnd(line["type"]),
        tid=line.get("tid", known.tid),
        csn=line.get("csn"),
        ended_ns=line["ns"],
        error=line.get("error", ""),
    )


def _read(line: dict[str, Any]) -> TablesRead:
    rows = {key: Balance(*numbers) for key, *numbers in line["rows"]}
    return TablesRead(
        line["process"], line["ns"], line["replica"], line["csn"], rows, line.get("exact", False)
    )


def _log_line(record: Sequence[Any]) -> LogLine:
    csn, end, tids = record
    return LogLine(csn, tuple(_logged(*fields) for fields in tids), end)


def _logged(
    tid: str,
    added: Sequence[Any],
    removed: Sequence[str] = (),
    compaction: bool = False,
    carrier: str | None = None,
) -> Logged:
    return Logged(tid, tuple(LoggedPart(*part) for part in added), tuple(removed), compaction, carrier)
