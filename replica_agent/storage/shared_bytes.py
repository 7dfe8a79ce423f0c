"""Parts that share bytes: one range of a file is the content of several parts (rule shared-bytes).

A part that comes back, or that is in several tables, is a new part, with an id, a table and an interval of
CSNs of its own. It names the part that had its bytes first, its origin. Each replica that holds any part of
the same origin gives the new one the place of that part. The rows themselves count the references: a file
goes when no row names it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from tidelock.csnlog.core.ids import PartId, Tid
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_schema import TWIN_SQL, twin_args
from tidelock.replication.core.model import PartMeta

_PLACE: Final = f"SELECT file, offset, blocks, stats, form {TWIN_SQL}"


class Sharer(msgspec.Struct, frozen=True):
    """A part that is to have the bytes of another one.

    Attributes:
        meta: The part.
        tid: The transaction that adds it.
        known: Only if it has a row: its transaction is committed, and without a row the part was collected.
    """

    meta: PartMeta
    tid: Tid
    known: bool = False


class Shared(msgspec.Struct, frozen=True):
    """The result of :func:`share`.

    Attributes:
        parts: The parts that it has made held.
        unused: Files in which no part is any more, noted as undo rows.
    """

    parts: frozenset[PartId]
    unused: list[str]


def share(db: sqlite3.Connection, parts: Sequence[Sharer]) -> Shared:
    """Give those parts that are not held the bytes of a part of their origin, where one is held.

    A part without a row gets one, as an undecided part of its transaction. A known part keeps its CSNs.
    """
    done: set[PartId] = set()
    left: list[str | None] = []
    for one in parts:
        meta = one.meta
        found = db.execute("SELECT state, file FROM parts WHERE part = ?", (meta.part,)).fetchone()
        if (one.known and found is None) or (found is not None and found[0] == "held"):
            continue
        place = db.execute(_PLACE, twin_args(meta)).fetchone()
        if place is not None:
            _store(db, one, place)
            done.add(meta.part)
            left.append(None if found is None else found[1])
    return Shared(frozenset(done), jobs.release_files(db, left))


def _store(
    db: sqlite3.Connection, one: Sharer, place: tuple[str, int, bytes, str | None, str | None]
) -> None:
    meta = one.meta
    file, offset, blocks, stats, form = place
    given = json.dumps(meta.stats, separators=(",", ":")) if meta.stats else None
    db.execute(
        """
        INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid,
                           file, offset, blocks, stats, kind, state, form, source, columns_csn)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'held', ?, ?, ?)
        ON CONFLICT (part) DO UPDATE SET
            file = excluded.file, offset = excluded.offset, blocks = excluded.blocks,
            stats = coalesce(stats, excluded.stats), form = coalesce(form, excluded.form), state = 'held'
        """,
        (
            *(meta.part, meta.table, meta.path, meta.rows, meta.length, meta.checksum, str(one.tid)),
            *(file, offset, blocks, given or stats, meta.kind, meta.form or form, meta.source),
            meta.columns_csn,
        ),
    )
