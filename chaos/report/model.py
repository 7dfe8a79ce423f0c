"""A run as its journal tells it: lines become values, and what a line lacks stays None. Pure.

A journal may be cut in any line, and a run may have ended anywhere: no line is required but the ones that a
value is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from chaos.reading.bands import Band, bands

#: The states in which an agent answers reads of the newest snapshot.
SERVING: Final = frozenset({"serving", "draining"})

#: The state in the journal of a replica that gave no answer.
_SILENT: Final = "silent"

Line = Mapping[str, Any]


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call of a client; moments in ns by the clock of the journal."""

    workload: str
    process: str
    f: str
    end: str
    began_ns: int
    ns: int
    tid: str | None
    csn: int | None
    replica: str | None
    home: str | None
    error: str | None
    message: str | None

    @property
    def took_s(self) -> float:
        """The time from request to answer, in seconds."""
        return (self.ns - self.began_ns) / 1e9


class ReplicaSaid(msgspec.Struct, frozen=True, gc=False):
    """The answer of a replica about itself; `csn` and `state` are None if it gave none."""

    ns: int
    csn: int | None
    state: str | None

    @property
    def serving(self) -> bool:
        """Whether it serves; a state that was not recorded counts as serving if a CSN came."""
        return self.csn is not None and (self.state is None or self.state in SERVING)


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation: `about_ns` is the moment that it is about, `ns` the one at which it was found."""

    number: int
    check: str
    claim: str
    story: str
    ns: int
    about_ns: int | None
    faults: tuple[int, ...]
    tids: tuple[str, ...]
    log: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a transaction, as it was found out later."""

    ns: int
    tid: str
    outcome: str
    csn: int | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A phase that began, or a note."""

    ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Attributes:
        about: The fields of the line ``run``, then those of plan.json and result.json.
        calls: By their end; the other lines likewise in the order of their moments.
        said: What each replica said of itself.
        spared: The faults that the plan had, and that were left out: number, kind and why.
        converged: The line of that name; None if the run did not come so far.
        judged: How many violations each check and each workload has found when it judged.
        unread: How many lines could not be read.
    """

    about: Line
    begin_ns: int
    end_ns: int
    phases: tuple[Mark, ...]
    calls: tuple[Call, ...]
    faults: tuple[Band, ...]
    said: Mapping[str, tuple[ReplicaSaid, ...]]
    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome, ...]
    notes: tuple[Mark, ...]
    spared: tuple[str, ...]
    converged: Line | None
    judged: Mapping[str, int]
    unread: int

    @property
    def verdict(self) -> str:
        """The result: passed, failed, interrupted, or not finished."""
        if self.findings or self.about.get("violations"):
            return "failed"
        if self.about.get("interrupted"):
            return "interrupted"
        if self.about.get("passed") is False:
            return "failed"
        over = any(phase.text == "over" for phase in self.phases)
        return "passed" if over or self.about.get("passed") is True else "not finished"

    def clock(self, ns: int) -> str:
        """Return a moment as minutes, seconds and thousandths since the begin of the run."""
        thousandths = round((ns - self.begin_ns) / 1e6)
        sign, thousandths = ("-" if thousandths < 0 else ""), abs(thousandths)
        return f"{sign}{thousandths // 60_000}:{thousandths // 1000 % 60:02}.{thousandths % 1000:03}"

    def healed_ns(self, fault: Band) -> int:
        """Return the moment at which a fault was healed, or the end of the journal."""
        return min(fault.end_ns, self.end_ns)

    def well_ns(self, fault: Band) -> int:
        """Return the moment at which the targets of a fault served again, or the end of the journal."""
        return min(fault.well_ns, self.end_ns)


def parsed(texts: Iterable[str]) -> Iterator[Line | None]:
    """Yield the lines of a journal; None for one that is no line of a journal: cut, or not of its form."""
    for text in texts:
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        told = (
            isinstance(line, dict) and isinstance(line.get("ns"), int) and isinstance(line.get("what"), str)
        )
        yield line if told else None


def run_of(lines: Iterable[Line | None], *about: Line) -> Run:
    """Return the run that lines tell of.

    Args:
        lines: The lines as `parsed` yields them.
        about: What is known besides (plan, result); later ones win over earlier ones and the line ``run``.
    """
    teller = _Teller()
    for line in lines:
        teller.hear(line)
    return teller.run(about)


class _Teller:
    """Gathers lines until the run can be told."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self.moments: list[int] = []
        self.phases: list[Mark] = []
        self.calls: list[Call] = []
        self.faults: list[Line] = []
        self.numbers: set[int] = set()
        self.said: dict[str, list[ReplicaSaid]] = {}
        self.findings: list[Finding] = []
        self.outcomes: list[Outcome] = []
        self.notes: list[Mark] = []
        self.spared: list[str] = []
        self.converged: Line | None = None
        self.judged: dict[str, int] = {}
        self.unread = 0

    def hear(self, line: Line | None) -> None:
        """Take one line; one that lacks what it is about counts as unread, one of another kind is a note."""
        if line is None:
            self.unread += 1
            return
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError):
            self.unread += 1
            return
        self.moments.append(line["ns"])

    def _take(self, line: Line) -> None:
        ns = line["ns"]
        match line["what"]:
            case "run":
                self.about |= line
            case "phase":
                self.phases.append(Mark(ns, str(line["name"])))
            case "call":
                self.calls.append(_call(line))
            case "begin":
                self.faults.append(
                    {**line, "kind": str(line["kind"]), "targets": _texts(line.get("targets"))}
                )
                self.numbers.add(int(line["fault"]))
            case "acting" | "proof" | "end" | "well":
                if line["fault"] not in self.numbers:
                    raise ValueError("the begin of this fault is missing")
                self.faults.append(line)
            case "csn":
                csn, state = _whole(line.get("csn")), _text(line.get("state"))
                said = ReplicaSaid(ns, csn, None if csn is None and state == _SILENT else state)
                self.said.setdefault(str(line["replica"]), []).append(said)
            case "judged":
                self.judged[str(line["check"])] = int(line["found"])
            case "members":
                self.notes.append(Mark(ns, f"members are now {', '.join(_texts(line['replicas']))}"))
            case "violation":
                self.findings.append(_finding(line, len(self.findings) + 1))
            case "outcome":
                self.outcomes.append(
                    Outcome(ns, str(line["tid"]), str(line["outcome"]), _whole(line.get("csn")))
                )
            case "spared":
                if line["fault"] in self.numbers:  # it had begun, and found nothing to harm
                    self.faults.append(line)
                self.spared.append(f"{line['fault']} ({line['kind']}): {line.get('why', '')}")
            case "converged":
                self.converged = line
            case "note":
                self.notes.append(Mark(ns, str(line.get("text", ""))))
            case other:
                rest = {name: value for name, value in line.items() if name not in {"ns", "what"}}
                self.notes.append(Mark(ns, f"{other}: {json.dumps(rest, ensure_ascii=False)}"))

    def run(self, about: Sequence[Line]) -> Run:
        """Return what was heard."""
        for more in about:
            self.about |= more
        begins = [call.began_ns for call in self.calls]
        return Run(
            about=self.about,
            begin_ns=min(self.moments[:1] + begins, default=0),
            end_ns=max(self.moments, default=0),
            phases=tuple(sorted(self.phases, key=lambda mark: mark.ns)),
            calls=tuple(sorted(self.calls, key=lambda call: call.ns)),
            faults=tuple(bands(self.faults)),
            said={
                replica: tuple(sorted(several, key=lambda said: said.ns))
                # By length first: r9 comes before r10.
                for replica, several in sorted(self.said.items(), key=lambda pair: (len(pair[0]), pair[0]))
            },
            findings=tuple(self.findings),
            outcomes=tuple(self.outcomes),
            notes=tuple(sorted(self.notes, key=lambda mark: mark.ns)),
            spared=tuple(self.spared),
            converged=self.converged,
            judged=self.judged,
            unread=self.unread,
        )


def _call(line: Line) -> Call:
    return Call(
        workload=str(line.get("workload", "")),
        process=str(line.get("process", "")),
        f=str(line["f"]),
        end=str(line["end"]),
        began_ns=int(line.get("began_ns", line["ns"])),
        ns=line["ns"],
        tid=_text(line.get("tid")),
        csn=_whole(line.get("csn")),
        replica=_text(line.get("replica")),
        home=_text(line.get("home")),
        error=_text(line.get("error")),
        message=_text(line.get("message")),
    )


def _finding(line: Line, number: int) -> Finding:
    return Finding(
        number=number,
        check=str(line["check"]),
        claim=str(line["claim"]),
        story=str(line.get("story", "")),
        ns=line["ns"],
        about_ns=_whole(line.get("ns_of")),
        faults=tuple(int(fault) for fault in _several(line.get("fault"))),
        tids=_texts(line.get("tid")),
        log=_texts(line.get("log")),
    )


def _several(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in _several(value))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
