"""The violations of a run as they are found; the journal has them with the faults around them."""

from __future__ import annotations

import threading

from chaos.reading.bands import at, bands
from chaos.record.journal import Journal, load
from chaos.record.violation import Violation


class Violations:
    """All violations of a run; any number of threads may use it.

    Args:
        journal: The journal of the run.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._found: list[Violation] = []

    @property
    def found(self) -> list[Violation]:
        """All of them, in the order in which they were found."""
        with self._lock:
            return [*self._found]

    def add(self, *violations: Violation) -> None:
        """Keep them."""
        if not violations:
            return
        with self._lock:
            self._found += violations
        moments = bands(load(self._journal.path))
        for one in violations:
            around = [] if one.ns is None else [band.fault for band in at(moments, one.ns)]
            self._journal.note(
                "violation",
                check=one.check,
                claim=one.claim,
                story=one.story,
                ns_of=one.ns,
                fault=around or None,
                tid=[*one.tids] or None,
            )
