"""The digests by which replicas are compared at one CSN: of each table's parts, and of outcomes (I8, I10)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.visibility import VISIBLE_SQL, visible_args
from tidelock.wire.audit import Digest, Digests

_PARTS = f"""
    SELECT table_name, part, path, rows, length, checksum, creation_csn, creation_tid, creation_change
    FROM parts WHERE kind = 'part' AND {VISIBLE_SQL} ORDER BY table_name, part
"""  # noqa: S608
_OUTCOMES = """
    SELECT tid, csn, time_ms, label, batch, progress FROM outcomes
    WHERE csn > :above AND csn <= :s ORDER BY csn, tid
"""
_encode = msgspec.json.Encoder().encode


def digests(data_dir: Path, replica: ReplicaId, csn: Csn, above: Csn | None, *, tables: bool) -> Digests:
    """Compute the digests of one state of the catalog; reads it all, so not in the event loop's thread.

    Args:
        data_dir: The agent's data directory.
        replica: Its id.
        csn: A CSN that is applied here, and not below the horizon.
        above: Outcomes above this CSN are compared; None = all kept outcomes.
        tables: Whether to include digests of parts.
    """
    with _one_state(data_dir) as db:
        floor = Csn(db.execute("SELECT value FROM meta WHERE key = 'outcome_floor'").fetchone()[0])
        begin = floor if above is None else above
        args = visible_args(csn) | {"above": begin}
        parts = db.execute(_PARTS, args) if tables else ()
        return Digests(
            replica=replica,
            csn=csn,
            above=begin,
            outcome_floor=floor,
            tables={name: _digest(rows) for name, rows in groupby(parts, key=lambda row: str(row[0]))},
            # Agents that know no progress, beside this one, give the others the same digest.
            outcomes=_digest(row if row[-1] is not None else row[:-1] for row in db.execute(_OUTCOMES, args)),
        )


def _digest(rows: Iterable[tuple[Any, ...]]) -> Digest:
    whole, count = xxhash.xxh3_128(), 0
    for row in rows:
        whole.update(_encode(row))
        count += 1
    return Digest(count, whole.hexdigest())


@contextmanager
def _one_state(data_dir: Path) -> Iterator[sqlite3.Connection]:
    uri = f"file:{data_dir / 'catalog.db'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        db.execute("BEGIN")
        yield db
