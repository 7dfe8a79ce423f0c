"""Journals of runs that never were: as many calls, faults and violations as a test asks for."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

Line = dict[str, Any]

REPLICAS: Final = ("r1", "r2", "r3")
KINDS: Final = (
    *("killed", "frozen", "cut from ZooKeeper", "cut between agents", "one way cut", "clock jumped"),
    *("disk full", "fsync failed", "bit flipped", "truncated", "disk slow", "disk replaced"),
    *("ZooKeeper leader killed", "session expired", "rolling restart", "majority lost"),
)
HOSTILE: Final = "<script>alert('taken over')</script> & \"quoted\" \x00 \ud800"
#: The transaction of the planted violation, and its fault.
LOST_TID: Final = "41-r2-3-17"
LOST_FAULT: Final = 2
_BEGIN_NS: Final = 7_000_000_000_000


def run_lines(
    *, minutes: float, commits: int, reads: int, faults: int, seed: int = 1, failing: bool = False
) -> list[Line]:
    """Return the lines of a run in the order of their moments; times are spread evenly, with a stall a fault.

    Args:
        minutes: Its length.
        commits: Writes, of which some are refused and some end unknown.
        reads: Reads.
        faults: Faults of all kinds in turn; the last one has no proof if the run is failing.
        seed: Of what is drawn.
        failing: Whether an acknowledged commit was lost, as a check says.
    """
    chance = random.Random(seed)
    length_ns = int(minutes * 60e9)
    acts = [_fault(number, faults, length_ns, chance) for number in range(1, faults + 1)]
    lines = [line for act in acts for line in _lines_of(act)]
    stalls = sorted((act["begin"], act["begin"] + act["stall"]) for act in acts)
    lines += _calls("write", commits, length_ns, stalls, chance)
    lines += _calls("read", reads, length_ns, stalls, chance)
    lines += _csns(length_ns, commits, acts)
    if failing:
        lines = [line for line in lines if line["what"] != "proof" or line["fault"] != faults]
        lines += _violation(acts[LOST_FAULT - 1]["begin"], length_ns)
    for name, share in (("load", 0.0), ("faults", 0.02), ("heal", 0.92), ("check", 0.96), ("over", 1.0)):
        lines.append({"ns": int(share * length_ns), "what": "phase", "name": name})
    lines.sort(key=lambda line: line["ns"])
    head = {"ns": -1, "what": "run", "seed": seed, "minutes": minutes, "kind": "processes", "copies": 2}
    lines.insert(0, {**head, "replicas": list(REPLICAS), "zookeepers": ["z1", "z2", "z3"]})
    for line in lines:
        line["ns"] += _BEGIN_NS
        for name in ("began_ns", "ns_of"):
            if name in line:
                line[name] += _BEGIN_NS
    return lines


def kept(folder: Path, lines: Iterable[Line]) -> Path:
    """Write lines as the journal of a run in a folder; return the folder."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "journal.jsonl").write_text(text, encoding="utf-8")
    return folder


def _fault(number: int, faults: int, length_ns: int, chance: random.Random) -> Line:
    step = length_ns * 0.86 / faults
    begin = int(length_ns * 0.03 + (number - 1) * step)
    lasts = int(min(chance.uniform(2e9, 12e9), step * 1.3))
    recovery = int(chance.uniform(0.1e9, 3e9))
    kind = KINDS[(number - 1) % len(KINDS)]
    target = "z1" if kind.startswith("ZooKeeper") else REPLICAS[number % len(REPLICAS)]
    stall = int(chance.uniform(0.1e9, 2.5e9))
    return {
        "number": number,
        "kind": kind,
        "target": target,
        "begin": begin,
        "end": begin + lasts,
        "well": begin + lasts + recovery,
        "stall": min(stall, lasts),
    }


def _lines_of(act: Line) -> list[Line]:
    fault, begin = act["number"], act["begin"]
    return [
        {"ns": begin, "what": "begin", "fault": fault, "kind": act["kind"], "targets": [act["target"]]},
        {"ns": begin + 10_000_000, "what": "acting", "fault": fault},
        {
            "ns": begin + 500_000_000,
            "what": "proof",
            "fault": fault,
            "proof": f"{act['target']} gave no answer for 0.5 s",
        },
        {"ns": act["end"], "what": "end", "fault": fault},
        {"ns": act["well"], "what": "well", "fault": fault},
    ]


def _calls(
    f: str, count: int, length_ns: int, stalls: list[tuple[int, int]], chance: random.Random
) -> list[Line]:
    found = []
    for number in range(count):
        began = int(length_ns * (0.005 + 0.94 * number / count))
        stall = next((end for begin, end in stalls[:0] or _near(stalls, began) if begin <= began < end), None)
        took = chance.lognormvariate(-4.0 if f == "read" else -3.2, 0.6) * 1e9
        ns = int((stall or began) + took)
        line: Line = {
            "ns": ns,
            "what": "call",
            "workload": "transfers",
            "process": f"{f}r{number % 8}",
            "f": f,
        }
        line |= {"end": "ok", "began_ns": began, "csn": number + 1, "replica": REPLICAS[number % 3]}
        if f == "write":
            line["tid"] = f"{number}-{REPLICAS[number % 3]}-1-{number}"
        if stall is not None and chance.random() < 0.3:
            line |= {"end": "fail", "error": "UnavailableError", "message": "no agent answered within 2 s"}
            if f == "write" and chance.random() < 0.2:
                line |= {"end": "info", "error": "CommitUnknownError", "message": "the answer was lost"}
                outcome = {"what": "outcome", "tid": line["tid"], "outcome": "committed", "csn": number + 1}
                found.append({"ns": ns + 3_000_000_000, **outcome})
        found.append(line)
    return found


def _near(stalls: list[tuple[int, int]], ns: int) -> list[tuple[int, int]]:
    return list(itertools.takewhile(lambda stall: stall[0] <= ns, stalls))[-3:]


def _csns(length_ns: int, commits: int, acts: list[Line]) -> list[Line]:
    """Each replica says its CSN every half second; it is silent under a fault, and behind after it."""
    found = []
    for ns in range(0, length_ns, 500_000_000):
        for replica in REPLICAS:
            hit = [act for act in acts if act["target"] == replica and act["begin"] <= ns < act["well"]]
            csn = int(commits * min(ns / length_ns, 0.945))
            line: Line = {"ns": ns, "what": "csn", "replica": replica}
            if any(ns < act["end"] for act in hit):
                continue
            behind = commits // 200 if hit else 0
            found.append({**line, "csn": max(csn - behind, 0), "state": "starting" if hit else "serving"})
    return found


def _violation(begin: int, length_ns: int) -> list[Line]:
    ended = begin + 1_500_000_000
    call = {"what": "call", "workload": "transfers", "process": "writer7", "f": "write", "end": "ok"}
    return [
        {**call, "ns": ended, "began_ns": begin + 1_000_000_000, "tid": LOST_TID, "csn": 42, "home": "r2"},
        {
            "ns": int(length_ns * 0.97),
            "what": "violation",
            "check": "lost commits",
            "claim": "I4 DURABLE",
            "story": f"expected 3 rows of {LOST_TID} on r1, r2 and r3\nfound none on r3 {HOSTILE}",
            "ns_of": ended,
            "tid": [LOST_TID],
        },
        {
            "ns": int(length_ns * 0.98),
            "what": "violation",
            "check": "total constant",
            "claim": "G-single",
            "story": "the sum over all accounts is 9,990, not 10,000",
            "ns_of": int(length_ns * 0.6),
        },
        {"ns": ended + 100_000_000, "what": "note", "text": f"r2 said {HOSTILE}"},
    ]
