"""Bodies of snapshots and queries. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class SnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /snapshots.

    Attributes:
        csn: Exactly this CSN.
        at_ms: The newest CSN whose effective time is not after this (Unix, ms).
        min_csn: This CSN or a newer one.
        ttl_s: How long the pin outlives the last sign of life, in seconds; null: the agent's default.
    """

    csn: int | None = None
    at_ms: int | None = None
    min_csn: int | None = None
    ttl_s: float | None = None


class SnapshotPin(msgspec.Struct, frozen=True):
    """A CSN that is readable as long as its pin is renewed within `ttl_s`."""

    id: str
    csn: int
    ttl_s: float


class SnapshotInfo(msgspec.Struct, frozen=True):
    """A pin that a client holds through a replica; `left_s`: seconds until it ends without a renewal."""

    id: str
    csn: int
    ttl_s: float
    left_s: float


class SnapshotClosed(msgspec.Struct, frozen=True):
    """The id of a pin that was released."""

    id: str


class QueryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /query: at a CSN or inside a transaction; either `sql` or `table`.

    Attributes:
        csn: The CSN at which the query reads.
        tid: The transaction in which the query reads.
        sql: A statement.
        table: A table whose rows are requested.
        columns: The requested columns; null: all.
        where: A condition in SQL.
        params: Values of the `?`.
        parts: Rows of these parts of `table` only.
    """

    csn: int | None = None
    tid: str | None = None
    sql: str | None = None
    table: str | None = None
    columns: list[str] | None = None
    where: str | None = None
    params: list[Any] = []
    parts: list[str] | None = None
