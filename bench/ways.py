"""The ways in which the benchmarks commit, for those that measure and those that show it. Pure."""

from __future__ import annotations

import enum


class Way(enum.StrEnum):
    """How a client of Tidelock commits a batch: `write` is one request, the other way takes four."""

    WRITE = "write"
    STATEMENTS = "begin, 2 inserts, commit"
