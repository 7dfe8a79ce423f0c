"""The journal of a run: everything that happened, one JSON object to a line, in one clock.

Every line has ``ns`` (the monotonic clock of the machine) and ``what``, and what belongs to it:

    run        seed, minutes, kind (processes or containers), replicas and zookeepers (names), copies,
               versions (name: version): the first line
    members    replicas: who is a member from here on, when a change of members is over
    phase      name: load, faults, heal, check, over
    call       workload, process, f (write, read, land, stream or rollback), end (ok, fail, info), began_ns,
               and where it is known tid, csn, replica (that was asked), home, error (name of the class),
               message, expected (true: the workload has provoked this refusal), spark (number of the session)
    begin      fault (number), kind, targets: a fault begins to act
    acting     fault: it acts from here on
    proof      fault, proof (text): its effect was seen
    end        fault: it was healed
    well       fault: its targets serve again
    spared     fault, kind, why: it could not begin within what is promised and was left out, or (behind its
               begin) it has found nothing to harm
    converged  seconds, lacking: all replicas serve and are at the end of the log, so long after the heal; or
               what was lacking when the bound was over
    outcome    tid, outcome (committed, aborted), csn: the outcome of a call that ended with info, asked later
    csn        replica, csn, state, horizon, held_by, pins, open (transactions): what a replica says of
               itself, taken again and again
    judged     check (or workload), found: how many violations it has found, when all of it was judged
    violation  check, claim, story, ns_of (moment that it is about), fault (numbers), tid
    met        workload, met, replica: what a workload waits for has happened there for the first time
    note       text

A line is handed to the kernel before its writer goes on, so the journal outlives the run.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Journal:
    """Writes a journal; any number of threads may use it.

    Args:
        path: The file; it must not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("x", buffering=1, encoding="utf-8")
        self._ended: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def note(self, what: str, **fields: Any) -> int:
        """Write one line, without the fields that are None; return its moment in ns."""
        ns = time.monotonic_ns()
        given = {name: value for name, value in fields.items() if value is not None}
        text = json.dumps({"ns": ns, "what": what, **given}, ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            self._file.write(text + "\n")
            if what == "call":
                self._ended[fields["f"], fields["end"]] += 1
        return ns

    def count(self, f: str, end: str = "ok") -> int:
        """Return how many calls of a kind have ended so."""
        with self._lock:
            return self._ended[f, end]


def load(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal in their order; ValueError if a line is not JSON."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
