"""The ways in which the benchmarks commit, for those that measure and those that show it. Pure."""

from __future__ import annotations

import enum


class Way(enum.StrEnum):
    """How a client of Tidelock commits a batch.

    Attributes:
        WRITE: `db.write`, one request.
        STATEMENTS: Begin, an insert into each of two tables, and commit: four requests.
    """

    WRITE = "write"
    STATEMENTS = "statements"
